// The text and the JSON of a resolved configuration.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "suite/configuration/resolve.h"
#include "suite/files/mapped_file.h"

namespace suite::configuration {
namespace {

// Returns "ds_config.json" for "/some/where/ds_config.json: zero_optimization.stage".
std::string brief(const Entry& entry) {
  std::string origin = entry.origin;
  if (const std::size_t end = origin.rfind(": " + entry.key);
      end != std::string::npos && end + 2 + entry.key.size() == origin.size())
    origin.resize(end);
  const std::size_t file = std::min(origin.find(": "), origin.size());
  const std::size_t slash = origin.rfind('/', file);
  return slash == std::string::npos ? origin : origin.substr(slash + 1);
}

}  // namespace

std::string text(const Resolved& resolved) {
  std::size_t key = 0, value = 0;
  for (const Entry& entry : resolved.entries) {
    key = std::max(key, entry.key.size());
    value = std::max(value, std::min<std::size_t>(entry.value.size(), 20));
  }
  std::string out;
  for (const Entry& entry : resolved.entries) {
    out += fmt::format("{:<{}}  {:<{}}  {}", entry.key, key, printable(entry.value), value,
                       printable(brief(entry)));
    if (!entry.since.empty()) out += fmt::format(" (by DeepSpeed's version: {})", entry.since);
    out += "\n";
  }
  for (const std::string& warning : resolved.warnings) out += fmt::format("warning: {}\n", warning);
  return out;
}

std::string json(const Resolved& resolved) {
  nlohmann::ordered_json keys = nlohmann::ordered_json::object(), ignored = keys;
  for (const Entry& entry : resolved.entries) {
    nlohmann::ordered_json& one = keys[entry.key];
    // Numbers and truth values are not strings.
    if (entry.value != "none")
      one["value"] = entry.is_text ? nlohmann::ordered_json(entry.value)
                                   : nlohmann::ordered_json::parse(entry.value);
    else
      one["value"] = nullptr;
    one["origin"] = entry.origin;
    if (!entry.since.empty()) one["since"] = entry.since;
  }
  for (const Ignored& one : resolved.ignored)
    ignored[one.key] = {{"value", one.value}, {"origin", one.origin}, {"why", one.why}};
  return nlohmann::ordered_json{
      {"keys", keys}, {"ignored", ignored}, {"warnings", resolved.warnings}}
      .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace suite::configuration
