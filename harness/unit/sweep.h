#pragma once
// The cases of a unit: the product of its axes. An axis is a field of the unit's plain Case struct,
// so a misspelt one does not compile; its name is the flag on the command line (--bytes, --dtype).
//
//   static Sweep<Case> sweep(Profile profile) {
//     return Sweep<Case>()
//         .axis("algorithm", &Case::algorithm, {"ring", "direct"}, all_names)
//         .axis("dtype", &Case::dtype, {Dtype::float32, Dtype::bfloat16})
//         .axis("bytes", &Case::bytes, powers(8, 64 << 20, 4));
//   }

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "machine/device/device.h"
#include "machine/device/dtype.h"
#include "machine/device/reduction.h"
#include "machine/link/link.h"

namespace harness {

// A mistake on the command line: one line, exit 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Profile : unsigned char { quick, acceptance, paper };
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
SHARDMARK_AXIS_TEXT(bool);   // "on", "off"
SHARDMARK_AXIS_TEXT(std::string);
SHARDMARK_AXIS_TEXT(machine::Dtype);      // "float,bfloat16"
SHARDMARK_AXIS_TEXT(machine::Reduction);  // "sum,prod,max,min,avg"
SHARDMARK_AXIS_TEXT(machine::Transport);  // "shared_memory,mpi,cuda_ipc,nccl"
#undef SHARDMARK_AXIS_TEXT

// What kind of device cases are planned for, which decides some axes' values. Of the process, set
// once, before any sweep is asked.
inline machine::Device::Kind planned_device = machine::Device::Kind::host;

// The transports of a sweep over tensors of that device: shared_memory and mpi of the host's; of
// CUDA's cuda_ipc, and nccl where there are several GPUs.
std::vector<machine::Transport> usual_transports();

// Axis values given on the command line, by axis name: they replace the profile's.
using AxisFlags = std::map<std::string, std::string>;
using AxisValues = std::vector<std::pair<std::string, std::string>>;

struct AxisInfo {
  std::string name;
  std::vector<std::string> values;   // of the profile
  std::vector<std::string> allowed;  // empty: any
};

// Throws UsageError when value is none of axis.allowed, naming the nearest that is.
void check_allowed(const AxisInfo& axis, const std::string& value);

template <class Case>
class Sweep {
 public:
  // values: the profile's. allowed: the only right ones, when not empty; values are among them.
  template <class T>
  Sweep& axis(std::string name, T Case::*field, std::type_identity_t<std::vector<T>> values,
              std::type_identity_t<std::vector<T>> allowed = {});
  // The one value of that axis where the command line chooses others of this sweep but not it: for
  // axes that would only multiply what was asked for. It is among the profile's.
  Sweep& usual(std::string_view axis, std::string value);
  // Leaves out combinations that name no case: the function says why not, or returns an empty
  // text. A value given on the command line that is left with no case at all is an error with that
  // text. (A case that can't run here is skipped with a reason instead: see Unit::why_not.)
  Sweep& only(std::function<std::string(const Case&)> why_no_case);
  // A cross-section of the product, for profiles that must be short: applies until the command line
  // chooses a value of any axis of this sweep. Asked before `only`, of combinations that name no
  // case too.
  Sweep& sample(std::function<bool(const Case&)> keep);

  std::vector<AxisInfo> axes() const;
  // All cases with their axis texts, first axis slowest. Throws UsageError on a flag that names no
  // axis of this sweep and on a value that is not allowed. Values given twice count once.
  std::vector<std::pair<Case, AxisValues>> cases(const AxisFlags& flags) const;

 private:
  struct Axis {
    AxisInfo info;
    std::optional<std::string> usual;
    std::function<std::vector<std::string>(std::string_view)> expand;  // a flag's text to values
    std::function<void(Case&, std::string_view)> set;
  };
  std::vector<Axis> axes_;
  std::vector<std::function<std::string(const Case&)>> only_;
  std::vector<std::function<bool(const Case&)>> sample_;
};

}  // namespace harness

#include "harness/unit/sweep_impl.h"
