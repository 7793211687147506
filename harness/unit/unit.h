#pragma once
// A unit: one thing measured and judged, one self-registered file in suite/.
//
//   struct AllReduce {
//     static constexpr std::string_view name = "all_reduce";
//     static constexpr std::string_view about = "sum over all ranks, on all ranks";
//     static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::determinism};
//     struct Case { int ranks; machine::Transport transport; std::string algorithm; … };
//     static Sweep<Case> sweep();   // or sweep(const PlanRequest&)
//     AllReduce(const Case&, Context&);
//     void prepare();            // before every sample, not timed
//     void run();                // timed; short ones several times in a row for one sample
//     void judge(Judge&);        // after sampling: every oracle declared must rule
//     Cost cost() const;         // from the paper, not from the code
//   };
//   const bool registered = harness::add<AllReduce>();
//
// Optional members:
//   static std::string why_not(const Case&, const Context&)   a reason to skip, or empty. Default:
//       whether the world has the case's `transport`, if it has one.
//   static void check_files(const Case&, const Files&)   throws UsageError if a file of the command
//       line does not fit the case. Called before any rank starts.
//   void yardstick()   the library that does the same, timed in alternation: library_s and
//       speedup_over_library. With `static constexpr bool yardstick_is_part = true` no speedup.
//       With `bool has_yardstick() const`, the same on all ranks, only in the cases for which it is
//       true.
//   std::optional<machine::Failure> check(Runner), void rehearse(Runner)   check returns the error
//       of this rank's output, if any, after every sample of unit and yardstick, not timed. Before
//       the sample, rehearse runs the same once with other input, so that a stale output shows.
//   void describe(Description&)   on every rank after judge; rank 0's is kept (description.h).
//   static constexpr Counter counters[]   the counters that describe sets.
//   bool only_queues() const   run and yardstick only queue work on the device's stream and never
//       wait for it, so the timing `armed` can hold the work back until all ranks have queued it.
//   static constexpr int least_samples = 5   samples of run and yardstick, also if they take longer
//       than the case's time. Default: 3 and 5, or fewer if they take three times that long.
//   static constexpr bool repeatable = false   run or yardstick need prepare each time, so every
//       sample is one run.
//
// Traits (record.h), by which `health` finds slow ranks, disks and units: `equal_work`,
// `limit_applies`, `uses_disk`; each `static constexpr bool NAME = true` or `static bool NAME(const
// Case&)`. A missing trait is false.
//
// Every rank of the case constructs the unit and calls the same members in the same order. An
// exception on any rank fails the case. The axis `ranks` is required.

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/judge/judge.h"
#include "harness/judge/peak_meter.h"
#include "harness/record/counters.h"
#include "harness/record/description.h"
#include "harness/record/record.h"
#include "harness/unit/sweep.h"
#include "machine/base/failure.h"
#include "machine/world/world.h"

namespace harness {

class Rates;

// The losses with which a training step is compared: --reference (cpu, stored or none),
// --reference-file and --save-reference.
struct LossReference {
  std::string kind = "cpu", file = {}, save = {};
};

// A training that is saved or continued: --train-iters, --save-interval and --async-save. 0: not
// specified.
struct TrainingOptions {
  std::int64_t train_iters = 0, save_interval = 0;  // steps
  bool async_save = false;                          // write while the training goes on
};

// Files of the command line; empty: not specified. seed: of the run.
struct Files {
  std::string data, load, save;
  LossReference reference = {};
  std::uint64_t seed = 1234;
  TrainingOptions training = {};
};

// The ranks, device and inputs of a case.
struct Context {
  machine::World& world;
  machine::Group group;  // the case's ranks: the first `ranks` of the world
  machine::Device& device;
  const Rates& rates;
  std::uint64_t seed = 1234;
  std::string data_file = {};  // --data; empty: generated
  std::string load_file = {};  // --load; empty: initial values are random
  std::string save_file = {};  // --save; empty: values are not saved
  LossReference reference = {};
  TrainingOptions training = {};
};

// The cost of one iteration on one rank, and the factors of its rates.
struct Cost {
  double flops = 0;
  machine::Dtype flops_dtype = machine::Dtype::float32;
  double memory_bytes = 0;       // read plus written: the minimum of the algorithm
  double working_set_bytes = 0;  // selects the measured memory bandwidth
  // Writes only bytes that it has read, so no cache line is read only to be overwritten. Such a
  // case may be faster than a copy.
  bool updates_in_place = false;
  // The part of memory_bytes that a rank must receive from others, each byte once.
  double wire_bytes = 0;
  machine::Transport transport = machine::Transport::shared_memory;
  // S of algbw = S / t, as nccl-tests defines it. If set, the judged volume is that of one run, and
  // wire_GBps is the rate of the rank that sent most.
  double algorithm_bytes = 0;
  double bus_factor = 0;  // busbw = bus_factor * algbw
  double tokens = 0;      // of the whole case
};

namespace detail {
template <class U>
auto sweep_of(const PlanRequest& request) {
  if constexpr (requires { U::sweep(request); })
    return U::sweep(request);
  else
    return U::sweep();
}
}  // namespace detail

template <class U>
concept UnitType = requires(U unit, const typename U::Case& the_case, Context& context,
                            Judge& judge) {
  { U::name } -> std::convertible_to<std::string_view>;
  { U::about } -> std::convertible_to<std::string_view>;
  requires !std::span<const Oracle>(U::oracles).empty();
  { detail::sweep_of<U>(PlanRequest()) } -> std::same_as<Sweep<typename U::Case>>;
  { the_case.ranks } -> std::convertible_to<int>;
  U(the_case, context);
  unit.prepare();
  unit.run();
  unit.judge(judge);
  { unit.cost() } -> std::same_as<Cost>;
};

// The code that a sample times.
enum class Runner : unsigned char { unit, yardstick };

// A unit in one case, without its type.
class Instance {
 public:
  virtual ~Instance() = default;
  virtual void prepare() = 0;
  virtual void run() = 0;
  virtual bool repeatable() const = 0;
  virtual int least_samples() const = 0;  // 0: the default
  virtual bool only_queues() const = 0;
  virtual bool has_yardstick() const = 0;
  virtual void yardstick() = 0;
  virtual bool has_check() const = 0;
  virtual void rehearse(Runner runner) = 0;
  virtual std::optional<machine::Failure> check(Runner runner) = 0;
  virtual void judge(Judge& judge) = 0;
  virtual Cost cost() const = 0;
  virtual void describe(Description& description) = 0;
};

struct PlannedCase {
  std::string unit, name;  // name: case_name
  AxisValues axes;         // all
  std::string slice;       // of the profile: sweep.h
  int ranks = 1;
  Traits traits;
  bool yardstick_is_part = false;  // the yardstick is part of the unit's work: no speedup
  std::span<const Oracle> oracles;
  std::function<std::string(const Context&)> why_not;
  std::function<void(const Files&)> check_files;
  std::function<std::unique_ptr<Instance>(Context&)> make;
};

class Family {
 public:
  virtual ~Family() = default;
  virtual std::string_view name() const = 0;
  virtual std::string_view about() const = 0;
  virtual std::span<const Oracle> oracles() const = 0;
  virtual std::vector<AxisInfo> axes(const PlanRequest& request) const = 0;
  // Returns the default of every axis, on the host and without a configuration.
  virtual const AxisValues& defaults() const = 0;
  virtual std::vector<PlannedCase> cases(const PlanRequest& request) const = 0;
};

// "all_reduce/algorithm:tree/ranks:4": the unit, `ranks`, and the other axes whose values differ
// from the unit's defaults. So a case keeps its name when its unit gets another axis. A unit that
// is not registered shows all axes.
std::string case_name(std::string_view unit, const AxisValues& axes);
// The unit and all axes of a name; those that the name lacks have their defaults.
struct NamedCase {
  std::string unit;
  AxisValues axes;
};
NamedCase read_case_name(std::string_view name);

// Returns the value of the axis `transport`; empty: no such axis.
std::optional<machine::Transport> transport_of(const AxisValues& axes);

// Returns all registered units, by name.
std::vector<const Family*> families();
// Returns the units of these names of units or cases, each once; all units if the list is empty.
// Throws UsageError for an unknown name.
std::vector<const Family*> families(const std::vector<std::string>& units);
// Throws std::logic_error if another unit has this name.
bool add(std::unique_ptr<Family> family);

template <UnitType U>
bool add();

// Returns the named cases and the cases of the named units (all units if no unit is named), in
// order. A flag applies to the units that have its axis, not to named cases. Throws UsageError for
// an unknown unit, a flag that no selected unit has, a value that a named unit rejects, or no case.
// If no unit is named, units that do not allow a value are left out. It is an error if all units
// reject it.
std::vector<PlannedCase> plan_cases(const std::vector<std::string>& units,
                                    const PlanRequest& request);

}  // namespace harness

#include "harness/unit/unit_impl.h"
