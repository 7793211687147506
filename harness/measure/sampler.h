#pragma once
// Times a unit on all ranks of a case: the matrix t[rank][iteration].
//
// A sample: prepare(), a barrier of the case's ranks, run() between two readings of the steady
// clock on every rank, then, after another barrier, check(), if the unit has one. Without that
// barrier a rank that checks would take memory bandwidth, and a shared core, from ranks that still
// run. With check(), prepare() is followed by rehearse(). The rehearsal starts with the caches that
// the check left, the timed run with those that a run leaves. Samples of the yardstick are
// rehearsed and checked likewise, because they would be faster without. T_i = max over ranks of
// t[rank][i]; the headline is the median of T_i. A run that is too short for the clock is repeated
// `batch` times per sample, so that a sample takes 20 us or more. Its time is the mean of the
// batch: back-to-back runs, as in nccl-tests.
//
// The barrier's effect on short times: a rank that leaves it first waits inside its run for the
// rank that leaves last, and the maximum over ranks contains that wait. The exit skew, which
// sampler_test prints (median 0.02 us for two ranks on two cores, 4.5 us for four ranks, which take
// turns there), enters a sample once, so a batch divides it: 0.1 % of a sample of 20 us with one
// core per rank. Compare short times of ranks that share cores only with each other.
//
// On a GPU each sample also has the time between two events in the device's stream, around the
// runs. A unit that only queues work is timed by it: 20 back-to-back runs or more per sample, or as
// many as take a twentieth of the case's time, so that the host's launches and its wait do not
// count. Other units are timed by the host's clock. The record has both times.
//
// That is the timing `sample`. `loop` is that of nccl-tests: at least 20 back-to-back runs per
// sample, with the mean over the ranks in addition (average_over_ranks_s). `window` starts all
// ranks by the clock (clock_start.h), one run per sample, timed from the common start. If any rank
// is late, all drop the sample. `armed` is for runs that only queue work on a device's stream: each
// rank holds its stream back (machine::Gate) while it queues an event, the run and another event.
// After a barrier the gates open, and the time is that between the events. The remaining launch
// jitter is the skew of that barrier. Warm-up is not armed, because first runs may wait for the
// device. A sample that a gate did not hold back is dropped.
//
// Each rank also records its busy time: the sample without its sleep in waits for others
// (machine/world/control/waited.h), both by the host's clock. If the device times the runs, its
// busy time is theirs: it shows a slow GPU if the runs do not wait for other ranks. A late rank
// stretches all times of a collective, but only that rank is busy. A slow link stretches all times,
// and no rank is busy. Each rank also asks the system how long it was ready while its core ran
// something else, which separates a busy machine from a defect.
//
// The case's rank 0 takes every decision (runs per batch, further samples, stop) from all ranks'
// times and sends it to the others.

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "harness/measure/clock_start.h"
#include "harness/record/record.h"
#include "harness/unit/unit.h"
#include "machine/world/world.h"

namespace harness {

struct SamplingLimits {
  double seconds = 1;    // per case without warm-up: two thirds unit, one third yardstick, if any
  int min_samples = 30;  // before sampling may count as converged
  int max_samples = 10000;
  int least_samples = 0;          // Instance::least_samples
  double sample_seconds = 20e-6;  // minimum duration of a sample
  Timing timing = Timing::sample;
  bool one_clock = true;                    // all ranks are on one host
  std::function<void(Instance&)> run = {};  // replaces the unit's run(), if given
  // Incremented after every sample, if given: the watchdog's sign of life.
  std::atomic<std::uint64_t>* progress = nullptr;
  // Called on rank 0 after every block of the unit with its times T_i so far, if given.
  std::function<void(std::span<const double> times)> on_block = {};
  int* sample = nullptr;  // receives the number of the unit's sample, if given; -1 in warm-up
};

// Returns whether the exception is a machine::Timeout or a machine::PeerFailure.
bool is_of_a_wait(const std::exception& error);

enum class Stop : unsigned char { no, converged, time_cap, sample_cap };
std::string_view name(Stop stop);

// Relative half width of the median's interval at which sampling has converged: 1 %, and 2 % for
// times below 20 us.
double wanted_precision(double median_s);
bool converged(std::span<const double> times);

// Decides on rank 0 how many samples to take next, without reading a clock: blocks that grow by
// half. Times are the T_i. elapsed is the duration of the blocks, with prepare() and barriers.
class Director {
 public:
  // per_sample_s: duration of a sample in warm-up. yardstick 0: no yardstick.
  Director(const SamplingLimits& limits, double unit_per_sample_s,
           double yardstick_per_sample_s = 0);

  struct Order {
    int unit = 0, yardstick = 0;  // samples to take next; 0 and 0: stop
    Stop stop = Stop::no;
  };
  Order next() const;
  void add(Runner runner, std::span<const double> times, double elapsed_s);

 private:
  struct Series {
    double budget_s = 0, per_sample_s = 0, elapsed_s = 0;
    int least = 0;  // samples before the time cap ends it
    // The time cap does not end it before: the unit requires `least`.
    bool needs_least = false;
    std::vector<double> times = {};
  };
  Stop stop(const Series& series) const;
  int block(const Series& series) const;

  SamplingLimits limits_;
  Series unit_, yardstick_;
};

// The activity of one rank while it sampled.
struct RankActivity {
  std::vector<double> busy;  // per sample, seconds of one run: not asleep in a wait
  // Per sample on a GPU, seconds of one run by the host's clock, and between events of the stream.
  std::vector<double> host, device;
  double taken_s = 0;    // in total, from barrier to barrier
  double delayed_s = 0;  // ready, but its core ran something else
  double spikes = 0;  // samples far above its shortest that other work on its core does not explain
};

// Times of the unit or its yardstick, complete on the case's rank 0. Other ranks have only their
// row.
struct TimedSeries {
  SampleMatrix samples;
  std::vector<RankActivity> ranks;   // rank 0
  std::vector<double> worst;         // T_i; rank 0
  std::vector<double> mean;          // over ranks; rank 0
  std::vector<double> host, device;  // on GPUs, maxima over ranks by both clocks; rank 0
  int late = 0;                      // samples that were dropped
  int batch = 1;
};

struct Sampled {
  TimedSeries unit, yardstick;
  Stop stop = Stop::no;
  double cpu_seconds = 0;  // of this process, for one iteration of the unit
  // The exception or finding of a member of the unit on this rank. The times end there.
  std::optional<machine::Failure> failure;
  bool failed_somewhere = false;
};

// Dissemination barrier: ceil(log2 ranks) rounds (Hensgen, Finkel, Manber 1988). Returns true if
// any rank passed `failed`. A null link is one rank.
bool barrier(machine::Link* link, bool failed = false);

// Collective over the case's ranks. `link` connects them and carries nothing else; null for one
// rank.
// machine::Timeout and machine::PeerFailure pass through. Other exceptions of the unit are kept in
// `failure` and passed to on_failure at once. The barrier before each run informs the other ranks,
// which do not run either. Only a rank already inside its run may keep waiting for the failed rank.
class Sampler {
 public:
  Sampler(machine::Device& device, machine::Link* link, const SamplingLimits& limits,
          std::function<void(const machine::Failure&)> on_failure = {});
  Sampled sample(Instance& instance);

 private:
  struct WarmUp {
    int batch = 1;
    double per_sample_s = 0;
  };
  double timed(Runner runner, int batch);  // of one run; NaN: a rank was late
  // Runs between two events. Sets device_s_.
  void run_between_events(Runner runner, int batch);
  int least_batch(double run_s) const;
  RankActivity watched(Runner runner, int batch, std::vector<double>& seconds);
  template <class Call>
  void guarded(Call call);
  void runs(Runner runner, int count);
  double armed_seconds(Runner runner);
  WarmUp warm_up(Runner runner);
  // Takes `count` samples and gathers all ranks' times on rank 0. Returns the seconds it took.
  using Rows = std::vector<std::vector<double>>;
  double take(Runner runner, int count, TimedSeries& series, Rows& rows);
  void keep(machine::Failure failure);
  bool fails_somewhere();
  template <class T>
  T from_rank_0(T value);

  machine::Device& device_;
  machine::Link* link_;
  SamplingLimits limits_;
  std::function<void(const machine::Failure&)> on_failure_;
  Instance* instance_ = nullptr;
  Sampled result_;
  std::optional<ClockStart> clock_start_;
  std::unique_ptr<machine::Gate> gate_;
  std::array<int, 2> sampled_{-1, -1};  // samples so far, by Runner; -1: warm-up
  bool has_events_ = false;             // samples are between events of the device
  bool by_device_ = false;              // and timed by them
  double busy_s_ = 0;                   // of the last sample, of one run
  double host_s_ = 0, device_s_ = 0;    // the same, by both clocks
};

}  // namespace harness
