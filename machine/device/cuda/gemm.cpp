#include "machine/device/cuda/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>

#include "machine/base/error.h"

namespace machine::cuda {
void check_cublas(int device, const char* call, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw MachineError(fmt::format(
      "{} failed on CUDA device {}: {} ({}); run again with CUBLASLT_LOG_LEVEL=2 for the reason",
      call, device, cublasLtGetStatusString(status), cublasLtGetStatusName(status)));
}

cudaDataType_t data_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::float32:
      return CUDA_R_32F;
    case Dtype::bfloat16:
      return CUDA_R_16BF;
    case Dtype::float16:
      return CUDA_R_16F;
    case Dtype::float64:
      return CUDA_R_64F;
    case Dtype::float8_e4m3:
      return CUDA_R_8F_E4M3;
    case Dtype::float8_e5m2:
      return CUDA_R_8F_E5M2;
    default:
      throw std::logic_error("cuda::data_type: not a floating dtype");
  }
}

int alignment_of(std::uintptr_t address) {
  return static_cast<int>(address == 0 ? 256 : std::min<std::uintptr_t>(address & -address, 256));
}

namespace {

// cuBLASLt is column-major. It sees a row-major matrix as its transpose, with the row stride as
// leading dimension. So c = a b is computed as cᵀ = bᵀ aᵀ.
struct Operand {
  std::int64_t rows, cols, leading;  // as cuBLASLt sees the memory
  cublasOperation_t operation;
  std::int64_t inner_stride;
  int alignment;  // divides every matrix's address, in bytes
  auto operator<=>(const Operand&) const = default;
};

Operand transpose_of(const Matrix& x) {
  const bool row_major = x.col_stride == 1;
  const std::int64_t rows = row_major ? x.cols : x.rows, cols = row_major ? x.rows : x.cols;
  const std::int64_t stride = row_major ? x.row_stride : x.col_stride;
  auto address = reinterpret_cast<std::uintptr_t>(x.data);
  if (x.batch[0] > 1) address |= static_cast<std::uintptr_t>(x.batch_stride[0]) * size_of(x.dtype);
  const int alignment = alignment_of(address);
  // The stride of a single column is unused, but must be at least the number of rows.
  return {rows,
          cols,
          std::max(stride, rows),
          row_major ? CUBLAS_OP_N : CUBLAS_OP_T,
          x.batch_stride[1],
          alignment};
}

struct Key {
  Operand b, a, c;
  std::int64_t inner;
  Dtype dtype, c_dtype;
  bool adds;  // beta is not 0
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int bias_alignment = 0, sums_alignment = 0;  // 0: the epilogue has none
  auto operator<=>(const Key&) const = default;
};

// Device memory of an epilogue. The bias has an element for each row of cuBLASLt's matrix, which is
// a column of ours.
struct Epilogue {
  const void* bias = nullptr;
  void* sums = nullptr;  // the input of GELU; null: no GELU
};

constexpr std::size_t workspace_bytes = std::size_t{32} << 20;  // NVIDIA's advice for Hopper

}  // namespace

struct Multiplier::State {
  int device;
  cudaStream_t stream;
  Scratch workspace;
  cublasLtHandle_t handle = nullptr;
  std::map<Key, std::optional<Plan>> plans;  // empty: cuBLASLt has no algorithm

  explicit State(const Queue& queue)
      : device(queue.device), stream(queue.stream), workspace(queue) {}
  ~State() {
    plans.clear();
    if (handle) cublasLtDestroy(handle);
  }

  void start() {
    if (handle) return;
    make_current(device);
    SHARDMARK_CUBLAS(cublasLtCreate(&handle));
  }

  Layout layout(const Operand& operand, Dtype dtype, std::int64_t inner) const {
    Layout made;
    SHARDMARK_CUBLAS(cublasLtMatrixLayoutCreate(
        &made.handle, data_type(dtype), static_cast<std::uint64_t>(operand.rows),
        static_cast<std::uint64_t>(operand.cols), operand.leading));
    const auto batches = static_cast<std::int32_t>(inner);
    SHARDMARK_CUBLAS(cublasLtMatrixLayoutSetAttribute(
        made.handle, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches, sizeof(batches)));
    SHARDMARK_CUBLAS(
        cublasLtMatrixLayoutSetAttribute(made.handle, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                         &operand.inner_stride, sizeof(operand.inner_stride)));
    return made;
  }

  void set_epilogue(const Plan& made, const Epilogue& epilogue) const {
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      SHARDMARK_CUBLAS(
          cublasLtMatmulDescSetAttribute(made.product.handle, attribute, &value, sizeof(value)));
    };
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, epilogue.bias);
    if (epilogue.sums) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, epilogue.sums);
  }

  std::pair<std::optional<Plan>, cublasStatus_t> plan(const Key& key,
                                                      const Epilogue& epilogue) const {
    const bool doubles = key.dtype == Dtype::float64;
    Plan made;
    // No TF32: float products keep float precision.
    SHARDMARK_CUBLAS(cublasLtMatmulDescCreate(&made.product.handle,
                                              doubles ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                              doubles ? CUDA_R_64F : CUDA_R_32F));
    SHARDMARK_CUBLAS(cublasLtMatmulDescSetAttribute(made.product.handle,
                                                    CUBLASLT_MATMUL_DESC_TRANSA, &key.b.operation,
                                                    sizeof(key.b.operation)));
    SHARDMARK_CUBLAS(cublasLtMatmulDescSetAttribute(made.product.handle,
                                                    CUBLASLT_MATMUL_DESC_TRANSB, &key.a.operation,
                                                    sizeof(key.a.operation)));
    made.b = layout(key.b, key.dtype, key.inner);
    made.a = layout(key.a, key.dtype, key.inner);
    made.c = layout(key.c, key.c_dtype, key.inner);

    if (epilogue.bias) {
      const auto kind = static_cast<std::uint32_t>(key.epilogue);
      SHARDMARK_CUBLAS(cublasLtMatmulDescSetAttribute(
          made.product.handle, CUBLASLT_MATMUL_DESC_EPILOGUE, &kind, sizeof(kind)));
      if (epilogue.sums)
        SHARDMARK_CUBLAS(cublasLtMatmulDescSetAttribute(made.product.handle,
                                                        CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
                                                        &key.c.rows, sizeof(key.c.rows)));
      set_epilogue(made, epilogue);  // the heuristic reads the alignment of the pointers
    }
    const cublasStatus_t status = choose(made, {key.b.alignment, key.a.alignment, key.c.alignment});
    if (status != CUBLAS_STATUS_SUCCESS) return {std::nullopt, status};
    return {std::move(made), status};
  }

  cublasStatus_t choose(Plan& made, const Alignments& alignments) const {
    Preference preference;
    SHARDMARK_CUBLAS(cublasLtMatmulPreferenceCreate(&preference.handle));
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      SHARDMARK_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &value,
                                                            sizeof(value)));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    // Joins the parts of a split sum in the accumulator's type, so the result is rounded once.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(alignments.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(alignments.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(alignments.c));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(alignments.c));

    // The best first. A result is valid only if its state is (cuBLAS, "heuristic result").
    std::array<cublasLtMatmulHeuristicResult_t, 8> results{};
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, made.product.handle, made.b.handle, made.a.handle, made.c.handle, made.c.handle,
        preference.handle, static_cast<int>(results.size()), results.data(), &found);
    if (status == CUBLAS_STATUS_SUCCESS) {
      for (const auto& result : std::span(results).first(static_cast<std::size_t>(found))) {
        if (result.state != CUBLAS_STATUS_SUCCESS) continue;
        made.algorithm = result.algo;
        return status;
      }
    }
    return status == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : status;
  }

  [[noreturn]] void refuse(const Key& key, cublasStatus_t status) const {
    throw MachineError(fmt::format(
        "cuBLASLt has no algorithm on CUDA device {} for {} products of [{}, {}] and [{}, {}] ({})",
        device, name(key.dtype), key.c.cols,
        key.a.operation == CUBLAS_OP_N ? key.a.rows : key.a.cols,
        key.a.operation == CUBLAS_OP_N ? key.a.rows : key.a.cols, key.c.rows,
        cublasLtGetStatusName(status)));
  }

  void multiply(const Matrix& a, const Matrix& b, const Matrix& c, float alpha, float beta) {
    start();
    const Key key{transpose_of(b), transpose_of(a), transpose_of(c), c.batch[1],
                  a.dtype,         c.dtype,         beta != 0};
    auto found = plans.find(key);
    if (found == plans.end()) {
      auto [made, status] = plan(key, {});
      if (!made) refuse(key, status);
      found = plans.emplace(key, std::move(made)).first;
    }
    run(*found->second, a, b, c, alpha, beta);
  }

  bool multiply_fused(const Matrix& a, const Matrix& b, const Matrix& c, const Epilogue& epilogue) {
    start();
    const auto alignment = [](const void* at) {
      return at ? alignment_of(reinterpret_cast<std::uintptr_t>(at)) : 0;
    };
    const Key key{transpose_of(b),
                  transpose_of(a),
                  transpose_of(c),
                  1,
                  a.dtype,
                  c.dtype,
                  false,
                  epilogue.sums ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_BIAS,
                  alignment(epilogue.bias),
                  alignment(epilogue.sums)};
    auto found = plans.find(key);
    if (found == plans.end()) found = plans.emplace(key, plan(key, epilogue).first).first;
    if (!found->second) return false;
    set_epilogue(*found->second, epilogue);
    run(*found->second, a, b, c, 1, 0);
    return true;
  }

  void run(const Plan& chosen, const Matrix& a, const Matrix& b, const Matrix& c, float alpha,
           float beta) {
    const double wide_alpha = alpha, wide_beta = beta;
    const bool doubles = a.dtype == Dtype::float64;
    const void* alpha_at = doubles ? static_cast<const void*>(&wide_alpha) : &alpha;
    const void* beta_at = doubles ? static_cast<const void*>(&wide_beta) : &beta;
    for (std::int64_t outer = 0; outer < c.batch[0]; ++outer) {
      const auto at = [&](const Matrix& x) {
        return static_cast<char*>(x.data) +
               outer * x.batch_stride[0] * static_cast<std::int64_t>(size_of(x.dtype));
      };
      run(chosen, alpha_at, at(b), at(a), beta_at, at(c));
    }
  }

  void run(const Plan& chosen, const void* alpha, const void* b, const void* a, const void* beta,
           void* c) {
    void* space = workspace.at_least(workspace_bytes);
    make_current(device);
    SHARDMARK_CUBLAS(cublasLtMatmul(handle, chosen.product.handle, alpha, b, chosen.b.handle, a,
                                    chosen.a.handle, beta, c, chosen.c.handle, c, chosen.c.handle,
                                    &chosen.algorithm, space, workspace_bytes, stream));
  }
};

Multiplier::Multiplier(const Queue& queue) : state_(std::make_unique<State>(queue)) {}
Multiplier::~Multiplier() = default;

int Multiplier::device() const { return state_->device; }

cublasStatus_t Multiplier::choose(Plan& plan, const Alignments& alignments) {
  state_->start();
  return state_->choose(plan, alignments);
}

void Multiplier::run(const Plan& plan, const void* alpha, const void* b, const void* a,
                     const void* beta, void* c) {
  state_->run(plan, alpha, b, a, beta, c);
}

void Multiplier::multiply(const Matrix& a, const Matrix& b, const Matrix& c, float alpha,
                          float beta) {
  if (a.cols == 0) return scale(state_->device, state_->stream, c, beta);
  if (c.col_stride != 1)
    return state_->multiply(b.transposed(), a.transposed(), c.transposed(), alpha, beta);
  state_->multiply(a, b, c, alpha, beta);
}

// cuBLASLt's GELU is the tanh form, as ours (cuBLAS, cublasLtEpilogue_t). The rows of its input
// must be a multiple of 8 elements apart.
bool Multiplier::multiply_fused(const Matrix& a, const Matrix& b, const Matrix& c, const void* bias,
                                void* sums) {
  constexpr std::uintptr_t aligned = 16;
  const bool fits = c.col_stride == 1 && c.row_stride == c.cols && a.batch == c.batch &&
                    c.batch[0] == 1 && c.batch[1] == 1 && a.dtype != Dtype::float64;
  const bool fits_sums =
      !sums || (c.cols % 8 == 0 && reinterpret_cast<std::uintptr_t>(sums) % aligned == 0);
  return fits && fits_sums && state_->multiply_fused(a, b, c, {bias, sums});
}

}  // namespace machine::cuda
