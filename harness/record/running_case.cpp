#include "harness/record/running_case.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <ranges>
#include <system_error>

namespace harness {
namespace {

std::string file_in(const std::string& directory) { return directory + "/running"; }

}  // namespace

void say_running(const std::string& directory, const std::string& name) {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  std::ofstream(file_in(directory))
      << fmt::format("rank 0 (pid {} on {})\n{}\n", ::getpid(), host, name);
}

void say_none_runs(const std::string& directory) {
  std::error_code ignored;
  std::filesystem::remove(file_in(directory), ignored);
}

std::optional<RunningCase> running_case(const std::string& directory) {
  std::ifstream file(file_in(directory));
  RunningCase found;
  if (!std::getline(file, found.process) || !std::getline(file, found.name) || found.name.empty())
    return std::nullopt;
  return found;
}

Record lost_record(const std::string& name, const machine::Failure& failure) {
  Record record;
  record.name = name.empty() ? "launch" : name;
  record.unit = record.name.substr(0, record.name.find('/'));
  for (const auto range : std::views::split(record.name, '/') | std::views::drop(1)) {
    const std::string part(range.begin(), range.end());
    if (const std::size_t colon = part.find(':'); colon != std::string::npos)
      record.axes.emplace_back(part.substr(0, colon), part.substr(colon + 1));
  }
  record.verdict = Ruling::fail;
  record.reason = failure.text;
  record.failure = failure;
  return record;
}

}  // namespace harness
