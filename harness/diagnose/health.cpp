#include "harness/diagnose/health.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "harness/diagnose/findings.h"
#include "harness/record/summary.h"

namespace harness {
namespace {

using Json = nlohmann::ordered_json;

// The first "rank N" of a text.
int rank_in(const std::string& text, const std::string& before = "") {
  std::smatch found;
  return std::regex_search(text, found, std::regex(before + "rank (\\d+)")) ? std::stoi(found[1])
                                                                            : -1;
}

// By rank; empty where a rank's is not known.
std::vector<std::string> hosts_of(const Json& environment) {
  std::vector<std::string> hosts;
  const std::string everywhere =
      environment.value("same_on_all_ranks", Json::object()).value("host", "");
  for (const Json& rank : environment.value("ranks", Json::array()))
    hosts.push_back(rank.value("host", everywhere));
  return hosts;
}

class Examination {
 public:
  Examination(const RunFile& run, const Json& environment)
      : run_(run), environment_(environment), findings_(hosts_of(environment)) {}

  Health examine() {
    if (run_.machine.contains("injected"))
      findings_.add(Level::ok, "injected", {}, "on purpose: " + run_.machine.at("injected"));
    lost_rank();
    wrong_results();
    different_software();
    find_slow(run_, findings_);
    Health health{Level::ok, findings_.all()};
    std::ranges::stable_sort(health.findings, std::greater{}, &Finding::level);
    if (!health.findings.empty()) health.level = health.findings.front().level;
    return health;
  }

 private:
  void lost_rank() {
    if (run_.context.status != "aborted") return;
    // Of the watchdog's own sentence alone: others begin with a rank that waited.
    const std::string& reason = run_.context.status_reason;
    const int rank = names_lost_rank(reason) ? rank_in(reason) : -1;
    findings_.add(Level::critical, "lost rank", rank < 0 ? std::vector<int>{} : std::vector{rank},
                  run_.context.status_reason);
  }

  // By the rank, and the peer that it had it from: the first of them, and how many there are. A sum
  // of more than two ranks' parts does not tell whose was wrong.
  void wrong_results() {
    struct Wrong {
      std::vector<int> ranks;
      std::string kind, first;
      int cases = 0;
    };
    std::map<std::pair<int, int>, Wrong> wrong;
    for (const Record& record : run_.records) {
      if (record.verdict != Ruling::fail || record.reason == run_.context.status_reason) continue;
      const std::string text = fmt::format("{}", fmt::join(failure_lines(record), "; "));
      int rank = rank_in(text), peer = rank_in(text, "(?:received from|what came from) ");
      if (text.find("summed with") != std::string::npos &&
          std::atoi(axis(record, "ranks").c_str()) > 2)
        rank = peer = -1;
      Wrong& its = wrong[{rank, peer}];
      if (its.cases++ > 0) continue;
      its.kind = text.find("No space left") != std::string::npos      ? "full disk"
                 : text.find("out of memory on") != std::string::npos ? "out of memory"
                                                                      : "wrong result";
      for (const int named : {rank, peer})
        if (named >= 0) its.ranks.push_back(named);
      its.first = fmt::format("{}: {}", record.name, text);
    }
    for (const auto& [who, its] : wrong)
      findings_.add(
          Level::critical, its.kind, its.ranks,
          its.cases == 1 ? its.first : fmt::format("{} cases; the first {}", its.cases, its.first));
  }

  // A value that most ranks share is taken for the right one; of two ranks neither is.
  void different_software() {
    const Json ranks = environment_.value("ranks", Json::array());
    for (const Json& difference : environment_.value("differences", Json::array())) {
      const std::string path = difference;
      const bool of_software = path.starts_with("software.");
      if (!of_software && !path.starts_with("environment.") && path != "hardware.governor")
        continue;
      std::string pointer = "/" + path;
      std::ranges::replace(pointer, '.', '/');
      std::map<std::string, std::vector<int>> holders;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const Json::json_pointer at(pointer);
        holders[ranks[rank].contains(at) ? ranks[rank][at].dump() : "nothing"].push_back(
            static_cast<int>(rank));
      }
      std::string usual;
      for (const auto& [value, of] : holders)
        if (2 * of.size() > ranks.size()) usual = value;
      if (usual.empty() && !of_software) continue;  // a variable that every rank has its own of
      for (const auto& [value, of] : holders)
        if (value != usual)
          findings_.add(Level::warning, "different software", of,
                        fmt::format("{} is {}{}", path, value,
                                    usual.empty() ? ", and differs on the others"
                                                  : fmt::format(", on the other ranks {}", usual)));
    }
  }

  const RunFile& run_;
  const Json& environment_;
  Findings findings_;
};

}  // namespace

std::string_view name(Level level) {
  switch (level) {
    case Level::ok:
      return "OK";
    case Level::warning:
      return "WARN";
    case Level::critical:
      return "CRITICAL";
  }
  return "?";
}

Health health_of(const RunFile& run, const std::string& environment) {
  const Json json = Json::parse(environment, nullptr, false);
  return Examination(run, json.is_object() ? json : Json::object()).examine();
}

Health health_of(const std::string& directory) {
  std::ostringstream environment;
  if (std::ifstream file(directory + "/environment.json"); file) environment << file.rdbuf();
  return health_of(read_run(directory), environment.str());
}

std::string health_text(const Health& health) {
  std::string text = fmt::format("health: {}\n", name(health.level));
  for (const Finding& finding : health.findings) {
    std::string who;
    for (const int rank : finding.ranks)
      who += fmt::format("{}rank {}", who.empty() ? ": " : ", ", rank);
    if (!finding.hosts.empty()) who += fmt::format(" ({})", fmt::join(finding.hosts, ", "));
    text += fmt::format("  {}{}{}: {}\n",
                        finding.level == Level::ok ? "" : fmt::format("{} ", name(finding.level)),
                        finding.kind, who, plain(finding.evidence));
  }
  return text;
}

std::string health_json(const Health& health) {
  Json drain = Json::array(), notes = Json::array();
  for (const Finding& finding : health.findings) {
    const Json entry{{"kind", finding.kind},
                     {"level", name(finding.level)},
                     {"ranks", finding.ranks},
                     {"hosts", finding.hosts},
                     {"evidence", finding.evidence}};
    (finding.level == Level::ok ? notes : drain).push_back(entry);
  }
  const Json all{{"schema", "shardmark-drain/1"},
                 {"level", name(health.level)},
                 {"code", static_cast<int>(health.level)},
                 {"drain", drain},
                 {"notes", notes}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace harness
