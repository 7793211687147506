#include "harness/measure/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "harness/measure/core_delay.h"
#include "harness/measure/statistics.h"
#include "machine/base/clock.h"
#include "machine/base/error.h"
#include "machine/world/control/waited.h"

namespace harness {
namespace {

double process_cpu_s() {
  std::timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// A sample this far above the rank's shortest is a spike, unless its core explains half of it.
constexpr double spike_s = 1e-3, spike_factor = 3;

constexpr int max_batch = 1 << 16;
constexpr int loop_batch = 20;               // nccl-tests' -n
constexpr double batch_fraction = 1.0 / 20;  // of the case's time, for the runs between two events
// Longer than queueing a run takes. A run longer than the device's queue would wait for itself.
constexpr double gate_deadline_s = 2;
// Number of consecutive samples of the unit, then of the yardstick. The first sample of a turn
// starts with the other's caches. These samples are too few to move a median.
constexpr int turn = 10;
// Short times contain a barrier skew that more samples cannot average away.
constexpr double short_time_s = 20e-6;

}  // namespace

bool is_of_a_wait(const std::exception& error) {
  const machine::Failure::Kind kind = machine::failure_of(error).kind;
  return kind == machine::Failure::Kind::timeout || kind == machine::Failure::Kind::peer_failed;
}

std::string_view name(Stop stop) {
  constexpr std::string_view names[] = {"", "converged", "time_cap", "sample_cap"};
  return names[static_cast<std::size_t>(stop)];
}

double wanted_precision(double median_s) { return median_s < short_time_s ? 0.02 : 0.01; }

bool converged(std::span<const double> times) {
  const double centre = median(times);
  const double half_width = wanted_precision(centre) * centre;
  // Regardless of correlation: all samples are within the wanted precision.
  const auto [least, most] = std::ranges::minmax(times);
  if ((most - least) / 2 <= half_width) return true;
  const auto interval = median_interval(times);
  return interval && (interval->high - interval->low) / 2 <= half_width;
}

Director::Director(const SamplingLimits& limits, double unit_per_sample_s,
                   double yardstick_per_sample_s)
    : limits_(limits) {
  const bool alternates = yardstick_per_sample_s > 0, demanded = limits.least_samples > 0;
  unit_ = {.budget_s = limits.seconds * (alternates ? 2.0 / 3 : 1.0),
           .per_sample_s = unit_per_sample_s,
           .least = demanded ? limits.least_samples : 3,
           .needs_least = demanded};
  if (alternates)
    yardstick_ = {.budget_s = limits.seconds / 3,
                  .per_sample_s = yardstick_per_sample_s,
                  .least = demanded ? limits.least_samples : 5,
                  .needs_least = demanded};
}

void Director::add(Runner runner, std::span<const double> times, double elapsed_s) {
  Series& series = runner == Runner::unit ? unit_ : yardstick_;
  series.times.insert(series.times.end(), times.begin(), times.end());
  series.elapsed_s += elapsed_s;
  series.per_sample_s =
      series.elapsed_s / static_cast<double>(std::max<std::size_t>(1, series.times.size()));
}

Stop Director::stop(const Series& series) const {
  const int count = static_cast<int>(series.times.size());
  if (count >= limits_.min_samples && converged(series.times)) return Stop::converged;
  if (count >= limits_.max_samples) return Stop::sample_cap;
  // A few samples are worth limited overtime.
  const bool overtime = !series.needs_least && series.elapsed_s >= 3 * series.budget_s;
  if (series.elapsed_s >= series.budget_s && (count >= series.least || overtime))
    return Stop::time_cap;
  return Stop::no;
}

int Director::block(const Series& series) const {
  const int count = static_cast<int>(series.times.size());
  const double left_s = series.budget_s - series.elapsed_s;
  // The first block is the minimum for convergence, unless that takes most of the time.
  const double fits = (count == 0 ? left_s / 4 : left_s) / std::max(series.per_sample_s, 1e-9);
  const int grown = count == 0 ? limits_.min_samples : std::max(10, count / 2);
  const double size = std::min({static_cast<double>(grown), std::ceil(fits),
                                static_cast<double>(limits_.max_samples - count)});
  return std::max(1, static_cast<int>(size));
}

Director::Order Director::next() const {
  Order order;
  const Stop unit = stop(unit_);
  if (unit == Stop::no) order.unit = block(unit_);
  if (yardstick_.budget_s > 0) {
    const int count = static_cast<int>(yardstick_.times.size());
    // The yardstick is sampled while the unit is.
    if (unit == Stop::no && stop(yardstick_) == Stop::no)
      order.yardstick = block(yardstick_);
    else if (unit != Stop::no && count < yardstick_.least &&
             (yardstick_.needs_least || yardstick_.elapsed_s < 3 * yardstick_.budget_s))
      order.yardstick = yardstick_.least - count;
  }
  if (order.unit == 0 && order.yardstick == 0) order.stop = unit;
  return order;
}

Sampler::Sampler(machine::Device& device, machine::Link* link, const SamplingLimits& limits,
                 std::function<void(const machine::Failure&)> on_failure)
    : device_(device), link_(link), limits_(limits), on_failure_(std::move(on_failure)) {}

bool barrier(machine::Link* link, bool failed) {
  if (!link) return failed;
  const int ranks = link->size(), rank = link->rank();
  for (int distance = 1; distance < ranks; distance *= 2) {
    const char mine = failed ? 1 : 0;
    char theirs = 0;
    link->send((rank + distance) % ranks, &mine, 1);
    link->receive((rank - distance + ranks) % ranks, &theirs, 1);
    failed = failed || theirs != 0;
  }
  return failed;
}

template <class T>
T Sampler::from_rank_0(T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (!link_) return value;
  if (link_->rank() == 0) {
    for (int peer = 1; peer < link_->size(); ++peer) link_->send(peer, &value, sizeof value);
    link_->flush();
  } else {
    link_->receive(0, &value, sizeof value);
  }
  return value;
}

void Sampler::keep(machine::Failure failure) {
  result_.failure = std::move(failure);
  if (on_failure_) on_failure_(*result_.failure);
}

// All ranks call it together. It is also a barrier.
bool Sampler::fails_somewhere() {
  return result_.failed_somewhere = barrier(link_, result_.failure.has_value());
}

template <class Call>
void Sampler::guarded(Call call) {
  if (result_.failure) return;
  try {
    call();
  } catch (const std::exception& error) {
    if (is_of_a_wait(error)) throw;
    keep(machine::failure_of(error));
  }
}

void Sampler::runs(Runner runner, int count) {
  for (int i = 0; i < count; ++i)
    if (runner == Runner::yardstick)
      instance_->yardstick();
    else if (limits_.run)
      limits_.run(*instance_);
    else
      instance_->run();
}

// The gate opens in any case, so that queued work ends and failures are reported.
double Sampler::armed_seconds(Runner runner) {
  machine::Stream& stream = device_.stream();
  std::unique_ptr<machine::Event> begin, end;
  guarded([&] {
    gate_->close();
    begin = stream.record();
    runs(runner, 1);
    end = stream.record();
  });
  const bool failed = fails_somewhere();
  gate_->open();
  if (failed) return 0;  // on some rank, so waiting for its work would never end
  double seconds = 0;
  guarded([&] {
    stream.synchronize();
    seconds = gate_->held() ? end->seconds_since(*begin) : std::numeric_limits<double>::quiet_NaN();
  });
  return seconds;
}

void Sampler::run_between_events(Runner runner, int batch) {
  machine::Stream& stream = device_.stream();
  std::unique_ptr<machine::Event> begin, end;
  guarded([&] {
    begin = stream.record();
    runs(runner, batch);
    end = stream.record();
    stream.synchronize();
    device_s_ = end->seconds_since(*begin) / batch;
  });
}

// Returns the minimum number of runs in a sample that the device times.
int Sampler::least_batch(double run_s) const {
  const double fit = limits_.seconds * batch_fraction / std::max(run_s, 1e-9);
  return static_cast<int>(std::clamp(fit, 1.0, 1.0 * loop_batch));
}

double Sampler::timed(Runner runner, int batch) {
  const bool checks = instance_->has_check();
  int& sampled = sampled_[static_cast<std::size_t>(runner)];
  if (limits_.sample && runner == Runner::unit) *limits_.sample = sampled;
  guarded([&] { instance_->prepare(); });
  // If a check failed on some ranks only, the others would wait for them in the rehearsal.
  if (checks && fails_somewhere()) return 0;
  guarded([&] {
    if (checks) instance_->rehearse(runner);
    device_.stream().synchronize();
  });
  const bool failed = fails_somewhere();
  ClockStart::Moment moment;
  if (clock_start_ && !failed) moment = clock_start_->wait();
  const double waited_before = machine::waited_s();
  const double begin = clock_start_ ? moment.start_s : machine::steady_s();
  if (failed) return 0;
  double seconds = 0;
  device_s_ = 0;
  const bool armed = gate_ && sampled_[0] >= 0;
  if (armed) {
    seconds = armed_seconds(runner);
  } else if (has_events_) {
    run_between_events(runner, batch);
  } else {
    guarded([&] {
      runs(runner, batch);
      device_.stream().synchronize();
    });
  }
  const double host_s = machine::steady_s() - begin;
  host_s_ = host_s / batch;
  if (!armed) seconds = by_device_ ? device_s_ * batch : host_s;
  // One clock only: waits are on the host's.
  busy_s_ = armed || by_device_ ? seconds / batch
                                : (host_s - (machine::waited_s() - waited_before)) / batch;
  if (checks) {
    fails_somewhere();  // no rank checks while another still runs
    guarded([&] {
      std::optional<machine::Failure> wrong = instance_->check(runner);
      if (!wrong) return;
      wrong->sample = sampled;
      wrong->text =
          fmt::format("{}{}: {}", runner == Runner::yardstick ? "the yardstick, " : "",
                      sampled < 0 ? "in warm-up" : fmt::format("sample {}", sampled), wrong->text);
      keep(std::move(*wrong));
    });
  }
  if (sampled >= 0) ++sampled;
  if (limits_.progress) limits_.progress->fetch_add(1, std::memory_order_relaxed);
  return moment.late ? std::numeric_limits<double>::quiet_NaN() : seconds / batch;
}

// At least 5 runs and a twentieth of the case's time, at most a fifth of it (but always one run).
Sampler::WarmUp Sampler::warm_up(Runner runner) {
  const double begin = machine::steady_s();
  WarmUp result;
  const bool batches = instance_->repeatable() && limits_.timing != Timing::window &&
                       limits_.timing != Timing::armed;
  if (batches && limits_.timing == Timing::loop) result.batch = loop_batch;
  for (int runs = 0;;) {
    const double sample_begin = machine::steady_s();
    const double run_s = timed(runner, result.batch);
    runs += result.batch;
    result.per_sample_s = machine::steady_s() - sample_begin;
    const double spent_s = machine::steady_s() - begin;

    int next_batch = result.batch;
    bool more = spent_s < limits_.seconds / 5 && (runs < 5 || spent_s < limits_.seconds / 20);
    more = more || (by_device_ && runs == 1);  // the first run loads kernels
    if (batches && by_device_ && least_batch(run_s) > result.batch) {
      next_batch = least_batch(run_s);
      more = true;
    } else if (batches && run_s * result.batch < limits_.sample_seconds &&
               result.batch < max_batch) {
      // A tenth above the minimum, in steps, because the first runs are slower than later runs.
      // A run that queues nothing takes any fraction of the time between two events.
      const double wanted = 1.1 * limits_.sample_seconds / std::max(run_s, 1e-15);
      const double most = std::min(8.0 * result.batch, 1.0 * max_batch);
      next_batch = static_cast<int>(std::clamp(wanted, result.batch + 1.0, most));
      more = true;
    }
    // The failure of another rank is known from the next run's barrier on.
    more = more && !result_.failure && !result_.failed_somewhere;
    next_batch = from_rank_0(more ? next_batch : 0);
    if (next_batch == 0) return result;
    result.batch = next_batch;
  }
}

RankActivity Sampler::watched(Runner runner, int batch, std::vector<double>& seconds) {
  RankActivity activity;
  const double begin = machine::steady_s(), delayed_before = core_delay_s();
  double asked = delayed_before, shortest = std::numeric_limits<double>::infinity();
  for (double& time : seconds) {
    time = timed(runner, batch);
    activity.busy.push_back(busy_s_);
    if (has_events_) {
      activity.host.push_back(host_s_);
      activity.device.push_back(device_s_);
    }
    const double busy = busy_s_ * batch;
    shortest = std::min(shortest, busy);
    if (busy <= spike_s + spike_factor * shortest) continue;
    const double delayed = core_delay_s();
    if (delayed - asked < busy / 2) ++activity.spikes;
    asked = delayed;
  }
  activity.delayed_s = core_delay_s() - delayed_before;
  activity.taken_s = machine::steady_s() - begin;
  return activity;
}

double Sampler::take(Runner runner, int count, TimedSeries& series, Rows& rows) {
  if (clock_start_) clock_start_->synchronize();
  // A rank's row: its times, how long it was busy in each, on a GPU the times by both clocks, and
  // three sums.
  std::vector<double> mine(static_cast<std::size_t>(count));
  const RankActivity activity = watched(runner, series.batch, mine);
  const int ranks = link_ ? link_->size() : 1;
  const bool leads = !link_ || link_->rank() == 0;
  rows.resize(leads ? static_cast<std::size_t>(ranks) : 1);
  if (!leads) rows[0].insert(rows[0].end(), mine.begin(), mine.end());
  for (const auto* column : {&activity.busy, &activity.host, &activity.device})
    mine.insert(mine.end(), column->begin(), column->end());
  mine.insert(mine.end(), {activity.taken_s, activity.delayed_s, activity.spikes});
  const std::size_t bytes = mine.size() * sizeof(double);
  if (!leads) {
    link_->send(0, mine.data(), bytes);
    link_->flush();
    return activity.taken_s;
  }
  Rows fresh(static_cast<std::size_t>(ranks), mine);
  for (int rank = 1; rank < ranks; ++rank)
    link_->receive(rank, fresh[static_cast<std::size_t>(rank)].data(), bytes);
  const auto samples = static_cast<std::size_t>(count);
  series.ranks.resize(fresh.size());
  const std::size_t sums = (has_events_ ? 4 : 2) * samples;
  const int late_before = series.late;
  for (std::size_t i = 0; i < samples; ++i) {
    double worst = 0, sum = 0, host = 0, on_device = 0;
    for (const auto& row : fresh) {
      worst = std::max(worst, row[i]);
      sum += row[i];
      if (!has_events_) continue;
      host = std::max(host, row[2 * samples + i]);
      on_device = std::max(on_device, row[3 * samples + i]);
    }
    if (std::isnan(sum)) {
      ++series.late;
      continue;
    }
    series.worst.push_back(worst);
    series.mean.push_back(sum / ranks);
    if (has_events_) {
      series.host.push_back(host);
      series.device.push_back(on_device);
    }
    for (std::size_t rank = 0; rank < fresh.size(); ++rank) {
      rows[rank].push_back(fresh[rank][i]);
      series.ranks[rank].busy.push_back(fresh[rank][samples + i]);
    }
  }
  for (std::size_t rank = 0; rank < fresh.size(); ++rank) {
    series.ranks[rank].taken_s += fresh[rank][sums];
    series.ranks[rank].delayed_s += fresh[rank][sums + 1];
    series.ranks[rank].spikes += fresh[rank][sums + 2];
  }
  if (clock_start_ && 4 * (series.late - late_before) > count) clock_start_->leave_more_time();
  return activity.taken_s;
}

Sampled Sampler::sample(Instance& instance) {
  instance_ = &instance;
  result_ = {};
  sampled_ = {-1, -1};
  clock_start_.reset();
  gate_.reset();
  if (limits_.timing == Timing::armed) {
    gate_ = device_.make_gate(gate_deadline_s);
    if (!gate_ || !instance.only_queues())
      throw std::logic_error("timing armed: the run does not only queue work on a device");
  }
  if (limits_.timing == Timing::window) clock_start_.emplace(link_, limits_.one_clock);
  has_events_ = device_.kind() == machine::Device::Kind::cuda &&
                (limits_.timing == Timing::sample || limits_.timing == Timing::loop);
  by_device_ = has_events_ && instance.only_queues();
  const bool alternates = instance.has_yardstick();
  const WarmUp unit = warm_up(Runner::unit);
  const WarmUp yardstick = alternates ? warm_up(Runner::yardstick) : WarmUp{};
  sampled_ = {0, 0};
  result_.unit.batch = unit.batch;
  result_.yardstick.batch = yardstick.batch;
  limits_.least_samples = instance.least_samples();
  Director director(limits_, unit.per_sample_s,
                    alternates ? std::max(yardstick.per_sample_s, 1e-9) : 0);
  struct Side {
    Runner runner;
    TimedSeries& series;
    Rows rows = {};
    int left = 0;
  } ours{Runner::unit, result_.unit}, library{Runner::yardstick, result_.yardstick};
  // Takes a few samples, so that changes of the machine affect both sides equally.
  const auto take_turn = [&](Side& side, const Side& other) {
    if (side.left == 0) return;
    const int count = other.left > 0 ? std::min(turn, side.left) : side.left;
    const std::size_t before = side.series.worst.size();
    const double elapsed_s = take(side.runner, count, side.series, side.rows);
    director.add(side.runner, std::span(side.series.worst).subspan(before), elapsed_s);
    side.left -= count;
    if (limits_.on_block && side.runner == Runner::unit && !side.series.worst.empty())
      limits_.on_block(side.series.worst);
  };
  double cpu_s = 0;
  while (true) {
    if (fails_somewhere()) break;
    const Director::Order order = from_rank_0(director.next());
    result_.stop = order.stop;
    if (order.unit == 0 && order.yardstick == 0) break;
    ours.left = order.unit;
    library.left = order.yardstick;
    while (ours.left > 0 || library.left > 0) {
      const double cpu_begin = process_cpu_s();
      take_turn(ours, library);
      cpu_s += process_cpu_s() - cpu_begin;
      take_turn(library, ours);
    }
  }
  for (const Side* side : {&ours, &library}) {
    SampleMatrix& matrix = side->series.samples;
    matrix.ranks = static_cast<int>(side->rows.size());
    for (const auto& row : side->rows)
      matrix.seconds.insert(matrix.seconds.end(), row.begin(), row.end());
  }
  const double runs = static_cast<double>(result_.unit.samples.iterations()) * result_.unit.batch;
  result_.cpu_seconds = runs > 0 ? cpu_s / runs : 0;
  return std::move(result_);
}

}  // namespace harness
