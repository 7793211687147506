#pragma once
// The templates of unit.h: one Family for each unit type.

#include <mutex>
#include <type_traits>
#include <utility>

#include "harness/unit/unit.h"
#include "machine/link/connect.h"

namespace harness {
namespace detail {

// A trait is a constant of the unit or a function of its case.
template <class Case>
bool trait(const bool* value, const Case&) {
  return *value;
}
template <class Case>
bool trait(bool (*value)(const Case&), const Case& the_case) {
  return value(the_case);
}
template <class U>
Traits traits(const typename U::Case& the_case) {
  Traits traits;
  if constexpr (requires { &U::equal_work; }) traits.equal_work = trait(&U::equal_work, the_case);
  if constexpr (requires { &U::limit_applies; })
    traits.limit_applies = trait(&U::limit_applies, the_case);
  if constexpr (requires { &U::uses_disk; }) traits.uses_disk = trait(&U::uses_disk, the_case);
  return traits;
}

// Rejects an optional member with another signature than in unit.h, because it would be ignored
// silently.
template <class U>
constexpr bool optional_members_fit() {
  if constexpr (requires { &U::why_not; })
    static_assert(
        requires(const typename U::Case& the_case, const Context& context) {
          { U::why_not(the_case, context) } -> std::convertible_to<std::string>;
        },
        "static std::string why_not(const Case&, const Context&)");
  if constexpr (requires { &U::check_files; })
    static_assert(
        requires(const typename U::Case& the_case, const Files& files) {
          U::check_files(the_case, files);
        },
        "static void check_files(const Case&, const Files&)");
  if constexpr (requires { &U::yardstick; })
    static_assert(
        requires(U & unit) { unit.yardstick(); }, "void yardstick()");
  if constexpr (
      requires { &U::check; } || requires { &U::rehearse; })
    static_assert(
        requires(U & unit) {
          { unit.check(Runner::unit) } -> std::same_as<std::optional<machine::Failure>>;
          unit.rehearse(Runner::unit);
        },
        "std::optional<machine::Failure> check(Runner) and void rehearse(Runner)");
  if constexpr (requires { &U::describe; })
    static_assert(
        requires(U & unit, Description & description) { unit.describe(description); },
        "void describe(Description&)");
  if constexpr (requires { &U::counters; })
    static_assert(
        requires { std::span<const Counter>(U::counters); }, "static constexpr Counter counters[]");
  if constexpr (requires { &U::least_samples; })
    static_assert(std::is_same_v<decltype(U::least_samples), const int>,
                  "static constexpr int least_samples");
  if constexpr (requires { &U::yardstick_is_part; })
    static_assert(std::is_same_v<decltype(U::yardstick_is_part), const bool>,
                  "static constexpr bool yardstick_is_part");
  return true;
}

template <UnitType U>
class InstanceOf final : public Instance {
 public:
  InstanceOf(const typename U::Case& the_case, Context& context) : unit_(the_case, context) {}
  void prepare() override { unit_.prepare(); }
  void run() override { unit_.run(); }
  bool repeatable() const override {
    if constexpr (requires { U::repeatable; }) return U::repeatable;
    return true;
  }
  int least_samples() const override {
    if constexpr (requires { U::least_samples; }) return U::least_samples;
    return 0;
  }
  bool only_queues() const override {
    if constexpr (requires(const U& unit) { unit.only_queues(); }) return unit_.only_queues();
    return false;
  }
  bool has_yardstick() const override {
    if constexpr (requires(const U& unit) { unit.has_yardstick(); }) return unit_.has_yardstick();
    return requires(U & unit) { unit.yardstick(); };
  }
  void yardstick() override {
    if constexpr (requires(U & unit) { unit.yardstick(); }) unit_.yardstick();
  }
  bool has_check() const override {
    return requires(U & unit) { unit.check(Runner::unit); };
  }
  void rehearse(Runner runner) override {
    if constexpr (requires(U & unit) { unit.check(runner); }) unit_.rehearse(runner);
  }
  std::optional<machine::Failure> check(Runner runner) override {
    if constexpr (requires(U & unit) { unit.check(runner); }) return unit_.check(runner);
    return std::nullopt;
  }
  void judge(Judge& judge) override { unit_.judge(judge); }
  Cost cost() const override { return unit_.cost(); }
  void describe(Description& description) override {
    if constexpr (requires(U & unit) { unit.describe(description); }) unit_.describe(description);
  }

 private:
  U unit_;
};

// A unit with the type of its cases erased.
struct UnitTable {
  std::string_view name, about;
  std::span<const Oracle> oracles;
  bool yardstick_is_part = false;
  AnySweep (*sweep)(const PlanRequest& request) = nullptr;
  int (*ranks)(const void* the_case) = nullptr;
  Traits (*traits)(const void* the_case) = nullptr;
  std::string (*why_not)(const void* the_case, const Context& context) = nullptr;
  void (*check_files)(const void* the_case, const Files& files) = nullptr;
  std::unique_ptr<Instance> (*make)(const void* the_case, Context& context) = nullptr;
};

template <UnitType U>
constexpr UnitTable unit_table() {
  static_assert(optional_members_fit<U>());
  using Case = typename U::Case;
  UnitTable unit{.name = U::name, .about = U::about, .oracles = U::oracles};
  if constexpr (requires { U::yardstick_is_part; }) unit.yardstick_is_part = U::yardstick_is_part;
  unit.sweep = [](const PlanRequest& request) -> AnySweep { return sweep_of<U>(request); };
  unit.ranks = [](const void* c) -> int { return static_cast<const Case*>(c)->ranks; };
  unit.traits = [](const void* c) { return traits<U>(*static_cast<const Case*>(c)); };
  unit.why_not = [](const void* c, const Context& context) -> std::string {
    const Case& the_case = *static_cast<const Case*>(c);
    if constexpr (requires { U::why_not(the_case, context); })
      return U::why_not(the_case, context);
    else if constexpr (requires {
                         machine::why_not(context.world, context.group, the_case.transport);
                       })
      return machine::why_not(context.world, context.group, the_case.transport);
    else
      return {};
  };
  unit.check_files = [](const void* c, [[maybe_unused]] const Files& files) {
    [[maybe_unused]] const Case& the_case = *static_cast<const Case*>(c);
    if constexpr (requires { U::check_files(the_case, files); }) U::check_files(the_case, files);
  };
  unit.make = [](const void* c, Context& context) -> std::unique_ptr<Instance> {
    return std::make_unique<InstanceOf<U>>(*static_cast<const Case*>(c), context);
  };
  return unit;
}

class AnyFamily : public Family {
 public:
  explicit AnyFamily(const UnitTable& unit) : unit_(unit) {}
  std::string_view name() const final { return unit_.name; }
  std::string_view about() const final { return unit_.about; }
  std::span<const Oracle> oracles() const final { return unit_.oracles; }
  std::vector<AxisInfo> axes(const PlanRequest& request) const final;
  const AxisValues& defaults() const final;
  std::vector<PlannedCase> cases(const PlanRequest& request) const final;

 private:
  std::vector<AnySweep::Selected> select_on_cuda(const PlanRequest& request) const;
  UnitTable unit_;
  mutable std::once_flag once_;
  mutable AxisValues defaults_;  // computed on first use; most units never need them
};

template <UnitType U>
struct FamilyOf final : AnyFamily {
  FamilyOf() : AnyFamily(unit_table<U>()) {}
};

}  // namespace detail

template <UnitType U>
bool add() {
  if constexpr (requires { U::counters; }) add_counters(U::counters);
  return add(std::make_unique<detail::FamilyOf<U>>());
}

}  // namespace harness
