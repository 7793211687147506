#include "harness/record/counters.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "harness/record/description.h"

namespace harness {
namespace {

using enum Better;
using enum Nature;

constexpr Counter own[] = {
    {"algbw_GBps", "GB/s", higher, speed, "`bytes` over the time, as nccl-tests defines it"},
    {"average_over_ranks_s", "s", lower, measured,
     "median of the mean over ranks (`real_time` is of the maximum)"},
    {"batch", "", neither, measured, "runs in one sample"},
    {"busbw_GBps", "GB/s", higher, speed, "`algbw_GBps` times nccl-tests' factor"},
    {"busy_s/rank:N", "s", lower, measured,
     "time that the rank did not wait, lower quartile over samples"},
    {"bytes", "B", neither, exact, "size of the collective, as nccl-tests defines it"},
    {"case_s", "s", lower, measured,
     "duration of the whole case: preparation, sampling, references, judging"},
    {"ci_high_s", "s", neither, measured, "upper end of the median's confidence interval"},
    {"ci_low_s", "s", neither, measured, "lower end of the median's confidence interval"},
    {"delayed_fraction/rank:N", "", lower, measured,
     "fraction of its time in which a ready rank had no core"},
    {"delayed_s/rank:N", "s", lower, measured, "time per sample in which a ready rank had no core"},
    {"device_s", "s", lower, measured,
     "median time between events of the GPU's stream around the runs"},
    {"error_bound", "", neither, exact, "bound of the comparison that came nearest to failing"},
    {"expected_floor", "", neither, speed,
     "least accepted `expected_fraction` of `--expect`; missing: not judged"},
    {"expected_fraction", "", higher, speed, "`expected_s` over the time"},
    {"expected_s", "s", neither, speed, "time of the case by the cluster of `--expect`"},
    {"flops", "", neither, exact, "floating-point operations of one rank"},
    {"host_s", "s", lower, measured, "median time of a GPU's runs by the host's clock"},
    {"lag1_autocorrelation", "", neither, measured, "of the samples"},
    {"late_samples", "", lower, measured, "samples that the timings `window` and `armed` dropped"},
    {"library_s", "s", neither, measured, "median time of the yardstick"},
    {"limit_fraction", "", higher, speed, "`limit_s` over the time"},
    {"limit_is_stale", "", lower, speed,
     "1: the time is below `limit_s`, so a rate was measured too low"},
    {"limit_measured_again", "", neither, speed,
     "1: the time was below the limit; its rate was measured again after the case"},
    {"limit_s", "s", neither, speed, "lower bound of the time by the measured rates"},
    {"max_error", "", lower, exact, "error of the comparison that came nearest to failing"},
    {"messages_expected", "", neither, exact, "messages of all ranks by the formula"},
    {"messages_measured", "", neither, exact, "messages that all ranks sent"},
    {"peak_bytes_expected", "B", neither, exact, "peak memory of rank 0 by the formulas"},
    {"peak_bytes_measured", "B", lower, exact, "peak memory of rank 0, summed over categories"},
    {"samples", "", neither, measured, "samples that were kept"},
    {"sampling_s", "s", lower, measured,
     "the part of `case_s` in warm-up and samples; the rest is what each case costs"},
    {"slowest_rank", "", neither, measured, "rank that was slowest in most samples"},
    {"specified_s", "s", neither, speed,
     "time by that cluster's peaks only: no latency, all of each bandwidth"},
    {"speedup_over_library", "", higher, speed, "`library_s` over the time"},
    {"spikes/rank:N", "", lower, measured,
     "samples far above the rank's shortest that a shared core does not explain"},
    {"tokens_per_second", "1/s", higher, speed, "tokens of all ranks"},
    {"wire_GBps", "GB/s", higher, speed, "`wire_bytes_of_rank` over the time"},
    {"wire_bytes_expected", "B", neither, exact, "bytes of all ranks by the formula"},
    {"wire_bytes_measured", "B", neither, exact, "bytes that all ranks sent"},
    {"wire_bytes_of_rank", "B", neither, exact, "bytes of the rank that sent most"},
};

// Google Benchmark's keys and the record's own numbers.
constexpr std::string_view record_keys[] = {
    "cpu_time",    "family_index",     "iterations",
    "real_time",   "repetition_index", "per_family_instance_index",
    "repetitions", "samples_offset",   "samples_ranks",
    "threads",
};

// A local static, so that any translation unit may add rows before main.
std::map<std::string_view, Counter>& added() {
  static std::map<std::string_view, Counter> counters;
  return counters;
}

// "busy_s/rank:3" -> "busy_s/rank:N"; other names are unchanged.
std::string row_name(std::string_view name) {
  constexpr std::string_view of_rank = "/rank:";
  const std::size_t at = name.find(of_rank);
  if (at == std::string_view::npos) return std::string(name);
  const std::string_view rank = name.substr(at + of_rank.size());
  const bool number =
      !rank.empty() && rank.find_first_not_of("0123456789") == std::string_view::npos;
  return number ? fmt::format("{}{}N", name.substr(0, at), of_rank) : std::string(name);
}

const Counter* find_own(std::string_view name) {
  const auto found = std::ranges::find(own, name, &Counter::name);
  return found == std::end(own) ? nullptr : found;
}

[[noreturn]] void refuse_own(std::string_view name) {
  throw std::logic_error(fmt::format("counter '{}' is the harness's own", name));
}

}  // namespace

std::span<const Counter> harness_counters() { return own; }

bool is_record_key(std::string_view key) {
  return std::ranges::find(record_keys, key) != std::end(record_keys);
}

bool add_counters(std::span<const Counter> counters) {
  for (const Counter& counter : counters) {
    if (is_record_key(counter.name))
      throw std::logic_error(fmt::format("counter '{}' is a key of run.json", counter.name));
    if (find_own(counter.name)) refuse_own(counter.name);
    const auto [row, inserted] = added().try_emplace(counter.name, counter);
    if (!inserted && row->second != counter)
      throw std::logic_error(fmt::format("counter '{}' has two meanings: '{}' and '{}'",
                                         counter.name, row->second.meaning, counter.meaning));
  }
  return true;
}

const Counter* find_counter(std::string_view name) {
  const std::string row = row_name(name);
  if (const Counter* counter = find_own(row)) return counter;
  const auto found = added().find(row);
  return found == added().end() ? nullptr : &found->second;
}

std::vector<Counter> all_counters() {
  std::vector<Counter> all(std::begin(own), std::end(own));
  for (const auto& [name, counter] : added()) all.push_back(counter);
  std::ranges::sort(all, {}, &Counter::name);
  return all;
}

void Description::set(std::string_view counter, double value) {
  const Counter* row = find_counter(counter);
  if (!row)
    throw std::logic_error(
        fmt::format("counter '{}' is not declared; add a row to the unit's counters", counter));
  if (find_own(row->name)) refuse_own(counter);
  counters_[std::string(counter)] = value;
}

std::string counters_table() {
  constexpr std::string_view better[] = {"", "higher", "lower"};
  constexpr std::string_view nature[] = {"exact", "measured", "speed"};
  std::string table = "| counter | unit | better | nature | meaning |\n|---|---|---|---|---|\n";
  for (const Counter& counter : all_counters())
    table += fmt::format("| `{}` | {} | {} | {} | {} |\n", counter.name, counter.unit,
                         better[static_cast<std::size_t>(counter.better)],
                         nature[static_cast<std::size_t>(counter.nature)], counter.meaning);
  return table;
}

}  // namespace harness
