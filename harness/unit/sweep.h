#pragma once
// The cases of a unit: axes, and slices of their product for each profile. An axis is a field of
// the unit's plain Case struct, so a misspelt one does not compile; its name is the flag on the
// command line (--bytes, --dtype). A slice is a small product: the axes that it does not vary have
// their default. A profile is the union of its slices.
//
//   static Sweep<Case> sweep() {
//     using enum Profile;
//     return Sweep<Case>()
//         .axis("algorithm", &Case::algorithm, "ring", all_names)
//         .axis("dtype", &Case::dtype, Dtype::float32)
//         .axis("ranks", &Case::ranks, 2)
//         .axis("bytes", &Case::bytes, Bytes{32768})
//         .slice({smoke}, "smoke", {vary(&Case::algorithm, all_names), vary(&Case::ranks, {3})})
//         .slice({quick, acceptance}, "sizes", {vary(&Case::bytes, powers(8, 64 << 20, 4))})
//         .slice({acceptance}, "matrix", {vary(&Case::dtype, every_dtype), …});
//   }
//
// Contract:
// - Cases come slice by slice, and within a slice with the first axis slowest. A case of two slices
//   counts once, for the first. Several slices may have one name.
// - A flag replaces the values of its axis in every slice of the profile, even if the slice does
//   not vary it.
// - `only` leaves out invalid combinations. So a slice may vary ranks, tp, pp and dp freely if
//   `only` requires ranks == tp * pp * dp.
// - A field may also be a function: vary(+[](Case& c) -> int& { return c.config.tp; }, {1, 2}). The
//   axis and `vary` must name the same function.
// - Each unit has a slice of Profile::smoke: tiny shapes that pass on threads in about a second,
//   also with sanitizers.
// - Errors: logic_error if two axes have the same name or field, or a slice varies a field that is
//   not an axis or varies a field twice; UsageError for a value that its axis does not allow.

#include <any>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "machine/base/error.h"
#include "machine/device/device.h"
#include "machine/device/dtype.h"
#include "machine/device/reduction.h"
#include "machine/link/link.h"

namespace harness {

using machine::UsageError;

enum class Profile : unsigned char { smoke, quick, acceptance, paper };
std::string_view name(Profile profile);
Profile parse_profile(std::string_view text);

enum class Timing : unsigned char { sample, loop, window, armed };  // sampler.h explains them
std::string_view name(Timing timing);
Timing parse_timing(std::string_view text);

// Sizes on the command line are binary: "8", "4KiB", "64MiB", or "4K" and "4M" as in nccl-tests.
struct Bytes {
  std::int64_t value = 0;
  auto operator<=>(const Bytes&) const = default;
};
// first, first * factor, … up to last.
std::vector<Bytes> powers(std::int64_t first, std::int64_t last, std::int64_t factor);

// The text form of an axis value. Both parsers throw UsageError with the axis and the text. Lists
// are comma-separated. Numbers also have ranges: "1:8:x2" multiplies, "2:10:+4" adds, "1:4" counts
// (sizes double). A range never exceeds its last value. T is one of the types below.
template <class T>
struct AxisText {
  static std::string format(const T& value);
  static T parse(std::string_view axis, std::string_view text);
  static std::vector<T> parse_list(std::string_view axis, std::string_view text);
};
extern template struct AxisText<int>;    // "1,2,4", "1:8:x2"
extern template struct AxisText<Bytes>;  // "8,1KiB", "1KiB:64MiB:x4"; written as a plain number
extern template struct AxisText<bool>;   // "on", "off"; also read: 1, true, 0, false
extern template struct AxisText<std::string>;
extern template struct AxisText<machine::Dtype>;      // "float,bfloat16"
extern template struct AxisText<machine::Reduction>;  // "sum,prod,max,min,avg"
extern template struct AxisText<machine::Transport>;  // "shared_memory,mpi,cuda_ipc,nccl"

std::vector<std::string> device_names();  // of --device: host, cuda
machine::Device::Kind parse_device(std::string_view text);

// Returns the transports for tensors on a device: shared_memory and mpi on the host, cuda_ipc and
// nccl on CUDA. A case decides later whether its ranks can use them (why_not), so that planning is
// the same on all ranks and needs no GPU.
std::vector<machine::Transport> usual_transports(machine::Device::Kind device);

// Axis values of the command line, by axis name. They replace the profile's values.
using AxisFlags = std::map<std::string, std::string>;

// Selects the cases to plan.
struct PlanRequest {
  Profile profile = Profile::quick;
  AxisFlags flags{};
  machine::Device::Kind device = machine::Device::Kind::host;
  // The configuration of a file, for the units that know its type. Empty: no file.
  std::any configuration{};
  // Numbers of ranks that the default cases also have (launch_ranks.h).
  std::vector<int> launch_ranks{};
};
using AxisValues = std::vector<std::pair<std::string, std::string>>;

struct AxisInfo {
  std::string name;
  std::vector<std::string> values;   // of the profile's slices, in their order
  std::vector<std::string> allowed;  // empty: any
  std::string usual;                 // the default
};

// Throws UsageError with the nearest allowed value if axis.allowed lacks this value.
void check_allowed(const AxisInfo& axis, const std::string& value);

// A Case without its type, so that one compiled Sweep serves all units. A setter assigns one value
// of an axis.
using Setter = std::function<void(void*)>;

// The values that a slice gives one axis.
struct Variation {
  struct Value {
    Setter set;
    std::string text;
  };
  std::any field;
  std::vector<Value> values;
};
template <class Case, class T>
Variation vary(T Case::*field, std::type_identity_t<std::vector<T>> values);
template <class Case, class T>
Variation vary(T& (*field)(Case&), std::type_identity_t<std::vector<T>> values);

// Selects one in `of` combinations of a slice's product: those whose value indices sum to `at`
// modulo `of`. Every pair of values of two axes still occurs. Ignored if a flag replaces the values
// of an axis that the slice varies.
struct Diagonal {
  std::size_t of = 1, at = 0;
};

// The sweep of a Case whose type only its setters know.
class AnySweep {
 public:
  std::vector<AxisInfo> axes(Profile profile) const;

  struct Selected {
    std::shared_ptr<const void> the_case;
    AxisValues axes;
    std::string slice;
  };
  // Throws UsageError for a flag without axis and for a value that is not allowed. Values given
  // twice count once.
  std::vector<Selected> select(Profile profile, const AxisFlags& flags) const {
    return select(profile, flags, true);
  }
  // Selects like select, but without an error if no valid combination has a value of a flag.
  std::vector<Selected> select_valid(Profile profile, const AxisFlags& flags) const {
    return select(profile, flags, false);
  }

 protected:
  using Copy = std::shared_ptr<void> (*)(const void*);
  using Values = std::vector<Variation::Value>;
  struct Axis {
    AxisInfo info;
    std::function<bool(const std::any&)> is;        // whether a Variation's field is this axis
    std::function<Values(std::string_view)> parse;  // of a flag
    Values usual;                                   // one value
  };
  AnySweep(std::shared_ptr<const void> start, Copy copy) : start_(std::move(start)), copy_(copy) {}
  // set: the setter of a value.
  template <class T>
  void add_axis(const std::string& name, const std::any& field,
                std::function<bool(const std::any&)> is, const std::function<Setter(const T&)>& set,
                const T& usual, const std::vector<T>& allowed);
  void add_axis(const AxisInfo& info,
                const std::function<std::vector<std::string>(std::string_view)>& expand,
                const std::function<Setter(const std::string&)>& set);
  void add_slice(std::vector<Profile> profiles, std::string name,
                 const std::vector<Variation>& variations, Diagonal diagonal);

  std::vector<std::function<std::string(const void*)>> only_;

 private:
  struct Slice {
    std::vector<Profile> profiles;
    std::string name;
    std::map<std::size_t, Values> values;  // by axis
    Diagonal diagonal;
    bool has(Profile profile) const;
  };
  std::vector<Selected> select(Profile profile, const AxisFlags& flags, bool all_values) const;

  std::shared_ptr<const void> start_;
  Copy copy_;
  std::vector<Axis> axes_;
  std::vector<Slice> slices_;
};

template <class Case>
class Sweep : public AnySweep {
 public:
  explicit Sweep(Case start = {})  // for fields without axis
      : AnySweep(std::make_shared<Case>(std::move(start)), copy) {}
  // field: T Case::* or T& (*)(Case&). allowed: the only valid values; empty: all.
  template <class Field>
  using ValueOf = std::remove_cvref_t<std::invoke_result_t<Field, Case&>>;
  template <class Field>
  Sweep& axis(const std::string& name, Field field, std::type_identity_t<ValueOf<Field>> usual,
              std::type_identity_t<std::vector<ValueOf<Field>>> allowed = {});
  // Adds an axis of a table. `expand` converts a flag's text to the texts of its values. Slices
  // vary the axis by a Variation whose field is the name, a std::string.
  Sweep& axis(const AxisInfo& info,
              const std::function<std::vector<std::string>(std::string_view)>& expand,
              std::function<void(Case&, const std::string&)> set);
  Sweep& slice(std::vector<Profile> profiles, std::string name,
               const std::vector<Variation>& variations = {}, Diagonal diagonal = {}) {
    add_slice(std::move(profiles), std::move(name), variations, diagonal);
    return *this;
  }
  // Adds a slice "launch" with the numbers of ranks of the launch. Without them, adds nothing.
  Sweep& launch_slice(const PlanRequest& request, std::vector<Profile> profiles,
                      std::vector<Variation> variations = {}) {
    if (request.launch_ranks.empty()) return *this;
    variations.push_back(vary(&Case::ranks, request.launch_ranks));
    return slice(std::move(profiles), "launch", variations);
  }
  // Leaves out invalid combinations: the function returns the reason, or an empty text. If a value
  // of the command line is left without any case, that reason becomes the error. (A case that
  // cannot run here is skipped instead: see why_not in unit.h.)
  template <class WhyNoCase>
  Sweep& only(WhyNoCase why_no_case) {
    only_.push_back([why_no_case](const void* the_case) -> std::string {
      return why_no_case(*static_cast<const Case*>(the_case));
    });
    return *this;
  }

  struct TypedSelected {
    Case the_case;
    AxisValues axes;
    std::string slice;
  };
  std::vector<TypedSelected> cases(Profile profile, const AxisFlags& flags) const {
    std::vector<TypedSelected> all;
    for (const Selected& one : select(profile, flags))
      all.push_back({*static_cast<const Case*>(one.the_case.get()), one.axes, one.slice});
    return all;
  }

 private:
  static std::shared_ptr<void> copy(const void* other) {
    return std::make_shared<Case>(*static_cast<const Case*>(other));
  }
};

}  // namespace harness

#include "harness/unit/sweep_impl.h"
