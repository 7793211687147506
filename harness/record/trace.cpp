#include "harness/record/trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "harness/record/record_json.h"
#include "harness/record/run_json.h"
#include "machine/device/error.h"

namespace harness {
namespace {

constexpr std::string_view begin = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n",
                           end = "\n]}\n";
constexpr std::string_view first_key = "{\"pid\":";
constexpr std::size_t most_ranks = std::size_t{1} << 20;  // of one case

// The case's events, a line each, none with a comma behind it.
std::string events(std::size_t number, const Record& record) {
  std::string text;
  std::map<std::pair<int, std::string>, int> lanes;
  for (const Span& span : record.trace) {
    const std::size_t process = number * most_ranks + static_cast<std::size_t>(span.rank);
    int& lane = lanes[{span.rank, span.lane}];
    const auto line = [&](const std::string& rest) {
      text += fmt::format("{}{}{},{}}}", text.empty() ? "" : ",\n", first_key, process, rest);
    };
    if (lane == 0) {
      const auto name = [&](std::string_view what, const std::string& called) {
        line(fmt::format("\"tid\":{},\"ph\":\"M\",\"name\":\"{}\",\"args\":{{\"name\":{}}}", lane,
                         what, json_text(called)));
      };
      lane = static_cast<int>(lanes.size());
      name("process_name", fmt::format("rank {} of {}", span.rank, record.name));
      name("thread_name", span.lane);
    }
    line(fmt::format("\"tid\":{},\"ph\":\"X\",\"name\":{},\"ts\":{:.3f},\"dur\":{:.3f}", lane,
                     json_text(span.name), 1e6 * span.start_s, 1e6 * (span.end_s - span.start_s)));
  }
  return text;
}

}  // namespace

TraceWriter::TraceWriter(const std::string& directory, std::size_t kept)
    : path_(directory + "/trace.json") {
  std::error_code ignored;
  std::ifstream file(path_);
  if (!file) return;
  std::string text;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with(',')) line.pop_back();
    // A line that a lost process left half-written belongs to a case that is not kept.
    if (!line.starts_with(first_key) || !line.ends_with('}')) continue;
    if (std::strtoull(line.c_str() + first_key.size(), nullptr, 10) >= kept * most_ranks) continue;
    text += (text.empty() ? std::string(begin) : std::string(",\n")) + line;
  }
  file.close();
  bytes_ = text.size();
  if (text.empty())
    std::filesystem::remove(path_, ignored);
  else
    write_file(path_, text + std::string(end));
}

void TraceWriter::add(std::size_t number, const Record& record) {
  std::string text = events(number, record);
  if (text.empty() || bytes_ + text.size() > most_bytes) return;
  text.insert(0, bytes_ == 0 ? begin : std::string_view(",\n"));
  const std::size_t added = text.size();
  text += end;
  const int file = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  const auto refuse = [&] {
    throw machine::MachineError(fmt::format("cannot write to {}: {}", path_, std::strerror(errno)));
  };
  if (file < 0) refuse();
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote =
        ::pwrite(file, text.data() + done, text.size() - done, static_cast<off_t>(bytes_ + done));
    if (wrote < 0 && errno != EINTR) refuse();
    if (wrote > 0) done += static_cast<std::size_t>(wrote);
  }
  ::close(file);
  bytes_ += added;
}

}  // namespace harness
