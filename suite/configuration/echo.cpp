// The text and the JSON of a resolved configuration.

#include <fmt/format.h>

#include <algorithm>

#include "harness/json/json.h"
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
  harness::Json keys = harness::Json::object(), ignored = keys;
  for (const Entry& entry : resolved.entries) {
    harness::Json& one = keys[entry.key];
    // Numbers and truth values are not strings.
    if (entry.value != "none")
      one["value"] = entry.is_text ? harness::Json(entry.value) : harness::Json::parse(entry.value);
    else
      one["value"] = nullptr;
    one["origin"] = entry.origin;
    if (!entry.since.empty()) one["since"] = entry.since;
  }
  for (const Ignored& one : resolved.ignored)
    ignored[one.key] = {{"value", one.value}, {"origin", one.origin}, {"why", one.why}};
  return harness::Json{{"keys", keys}, {"ignored", ignored}, {"warnings", resolved.warnings}}.dump(
      2);
}

}  // namespace suite::configuration
