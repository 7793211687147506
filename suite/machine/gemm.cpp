// Claim: every element of y = x Wᵀ is right within the roundings of its dtype and accumulator
// (Higham 2002, section 3.1). y has the same bits in every run and on every rank. The product takes
// no longer than oneDNN's fastest primitive for row-major matrices of that shape.
//
// All ranks multiply at once, each its own matrices. `shape` is MxNxK: x [M, K], W [N, K], y [M,
// N].

#include "machine/device/gemm.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <dnnl.hpp>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <regex>

#include "machine/base/clock.h"
#include "machine/device/kernels.h"
#include "machine/device/random.h"
#include "suite/reference/product_reference.h"
#include "suite/reference/unit.h"

namespace suite {
namespace {

struct ProductShape {
  std::int64_t m, n, k;
};

constexpr std::int64_t largest_extent = 1 << 20;  // no byte count overflows

std::optional<ProductShape> parse_shape(const std::string& text) {
  static const std::regex form("0*(\\d{1,7})x0*(\\d{1,7})x0*(\\d{1,7})");
  std::smatch extents;
  if (!std::regex_match(text, extents, form)) return {};
  const ProductShape shape{std::stol(extents[1]), std::stol(extents[2]), std::stol(extents[3])};
  const auto [least, most] = std::minmax({shape.m, shape.n, shape.k});
  if (least < 1 || most > largest_extent) return {};
  return shape;
}

// Returns the time of the fastest call. Calls for 20 ms, and at least three times.
double seconds_of(const std::function<void()>& call) {
  call();
  double best = std::numeric_limits<double>::infinity();
  const double begin = machine::steady_s();
  for (int runs = 0; runs < 3 || machine::steady_s() - begin < 20e-3; ++runs) {
    const double start = machine::steady_s();
    call();
    best = std::min(best, machine::steady_s() - start);
  }
  return best;
}

// Returns y = x Wᵀ by the fastest matmul primitive of oneDNN for plain row-major matrices. x [m, k]
// and weight [n, k] are in host memory, and the product uses them. It allocates its own y. Tries
// every implementation for about 20 ms, with the weight as stored and transposed to [k, n] in
// advance. Returns an empty function if oneDNN has only its reference kernel (half, double,
// bfloat16 on some processors). Runs on the device's threads.
std::function<void()> fastest_onednn_gemm(const Tensor& x, const Tensor& weight) {
  using dnnl::memory;
  if (x.dtype() != Dtype::float32 && x.dtype() != Dtype::bfloat16) return {};
  const auto type = x.dtype() == Dtype::bfloat16 ? memory::data_type::bf16 : memory::data_type::f32;
  const std::int64_t m = x.rows(), n = weight.rows(), k = x.cols();
#ifdef __SANITIZE_THREAD__
  const int threads = 1;  // the sanitizer does not see how OpenMP synchronizes
#else
  const int threads = x.device().threads();
#endif
  omp_set_num_threads(threads);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const Tensor y(x.device(), x.dtype(), {m, n}, Category::buffers),
      transposed(x.device(), x.dtype(), {k, n}, Category::buffers);
  const memory a({{m, k}, type, memory::dims{k, 1}}, engine, x.data()),
      stored({{k, n}, type, memory::dims{1, k}}, engine, weight.data()),
      laid({{k, n}, type, memory::dims{n, 1}}, engine, transposed.data()),
      c({{m, n}, type, memory::dims{n, 1}}, engine, y.data());

  std::function<void()> best;
  double best_s = std::numeric_limits<double>::infinity();
  for (const bool as_stored : {true, false}) {
    try {
      if (!as_stored)
        dnnl::reorder(stored, laid).execute(stream, {{DNNL_ARG_FROM, stored}, {DNNL_ARG_TO, laid}});
      const memory& b = as_stored ? stored : laid;
      dnnl::matmul::primitive_desc made({a.get_desc(), b.get_desc(), c.get_desc()}, engine);
      do {
        if (std::string_view(made.impl_info_str()).starts_with("ref")) continue;
        const std::function<void()> product = [=, primitive = dnnl::matmul(made),
                                               used = std::array{x, weight, transposed, y}] {
          omp_set_num_threads(threads);
          dnnl::stream on = stream;
          primitive.execute(on, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
          on.wait();
        };
        const double seconds = seconds_of(product);
        if (seconds >= best_s) continue;
        best_s = seconds;
        best = product;
      } while (made.next_impl());
    } catch (const dnnl::error& error) {
      // An implementation may be missing. Other errors are failures.
      if (error.status != dnnl_unimplemented && error.status != dnnl_invalid_arguments) throw;
    }
  }
  return best;
}

struct Gemm {
  static constexpr std::string_view name = "gemm";
  static constexpr std::string_view about = "y = x Wᵀ on every rank at once";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::determinism};
  static constexpr Counter counters[] = {{"gflops", "GFLOP/s", Better::higher, Nature::speed,
                                          "1e9 floating-point operations per second of one rank"}};
  static constexpr bool equal_work = true;
  static constexpr bool limit_applies = true;

  struct Case {
    int ranks = 1;
    Dtype dtype{};
    std::string shape;
  };

  static Sweep<Case> sweep(const harness::PlanRequest& request) {
    using enum Profile;
    using enum Dtype;
    const std::string fc1 = "256x3072x768";  // GPT-2's mlp.fc1 on a quarter of its context
    const auto dtypes = vary(&Case::dtype, {float32, bfloat16});
    return Sweep<Case>()
        .axis("dtype", &Case::dtype, float32, {float32, bfloat16, float16, float64})
        .axis("ranks", &Case::ranks, 1)
        .axis("shape", &Case::shape, "1024x1024x1024")
        .only([](const Case& c) {
          if (!parse_shape(c.shape))
            throw harness::UsageError(fmt::format(
                "--shape is '{}'; expected MxNxK, extents from 1 to {} (example: 1024x1024x1024)",
                c.shape, largest_extent));
          return "";
        })
        .slice({quick}, "one rank", {dtypes, vary(&Case::shape, {"1024x1024x1024", fc1})})
        .slice({quick}, "two ranks", {vary(&Case::ranks, {2})})
        .launch_slice(request, {quick, acceptance, paper}, {dtypes})
        .slice({quick}, "edges",
               {vary(&Case::dtype, {bfloat16}), vary(&Case::ranks, {3}),
                vary(&Case::shape, {"509x127x251"})})
        .slice({acceptance, paper}, "matrix",
               {dtypes, vary(&Case::ranks, {1, 2, 3, 4, 8}),
                vary(&Case::shape, {"512x512x512", "1024x1024x1024", fc1})})
        .slice({smoke}, "smoke",
               {vary(&Case::dtype, {float32, bfloat16, float16, float64}),
                vary(&Case::ranks, {1, 3}), vary(&Case::shape, {"65x33x129", "1x1x1"})});
  }

  Gemm(const Case& c, Context& context)
      : context_(context),
        shape_(*parse_shape(c.shape)),
        x_(context.device, c.dtype, {shape_.m, shape_.k}, Category::buffers),
        weight_(context.device, c.dtype, {shape_.n, shape_.k}, Category::buffers),
        y_(context.device, c.dtype, {shape_.m, shape_.n}, Category::buffers) {
    kernels().fill_normal(x_, context.seed, {}, 0, 1);
    kernels().fill_normal(weight_, context.seed + 1, {}, 0, 1);
    if (context.device.readable_by_host()) library_ = fastest_onednn_gemm(x_, weight_);
    const bool has_one = has_yardstick();
    if (std::ranges::count(context.world.all_gather(context.group, has_one), false) > 0)
      library_ = {};
  }

  void prepare() {}
  void run() {
    gemm(context_.device.stream(), matrix(x_), matrix(weight_).transposed(), matrix(y_));
  }
  bool only_queues() const { return !context_.device.readable_by_host() && !library_; }
  bool has_yardstick() const { return static_cast<bool>(library_); }
  void yardstick() { library_(); }

  void judge(Judge& judge) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      multiply();
      judge.same_bits("product", hash(y_));
    }
    judge_rows(judge);
    judge_whole(judge);
  }

  Cost cost() const {
    const auto bytes = static_cast<double>(x_.bytes() + weight_.bytes() + y_.bytes());
    return {.flops = 2.0 * static_cast<double>(x_.size()) * static_cast<double>(shape_.n),
            .flops_dtype = x_.dtype(),
            .memory_bytes = bytes,
            .working_set_bytes = bytes};
  }

  void describe(Description& description) {
    if (description.seconds > 0)
      description.set("gflops", cost().flops / description.seconds / 1e9);
  }

 private:
  machine::Kernels& kernels() const { return context_.device.stream().kernels(); }

  // Fills y with NaN first, so that unwritten elements show.
  void multiply() {
    kernels().fill(y_, std::numeric_limits<double>::quiet_NaN());
    run();
    context_.device.stream().synchronize();
  }

  // Compares rows of random numbers with plain loops.
  void judge_rows(Judge& judge) const {
    const auto [m, n, k] = shape_;
    const std::vector<double> x = to_doubles(x_), weight = to_doubles(weight_), y = to_doubles(y_);
    const std::vector<std::int64_t> rows = rows_to_check(m, n * k, context_.seed);
    const ProductRows want = product_rows(rows, {x.data(), k, 1}, {weight.data(), 1, k}, k, n);
    const auto cols = static_cast<std::size_t>(n);
    std::vector<double> bounds = want.sizes;
    for (double& bound : bounds) bound *= product_bound(k, 0, x_.dtype());
    for (std::size_t i = 0; i < rows.size(); ++i)
      judge.numerics(fmt::format("row {}", rows[i]),
                     std::span(y).subspan(static_cast<std::size_t>(rows[i]) * cols, cols),
                     std::span(want.values).subspan(i * cols, cols),
                     std::span(bounds).subspan(i * cols, cols));
  }

  // Compares the whole product exactly, on integers that no sum rounds in any dtype (at most 28
  // terms of at most 9 give 252; bfloat16 is exact up to 256). Y v = X (Wᵀ v) for a random v
  // without zeros detects every single wrong element, and several almost certainly (Freivalds
  // 1977).
  void judge_whole(Judge& judge) {
    constexpr std::int64_t most_terms = 28;
    const auto [m, n, k] = shape_;
    std::uint64_t drawn = 0;
    const auto draw = [&](std::uint32_t count) {
      return static_cast<int>(machine::philox(context_.seed + 2, drawn++)[0] % count);
    };
    std::vector<double> x(static_cast<std::size_t>(m * k)), weight(static_cast<std::size_t>(n * k)),
        v(static_cast<std::size_t>(n)), weight_v(static_cast<std::size_t>(k));
    for (double& value : x) value = draw(7) - 3;
    for (double& value : v) value = 2 * draw(1000) - 999;
    const std::int64_t terms = std::min(most_terms, k), step = k / terms;
    for (std::int64_t row = 0; row < n; ++row)
      for (std::int64_t term = 0; term < terms; ++term) {
        const std::int64_t col = (row + term * step) % k;
        const double value = (draw(2) == 0 ? -1 : 1) * (1 + draw(3));
        weight[static_cast<std::size_t>(row * k + col)] = value;
        weight_v[static_cast<std::size_t>(col)] += value * v[static_cast<std::size_t>(row)];
      }
    from_doubles(x_, x);
    from_doubles(weight_, weight);
    multiply();
    const auto times = [](const std::vector<double>& matrix, const std::vector<double>& vector) {
      std::vector<double> product;
      for (auto row = matrix.begin(); row < matrix.end(); row += std::ssize(vector))
        product.push_back(std::inner_product(vector.begin(), vector.end(), row, 0.0));
      return product;
    };
    judge.exact("product of integers, times a vector", times(to_doubles(y_), v),
                times(x, weight_v));
  }

  Context& context_;
  ProductShape shape_;
  Tensor x_, weight_, y_;
  std::function<void()> library_;  // oneDNN's product
};

const bool registered = harness::add<Gemm>();

}  // namespace
}  // namespace suite
