// The host's GEMM on oneDNN's matmul primitive. Creating a primitive takes a hundred times as long
// as a small product, so each thread caches its primitives. Inputs without a fast oneDNN kernel
// (half; bfloat16 on processors without AVX-512; odd strides) are widened to packed floats first.
// double, which only references use, has its own GEMM (double_gemm.h).

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <dnnl.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "machine/base/error.h"
#include "machine/device/host/double_gemm.h"
#include "machine/device/host/kernels.h"
#include "machine/device/kernels/fields.h"

namespace machine::host {
namespace {

using dnnl::memory;

const dnnl::engine& engine() {
  static const dnnl::engine instance(dnnl::engine::kind::cpu, 0);
  return instance;
}

// ---- description of a call, the key of the cache

struct Key {
  struct Operand {
    std::int64_t row_stride, col_stride, outer, inner, outer_stride, inner_stride;
    bool operator==(const Operand&) const = default;
  };
  std::int64_t m, n, k;
  Operand a, b, c;
  float alpha, beta;
  Dtype dtype, c_dtype;
  int threads;
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::size_t state = 0;
    const auto mix = [&](auto value) {
      state = (state ^ static_cast<std::size_t>(value)) * 0x9E3779B97F4A7C15u;
      state ^= state >> 32;
    };
    for (const std::int64_t extent : {key.m, key.n, key.k}) mix(extent);
    for (const Key::Operand& x : {key.a, key.b, key.c})
      for (const std::int64_t value :
           {x.row_stride, x.col_stride, x.outer, x.inner, x.outer_stride, x.inner_stride})
        mix(value);
    mix(__builtin_bit_cast(std::uint32_t, key.alpha));
    mix(__builtin_bit_cast(std::uint32_t, key.beta));
    mix(static_cast<int>(key.dtype) * 4 + static_cast<int>(key.c_dtype));
    mix(key.threads);
    return state;
  }
};

// The stride of an extent 1 is unused. Set it to the value of a packed matrix, so that oneDNN
// recognizes the layout.
Key::Operand operand(const Matrix& x) {
  const std::int64_t col = x.cols == 1 ? 1 : x.col_stride;
  const std::int64_t row = x.rows > 1 ? x.row_stride : col == 1 ? x.cols : 1;
  const bool outer = x.batch[0] > 1 && x.batch_stride[0] != 0;
  const bool inner = x.batch[1] > 1 && x.batch_stride[1] != 0;
  return {row,
          col,
          outer ? x.batch[0] : 1,
          inner ? x.batch[1] : 1,
          outer ? x.batch_stride[0] : 0,
          inner ? x.batch_stride[1] : 0};
}

memory::data_type data_type(Dtype dtype) {
  return dtype == Dtype::bfloat16 ? memory::data_type::bf16 : memory::data_type::f32;
}

memory::desc describe(const Key::Operand& x, std::int64_t rows, std::int64_t cols, bool batched,
                      Dtype dtype) {
  if (!batched) return {{rows, cols}, data_type(dtype), {x.row_stride, x.col_stride}};
  const std::int64_t matrix = std::max(rows * x.row_stride, cols * x.col_stride);
  const std::int64_t inner = x.inner > 1 ? x.inner_stride : matrix;
  const std::int64_t outer = x.outer > 1 ? x.outer_stride : std::max(inner, matrix) * x.inner;
  return {
      {x.outer, x.inner, rows, cols}, data_type(dtype), {outer, inner, x.row_stride, x.col_stride}};
}

struct Product {
  dnnl::matmul primitive;
  memory a, b, c;
};

// Returns empty if oneDNN has no kernel or only its reference kernel, which is a thousand times
// slower.
std::optional<Product> make_product(const Key& key) {
  const bool batched = key.c.outer * key.c.inner > 1;
  const memory::desc a = describe(key.a, key.m, key.k, batched, key.dtype);
  const memory::desc b = describe(key.b, key.k, key.n, batched, key.dtype);
  const memory::desc c = describe(key.c, key.m, key.n, batched, key.c_dtype);
  dnnl::primitive_attr attributes;
  if (key.alpha != 1) attributes.set_output_scales(0, {key.alpha});
  if (key.beta != 0) {
    dnnl::post_ops operations;
    operations.append_sum(key.beta);
    attributes.set_post_ops(operations);
  }
  try {
    const dnnl::matmul::primitive_desc made(dnnl::matmul::desc(a, b, c), attributes, engine());
    if (std::string_view(made.impl_info_str()).starts_with("ref")) return std::nullopt;
    return Product{dnnl::matmul(made), memory(a, engine(), nullptr), memory(b, engine(), nullptr),
                   memory(c, engine(), nullptr)};
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented || error.status == dnnl_invalid_arguments)
      return std::nullopt;
    throw MachineError(fmt::format("oneDNN cannot prepare a product [{}, {}] x [{}, {}]: {}", key.m,
                                   key.k, key.k, key.n, error.what()));
  }
}

bool multiply_by_onednn(const Matrix& a, const Matrix& b, const Matrix& c, float alpha, float beta,
                        int threads) {
  constexpr std::size_t most_kept = 1024;
  thread_local std::unordered_map<Key, std::optional<Product>, KeyHash> kept;
  thread_local dnnl::stream stream(engine());

  const Key key{c.rows, c.cols, a.cols,  operand(a), operand(b), operand(c),
                alpha,  beta,   a.dtype, c.dtype,    threads};
  auto found = kept.find(key);
  if (found == kept.end()) {
    if (kept.size() >= most_kept) kept.clear();
    found = kept.emplace(key, make_product(key)).first;
  }
  if (!found->second) return false;
  Product& product = *found->second;
  product.a.set_data_handle(a.data);
  product.b.set_data_handle(b.data);
  product.c.set_data_handle(c.data);
  try {
    product.primitive.execute(
        stream,
        {{DNNL_ARG_SRC, product.a}, {DNNL_ARG_WEIGHTS, product.b}, {DNNL_ARG_DST, product.c}});
    stream.wait();
  } catch (const dnnl::error& error) {
    throw MachineError(fmt::format("oneDNN cannot run a product [{}, {}] x [{}, {}]: {}", key.m,
                                   key.k, key.k, key.n, error.what()));
  }
  return true;
}

// ---- packing

template <class T>
void pack(const Matrix& x, std::int64_t offset, float* to) {
  const T* from = static_cast<const T*>(x.data) + offset;
  for (std::int64_t row = 0; row < x.rows; ++row) {
    const T* line = from + row * x.row_stride;
    float* out = to + row * x.cols;
    if (x.col_stride == 1) {
      for (std::int64_t col = 0; col < x.cols; ++col) out[col] = kernel::widen(line[col]);
    } else {
      for (std::int64_t col = 0; col < x.cols; ++col)
        out[col] = kernel::widen(line[col * x.col_stride]);
    }
  }
}

// c = product + beta c, rounded once.
template <class C, class A>
void unpack(const A* product, float beta, const Matrix& c, std::int64_t offset) {
  C* to = static_cast<C*>(c.data) + offset;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    const A* line = product + row * c.cols;
    for (std::int64_t col = 0; col < c.cols; ++col) {
      C& out = to[row * c.row_stride + col * c.col_stride];
      const A before = beta == 0 ? A(0) : static_cast<A>(beta) * static_cast<A>(out);
      out = static_cast<C>(line[col] + before);
    }
  }
}

template <class Visitor>
void for_each_batch(const Matrix& a, const Matrix& b, const Matrix& c, Visitor visitor) {
  for (std::int64_t outer = 0; outer < c.batch[0]; ++outer)
    for (std::int64_t inner = 0; inner < c.batch[1]; ++inner)
      visitor(a.offset(outer, inner), b.offset(outer, inner), c.offset(outer, inner));
}

void multiply_widened(const Matrix& a, const Matrix& b, const Matrix& c, float alpha, float beta) {
  std::vector<float> left(a.rows * a.cols), right(b.rows * b.cols), product(c.rows * c.cols);
  for_each_batch(a, b, c, [&](std::int64_t at_a, std::int64_t at_b, std::int64_t at_c) {
    visit(a.dtype, [&]<class T>(T) {
      if constexpr (!std::is_same_v<T, double>) {
        pack<T>(a, at_a, left.data());
        pack<T>(b, at_b, right.data());
      }
    });
    const dnnl_status_t status =
        dnnl_sgemm('N', 'N', c.rows, c.cols, a.cols, alpha, left.data(), a.cols, right.data(),
                   b.cols, 0, product.data(), c.cols);
    if (status != dnnl_success)
      throw MachineError(fmt::format("oneDNN cannot multiply [{}, {}] x [{}, {}]: status {}",
                                     c.rows, a.cols, a.cols, c.cols, static_cast<int>(status)));
    visit(c.dtype, [&]<class T>(T) {
      if constexpr (!std::is_same_v<T, double>) unpack<T>(product.data(), beta, c, at_c);
    });
  });
}

Matrix columns(const Matrix& x, std::int64_t begin, std::int64_t end) {
  Matrix part = x;
  part.data = static_cast<char*>(x.data) + begin * x.col_stride * size_of(x.dtype);
  part.cols = end - begin;
  return part;
}

void scale_only(const Matrix& c, float beta) {
  visit(c.dtype, [&]<class T>(T) {
    const std::vector<kernel::Value<T>> nothing(c.rows * c.cols);
    for_each_batch(c, c, c, [&](std::int64_t, std::int64_t, std::int64_t at) {
      unpack<T>(nothing.data(), beta, c, at);
    });
  });
}

}  // namespace

void multiply(const Matrix& a, const Matrix& b, const Matrix& c, float alpha, float beta,
              int threads) {
  if (a.cols == 0) return scale_only(c, beta);
  // oneDNN and double_gemm.h write row-major results, so compute the transposed product.
  if (c.col_stride != 1)
    return multiply(b.transposed(), a.transposed(), c.transposed(), alpha, beta, threads);

  // Each thread needs at least some ten microseconds of work.
  constexpr double least_flops = 1e6;
  const double flops = 2 * static_cast<double>(c.rows * c.cols) * static_cast<double>(a.cols) *
                       static_cast<double>(c.batch[0] * c.batch[1]);
  threads = static_cast<int>(std::clamp(flops / least_flops, 1.0, static_cast<double>(threads)));
#ifdef __SANITIZE_THREAD__
  threads = 1;  // the OpenMP runtime's own synchronization is invisible to the thread sanitizer
#endif
  if (a.dtype == Dtype::float64)
    return multiply_doubles(a, b, c, static_cast<double>(alpha), static_cast<double>(beta),
                            threads);
  omp_set_num_threads(threads);
  if (a.dtype == Dtype::float16) return multiply_widened(a, b, c, alpha, beta);
  // Beyond some ten thousand terms, oneDNN's float kernel loses a fifth of its rate. If the result
  // has the accumulator's type, sum it in parts.
  constexpr std::int64_t most_terms = 8192;
  const std::int64_t parts = c.dtype == Dtype::float32 ? (a.cols - 1) / most_terms + 1 : 1;
  for (std::int64_t part = 0; part < parts; ++part) {
    const auto border = [&](std::int64_t number) {  // multiple of a cache line
      return number == parts ? a.cols : a.cols * number / parts / 64 * 64;
    };
    const std::int64_t begin = border(part), end = border(part + 1);
    const Matrix left = columns(a, begin, end);
    const Matrix right = columns(b.transposed(), begin, end).transposed();
    const float before = part == 0 ? beta : 1;
    if (!multiply_by_onednn(left, right, c, alpha, before, threads))
      multiply_widened(left, right, c, alpha, before);
  }
}

}  // namespace machine::host
