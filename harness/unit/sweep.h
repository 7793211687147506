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
// - Cases come slice by slice, in each with the first axis slowest. A case of two slices counts
//   once, for the first. Several slices may have one name.
// - A flag replaces the values of its axis in every slice of the profile, also where the slice does
//   not vary it.
// - Combinations that name no case (`only`) are left out of every slice. So a slice may vary ranks,
//   tp, pp and dp freely when `only` wants ranks == tp * pp * dp.
// - A field may also be a function: vary(+[](Case& c) -> int& { return c.config.tp; }, {1, 2}). The
//   axis and `vary` must name the same function.
// - Each unit has a slice of Profile::smoke: tiny shapes that pass on threads in about a second,
//   with sanitizers too.
// - Errors: logic_error on two axes of one name or field, and on a slice that varies a field which
//   is no axis, or one twice; UsageError on a value that its axis does not allow.

#include <any>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
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

enum class Timing : unsigned char { sample, loop, window, armed };  // how runs are timed: sampler.h
std::string_view name(Timing timing);
Timing parse_timing(std::string_view text);

// Sizes on the command line are binary: "8", "4KiB", "64MiB", "4K" and "4M" as nccl-tests has them.
struct Bytes {
  std::int64_t value = 0;
  auto operator<=>(const Bytes&) const = default;
};
// first, first * factor, … as far as last.
std::vector<Bytes> powers(std::int64_t first, std::int64_t last, std::int64_t factor);

// How an axis value is written and read. Both parsers throw UsageError naming the axis and the
// text. Lists are comma-separated; numbers also have ranges: "1:8:x2" multiplies, "2:10:+4" adds,
// "1:4" is every number (of sizes: every doubling). A range goes as far as its last value, not
// beyond.
template <class T>
struct AxisText;
#define SHARDMARK_AXIS_TEXT(T)                                                      \
  template <>                                                                       \
  struct AxisText<T> {                                                              \
    static std::string format(const T& value);                                      \
    static T parse(std::string_view axis, std::string_view text);                   \
    static std::vector<T> parse_list(std::string_view axis, std::string_view text); \
  }
SHARDMARK_AXIS_TEXT(int);    // "1,2,4", "1:8:x2"
SHARDMARK_AXIS_TEXT(Bytes);  // "8,1KiB", "1KiB:64MiB:x4"; written as a plain number
SHARDMARK_AXIS_TEXT(bool);   // "on", "off"; also read: 1, true, 0, false
SHARDMARK_AXIS_TEXT(std::string);
SHARDMARK_AXIS_TEXT(machine::Dtype);      // "float,bfloat16"
SHARDMARK_AXIS_TEXT(machine::Reduction);  // "sum,prod,max,min,avg"
SHARDMARK_AXIS_TEXT(machine::Transport);  // "shared_memory,mpi,cuda_ipc,nccl"
#undef SHARDMARK_AXIS_TEXT

// The transports of a sweep over tensors of a device: shared_memory and mpi of the host's; of
// CUDA's cuda_ipc, and nccl where there are several GPUs.
std::vector<machine::Transport> usual_transports(machine::Device::Kind device);

// Axis values given on the command line, by axis name: they replace the profile's.
using AxisFlags = std::map<std::string, std::string>;

// What cases are planned for.
struct PlanRequest {
  Profile profile = Profile::quick;
  AxisFlags flags{};
  machine::Device::Kind device = machine::Device::Kind::host;
  // Of a configuration file, for the units that know its type. Empty: none.
  std::any configuration{};
};
using AxisValues = std::vector<std::pair<std::string, std::string>>;

struct AxisInfo {
  std::string name;
  std::vector<std::string> values;   // of the profile's slices, in their order
  std::vector<std::string> allowed;  // empty: any
  std::string usual;                 // the default
};

// Throws UsageError when value is none of axis.allowed, naming the nearest that is.
void check_allowed(const AxisInfo& axis, const std::string& value);

// The values that a slice gives one axis.
template <class Case>
struct Variation {
  struct Value {
    std::function<void(Case&)> set;
    std::string text;
  };
  std::any field;
  std::vector<Value> values;
};
template <class Case, class T>
Variation<Case> vary(T Case::*field, std::type_identity_t<std::vector<T>> values);
template <class Case, class T>
Variation<Case> vary(T& (*field)(Case&), std::type_identity_t<std::vector<T>> values);

// Of a slice's product the combinations whose indices of values sum to `at` modulo `of`: one of
// `of`, in which every two values of two axes still meet. The whole product where a flag replaces
// the values of an axis that the slice varies.
struct Diagonal {
  std::size_t of = 1, at = 0;
};

template <class Case>
class Sweep {
 public:
  explicit Sweep(Case start = {}) : start_(std::move(start)) {}  // what no axis sets
  // field: T Case::* or T& (*)(Case&). allowed: the only right values, when not empty.
  template <class Field>
  using ValueOf = std::remove_cvref_t<std::invoke_result_t<Field, Case&>>;
  template <class Field>
  Sweep& axis(std::string name, Field field, std::type_identity_t<ValueOf<Field>> usual,
              std::type_identity_t<std::vector<ValueOf<Field>>> allowed = {});
  // An axis of a table. `expand` makes a flag's text the texts of its values; slices vary it by a
  // Variation whose field is the name, a std::string.
  Sweep& axis(const AxisInfo& info,
              std::function<std::vector<std::string>(std::string_view)> expand,
              std::function<void(Case&, const std::string&)> set);
  Sweep& slice(std::vector<Profile> profiles, std::string name,
               const std::vector<Variation<Case>>& variations = {}, Diagonal diagonal = {});
  // Leaves out combinations that name no case: the function says why not, or returns an empty
  // text. A value given on the command line that is left with no case at all is an error with that
  // text. (A case that can't run here is skipped with a reason instead: see Unit::why_not.)
  Sweep& only(std::function<std::string(const Case&)> why_no_case);

  std::vector<AxisInfo> axes(Profile profile) const;

  struct Selected {
    Case the_case;
    AxisValues axes;
    std::string slice;
  };
  // Throws UsageError on a flag that names no axis of this sweep and on a value that is not
  // allowed. Values given twice count once.
  std::vector<Selected> cases(Profile profile, const AxisFlags& flags) const;

 private:
  using Values = std::vector<typename Variation<Case>::Value>;
  struct Axis {
    AxisInfo info;
    std::function<bool(const std::any&)> is;        // of this field
    std::function<Values(std::string_view)> parse;  // of a flag
    Values usual;                                   // one
  };
  struct Slice {
    std::vector<Profile> profiles;
    std::string name;
    std::map<std::size_t, Values> values;  // by axis
    Diagonal diagonal;
  };
  std::size_t axis_of(const std::any& field) const;
  static bool has(const Slice& slice, Profile profile);

  Case start_;
  std::vector<Axis> axes_;
  std::vector<Slice> slices_;
  std::vector<std::function<std::string(const Case&)>> only_;
};

}  // namespace harness

#include "harness/unit/sweep_impl.h"
