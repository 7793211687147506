#include "suite/predict/counted_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <ranges>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "suite/configuration/keys.h"
#include "suite/trainer/validation.h"

namespace suite::predict {
namespace {

using configuration::Key;
using configuration::Taken;

[[noreturn]] void reject(std::string_view key, std::string_view value, std::string_view why) {
  throw std::invalid_argument(
      fmt::format("predict does not support {} {}, because {}; leave it out", key, value, why));
}

}  // namespace

std::string counted_keys_list() {
  constexpr std::string_view names[] = {"Counted", "Counted", "No effect", "Rejected"};  // by Taken
  constexpr std::size_t most_columns = 120;
  struct Group {  // keys that are taken in the same way
    configuration::Predicted predicted;
    std::vector<std::string_view> keys;
  };
  std::vector<Group> groups;
  for (const Key& key : configuration::keys()) {
    if (!key.field) continue;
    const auto found = std::ranges::find_if(groups, [&](const Group& group) {
      return group.predicted.taken == key.predicted.taken &&
             group.predicted.about == key.predicted.about;
    });
    if (found == groups.end())
      groups.push_back({key.predicted, {key.name()}});
    else
      found->keys.push_back(key.name());
  }
  std::ranges::stable_sort(groups, {}, [](const Group& group) { return group.predicted.taken; });
  std::string out;
  for (const auto& [predicted, keys] : groups) {
    std::string line = fmt::format("- {}:", names[static_cast<std::size_t>(predicted.taken)]);
    const auto add = [&](const std::string& word) {
      if (line.size() + 1 + word.size() > most_columns) {
        out += line + "\n";
        line = " ";
      }
      line += " " + word;
    };
    for (const std::string_view& key : keys)
      add(fmt::format("`{}`{}", key, &key == &keys.back() ? "." : ","));
    std::string about(predicted.about);
    about.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(about.front())));
    for (const auto one : std::views::split(about + ".", ' '))
      add(std::string(one.begin(), one.end()));
    out += line + "\n";
  }
  return out;
}

void check_counted(const TrainingConfig& config, const Cluster& cluster) {
  if (config.precision.dtype == machine::Dtype::float64)
    reject("dtype", "double", "a cluster has no rate of products in double");
  TrainingConfig given = config, fresh;
  for (const Key& key : configuration::keys()) {
    if (!key.field || key.predicted.taken != Taken::rejected) continue;
    const std::string value = key.field(given).text();
    if (value != key.field(fresh).text()) reject(key.name(), value, key.predicted.about);
  }
  config.context.validate(config.degrees.cp, config.model.sequence,
                          config.model.heads / config.degrees.tp,
                          config.model.query_groups() / config.degrees.tp);
  if (!config.fp8.on()) return;
  if (cluster.gpu.fp8 <= 0)
    throw std::invalid_argument(
        fmt::format("fp8-format {} requires gpu.fp8_tflops of cluster {}, the dense peak of its "
                    "GPUs in 8 bits (got 0)",
                    name(config.fp8.format), cluster.name));
  validate(config);
}

}  // namespace suite::predict
