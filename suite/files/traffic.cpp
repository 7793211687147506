#include "suite/files/traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "machine/base/names.h"
#include "suite/files/mapped_file.h"
#include "suite/options/options.h"

namespace suite {

using collectives::TrafficMatrix;
using harness::UsageError;

namespace {

// Larger than any memory, and sums of a row cannot overflow.
constexpr double most_bytes = 0x1p50;

std::int64_t parse_bytes(const std::string& text, const std::string& place) {
  const auto value = number_of<double>(text);
  if (!value || !(*value < most_bytes))
    reject("{}: {} is not a number of bytes", place, in_quotes(text));
  if (*value < 0) reject("{}: {} is negative", place, text);
  return static_cast<std::int64_t>(*value);
}

// Returns the elements from `from` to `to` if the busiest of n ranks moves `whole` elements.
std::int64_t generated(std::string_view traffic, int from, int to, std::int64_t n,
                       std::int64_t whole) {
  const std::int64_t ahead = (to - from + n) % n;
  if (traffic == "uniform" || n == 1) return whole / n;
  if (traffic == "skewed") return whole * ahead / (n * (n - 1) / 2);
  if (traffic == "hot_spot") return to == 0 ? whole / n : whole / n / 8;
  if (from % 2 != 0) return 0;
  const std::int64_t half = whole / 2;
  return (ahead == 1 % n ? whole - half : 0) + (ahead == 2 % n ? half : 0);
}

}  // namespace

bool is_generated(std::string_view traffic) {
  return std::ranges::find(generated_traffic, traffic) != std::end(generated_traffic);
}

TrafficMatrix read_traffic_file(const std::string& path) {
  std::ifstream file(path);
  std::error_code ignored;
  if (!file || std::filesystem::is_directory(path, ignored))
    reject("cannot read the traffic file '{}'", path);
  std::vector<std::int64_t> bytes;
  std::string text;
  std::size_t columns = 0;
  int ranks = 0, first_line = 0;
  for (int line = 1; std::getline(file, text); ++line) {
    const std::string place = fmt::format("{}, line {}", path, line);
    std::istringstream words(text.substr(0, text.find('#')));
    std::size_t numbers = 0;
    for (std::string word; words >> word; ++numbers) bytes.push_back(parse_bytes(word, place));
    if (numbers == 0) continue;
    if (ranks++ == 0) {
      columns = numbers;
      first_line = line;
    }
    if (numbers != columns)
      reject("{}: {} numbers, but {} in line {}", place, numbers, columns, first_line);
  }
  if (ranks == 0) reject("{} holds no numbers", path);
  if (columns != static_cast<std::size_t>(ranks))
    reject("{} is not square: {} lines of {} numbers", path, ranks, columns);
  return {ranks, bytes};
}

std::shared_ptr<const TrafficMatrix> traffic_matrix(const std::string& traffic, int ranks,
                                                    std::int64_t bytes, machine::Dtype dtype,
                                                    std::int64_t granule_bytes) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t granule = std::max<std::int64_t>(granule_bytes / size, 1);
  // As in other collectives, at least one element per rank unless the call is empty.
  const std::int64_t whole = bytes == 0 ? 0 : std::max<std::int64_t>(bytes / size, ranks);
  std::optional<TrafficMatrix> file;
  if (!is_generated(traffic)) file = read_traffic_file(traffic);
  if (file && file->ranks() != ranks) throw UsageError(why_no_traffic(traffic, ranks));
  std::vector<std::int64_t> parts;
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to) {
      const std::int64_t part =
          file ? (*file)(from, to) / size : generated(traffic, from, to, ranks, whole);
      parts.push_back(part / granule * granule);
    }
  return std::make_shared<const TrafficMatrix>(ranks, parts);
}

std::string why_no_traffic(const std::string& traffic, int ranks,
                           std::optional<std::int64_t> bytes) {
  if (is_generated(traffic)) return {};
  std::error_code ignored;
  if (!std::filesystem::exists(traffic, ignored) &&
      traffic.find_first_of("./") == std::string::npos)
    return machine::unknown("traffic", traffic,
                            {std::begin(generated_traffic), std::end(generated_traffic)}) +
           " (or a file)";
  try {
    const TrafficMatrix file = read_traffic_file(traffic);
    if (file.ranks() != ranks)
      return fmt::format("{} is for {} ranks, not {}", traffic, file.ranks(), ranks);
    if (bytes && *bytes != file.busiest())
      return fmt::format("{} specifies {} bytes (of the busiest rank), not {}", traffic,
                         file.busiest(), *bytes);
  } catch (const UsageError& error) {
    return error.what();
  }
  return {};
}

void take_sizes_of_file(harness::AxisFlags& axes) {
  const auto traffic = axes.find("traffic");
  if (traffic == axes.end()) return;
  try {
    const TrafficMatrix file = read_traffic_file(traffic->second);
    axes.try_emplace("ranks", std::to_string(file.ranks()));
    axes.try_emplace("bytes", std::to_string(file.busiest()));
  } catch (const UsageError&) {
    return;  // the sweep reports the error
  }
}

}  // namespace suite
