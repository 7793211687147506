// Claim: memory is copied exactly and combined within its roundings, at the speed of this machine's
// limits (STREAM: McCalpin 1995, "Memory bandwidth and machine balance in current high performance
// computers").
//
// copy: out = a. triad: out = a + 3 b. add: out = a + b by the kernel that collectives reduce with.
// add_to_two: as add, but writes the sum to two outputs. All ranks work at once, each on its own
// memory. `bytes` is the working set of one rank: all arrays together. As in STREAM, memory_GBps
// counts the bytes that one rank reads and writes, without the lines that a cache fetches before a
// write.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "machine/device/kernels.h"
#include "suite/reference/shared_counters.h"
#include "suite/reference/unit.h"

namespace suite {
namespace {

using harness::Bytes;

constexpr double factor = 3;  // STREAM's; exact in every dtype

struct MemoryBandwidth {
  static constexpr std::string_view name = "memory_bandwidth";
  static constexpr std::string_view about = "STREAM's copy and triad, on every rank at once";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::determinism};
  static constexpr Counter counters[] = {memory_bytes_counter, memory_GBps_counter};
  static constexpr bool equal_work = true;
  static constexpr bool limit_applies = true;

  struct Case {
    int ranks = 1;
    Dtype dtype{};
    std::string kernel;
    Bytes bytes;

    bool triad() const { return kernel == "triad"; }
    bool to_two() const { return kernel == "add_to_two"; }
    bool adds() const { return kernel != "copy"; }
    std::int64_t arrays() const { return to_two() ? 4 : adds() ? 3 : 2; }
    std::int64_t elements() const {
      return bytes.value / arrays() / static_cast<std::int64_t>(size_of(dtype));
    }
  };

  static Sweep<Case> sweep(const harness::PlanRequest& request) {
    using enum Profile;
    using enum Dtype;
    const std::vector<std::string> kernels{"copy", "triad", "add", "add_to_two"};
    const std::vector<Bytes> sizes{{32 << 10}, {1 << 20}, {64 << 20}};
    const auto extremes = vary(&Case::bytes, {sizes.front(), sizes.back()});
    const auto copy_and_triad = vary(&Case::kernel, {"copy", "triad"});
    return Sweep<Case>()
        .axis("kernel", &Case::kernel, "copy", kernels)
        .axis("dtype", &Case::dtype, float32, {float32, bfloat16, float16, float64})
        .axis("ranks", &Case::ranks, 2)
        .axis("bytes", &Case::bytes, Bytes{64 << 20})
        .only([](const Case& c) {
          return c.elements() > 0
                     ? ""
                     : fmt::format(
                           "{} bytes are too few for one element in each of {} arrays of {}",
                           c.bytes.value, c.arrays(), machine::name(c.dtype));
        })
        .slice({quick}, "copy", {vary(&Case::bytes, sizes)})
        .slice({quick}, "one rank", {vary(&Case::ranks, {1}), extremes})
        .slice({quick}, "triad", {vary(&Case::kernel, {"triad"}), extremes})
        .slice({acceptance, paper}, "matrix",
               {copy_and_triad, vary(&Case::ranks, {1, 2, 3, 4, 8}), vary(&Case::bytes, sizes)})
        .launch_slice(request, {quick, acceptance, paper}, {copy_and_triad, extremes})
        // The working set is not a whole number of elements per array.
        .slice({quick}, "edges",
               {copy_and_triad, vary(&Case::ranks, {3}), vary(&Case::bytes, {{60035}})})
        .slice({smoke}, "smoke",
               {vary(&Case::kernel, kernels), vary(&Case::ranks, {1, 3}),
                vary(&Case::bytes, {{32 << 10}, {60035}})});
  }

  MemoryBandwidth(const Case& c, Context& context) : case_(c), context_(context) {
    const auto tensor = [&] {
      return Tensor(context.device, c.dtype, {c.elements()}, Category::buffers);
    };
    a_ = tensor();
    out_ = tensor();
    kernels().fill_uniform(a_, context.seed, {}, -1, 1);
    if (c.to_two()) second_ = tensor();
    if (c.adds()) {
      b_ = tensor();
      kernels().fill_uniform(b_, context.seed + 1, {}, -1, 1);
    }
    clear();  // touches the memory before it is timed
  }

  void prepare() {}
  bool only_queues() const { return !context_.device.readable_by_host(); }
  void run() {
    if (!case_.adds()) return context_.device.stream().copy(out_.data(), a_.data(), a_.bytes());
    if (case_.triad()) return kernels().triad(a_, b_, factor, out_);
    const void* const ins[] = {a_.data(), b_.data()};
    void* const outs[] = {out_.data(), second_.data()};
    kernels().reduce_to_all(machine::Reduction::sum, case_.dtype, ins,
                            std::span(outs, case_.to_two() ? 2 : 1), a_.size());
  }

  void judge(Judge& judge) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      clear();
      run();
      context_.device.stream().synchronize();
      judge.same_bits(case_.kernel, hash(out_));
      if (second_) judge.same_bits(case_.kernel, hash(second_));
    }
    constexpr std::int64_t piece =
        1 << 20;  // elements converted to doubles at a time: 8 MiB on the host
    for (std::int64_t begin = 0; begin < out_.size(); begin += piece) {
      const machine::Shape shape{std::min(piece, out_.size() - begin)};
      judge_piece(judge, to_doubles(out_.slice(begin, shape)), to_doubles(a_.slice(begin, shape)),
                  case_.adds() ? to_doubles(b_.slice(begin, shape)) : std::vector<double>(),
                  fmt::format("from element {}", begin));
    }
  }

  Cost cost() const {
    const auto bytes =
        static_cast<double>(a_.bytes() + b_.bytes() + out_.bytes() + second_.bytes());
    return {.memory_bytes = bytes, .working_set_bytes = bytes};
  }

  void describe(Description& description) {
    description.set("memory_bytes", cost().memory_bytes);
    if (description.seconds > 0)
      description.set("memory_GBps", cost().memory_bytes / description.seconds / 1e9);
  }

 private:
  machine::Kernels& kernels() const { return context_.device.stream().kernels(); }
  void clear() {
    kernels().fill(out_, std::numeric_limits<double>::quiet_NaN());
    if (second_) kernels().fill(second_, std::numeric_limits<double>::quiet_NaN());
  }

  // A triad rounds the product and the sum in the accumulator (or only the sum if it is fused). A
  // narrow dtype adds one rounding. The reference rounds twice in double.
  void judge_piece(Judge& judge, const std::vector<double>& out, const std::vector<double>& a,
                   const std::vector<double>& b, const std::string& where) const {
    if (!case_.adds()) return judge.exact(where, out, a);
    const double times = case_.triad() ? factor : 1;
    const Dtype accumulator = case_.dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32;
    const double stored = case_.dtype == accumulator ? 0 : unit_roundoff(case_.dtype);
    const double relative = (1 + harness::gamma(2, unit_roundoff(accumulator))) * (1 + stored) - 1 +
                            harness::gamma(2, unit_roundoff(Dtype::float64));
    std::vector<double> expected(a.size()), bounds(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      expected[i] = a[i] + times * b[i];
      bounds[i] = relative * (std::abs(a[i]) + std::abs(times * b[i]));
    }
    judge.numerics(where, out, expected, bounds);
  }

  Case case_;
  Context& context_;
  Tensor a_, b_, out_, second_;
};

const bool registered = harness::add<MemoryBandwidth>();

}  // namespace
}  // namespace suite
