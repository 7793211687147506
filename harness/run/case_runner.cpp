#include "harness/run/case_runner.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/measure/limit.h"
#include "harness/measure/sampler.h"
#include "harness/measure/statistics.h"
#include "harness/run/inject.h"
#include "machine/base/clock.h"
#include "machine/base/error.h"
#include "machine/device/profile_range.h"
#include "machine/link/connect.h"

namespace harness {

using machine::Failure;

namespace {

// Returns the first cause of all ranks' failures, the same on every rank. Uses a link, because an
// aborted unit may have used the control plane.
std::optional<Failure> first_failure(machine::Link* link, const std::optional<Failure>& mine) {
  if (!link) return mine;
  const auto send = [link](int peer, const std::optional<Failure>& failure) {
    const std::string bytes = machine::encode(failure);
    const std::uint64_t size = bytes.size();
    link->send(peer, &size, sizeof size);
    link->send(peer, bytes.data(), size);
    link->flush();
  };
  const auto receive = [link](int peer) {
    std::uint64_t size = 0;
    link->receive(peer, &size, sizeof size);
    std::string bytes(size, ' ');
    link->receive(peer, bytes.data(), size);
    return machine::decode<std::optional<Failure>>(bytes);
  };
  if (link->rank() != 0) {
    send(0, mine);
    return receive(0);
  }
  std::vector<std::optional<Failure>> failures{mine};
  for (int peer = 1; peer < link->size(); ++peer) failures.push_back(receive(peer));
  const std::optional<Failure> first = machine::first_cause(failures);
  for (int peer = 1; peer < link->size(); ++peer) send(peer, first);
  return first;
}

// Returns the rank that was slowest in most iterations.
int slowest_rank(const SampleMatrix& samples) {
  const auto iterations = static_cast<std::size_t>(samples.iterations());
  std::vector<int> wins(static_cast<std::size_t>(samples.ranks));
  for (std::size_t i = 0; i < iterations; ++i) {
    std::size_t slowest = 0;
    for (std::size_t rank = 1; rank < wins.size(); ++rank)
      if (samples.seconds[rank * iterations + i] > samples.seconds[slowest * iterations + i])
        slowest = rank;
    ++wins[slowest];
  }
  return static_cast<int>(std::ranges::max_element(wins) - wins.begin());
}

// Adds the activity of each rank, if every rank has a core. waits_on_gpu: the runs wait for other
// ranks inside the GPU. The host cannot see such waits, so no rank's own time is known.
void add_activity(Record& record, const std::vector<RankActivity>& ranks, bool waits_on_gpu) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankActivity& its = ranks[rank];
    if (its.busy.empty() || its.taken_s <= 0) return;
    const auto put = [&](std::string_view name, double value) {
      record.counters[fmt::format("{}/rank:{}", name, rank)] = value;
    };
    if (!waits_on_gpu) {
      put("busy_s", quantiles(its.busy).p25);
      put("spikes", its.spikes);
    }
    put("delayed_s", its.delayed_s / static_cast<double>(its.busy.size()));
    put("delayed_fraction", its.delayed_s / its.taken_s);
  }
}

void add_times(Record& record, const PlannedCase& plan, std::string_view timing,
               Sampled&& sampled) {
  const std::vector<double>& worst = sampled.unit.worst;
  record.stop = name(sampled.stop);
  record.timing = timing;
  record.cpu_seconds = sampled.cpu_seconds;
  auto& counters = record.counters;
  if (sampled.unit.late > 0) counters["late_samples"] = sampled.unit.late;
  if (worst.empty()) {
    record.note = "no timing: every common start had a late rank";
    return;
  }
  record.quantiles = quantiles(worst);
  record.seconds = record.quantiles.median;
  counters["average_over_ranks_s"] = median(sampled.unit.mean);
  if (!sampled.unit.device.empty()) {
    counters["device_s"] = median(sampled.unit.device);
    counters["host_s"] = median(sampled.unit.host);
  }
  counters["samples"] = static_cast<double>(worst.size());
  counters["batch"] = sampled.unit.batch;
  counters["lag1_autocorrelation"] = lag1_autocorrelation(worst);
  counters["slowest_rank"] = slowest_rank(sampled.unit.samples);
  if (const auto interval = median_interval(worst)) {
    counters["ci_low_s"] = interval->low;
    counters["ci_high_s"] = interval->high;
  }
  if (!sampled.yardstick.worst.empty() && record.seconds > 0) {
    counters["library_s"] = median(sampled.yardstick.worst);
    if (!plan.yardstick_is_part)
      counters["speedup_over_library"] = counters["library_s"] / record.seconds;
  }
  record.samples = std::move(sampled.unit.samples);
}

// again: the limit is that of a rate that was measured again after the case.
void add_limit(Record& record, const Limit& limit, bool again) {
  auto& counters = record.counters;
  if (limit.seconds <= 0) return;
  counters["limit_s"] = limit.seconds;
  if (record.seconds <= 0) return;
  counters["limit_fraction"] = limit.seconds / record.seconds;
  if (again) counters["limit_measured_again"] = 1;
  if (!is_stale(limit, record.seconds)) return;
  counters["limit_is_stale"] = 1;
  record.note = fmt::format("{:.0f} % of its limit{}: {} was measured too low",
                            100 * counters["limit_fraction"], again ? ", measured again" : "",
                            text_of(limit.rate));
}

void add_rates(Record& record, const Cost& cost) {
  auto& counters = record.counters;
  if (cost.flops > 0) counters["flops"] = cost.flops;
  if (cost.algorithm_bytes > 0) counters["bytes"] = cost.algorithm_bytes;
  if (record.seconds <= 0) return;
  if (cost.algorithm_bytes > 0) {
    counters["algbw_GBps"] = cost.algorithm_bytes / record.seconds / 1e9;
    if (cost.bus_factor > 0) counters["busbw_GBps"] = cost.bus_factor * counters["algbw_GBps"];
    if (const auto sent = counters.find("wire_bytes_of_rank"); sent != counters.end())
      counters["wire_GBps"] = sent->second / record.seconds / 1e9;
  }
  if (cost.tokens > 0) counters["tokens_per_second"] = cost.tokens / record.seconds;
}

// Keeps the times and removes rates and comparisons.
void remove_speed_claims(Record& record) {
  std::erase_if(record.counters, [](const auto& counter) {
    const Counter* row = find_counter(counter.first);
    return row && row->nature == Nature::speed;
  });
}

// Sent to rank 0 before each rank's judge.
struct Report {
  Limit limit;
  bool shares_gpu = false;  // the times do not show the speed of a GPU or a link
};

void fail(Record& record, const Failure& failure) {
  record.verdict = Ruling::fail;
  record.reason = line(failure);
  record.failure = failure;
}

}  // namespace

Record skipped(const PlannedCase& plan, int repetition, std::string reason) {
  Record record;
  record.unit = plan.unit;
  record.name = plan.name;
  record.axes = plan.axes;
  record.slice = plan.slice;
  record.repetition = repetition;
  record.traits = plan.traits;
  record.verdict = Ruling::skipped;
  record.reason = std::move(reason);
  return record;
}

machine::Link* CaseRunner::sampling_link(const machine::Group& group) {
  if (group.size() == 1) return nullptr;
  std::unique_ptr<machine::Link>& link = links_[group.size()];
  if (!link) {
    const bool shared = machine::why_not(world_, group, machine::Transport::shared_memory).empty();
    // Ranks wait here for whole phases, not for one message.
    const double timeout_s = world_.timeout_s();
    world_.set_timeout_s(5 * timeout_s);
    link = machine::connect(world_, group,
                            shared ? machine::Transport::shared_memory : machine::Transport::mpi);
    world_.set_timeout_s(timeout_s);
    link->count_as({machine::Operation::barrier, machine::Dtype::float32});
  }
  return link.get();
}

Limit CaseRunner::slowest_limit(const machine::Group& group, const Limit& mine) {
  Limit slowest;
  for (const Limit& limit : world_.all_gather(group, mine))
    if (limit.seconds > slowest.seconds) slowest = limit;
  return slowest;
}

bool CaseRunner::measure_again(const machine::Group& group, const Limit& limit, double seconds) {
  // All ranks have the same limit. Only rank 0 knows the time.
  if (!options_.measure_rates || limit.seconds <= 0) return false;
  return is_stale(limit, world_.broadcast(group, 0, seconds)) &&
         rates_.measure_again(world_, limit.rate);
}

void CaseRunner::run(const PlannedCase& plan, int repetition, Record& record,
                     const std::function<void(std::span<const double> times)>& on_block) {
  record = skipped(plan, repetition, {});
  const machine::Group group = machine::first_ranks("world", plan.ranks, world_.rank());
  Context context{world_,
                  group,
                  world_.device(),
                  rates_,
                  options_.seed,
                  options_.data_file,
                  options_.load_file,
                  options_.save_file,
                  options_.reference,
                  options_.training};
  machine::Link* link = sampling_link(group);
  // Runs `body` on every rank of the case. Returns the first cause of the failures that it returned
  // or threw, the same on all ranks. The board shows the phase while it runs.
  const auto phase = [&](std::string_view what, const auto& body) {
    world_.board().set_activity(plan.name, what);
    std::optional<Failure> failure;
    try {
      failure = body();
    } catch (const std::exception& error) {
      if (is_of_a_wait(error)) throw;
      failure = machine::failure_of(error);
      failure->text = fmt::format("{}: {}", what, failure->text);
      world_.board().note(*failure);  // other ranks may wait for this rank inside the unit
    }
    if (failure) failure->rank = world_.rank();
    return first_failure(link, failure);
  };
  std::optional<Failure> failure =
      phase("checking whether the case can run", [&]() -> std::optional<Failure> {
        const std::string why_not = plan.why_not(context);
        if (why_not.empty()) return std::nullopt;
        return Failure{.kind = Failure::Kind::unsupported, .text = why_not};
      });
  if (failure) {
    record.reason = line(*failure);
    return;
  }

  fail(record, {.text = "did not end"});  // remains if this function throws
  world_.device().ledger().reset_peaks();
  std::unique_ptr<Instance> instance;
  failure = phase("setting up", [&] {
    instance = plan.make(context);
    if (options_.injection) options_.injection->set_case(plan.name);
    return std::nullopt;
  });
  if (failure && failure->kind == Failure::Kind::unsupported) {
    record = skipped(plan, repetition, line(*failure));
    return;
  }
  if (failure) return fail(record, *failure);
  if (options_.timing == Timing::armed && !instance->only_queues()) {
    record = skipped(plan, repetition,
                     "timing armed requires a run that only queues work on the device's stream");
    return;
  }

  Sampled sampled;
  const double sampling_begin = machine::steady_s();
  failure = phase("running", [&] {
    const machine::ProfileRange range(plan.name);
    SamplingLimits limits;
    limits.seconds = options_.max_seconds_per_case;
    limits.timing = options_.timing;
    limits.one_clock = world_.on_one_host(group);
    if (options_.injection) {
      limits.sample = options_.injection->sample();
      limits.run = [this](Instance& unit) { options_.injection->run(unit); };
    }
    limits.progress = &world_.board().mine().progress;
    limits.on_block = on_block;
    const auto on_failure = [&](const Failure& thrown) { world_.board().note(thrown); };
    sampled = Sampler(world_.device(), link, limits, on_failure).sample(*instance);
    if (sampled.failure) sampled.failure->text.insert(0, "running: ");
    return sampled.failure;
  });
  if (failure) return fail(record, *failure);
  if (group.index == 0) {
    record.counters["sampling_s"] = machine::steady_s() - sampling_begin;
    record.shares_cores = world_.oversubscribed() && !world_.computes_on_gpu();
    if (!world_.oversubscribed())
      add_activity(record, sampled.unit.ranks,
                   world_.computes_on_gpu() && transport_of(plan.axes).has_value());
    add_times(record, plan, name(options_.timing), std::move(sampled));
  }

  std::pair<Report, Judge> mine{Report(), world_.rank()};
  failure = phase("judging", [&] {
    if (options_.injection)
      options_.injection->judge(*instance, mine.second);
    else
      instance->judge(mine.second);
    const Cost cost = instance->cost();
    mine.first = {limit_of(cost, rates_, plan.ranks),
                  world_.computes_on_gpu() && world_.sharers_of_device(group) > 1};
    return std::nullopt;
  });
  if (failure) return fail(record, *failure);

  const std::vector<std::pair<Report, Judge>> all = world_.all_gather(group, mine);
  Limit limit;  // of the rank with the slowest
  bool shares_gpu = false;
  for (const auto& [report, judge] : all) {
    if (report.limit.seconds > limit.seconds) limit = report.limit;
    shares_gpu = shares_gpu || report.shares_gpu;
  }
  bool again = false;
  failure = phase("measuring a limit again", [&] {
    // Other work seldom disturbs all measurements. One of copies takes a tenth of a second on a
    // host, one of products takes seconds on a GPU.
    constexpr int least_turns = 3;
    constexpr double most_s = 0.5;
    const double begin = machine::steady_s();
    const auto compared_s = [&](int turn) {
      return turn < least_turns || machine::steady_s() - begin < most_s ? record.seconds : 0;
    };
    for (int turn = 0; !shares_gpu && measure_again(group, limit, compared_s(turn)); ++turn) {
      again = true;
      limit = slowest_limit(group, limit_of(instance->cost(), rates_, plan.ranks));
    }
    return std::nullopt;
  });
  if (failure) return fail(record, *failure);
  if (group.index == 0) {
    std::vector<Judge> judges;
    for (const auto& [report, judge] : all) judges.push_back(judge);
    record.oversubscribed = shares_gpu;
    merge(judges, plan.oracles, record);
    add_rates(record, instance->cost());
    if (!shares_gpu) add_limit(record, limit, again);
  }
  Description description(record.seconds, counter(record, "library_s"));
  failure = phase("describing", [&] {
    instance->describe(description);
    return std::nullopt;
  });
  if (failure) return fail(record, *failure);
  record.counters.insert(description.counters().begin(), description.counters().end());
  if (!record.note.empty())
    description.note =
        record.note + (description.note.empty() ? std::string() : "; " + description.note);
  static_cast<Described&>(record) = std::move(description);
  const bool on_virtual_gpu = world_.computes_on_gpu() && machine::cuda::is_virtual();
  if (record.oversubscribed || on_virtual_gpu) remove_speed_claims(record);
  // No rank frees memory that another rank may still read.
  world_.barrier(group);
}

}  // namespace harness
