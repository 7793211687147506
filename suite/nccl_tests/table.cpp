#include "suite/nccl_tests/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "collectives/plan.h"

namespace suite::nccl_tests {
namespace {

// Returns the value with at most two decimals, as many as fit into the column.
std::string fitted(double value, std::size_t width) {
  for (const int digits : {2, 1, 0})
    if (std::string text = fmt::format("{:{}.{}f}", value, width, digits); text.size() <= width)
      return text;
  return fmt::format("{:{}.{}e}", value, width, width >= 7 ? 1 : 0);
}

std::string timing_columns(const Arguments& arguments, const std::optional<Timing>& timing) {
  std::string text;
  if (!timing) {
    text = fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", "N/A", "N/A", "N/A", "N/A");
    if (arguments.per_iteration)
      for (int column = 0; column < 4; ++column) text += fmt::format("  {:>7}", "N/A");
    return text;
  }
  text = fmt::format("  {}  {}  {}", fitted(timing->microseconds, 7), fitted(timing->algbw_GBps, 6),
                     fitted(timing->busbw_GBps, 6));
  text += timing->wrong ? fmt::format("  {:6g}", static_cast<double>(*timing->wrong)) : "     N/A";
  if (timing->iterations) {
    const IterationSummary times = summary(*timing->iterations, arguments.skipped);
    for (const double value : {times.minimum, times.maximum, times.p99, times.variation_percent})
      text += "  " + fitted(value, 7);
  }
  return text;
}

}  // namespace

IterationSummary summary(const IterationTimes& times, int skipped) {
  std::vector<double> sorted(times.maxima_us.begin() + skipped, times.maxima_us.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  const auto nearest_rank = [&](std::size_t percent) {
    return sorted[std::max<std::size_t>((n * percent + 99) / 100, 1) - 1];
  };
  IterationSummary s;
  s.minimum = sorted.front();
  s.maximum = sorted.back();
  s.average = std::accumulate(sorted.begin(), sorted.end(), 0.0) / static_cast<double>(n);
  s.p50 = sorted[n / 2];
  s.p95 = nearest_rank(95);
  s.p99 = nearest_rank(99);
  double squares = 0;
  for (const double value : sorted) squares += (value - s.average) * (value - s.average);
  s.deviation = std::sqrt(squares / static_cast<double>(n));
  s.variation_percent = s.average > 0 ? s.deviation / s.average * 100 : 0;
  return s;
}

std::string reduction_column(machine::Operation operation, machine::Reduction reduction) {
  const bool listed =
      collectives::reduces(operation) || operation == machine::Operation::send_receive;
  return listed ? std::string(name(reduction)) : "none";
}

void count(Totals& totals, const Row& row) {
  for (const auto* timing : {&row.out_of_place, &row.in_place})
    if (*timing) {
      totals.busbw_sum += (*timing)->busbw_GBps;
      ++totals.placements;
    }
}

std::string header(const Arguments& a, std::string_view version,
                   const std::vector<RankLine>& ranks) {
  const bool factor = a.step_factor > 1;
  std::string text = fmt::format(
      "# shardmark version {}, with the table of nccl-tests 2.19.6\n"
      "# Collective test starting: {}\n"
      "# nThread {} nGpus {} minBytes {} maxBytes {} step: {}({}) warmup iters: {} iters: {} agg "
      "iters: {} validation: {} graph: {} unalign: 0\n",
      version, program_of(a.operation), a.threads, a.gpus, a.min_bytes, a.max_bytes,
      factor ? a.step_factor : a.step_bytes, factor ? "factor" : "bytes", a.warm_up, a.iterations,
      a.aggregated, a.checks, a.graph_launches);
  constexpr std::string_view blocking[] = {
      "", "wait and barrier after each inner iteration (-m)",
      "wait after each inner iteration (-m), no barrier",
      "wait and barrier after each outer iteration (-n); time excludes barrier"};
  if (a.blocking != Blocking::no)
    text +=
        fmt::format("# Blocking Enabled: {} \n", blocking[static_cast<std::size_t>(a.blocking)]);
  if (a.per_iteration)
    text += fmt::format(
        "# Per-Iteration Report: host clock; i_* uses max over ranks{} \n",
        a.skipped ? fmt::format("; summary skips first {} iterations", a.skipped) : std::string());
  for (const std::string& note : a.notes) text += fmt::format("# {}\n", note);
  text += "#\n# Using devices\n";
  for (const RankLine& rank : ranks)
    text += fmt::format("#  Rank {:2} Group  0 Pid {:6} on {:>10} device  0 [{}] {}\n", rank.rank,
                        rank.pid, rank.host,
                        a.device == machine::Device::Kind::cuda ? "cuda" : "host", rank.device);
  text += "#\n";

  const char* time = a.cpu_time ? "cputime" : "time";
  const auto titles = [&](auto... first) {
    return fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}", first...);
  };
  const auto repeated = [&](std::initializer_list<const char*> usual,
                            std::initializer_list<const char*> iteration) {
    std::string columns;
    for (int placement = 0; placement < 2; ++placement) {
      int width = 7;  // width of the first column, the time
      for (const char* title : usual) {
        columns += fmt::format("  {:>{}}", title, width);
        width = 6;
      }
      if (!a.per_iteration) continue;
      for (const char* title : iteration) columns += fmt::format("  {:>7}", title);
    }
    return columns;
  };
  const auto last = [&](const char* title) {
    return fmt::format(" {:>{}}\n", a.timestamps ? title : "", a.timestamps ? 19 : 0);
  };
  text += titles("", "", "", "", "");
  text += a.per_iteration
              ? "              out-of-place (+ per-iteration)                                "
                "in-place (+ per-iteration)\n"
              : "           out-of-place                       in-place          \n";
  text += titles("size", "count", "type", "redop", "root") +
          repeated({time, "algbw", "busbw", "#wrong"}, {"i_min", "i_max", "i_p99", "i_cv%"}) +
          last("timestamp");
  text += titles("(B)", "(elements)", "", "", "") +
          repeated({"(us)", "(GB/s)", "(GB/s)", ""}, {"(us)", "(us)", "(us)", "(%)"}) +
          last("%Y-%m-%d %H:%M:%S");
  return text;
}

std::string line(const Arguments& arguments, const Row& row, std::string_view now) {
  std::string text = fmt::format("{:12}  {:12}  {:>8}  {:>6}  {:>6}", row.extent.bytes,
                                 row.extent.count, name(row.dtype), row.reduction, row.root);
  text += timing_columns(arguments, row.out_of_place) + timing_columns(arguments, row.in_place);
  if (arguments.timestamps) text += fmt::format("{:>21}", now);
  text += "\n";
  const auto where = [&](const char* placement, const std::optional<Timing>& timing) {
    if (timing && !timing->wrong_where.empty())
      text += fmt::format("# {}: {}\n", placement, timing->wrong_where);
  };
  where("out-of-place", row.out_of_place);
  where("in-place", row.in_place);
  const auto device_time = [](const std::optional<Timing>& timing) {
    return timing && timing->device_microseconds ? fitted(*timing->device_microseconds, 7)
                                                 : fmt::format("{:>7}", "N/A");
  };
  if (row.out_of_place && row.out_of_place->device_microseconds)
    text += fmt::format("# device time (us): out-of-place {}, in-place {}\n",
                        device_time(row.out_of_place), device_time(row.in_place));
  if (!row.note.empty()) text += fmt::format("# {}\n", row.note);
  return text;
}

std::string footer(const Arguments& arguments, const Totals& totals) {
  return fmt::format(
      "# {:<20} : {} {}\n"
      "# {:<20} : {:g} {}\n"
      "#\n"
      "# Collective test concluded: {}\n"
      "#\n"
      "\n",
      "Out of bounds values", totals.out_of_bounds, totals.out_of_bounds == 0 ? "OK" : "FAILED",
      "Avg bus bandwidth", totals.average_busbw(),
      !totals.least_busbw     ? ""
      : totals.enough_busbw() ? "OK"
                              : "FAILED",
      program_of(arguments.operation));
}

}  // namespace suite::nccl_tests
