#include "suite/files/hostfile.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "harness/unit/sweep.h"
#include "machine/base/names.h"
#include "suite/files/mapped_file.h"
#include "suite/options/options.h"

namespace suite {
namespace {

constexpr int most_slots = 4096;
constexpr std::size_t most_hosts = 100'000;

bool is_host_name(std::string_view text) {
  const auto usual = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
  };
  return !text.empty() && text.front() != '-' && std::ranges::all_of(text, usual);
}

int slots_of(const std::string& place, std::string_view text) {
  const long slots = number_of<long>(text).value_or(-1);
  if (slots < 1 || slots > most_slots)
    reject("{}: slots is {}; expected a whole number from 1 to {}", place, in_quotes(text),
           most_slots);
  return static_cast<int>(slots);
}

// Adds the hosts of "01-03" or "7". The first number determines the digits.
void expand_range(const std::string& place, std::string_view range, const std::string& before,
                  const std::string& after, std::vector<std::string>& hosts) {
  const std::size_t dash = range.find('-');
  const std::string_view first = range.substr(0, dash);
  const std::string_view last = dash == std::string_view::npos ? first : range.substr(dash + 1);
  const long from = number_of<long>(first).value_or(-1), to = number_of<long>(last).value_or(-1);
  if (from < 0 || to < from || to - from >= static_cast<long>(most_hosts))
    reject("{}: {} is not a range of host numbers", place, in_quotes(range));
  for (long i = from; i <= to; ++i)
    hosts.push_back(fmt::format("{}{:0{}}{}", before, i, first.size(), after));
}

// Returns "node[01-03,07]" in full.
std::vector<std::string> expanded_hosts(const std::string& place, const std::string& text) {
  const std::size_t open = text.find('['), close = text.find(']', open);
  if (open == std::string::npos) {
    if (!is_host_name(text)) reject("{}: {} is not a host name", place, in_quotes(text));
    return {text};
  }
  if (close == std::string::npos || text.find('[', close) != std::string::npos)
    reject("{}: brackets of {} do not match", place, in_quotes(text));
  std::vector<std::string> hosts;
  const std::string before = text.substr(0, open), after = text.substr(close + 1);
  if (!is_host_name(before + "0" + after))
    reject("{}: {} are not host names", place, in_quotes(text));
  for (std::size_t begin = open + 1; begin <= close;) {
    const std::size_t end = std::min(text.find(',', begin), close);
    expand_range(place, std::string_view(text).substr(begin, end - begin), before, after, hosts);
    if (hosts.size() > most_hosts) reject("{}: more than {} hosts", place, most_hosts);
    begin = end + 1;
  }
  return hosts;
}

}  // namespace

std::vector<HostSlots> read_hostfile(const std::string& path) {
  std::ifstream file(path);
  std::error_code ignored;
  if (!file || std::filesystem::is_directory(path, ignored))
    reject("cannot read the hostfile '{}'", path);
  std::vector<HostSlots> hosts;
  std::map<std::string, std::size_t> places;  // in hosts
  std::set<std::string> counted;              // hosts with a number of slots
  std::string text;
  for (int line = 1; std::getline(file, text); ++line) {
    const std::string place = fmt::format("{}, line {}", path, line);
    std::istringstream words(text.substr(0, text.find('#')));
    std::string name;
    if (!(words >> name)) continue;
    int slots = 0;
    if (const std::size_t colon = name.rfind(':'); colon != std::string::npos) {
      slots = slots_of(place, std::string_view(name).substr(colon + 1));
      name.resize(colon);
    }
    for (std::string word; words >> word;) {
      const std::string key = word.substr(0, word.find('='));
      if (key == "max_slots" || key == "max-slots") continue;
      if (key != "slots" || word.size() == key.size())
        reject("{}: {}; expected slots=N", place, in_quotes(word));
      if (slots > 0) reject("{}: slots is given twice", place);
      slots = slots_of(place, std::string_view(word).substr(key.size() + 1));
    }
    for (const std::string& host : expanded_hosts(place, name)) {
      const auto [found, is_new] = places.try_emplace(host, hosts.size());
      if (is_new) {
        hosts.push_back({host, std::max(slots, 1)});
      } else if (slots > 0 || counted.contains(host)) {
        reject("{}: {} is given twice", place, host);
      } else if (++hosts[found->second].slots > most_slots) {
        slots_of(place, std::to_string(hosts[found->second].slots));  // throws
      }
      if (slots > 0) counted.insert(host);
    }
  }
  if (hosts.empty()) reject("{} contains no host", path);
  return hosts;
}

}  // namespace suite
