#pragma once
// The templates of unit.h: one Family for each unit type.

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

// Rejects an optional member with another signature than in unit.h: it would be ignored silently.
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

std::string case_name(std::string_view unit, const AxisValues& axes);

template <UnitType U>
class FamilyOf final : public Family {
  static_assert(optional_members_fit<U>());

 public:
  std::string_view name() const override { return U::name; }
  std::string_view about() const override { return U::about; }
  std::span<const Oracle> oracles() const override { return U::oracles; }
  std::vector<AxisInfo> axes(const PlanRequest& request) const override {
    return sweep_of<U>(request).axes(request.profile);
  }

  std::vector<PlannedCase> cases(const PlanRequest& request) const override {
    std::vector<PlannedCase> planned;
    for (auto& [the_case, axes, slice] :
         sweep_of<U>(request).cases(request.profile, request.flags)) {
      PlannedCase& plan = planned.emplace_back();
      plan.unit = U::name;
      plan.name = case_name(U::name, axes);
      plan.axes = std::move(axes);
      plan.slice = std::move(slice);
      plan.ranks = the_case.ranks;
      plan.traits = traits<U>(the_case);
      if constexpr (requires { U::yardstick_is_part; })
        plan.yardstick_is_part = U::yardstick_is_part;
      plan.oracles = U::oracles;
      plan.why_not = [the_case](const Context& context) -> std::string {
        if constexpr (requires { U::why_not(the_case, context); })
          return U::why_not(the_case, context);
        else if constexpr (requires {
                             machine::why_not(context.world, context.group, the_case.transport);
                           })
          return machine::why_not(context.world, context.group, the_case.transport);
        else
          return {};
      };
      plan.check_files = [the_case]([[maybe_unused]] const Files& files) {
        if constexpr (requires { U::check_files(the_case, files); })
          U::check_files(the_case, files);
      };
      plan.make = [the_case](Context& context) -> std::unique_ptr<Instance> {
        return std::make_unique<InstanceOf<U>>(the_case, context);
      };
    }
    return planned;
  }
};

}  // namespace detail

template <UnitType U>
bool add() {
  if constexpr (requires { U::counters; }) add_counters(U::counters);
  return add(std::make_unique<detail::FamilyOf<U>>());
}

}  // namespace harness
