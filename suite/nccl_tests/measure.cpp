#include "suite/nccl_tests/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "collectives/cost.h"
#include "machine/base/clock.h"
#include "suite/files/traffic.h"

namespace suite::nccl_tests {

using machine::Operation;

namespace {

// MPI's collectives are measured out of place only. In place MPICH 4.0.2 rejects some buffers, and
// its MPI_Reduce reads address -1 at a root other than 0.
bool can_be_in_place(const Arguments& arguments, machine::Transport transport) {
  return collectives::may_be_in_place(arguments.operation) &&
         (arguments.algorithm != collectives::library || transport == machine::Transport::nccl);
}

}  // namespace

double over_ranks(OverRanks how, const std::vector<double>& by_rank) {
  if (how == OverRanks::rank_0) return by_rank.front();
  if (how == OverRanks::minimum) return std::ranges::min(by_rank);
  if (how == OverRanks::maximum) return std::ranges::max(by_rank);
  return std::accumulate(by_rank.begin(), by_rank.end(), 0.0) / static_cast<double>(by_rank.size());
}

Measure::Measure(machine::World& world, const Arguments& arguments, machine::Transport transport)
    : world_(world),
      arguments_(arguments),
      transport_(transport),
      meeting_(world, world.group(), transport) {}

Row Measure::row(std::int64_t size, machine::Dtype dtype, machine::Reduction reduction, int root) {
  const Operation operation = arguments_.operation;
  Row row;
  const auto parts = traffic(arguments_, size, dtype, world_.size());
  row.extent = extent(operation, size, dtype, world_.size(), parts.get());
  if (!is_generated(arguments_.traffic_or_default())) row.extent.count = 0;  // as in nccl-tests
  row.dtype = dtype;
  row.reduction = reduction_column(operation, reduction);
  row.root = collectives::has_root(operation) ? root : -1;
  row.algorithm = arguments_.algorithm;
  if (row.algorithm.empty())
    row.algorithm = collectives::default_algorithm(
        operation, transport_, static_cast<std::size_t>(row.extent.bytes), world_.size());
  world_.board().set_activity(fmt::format("{} of {} bytes", name(operation), row.extent.bytes));
  {
    harness::Context context{world_, world_.group(), world_.device(), no_rates_, 0, {}, {}, {}};
    std::unique_ptr<CollectiveUnit> unit;
    Buffers buffers;
    if (row.extent.bytes > 0) {
      CollectiveCase the_case{world_.size(), transport_,         row.algorithm, dtype,
                              reduction,     {row.extent.bytes}, root};
      the_case.registered = arguments_.registered;
      unit = std::make_unique<CollectiveUnit>(operation, the_case, context, parts);
      row.algorithm = unit->algorithm();
      row.note = unit->note();
      buffers = unit->buffers();
    }
    row.out_of_place = timing(unit.get(), buffers, row, /*in_place=*/false);
    if (can_be_in_place(arguments_, transport_)) {
      if (unit) buffers = unit->in_place();
      row.in_place = timing(unit.get(), buffers, row, /*in_place=*/true);
    }
  }
  world_.barrier(world_.group());  // frees the memory that the unit's links shared
  return row;
}

Timing Measure::timing(CollectiveUnit* unit, const Buffers& buffers, const Row& row,
                       bool in_place) {
  if (unit && in_place) unit->fill(buffers);  // the unit's constructor fills its own buffers
  // A collective without elements returns at once, as in NCCL.
  const auto operation = [&] {
    if (unit) unit->run(buffers);
  };
  const Spent mine =
      unit && arguments_.graph_launches > 0 ? time_graph(operation) : time(operation);
  const auto of_ranks = [&](double seconds) {
    return over_ranks(arguments_.over_ranks, world_.all_gather(world_.group(), seconds));
  };
  const double time_s = of_ranks(mine.wall), host_s = of_ranks(mine.host);

  Timing result;
  result.microseconds = (arguments_.cpu_time ? host_s : time_s) * 1e6;
  if (mine.device) result.device_microseconds = of_ranks(*mine.device) * 1e6;
  result.algbw_GBps = time_s > 0 ? static_cast<double>(row.extent.bytes) / 1e9 / time_s : 0;
  result.busbw_GBps =
      result.algbw_GBps * collectives::bus_factor(arguments_.operation, world_.size());
  if (arguments_.per_iteration) {
    IterationTimes times;
    times.by_rank_us = world_.all_gather(world_.group(), mine.iterations_us);
    times.maxima_us = times.by_rank_us.front();
    for (const auto& theirs : times.by_rank_us)
      for (std::size_t i = 0; i < theirs.size(); ++i)
        times.maxima_us[i] = std::max(times.maxima_us[i], theirs[i]);
    result.iterations = std::move(times);
  }
  if (arguments_.checks > 0) check(unit, buffers, in_place, result);
  return result;
}

std::unique_ptr<machine::Event> Measure::mark() const {
  machine::Device& device = world_.device();
  return device.kind() == machine::Device::Kind::cuda ? device.stream().record() : nullptr;
}

Measure::Spent Measure::time(const std::function<void()>& operation) {
  const Arguments& a = arguments_;
  machine::Stream& stream = world_.device().stream();
  for (int i = 0; i < a.warm_up; ++i) operation();
  stream.synchronize();
  meeting_.barrier();

  Spent spent;
  const bool apart = a.blocking == Blocking::barrier_untimed;
  double inside = 0;
  const auto begin = mark();
  const double start = machine::steady_s();
  double before = start;
  for (int iteration = 0; iteration < a.iterations; ++iteration) {
    for (int i = 0; i < a.aggregated; ++i) {
      operation();
      if (a.blocking == Blocking::barrier_timed) meeting_.barrier();
    }
    if (!apart && !a.per_iteration) continue;
    stream.synchronize();
    const double after = machine::steady_s();
    if (a.per_iteration) spent.iterations_us.push_back((after - before) / a.aggregated * 1e6);
    inside += after - before;
    if (apart) meeting_.barrier();
    before = apart ? machine::steady_s() : after;
  }
  const double queued = machine::steady_s() - start;
  const auto end = mark();
  stream.synchronize();
  const double operations = static_cast<double>(a.iterations) * a.aggregated;
  const double all = apart ? inside : machine::steady_s() - start;
  spent.wall = all / operations;
  spent.host = (apart ? inside : queued) / operations;
  if (end && !apart) spent.device = end->seconds_since(*begin) / operations;
  return spent;
}

Measure::Spent Measure::time_graph(const std::function<void()>& operation) {
  const Arguments& a = arguments_;
  machine::Stream& stream = world_.device().stream();
  // At least one: the first call of a size allocates, which a capture does not allow.
  for (int i = 0; i < std::max(1, a.warm_up); ++i) operation();
  stream.synchronize();
  const auto graph = stream.capture([&] {
    for (std::int64_t i = 0; i < std::int64_t{a.iterations} * a.aggregated; ++i) operation();
  });
  meeting_.barrier();
  stream.synchronize();
  const double operations = static_cast<double>(a.iterations) * a.aggregated * a.graph_launches;
  Spent spent;
  const auto begin = mark();
  const double start = machine::steady_s();
  for (int launch = 0; launch < a.graph_launches; ++launch) graph->launch();
  spent.host = (machine::steady_s() - start) / operations;
  const auto end = mark();
  stream.synchronize();
  spent.wall = (machine::steady_s() - start) / operations;
  if (end) spent.device = end->seconds_since(*begin) / operations;
  return spent;
}

void Measure::check(CollectiveUnit* unit, const Buffers& buffers, bool in_place, Timing& timing) {
  timing.wrong = 0;
  // In place, each timed operation reads the result of the one before, so no right result is known.
  for (int check = in_place ? 0 : -1; check < arguments_.checks && timing.wrong == 0; ++check) {
    WrongElements mine;
    if (unit && check >= 0) {
      machine::Stream& stream = world_.device().stream();
      unit->fill(buffers);
      const auto graph = arguments_.graph_launches > 0 ? stream.capture([&] { unit->run(buffers); })
                                                       : std::unique_ptr<machine::Graph>();
      graph ? graph->launch() : unit->run(buffers);
      stream.synchronize();
    }
    if (unit && buffers.out) mine = unit->wrong_in(buffers.out);
    const auto counts = world_.all_gather(world_.group(), mine.count);
    const auto texts = world_.all_gather(world_.group(), mine.text);
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      if (counts[rank] > 0 && timing.wrong_where.empty())
        timing.wrong_where = fmt::format("rank {}: {}", rank, texts[rank]);
      *timing.wrong += counts[rank];
      failed_checks_ += counts[rank] > 0;
    }
  }
}

}  // namespace suite::nccl_tests
