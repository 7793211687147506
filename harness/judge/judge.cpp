#include "harness/judge/judge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace harness {
namespace {

// Returns error / bound for numerics. Other oracles are exact.
double nearness(const OracleResult& result) {
  if (result.oracle != Oracle::numerics) return 0;
  if (result.measured == 0) return 0;
  if (!(result.expected > 0)) return std::numeric_limits<double>::infinity();
  return result.measured / result.expected;
}

bool worse(const OracleResult& a, const OracleResult& b) {
  // A failure outweighs a pass, and a pass outweighs a skip.
  if (a.ruling != b.ruling) return a.ruling == Ruling::fail || b.ruling == Ruling::skipped;
  return a.ruling == Ruling::pass && nearness(a) > nearness(b);  // the first failure stays
}

void keep_worst(std::vector<OracleResult>& results, OracleResult result) {
  const auto same = std::ranges::find(results, result.oracle, &OracleResult::oracle);
  if (same == results.end())
    results.push_back(std::move(result));
  else if (worse(result, *same))
    *same = std::move(result);
}

std::string traffic_text(const machine::Traffic& traffic) {
  return fmt::format("sent {} bytes in {} messages, received {} in {}", traffic.bytes_sent,
                     traffic.messages_sent, traffic.bytes_received, traffic.messages_received);
}

}  // namespace

void Judge::add(Oracle oracle, bool right, double measured, double expected, std::string text) {
  // Keep "nothing sent" in the record only if it holds for all groups and passes.
  if (oracle == Oracle::volume && right && measured > 0)
    std::erase_if(results_, [](const OracleResult& other) {
      return other.oracle == Oracle::volume && other.ruling == Ruling::pass && other.measured == 0;
    });
  keep_worst(results_,
             {oracle, right ? Ruling::pass : Ruling::fail, measured, expected, std::move(text)});
}

void Judge::add(std::string_view what, const Comparison& comparison) {
  add(Oracle::numerics, comparison.right, comparison.error, comparison.bound,
      fmt::format("{}, {}", what, comparison.text));
}

void Judge::numerics(std::string_view what, std::span<const double> actual,
                     std::span<const double> expected, std::span<const double> bounds) {
  add(what, compare_elements(actual, expected, bounds));
}

void Judge::numerics_norm(std::string_view what, std::span<const double> actual,
                          std::span<const double> expected, double relative_bound) {
  add(what, compare_norms(actual, expected, relative_bound));
}

void Judge::numerics(std::string_view what, double error, double bound) {
  add(what, compare_error(error, bound));
}

void Judge::times(std::string_view what, double off, double tolerance) {
  add(Oracle::numerics, off <= tolerance, 0, 0,
      fmt::format("{}: off by {:.3g}, tolerance {:.3g}", what, off, tolerance));
}

void Judge::exact(std::string_view what, std::span<const double> actual,
                  std::span<const double> expected) {
  add(what, compare_bits(actual, expected));
}

void Judge::volume(std::string_view group, machine::TrafficLabel label,
                   const machine::Traffic& measured, const machine::Traffic& expected) {
  wire_.measured += measured;
  wire_.expected += expected;
  std::string text = fmt::format("{} {} {}: {}", group, name(label.operation), name(label.dtype),
                                 traffic_text(measured));
  if (measured != expected) text += fmt::format("; expected: {}", traffic_text(expected));
  add(Oracle::volume, measured == expected, static_cast<double>(measured.bytes_sent),
      static_cast<double>(expected.bytes_sent), std::move(text));
}

void Judge::volume(std::string_view group, machine::TrafficLabel label,
                   std::uint64_t measured_bytes, std::uint64_t expected_bytes) {
  wire_.measured.bytes_sent += measured_bytes;
  wire_.expected.bytes_sent += expected_bytes;
  add(Oracle::volume, measured_bytes == expected_bytes, static_cast<double>(measured_bytes),
      static_cast<double>(expected_bytes),
      fmt::format("{} {} {}: sent {} bytes, expected {}", group, name(label.operation),
                  name(label.dtype), measured_bytes, expected_bytes));
}

void Judge::not_applicable(Oracle oracle, std::string_view reason) {
  keep_worst(results_, {oracle, Ruling::skipped, 0, 0, std::string(reason)});
}

void Judge::volume(const machine::Link& link,
                   const std::map<machine::TrafficLabel, machine::Traffic>& expected) {
  std::map<machine::TrafficLabel, machine::Traffic> labels = expected;
  for (const auto& [label, traffic] : link.traffic())
    if (traffic != machine::Traffic{}) labels.try_emplace(label);
  for (const auto& [label, traffic] : labels) {
    const auto measured = link.traffic().find(label);
    volume(link.group().name, label,
           measured == link.traffic().end() ? machine::Traffic{} : measured->second, traffic);
  }
  if (labels.empty())
    add(Oracle::volume, true, 0, 0, fmt::format("{}: nothing sent", link.group().name));
}

void Judge::memory(machine::Category category, std::uint64_t measured, std::uint64_t expected) {
  memory_.push_back({std::string(name(category)), measured, expected});
  memory("at the peak", category, measured, expected);
}

void Judge::memory(std::string_view when, machine::Category category, std::uint64_t measured,
                   std::uint64_t expected) {
  std::string text = fmt::format("{}: {} bytes {}", name(category), measured, when);
  if (measured != expected) text += fmt::format(", expected {}", expected);
  add(Oracle::memory, measured == expected, static_cast<double>(measured),
      static_cast<double>(expected), std::move(text));
}

void Judge::schedule(std::string_view what, std::string_view executed, std::string_view planned) {
  const bool right = executed == planned;
  std::string text = right
                         ? fmt::format("{}: as planned", what)
                         : fmt::format("{}: executed '{}', planned '{}'", what, executed, planned);
  add(Oracle::schedule, right, 0, 0, std::move(text));
}

void Judge::schedule(std::string_view what, std::int64_t measured, std::int64_t expected) {
  std::string text = fmt::format("{}: {}", what, measured);
  if (measured != expected) text += fmt::format(", expected {}", expected);
  add(Oracle::schedule, measured == expected, static_cast<double>(measured),
      static_cast<double>(expected), std::move(text));
}

void Judge::same_bits(std::string_view key, std::uint64_t hash) {
  fingerprints_.push_back({std::string(key), hash});
}

namespace {

// Returns the only rank with its hash among three or more ranks, or the rank with two hashes; else
// -1.
int odd_one_out(const std::map<std::uint64_t, std::set<int>>& ranks_of) {
  const std::set<int>&first = ranks_of.begin()->second, &last = ranks_of.rbegin()->second;
  if (ranks_of.size() != 2 || (first.size() == last.size() && first != last)) return -1;
  return last.size() == 1 ? *last.begin() : first.size() == 1 ? *first.begin() : -1;
}

// Returns one result of determinism from the fingerprints of all ranks.
OracleResult compare_fingerprints(const std::vector<Judge>& judges) {
  struct Sides {
    std::map<std::uint64_t, std::set<int>> ranks;
    std::size_t calls = 0;
  };
  std::map<std::string, Sides> keys;
  std::size_t calls = 0, compared = 0;
  for (const Judge& judge : judges)
    for (const Judge::Fingerprint& fingerprint : judge.fingerprints()) {
      Sides& sides = keys[fingerprint.key];
      sides.ranks[fingerprint.hash].insert(judge.rank());
      if (++sides.calls == 2) ++compared;
      ++calls;
    }
  OracleResult result{Oracle::determinism, Ruling::pass, 0, 0, {}};
  for (const auto& [key, sides] : keys) {
    if (sides.ranks.size() < 2) continue;
    result.ruling = Ruling::fail;
    std::string text;
    for (const auto& [hash, ranks] : sides.ranks)
      text += fmt::format("{}{} {} {} {:016x}", text.empty() ? "" : ", ",
                          ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "),
                          ranks.size() == 1 ? "has" : "have", hash);
    result.text = fmt::format("{}: {}", key, text);
    result.rank = odd_one_out(sides.ranks);
    return result;
  }
  result.text =
      fmt::format("{} keys from {} fingerprints, {} compared", keys.size(), calls, compared);
  if (compared == 0 && judges.size() > 1) {
    result.ruling = Ruling::fail;
    result.text = fmt::format("each of the {} keys occurs only once, so no hashes were compared",
                              keys.size());
  }
  return result;
}

}  // namespace

void merge(const std::vector<Judge>& judges, std::span<const Oracle> declared, Record& record) {
  record.verdict = Ruling::pass;
  record.reason.clear();
  record.failure.reset();
  Judge::Wire wire;
  std::uint64_t of_rank = 0;
  bool any_fingerprint = false;
  for (const Judge& judge : judges) {
    for (OracleResult result : judge.results()) {
      result.text = fmt::format("rank {}: {}", judge.rank(), result.text);
      result.reference = judge.reference(result.oracle);
      result.rank = judge.rank();
      keep_worst(record.oracles, std::move(result));
    }
    wire.measured += judge.wire().measured;
    of_rank = std::max(of_rank, judge.wire().measured.bytes_sent);
    wire.expected += judge.wire().expected;
    any_fingerprint = any_fingerprint || !judge.fingerprints().empty();
    if (judge.rank() == 0) record.memory = judge.memory_rows();
  }
  if (any_fingerprint) keep_worst(record.oracles, compare_fingerprints(judges));

  const auto result_of = [&](Oracle oracle) {
    return std::ranges::find(record.oracles, oracle, &OracleResult::oracle);
  };
  if (const auto numerics = result_of(Oracle::numerics); numerics != record.oracles.end()) {
    record.counters["max_error"] = numerics->measured;
    record.counters["error_bound"] = numerics->expected;
  }
  if (result_of(Oracle::volume) != record.oracles.end()) {
    record.counters["wire_bytes_measured"] = static_cast<double>(wire.measured.bytes_sent);
    if (of_rank > 0) record.counters["wire_bytes_of_rank"] = static_cast<double>(of_rank);
    record.counters["wire_bytes_expected"] = static_cast<double>(wire.expected.bytes_sent);
    record.counters["messages_measured"] = static_cast<double>(wire.measured.messages_sent);
    record.counters["messages_expected"] = static_cast<double>(wire.expected.messages_sent);
  }
  for (const CategoryBytes& row : record.memory) {
    record.counters["peak_bytes_measured"] += static_cast<double>(row.measured);
    record.counters["peak_bytes_expected"] += static_cast<double>(row.expected);
  }

  for (Oracle oracle : declared)
    if (result_of(oracle) == record.oracles.end())
      record.oracles.push_back({oracle, Ruling::fail, 0, 0, "declared, but never ruled"});
  std::ranges::sort(record.oracles, {}, &OracleResult::oracle);
  for (const OracleResult& result : record.oracles) {
    if (result.ruling != Ruling::fail) continue;
    if (!record.failure)
      record.failure = {.kind = machine::Failure::Kind::wrong_result, .rank = result.rank};
    record.reason += fmt::format("{}{}: {}", record.reason.empty() ? "" : "; ", name(result.oracle),
                                 result.text);
  }
  if (std::ranges::all_of(record.oracles, [](const OracleResult& result) {
        return result.ruling == Ruling::skipped;
      })) {
    record.failure = {.kind = machine::Failure::Kind::wrong_result};
    record.reason = "no oracle ruled";
  }
  if (!record.failure) return;
  record.verdict = Ruling::fail;
  record.failure->text = record.reason;
}

}  // namespace harness
