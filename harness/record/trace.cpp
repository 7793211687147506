#include "harness/record/trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "harness/json/json.h"
#include "harness/record/record_json.h"
#include "harness/record/run_json.h"
#include "machine/base/error.h"

namespace harness {
namespace {
constexpr std::string_view begin = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n",
                           end = "\n]}\n";
constexpr std::string_view first_key = "{\"case\":";  // of a line; viewers ignore it
constexpr int cases = 1;          // the thread; those of a rank begin at (rank + 1) most_lanes
constexpr int most_lanes = 1000;  // viewers put threads in the order of their numbers
constexpr std::int64_t gap_ns = 1'000'000;  // between two cases

std::int64_t ns_of(const Json& us) { return std::llround(1000 * us.get<double>()); }

}  // namespace

std::string TraceWriter::events(std::size_t number, const Record& record, Written& written) {
  if (record.trace.empty()) return "";
  std::string text;
  const auto line = [&](int thread, const Json& rest) {
    Json event{{"case", number}, {"pid", 1}, {"tid", thread}};
    event.update(rest);
    text += (text.empty() ? "" : ",\n") + event.dump();
  };
  const auto call = [&](int thread, std::string_view what, const std::string& name) {
    line(thread, {{"ph", "M"}, {"name", fmt::format("{}_name", what)}, {"args", {{"name", name}}}});
  };
  const auto slice = [&](int thread, const std::string& name, std::int64_t from_ns,
                         std::int64_t to_ns) {
    line(thread, {{"ph", "X"},
                  {"name", name},
                  {"ts", static_cast<double>(from_ns) / 1e3},  // microseconds
                  {"dur", static_cast<double>(to_ns - from_ns) / 1e3}});
  };
  const std::int64_t start_ns = written.end_ns + (written.end_ns > 0 ? gap_ns : 0);
  const auto at = [&](double seconds) {
    return start_ns + static_cast<std::int64_t>(std::llround(1e9 * seconds));
  };
  for (const Span& span : record.trace) written.end_ns = std::max(written.end_ns, at(span.end_s));
  if (written.named.insert(cases).second) {
    call(cases, "process", "one step of every case");
    call(cases, "thread", "case");
  }
  slice(cases, record.name, start_ns, written.end_ns);
  for (const Span& span : record.trace) {
    const int lane =
        written.lanes.try_emplace(span.lane, static_cast<int>(written.lanes.size())).first->second;
    const int thread = (span.rank + 1) * most_lanes + lane % most_lanes;
    if (written.named.insert(thread).second)
      call(thread, "thread", fmt::format("rank {}, {}", span.rank, span.lane));
    slice(thread, span.name, at(span.start_s), at(span.end_s));
  }
  return text;
}

TraceWriter::TraceWriter(const std::string& directory, std::size_t kept)
    : path_(directory + "/trace.json") {
  std::error_code ignored;
  std::ifstream file(path_);
  if (!file) return;
  std::string text;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with(',')) line.pop_back();
    // A line that a lost process left incomplete belongs to a case that is not kept.
    if (!line.starts_with(first_key) || !line.ends_with('}')) continue;
    if (std::strtoull(line.c_str() + first_key.size(), nullptr, 10) >= kept) continue;
    try {
      written_.keep(Json::parse(line));
    } catch (const JsonError&) {
      continue;  // not an event of this program
    }
    text += (text.empty() ? std::string(begin) : std::string(",\n")) + line;
  }
  file.close();
  written_.bytes = text.size();
  if (text.empty())
    std::filesystem::remove(path_, ignored);
  else
    write_file(path_, text + std::string(end));
}

void TraceWriter::Written::keep(const Json& event) {
  const int thread = event.at("tid").get<int>();
  if (event.at("ph").text() == "X")
    end_ns = std::max(end_ns, ns_of(event.at("ts")) + ns_of(event.at("dur")));
  if (event.at("name").text() != "thread_name") return;
  named.insert(thread);
  const std::string& name = event.at("args").at("name").text();
  if (thread != cases) lanes[name.substr(name.find(", ") + 2)] = thread % most_lanes;
}

void TraceWriter::add(std::size_t number, const Record& record) {
  Written written = written_;
  std::string text = events(number, record, written);
  if (text.empty() || written_.bytes + text.size() > most_bytes) return;
  text.insert(0, written_.bytes == 0 ? begin : std::string_view(",\n"));
  const std::size_t added = text.size();
  text += end;
  const OpenFile file{::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644)};
  if (file.descriptor < 0)
    throw machine::MachineError(fmt::format("cannot write to {}: {}", path_, std::strerror(errno)),
                                machine::kind_of_errno(errno));
  write_at(file.descriptor, text, written_.bytes, path_);
  written_ = std::move(written);
  written_.bytes += added;
}

}  // namespace harness
