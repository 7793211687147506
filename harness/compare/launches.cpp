#include "harness/compare/launches.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "harness/record/counters.h"
#include "harness/unit/sweep.h"

namespace harness {
namespace {

namespace fs = std::filesystem;

bool holds_a_run(const fs::path& directory) {
  std::error_code failed;
  return fs::exists(directory / "run.json", failed);
}

std::vector<std::string> run_directories(const std::string& given, std::string_view side,
                                         std::vector<std::string>& notes) {
  std::error_code failed;
  if (!fs::is_directory(given, failed))
    throw UsageError(fmt::format("{}: no folder at {}", side, given));
  if (holds_a_run(given)) return {given};
  std::vector<std::string> found, without;
  for (const fs::directory_entry& entry : fs::directory_iterator(given, failed)) {
    if (!entry.is_directory(failed)) continue;
    (holds_a_run(entry.path()) ? found : without).push_back(entry.path().string());
  }
  if (found.empty())
    throw UsageError(fmt::format("{}: {} and its folders contain no run.json", side, given));
  std::ranges::sort(found);
  std::ranges::sort(without);
  for (const std::string& path : without)
    notes.push_back(fmt::format("{}: {} contains no run.json", side, path));
  return found;
}

}  // namespace

std::vector<Launch> read_launches(const std::vector<std::string>& given, std::string_view side,
                                  std::vector<std::string>& notes) {
  std::vector<Launch> launches;
  std::set<fs::path> taken;
  for (const std::string& one : given)
    for (const std::string& path : run_directories(one, side, notes)) {
      if (!taken.insert(fs::weakly_canonical(path)).second)
        throw UsageError(fmt::format("{}: {} is given twice", side, path));
      RunFile run = read_run(path);
      if (run.context.status != "complete")
        notes.push_back(fmt::format("{}: {} is {}{}{}", side, path, run.context.status,
                                    run.context.status_reason.empty() ? "" : ": ",
                                    run.context.status_reason));
      for (Record& record : run.records) record.samples = {};  // of many launches, much memory
      launches.push_back({path, run.date, read_fields(path, run), std::move(run.records)});
    }
  return launches;
}

std::map<std::string, std::string> numbers_of(const Record& record) {
  std::map<std::string, std::string> numbers;
  numbers["verdict"] = name(record.verdict);
  if (!record.fingerprint.empty()) numbers["fingerprint"] = record.fingerprint;
  for (const auto& [counter, value] : record.counters)
    if (const Counter* row = find_counter(counter); row && row->nature == Nature::exact)
      numbers[counter] = fmt::format("{}", value);
  for (const CategoryBytes& row : record.memory)
    numbers["memory." + row.category] = std::to_string(row.measured);
  for (std::size_t step = 0; step < record.losses.size(); ++step)
    numbers[fmt::format("loss of step {}", step)] = fmt::format("{}", record.losses[step]);
  return numbers;
}

}  // namespace harness
