// Creating a primitive takes a hundred times as long as a small product, so each thread caches its
// primitives.

#include "machine/device/host/onednn_gemm.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <dnnl.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "machine/base/error.h"

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

void check_status(dnnl_status_t status, std::int64_t m, std::int64_t k, std::int64_t n) {
  if (status != dnnl_success)
    throw MachineError(fmt::format("oneDNN cannot run a product [{}, {}] x [{}, {}]: status {}", m,
                                   k, k, n, static_cast<int>(status)));
}

bool multiply_terms(const Matrix& a, const Matrix& b, const Matrix& c, float alpha, float beta,
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
  // dnnl::primitive::execute takes a map, which costs a third of a small product.
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, product.a.get()},
                                       {DNNL_ARG_WEIGHTS, product.b.get()},
                                       {DNNL_ARG_DST, product.c.get()}};
  dnnl_status_t status =
      dnnl_primitive_execute(product.primitive.get(), stream.get(), 3, arguments);
  if (status == dnnl_success) status = dnnl_stream_wait(stream.get());
  check_status(status, key.m, key.k, key.n);
  return true;
}

// Whether oneDNN's sgemm is faster than its matmul: if b has long rows. On a Xeon, products with
// rows of 3072 columns took 2 to 3 times as long by matmul, with 768 a tenth longer, with 512 less
// time. Presumably sgemm packs b and matmul reads it in place, where lines of a column share few
// sets of the L1 cache and each is in another page. With few terms, either may be faster.
bool sgemm_is_faster(const Matrix& a, const Matrix& b, const Matrix& c) {
  constexpr std::int64_t least_columns = 768, least_terms = 64;
  return a.dtype == Dtype::float32 && c.dtype == Dtype::float32 && c.batch[0] * c.batch[1] == 1 &&
         b.col_stride == 1 && c.cols >= least_columns && a.cols >= least_terms;
}

// Returns false, and writes nothing, if sgemm does not know a's layout.
bool multiply_by_sgemm(const Matrix& a, const Matrix& b, const Matrix& c, float alpha, float beta) {
  const bool transposed = a.col_stride != 1;
  const std::int64_t neighbours = transposed ? a.rows : a.cols,
                     stride = transposed ? a.col_stride : a.row_stride;
  if (stride < neighbours || (transposed && a.row_stride != 1)) return false;
  if (b.row_stride < c.cols || c.row_stride < c.cols) return false;
  const dnnl_status_t status =
      dnnl_sgemm(transposed ? 'T' : 'N', 'N', c.rows, c.cols, a.cols, alpha,
                 static_cast<const float*>(a.data), stride, static_cast<const float*>(b.data),
                 b.row_stride, beta, static_cast<float*>(c.data), c.row_stride);
  check_status(status, c.rows, a.cols, c.cols);
  return true;
}

Matrix columns(const Matrix& x, std::int64_t begin, std::int64_t end) {
  Matrix part = x;
  part.data = static_cast<char*>(x.data) + begin * x.col_stride * size_of(x.dtype);
  part.cols = end - begin;
  return part;
}

}  // namespace

bool multiplies_bfloat16() {
  const auto has = [](dnnl::cpu_isa isa) {  // a set of bits
    return (static_cast<int>(dnnl::get_effective_cpu_isa()) & static_cast<int>(isa)) ==
           static_cast<int>(isa);
  };
  return has(dnnl::cpu_isa::avx512_core_amx) ||
         (has(dnnl::cpu_isa::avx512_core_bf16) && __builtin_cpu_is("amd"));
}

bool multiply_by_onednn(const Matrix& a, const Matrix& b, const Matrix& c, float alpha, float beta,
                        int threads) {
  omp_set_num_threads(threads);
  if (sgemm_is_faster(a, b, c) && multiply_by_sgemm(a, b, c, alpha, beta)) return true;
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
    if (multiply_terms(left, right, c, alpha, part == 0 ? beta : 1, threads)) continue;
    SHARDMARK_CHECK(part, ==, 0);  // parts have one layout, which decides
    return false;
  }
  return true;
}

}  // namespace machine::host
