#include "machine/device/float8/scaled_gemm_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "machine/base/error.h"
#include "machine/device/cuda/gemm.h"

namespace machine::cuda {
namespace {

cublasLtMatmulMatrixScale_t mode_of(Scaling scaling) {
  switch (scaling) {
    case Scaling::tensor:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    case Scaling::vector_128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case Scaling::square_128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    case Scaling::vector_32:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
  }
  throw std::logic_error("cuda::mode_of: unknown scaling");
}

int alignment_of(const void* address) {
  return cuda::alignment_of(reinterpret_cast<std::uintptr_t>(address));
}

struct Key {
  std::int64_t rows, cols, inner;
  Dtype a, b, c;
  Scaling scaling_of_a, scaling_of_b;
  bool adds;
  int alignment_a, alignment_b, alignment_c;
  auto operator<=>(const Key&) const = default;
};

// An operand in the layouts of cuBLASLt. Holds the copies.
struct Prepared {
  Tensor codes, scales;
};

// along_cols: the sum is along the columns of the stored codes.
Prepared prepared(Stream& stream, const ScaledMatrix& x, bool along_cols) {
  Prepared result{x.codes, x.inverse};
  const auto buffer = [&](Dtype dtype, Shape shape) {
    return Tensor(stream.device(), dtype, shape, Category::buffers);
  };
  if (!along_cols) {
    result.codes = buffer(x.codes.dtype(), {x.codes.cols(), x.codes.rows()});
    transpose_codes(stream, x.codes, result.codes);
  }
  if (x.scaling == Scaling::tensor) return result;
  const std::int64_t block = x.scaling == Scaling::vector_32 ? 32 : 128;
  const auto blocks = [](std::int64_t extent, std::int64_t of) { return (extent + of - 1) / of; };
  const std::int64_t outer = result.codes.rows();
  const ScaleLayout layout{x.scaling, x.scaling == Scaling::square_128 ? blocks(outer, 128) : outer,
                           blocks(result.codes.cols(), block), !along_cols};
  const bool as_it_is = (x.scaling == Scaling::vector_128 && !along_cols) ||
                        (x.scaling == Scaling::square_128 && along_cols && layout.parts % 4 == 0);
  if (as_it_is) return result;
  result.scales = buffer(x.inverse.dtype(), {arranged_size(layout)});
  arrange_scales(stream, layout, x.inverse, result.scales);
  return result;
}

}  // namespace

struct ScaledMultiplier::State {
  Multiplier& multiplier;
  std::map<Key, Plan> plans;

  void set(const Plan& plan, cublasLtMatmulDescAttributes_t attribute, const auto& value) const {
    const int device = multiplier.device();
    SHARDMARK_CUBLAS(
        cublasLtMatmulDescSetAttribute(plan.product.handle, attribute, &value, sizeof(value)));
  }
  void set_scales(const Plan& plan, const void* a, const void* b) const {
    set(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b);
    set(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a);
  }
  Layout layout(Dtype dtype, std::int64_t rows, std::int64_t cols) const {
    const int device = multiplier.device();
    Layout made;
    SHARDMARK_CUBLAS(cublasLtMatrixLayoutCreate(&made.handle, data_type(dtype),
                                                static_cast<std::uint64_t>(rows),
                                                static_cast<std::uint64_t>(cols), rows));
    return made;
  }
  Plan plan(const Key& key, const void* scales_a, const void* scales_b) const;
};

// cuBLASLt is column-major: it computes cᵀ = bᵀ aᵀ, where its A is bᵀ and its B is aᵀ, with the
// rows of ours as columns. Sums are promoted to float often (CUBLASLT_MATMUL_DESC_FAST_ACCUM stays
// 0).
Plan ScaledMultiplier::State::plan(const Key& key, const void* scales_a,
                                   const void* scales_b) const {
  const int device = multiplier.device();
  Plan made;
  SHARDMARK_CUBLAS(cublasLtMatmulDescCreate(&made.product.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(made, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(made, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  set(made, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode_of(key.scaling_of_b));
  set(made, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode_of(key.scaling_of_a));
  set_scales(made, scales_a, scales_b);
  made.b = layout(key.b, key.inner, key.cols);
  made.a = layout(key.a, key.inner, key.rows);
  made.c = layout(key.c, key.cols, key.rows);
  const cublasStatus_t status =
      multiplier.choose(made, {key.alignment_b, key.alignment_a, key.alignment_c});
  if (status != CUBLAS_STATUS_SUCCESS)
    throw MachineError(fmt::format(
        "cuBLASLt has no algorithm on CUDA device {} for the product of {} [{}, {}] and {} [{}, "
        "{}] in {} ({}); run again with CUBLASLT_LOG_LEVEL=2 for the reason",
        device, name(key.a), key.rows, key.inner, name(key.b), key.inner, key.cols, name(key.c),
        cublasLtGetStatusName(status)));
  return made;
}

ScaledMultiplier::ScaledMultiplier(Multiplier& multiplier)
    : state_(std::make_unique<State>(State{multiplier, {}})) {}
ScaledMultiplier::~ScaledMultiplier() = default;

void ScaledMultiplier::multiply(const ScaledProduct& product, const Operand& a, const Operand& b,
                                const Tensor& c, bool adds) {
  const Key key{product.rows,
                product.cols,
                product.inner,
                a.dtype,
                b.dtype,
                c.dtype(),
                a.scaling,
                b.scaling,
                adds,
                alignment_of(a.codes),
                alignment_of(b.codes),
                alignment_of(c.data())};
  auto found = state_->plans.find(key);
  if (found == state_->plans.end())
    found = state_->plans.emplace(key, state_->plan(key, a.scales, b.scales)).first;
  state_->set_scales(found->second, a.scales, b.scales);
  const float alpha = 1, beta = adds ? 1 : 0;
  state_->multiplier.run(found->second, &alpha, b.codes, a.codes, &beta, c.data());
}

void scaled_gemm(Stream& stream, const ScaledProduct& product, const ScaledMatrix& a,
                 const ScaledMatrix& b, const Tensor& c, bool adds) {
  const Prepared left = prepared(stream, a, !a.transposed),
                 right = prepared(stream, b, b.transposed);
  const auto operand = [](const ScaledMatrix& x, const Prepared& copies) {
    return ScaledMultiplier::Operand{x.codes.dtype(), x.scaling, copies.codes.data(),
                                     copies.scales.data()};
  };
  scaled_multiplier_of(stream).multiply(product, operand(a, left), operand(b, right), c, adds);
}

}  // namespace machine::cuda
