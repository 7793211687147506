#pragma once
// Times a unit on all ranks of a case: the matrix t[rank][iteration].
//
// A sample: prepare(), a barrier among the case's ranks, then run() between two readings of the
// steady clock on every rank, then check(), if the unit has one. With it, prepare() is followed by
// rehearse(): that run finds the caches as the check left them, the timed one as a run leaves them.
// The yardstick's samples are rehearsed and checked alike: they would be faster without.
// T_i = max over ranks of t[rank][i]; the headline is the median of T_i. A run shorter than the
// clock can tell is repeated `batch` times in one sample, so that a sample lasts 20 us or more, and
// its time is the mean of the batch: back-to-back runs, as nccl-tests times them.
//
// What the barrier does to short times: a rank that leaves it first waits inside its run for the
// one that leaves last, and the maximum over ranks contains that wait. The exit skew, printed by
// sampler_test (median 0.02 us for two ranks on two cores, 4.5 us for four ranks there, who take
// turns), enters a sample once, so a batch divides it: 0.1 % of a sample of 20 us with a core a
// rank. Ranks that share cores distort short times anyway; compare them with each other only.
//
// That is the timing `sample`. `loop` is nccl-tests': at least 20 runs back to back in every
// sample, whose mean over the ranks is given too (average_over_ranks_s). `window` starts all ranks
// by the clock (clock_start.h), one run a sample, timed from the common start; a sample for which
// a rank came late is dropped on all. `armed` is for runs that only queue work on a device's
// stream: every rank's stream is held back (machine::Gate) while the rank queues an event, the run
// and another event; after a barrier the gates open, and the time is what lies between the events.
// What is left of the launches' jitter is the skew of that barrier. Warm-up is not armed, since
// first runs may wait for the device. A sample that a gate did not hold back is dropped.
//
// Beside its time each rank takes what of it the rank itself was busy: the rest it slept, waiting
// for others (machine/world/control/waited.h). A rank that comes late to a collective stretches
// everybody's time, and is alone in being busy; a slow link stretches it, and nobody is. And it
// asks the system how long it was ready to run and its core ran something else: what a busy machine
// does to a rank is told apart from what is wrong with it.
//
// Every decision (how many runs a batch, how many samples more, stop) is taken by the case's rank 0
// from all ranks' times and sent to the others.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/measure/clock_start.h"
#include "harness/record/record.h"
#include "harness/unit/unit.h"
#include "machine/world/world.h"

namespace harness {

struct SamplingLimits {
  double seconds = 1;    // of a case, warm-up apart: unit two thirds, yardstick one, if it has one
  int min_samples = 30;  // before sampling may count as converged
  int max_samples = 10000;
  double sample_seconds = 20e-6;  // the least a sample should last
  Timing timing = Timing::sample;
  bool one_clock = true;  // all ranks are on one host
  // Counted up after every sample, if given: the sign of life that the watchdog looks at.
  std::atomic<std::uint64_t>* progress = nullptr;
  int* sample = nullptr;  // told which one of the unit's comes, if given; -1 in warm-up
};

enum class Stop : unsigned char { no, converged, time_cap, sample_cap };
std::string_view name(Stop stop);

// Half width of the median's interval, relative to it, at which sampling has converged: 1 %, and 2
// % for times below 20 us.
double wanted_precision(double median_s);
bool converged(std::span<const double> times);

// Decides how many samples to take next, by rank 0 and without looking at a clock itself: blocks
// that grow by half. Times are the T_i; elapsed is what the blocks took, prepare() and barriers
// included.
class Director {
 public:
  // per_sample_s: what warm-up says one sample takes. yardstick 0: there is none.
  Director(SamplingLimits limits, double unit_per_sample_s, double yardstick_per_sample_s = 0);

  struct Order {
    int unit = 0, yardstick = 0;  // samples to take next; 0 and 0: stop
    Stop stop = Stop::no;
  };
  Order next() const;
  void add_unit(std::span<const double> times, double elapsed_s) { add(unit_, times, elapsed_s); }
  void add_yardstick(std::span<const double> times, double elapsed_s) {
    add(yardstick_, times, elapsed_s);
  }

 private:
  struct Series {
    double budget_s = 0, per_sample_s = 0, elapsed_s = 0;
    int least = 0;  // samples before the time cap ends it
    std::vector<double> times;
  };
  static void add(Series& series, std::span<const double> times, double elapsed_s);
  Stop stop(const Series& series) const;
  int block(const Series& series) const;

  SamplingLimits limits_;
  Series unit_, yardstick_;
};

// What one rank did while it sampled.
struct RankActivity {
  std::vector<double> busy;  // of each sample, seconds of one run: not asleep in a wait
  double taken_s = 0;        // all in all, from barrier to barrier
  double delayed_s = 0;      // ready, but its core ran something else
  double spikes = 0;  // samples far above its shortest that no other work on its core explains
};

// Times of one thing, complete on the case's rank 0; other ranks have their own row only.
struct TimedSeries {
  SampleMatrix samples;
  std::vector<RankActivity> ranks;  // rank 0
  std::vector<double> worst;        // T_i; rank 0
  std::vector<double> mean;         // over ranks; rank 0
  int late = 0;                     // samples that were dropped
  int batch = 1;
};

struct Sampled {
  TimedSeries unit, yardstick;
  Stop stop = Stop::no;
  double cpu_seconds = 0;  // of this process, for one iteration of the unit
  // What a member of the unit threw or found wrong on this rank; the times end there.
  std::optional<machine::Failure> failure;
  bool failed_somewhere = false;
};

// Collective over the case's ranks. `link` joins them and carries nothing else; null for one rank.
// machine::Timeout and machine::PeerFailure pass through; what else the unit throws is kept in
// `failure` and passed to on_failure at once; the barrier before each run tells the others, who
// then do not run either. Only a rank already inside its run may go on waiting for the one that
// threw.
class Sampler {
 public:
  Sampler(machine::Device& device, machine::Link* link, SamplingLimits limits,
          std::function<void(const machine::Failure&)> on_failure = {});
  Sampled sample(Instance& instance);
  // Dissemination: ceil(log2 ranks) rounds (Hensgen, Finkel, Manber 1988). True when any rank came
  // with `failed`.
  bool barrier(bool failed = false);

 private:
  struct WarmUp {
    int batch = 1;
    double per_sample_s = 0;
  };
  double timed(Runner runner, int batch);  // of one run; NaN: a rank was late
  RankActivity watched(Runner runner, int batch, std::vector<double>& seconds);
  template <class Call>
  void guarded(Call call);
  void runs(Runner runner, int count);
  double armed_seconds(Runner runner);
  WarmUp warm_up(Runner runner);
  // Takes `count` samples and brings all ranks' times to rank 0; returns how long it took.
  using Rows = std::vector<std::vector<double>>;
  double take(Runner runner, int count, TimedSeries& series, Rows& rows);
  static void join_rows(const Rows& rows, SampleMatrix& matrix);
  void keep(machine::Failure failure);
  template <class T>
  T from_rank_0(T value);
  bool failed_anywhere();

  machine::Device& device_;
  machine::Link* link_;
  SamplingLimits limits_;
  std::function<void(const machine::Failure&)> on_failure_;
  Instance* instance_ = nullptr;
  Sampled result_;
  std::optional<ClockStart> clock_start_;
  std::unique_ptr<machine::Gate> gate_;
  std::array<int, 2> sampled_{-1, -1};  // samples so far, by Runner; -1: warm-up
  double busy_s_ = 0;                   // of the last sample, of one run
};

}  // namespace harness
