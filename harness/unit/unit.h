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
// Optional members: `static std::string why_not(const Case&, const Context&)` (a reason to skip, or
// empty; by default whether the world has the case's `transport`, if it has one), `static void
// check_files(const Case&, const Files&)` (throws UsageError if a file of the command line does not
// fit the case; called before any rank starts), `void yardstick()` (the library doing the same:
// timed in alternation, gives library_s and speedup_over_library, the latter not with `static
// constexpr bool yardstick_is_part = true`; with `bool has_yardstick() const` only in the cases
// where that says so, on all ranks alike), `std::optional<machine::Failure> check(Runner)` with
// `void rehearse(Runner)` (what is wrong with the output on this rank, if anything, after every
// sample of the unit and of its yardstick, not timed; before it rehearse runs the same once with
// other input, so that an output left over from the sample before shows), `void
// describe(Description&)` (description.h; on every rank after judge, rank 0's is kept), `static
// constexpr Counter counters[]` (the counters that describe sets), `bool only_queues() const` (run
// and yardstick only queue work on the device's stream and wait for none of it, so that the timing
// `armed` can hold it back until all ranks have queued theirs), `static constexpr bool repeatable =
// false` (run or yardstick twice without prepare between them makes no sense: every sample is then
// one run).
//
// Traits (record.h), which let `health` find slow ranks, disks and units: `equal_work`,
// `limit_applies`, `uses_disk`; each `static constexpr bool NAME = true` or `static bool NAME(const
// Case&)`. A trait that is missing is false.
//
// Every rank of the case constructs the unit and calls the same members in the same order. What a
// member throws on any rank fails the case. The axis `ranks` is a must.

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

// Files of the command line; empty: not given.
struct Files {
  std::string data, load, save;
};

// What a case runs on.
struct Context {
  machine::World& world;
  machine::Group group;  // the case's ranks: the first `ranks` of the world
  machine::Device& device;
  const Rates& rates;
  std::uint64_t seed = 1234;
  std::string data_file;  // --data; empty: generated
  std::string load_file;  // --load; empty: initial values are random
  std::string save_file;  // --save; empty: nothing is saved
};

// What one iteration costs one rank, and what to call its rate.
struct Cost {
  double flops = 0;
  machine::Dtype flops_dtype = machine::Dtype::float32;
  double memory_bytes = 0;       // read plus written, the least the algorithm can do
  double working_set_bytes = 0;  // decides which measured memory bandwidth applies
  // Of memory_bytes, what a rank must receive from others at the least, each byte once; over what.
  double wire_bytes = 0;
  machine::Transport transport = machine::Transport::shared_memory;
  // S of algbw = S / t, as nccl-tests defines it. Where it is given, the volume that is judged is
  // that of one run, and wire_GBps is what the rank that sent most of it sent per second.
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

// Whose runs a sample is of.
enum class Runner : unsigned char { unit, yardstick };

// A unit's life in one case, without its type.
class Instance {
 public:
  virtual ~Instance() = default;
  virtual void prepare() = 0;
  virtual void run() = 0;
  virtual bool repeatable() const = 0;
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
  std::string unit, name;  // name: Google Benchmark's, "all_reduce/algorithm:ring/…/bytes:1024"
  AxisValues axes;
  std::string slice;  // of the profile: sweep.h
  int ranks = 1;
  Traits traits;
  bool yardstick_is_part = false;  // of the unit's work: no speedup
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
  virtual std::vector<PlannedCase> cases(const PlanRequest& request) const = 0;
};

// All registered units, by name.
std::vector<const Family*> families();
// Those named, each once; all when none. Throws UsageError naming the nearest of an unknown one.
std::vector<const Family*> families(const std::vector<std::string>& units);
// Throws std::logic_error when the name is taken.
bool add(std::unique_ptr<Family> family);

template <UnitType U>
bool add();

// The cases of the units named (all when none), in order. A flag acts on the units that have such
// an axis. Throws UsageError: unknown unit, a flag that no selected unit has, a value that a named
// unit does not allow (with no unit named: that no unit allows; those that don't are left out), no
// case.
std::vector<PlannedCase> plan_cases(const std::vector<std::string>& units,
                                    const PlanRequest& request);

}  // namespace harness

#include "harness/unit/unit_impl.h"
