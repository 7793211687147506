// The functions of cuBLASLt that machine/device/cuda/gemm.cpp calls. Products accumulate in float
// (double for double) and are rounded once.

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "machine/virtual_gpu/errors.h"
#include "machine/virtual_gpu/memory.h"
#include "machine/virtual_gpu/streams.h"

struct cublasLtContext {
  int device;
};

namespace machine::virtual_gpu {
namespace {

// The contents of the opaque descriptions.
struct Layout {
  std::uint64_t type, rows, cols;
  std::int64_t leading, batches, batch_stride;
};
struct Product {
  std::uint64_t compute, scale, operation_a, operation_b;
  std::uint64_t epilogue = CUBLASLT_EPILOGUE_DEFAULT, bias = 0, aux = 0, aux_leading = 0;
  bool has_bias() const { return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
  bool has_gelu() const { return epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }
};
struct Preference {
  std::uint64_t workspace, reductions, align_a, align_b, align_c, align_d;
};
struct Algorithm {
  std::uint64_t kind, align_a, align_b, align_c, align_d;
};
constexpr std::uint64_t our_algorithm = 0x7669727475616c31;

template <class Contents, class Opaque>
Contents get(const Opaque* opaque) {
  static_assert(sizeof(Contents) <= sizeof(Opaque));
  Contents contents;
  std::memcpy(&contents, opaque->data, sizeof contents);
  return contents;
}
template <class Contents, class Opaque>
void put(Opaque* opaque, const Contents& contents) {
  std::memcpy(opaque->data, &contents, sizeof contents);
}

// Reads an attribute of type T into a field.
template <class T, class Field>
cublasStatus_t set(Field& field, const void* value, std::size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  T read;
  std::memcpy(&read, value, sizeof read);
  field = static_cast<Field>(read);
  return CUBLAS_STATUS_SUCCESS;
}

std::size_t size_of(std::uint64_t type) {
  return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}
std::size_t bytes_of(const Layout& layout) {
  const std::int64_t last = (layout.batches - 1) * layout.batch_stride +
                            (static_cast<std::int64_t>(layout.cols) - 1) * layout.leading +
                            static_cast<std::int64_t>(layout.rows);
  return static_cast<std::size_t>(last) * size_of(layout.type);
}

template <class A>
A load(std::uint64_t type, const void* memory, std::int64_t i) {
  if (type == CUDA_R_64F) return static_cast<A>(static_cast<const double*>(memory)[i]);
  if (type == CUDA_R_32F) return static_cast<A>(static_cast<const float*>(memory)[i]);
  if (type == CUDA_R_16BF)
    return static_cast<A>(__bfloat162float(static_cast<const __nv_bfloat16*>(memory)[i]));
  return static_cast<A>(__half2float(static_cast<const __half*>(memory)[i]));
}
template <class A>
void store(std::uint64_t type, void* memory, std::int64_t i, A value) {
  if (type == CUDA_R_64F)
    static_cast<double*>(memory)[i] = value;
  else if (type == CUDA_R_32F)
    static_cast<float*>(memory)[i] = static_cast<float>(value);
  else if (type == CUDA_R_16BF)
    static_cast<__nv_bfloat16*>(memory)[i] = __float2bfloat16_rn(static_cast<float>(value));
  else
    static_cast<__half*>(memory)[i] = __float2half_rn(static_cast<float>(value));
}

// Unpacks op(X) of one batch, column after column.
template <class A>
std::vector<A> unpack(const Layout& layout, bool transposed, const void* memory,
                      std::int64_t batch) {
  const auto rows = static_cast<std::int64_t>(layout.rows);
  const auto cols = static_cast<std::int64_t>(layout.cols);
  std::vector<A> result(static_cast<std::size_t>(rows * cols));
  for (std::int64_t col = 0; col < cols; ++col)
    for (std::int64_t row = 0; row < rows; ++row)
      result[static_cast<std::size_t>(transposed ? row * cols + col : col * rows + row)] =
          load<A>(layout.type, memory, batch * layout.batch_stride + col * layout.leading + row);
  return result;
}

struct Call {
  Product product;
  Layout a, b, c, d;
  const void *a_at, *b_at, *c_at;
  void* d_at;
  double alpha, beta;
};

// "Gaussian Error Linear Unit", in the approximation by tanh (Hendrycks and Gimpel 2016,
// arXiv:1606.08415).
template <class A>
A gelu(A x) {
  const A inner = static_cast<A>(0.7978845608028654) * (x + static_cast<A>(0.044715) * x * x * x);
  return static_cast<A>(0.5) * x * (1 + std::tanh(inner));
}

// The bias has an element for each row of D. The input of GELU goes to the auxiliary matrix.
template <class A>
A with_epilogue(const Call& call, A value, std::int64_t row, std::int64_t col) {
  const Product& product = call.product;
  if (product.has_bias())
    value += load<A>(call.d.type, reinterpret_cast<const void*>(product.bias), row);
  if (!product.has_gelu()) return value;
  store<A>(call.d.type, reinterpret_cast<void*>(product.aux),
           col * static_cast<std::int64_t>(product.aux_leading) + row, value);
  return gelu(value);
}

template <class A>
void multiply(const Call& call) {
  const auto rows = static_cast<std::int64_t>(call.d.rows);
  const auto cols = static_cast<std::int64_t>(call.d.cols);
  const bool transposed = call.product.operation_a != CUBLAS_OP_N;
  const auto depth = static_cast<std::int64_t>(transposed ? call.a.rows : call.a.cols);
  std::vector<A> sums(static_cast<std::size_t>(rows));
  for (std::int64_t batch = 0; batch < call.d.batches; ++batch) {
    const auto a = unpack<A>(call.a, transposed, call.a_at, batch);
    const auto b = unpack<A>(call.b, call.product.operation_b != CUBLAS_OP_N, call.b_at, batch);
    for (std::int64_t col = 0; col < cols; ++col) {
      std::fill(sums.begin(), sums.end(), A(0));
      for (std::int64_t k = 0; k < depth; ++k) {
        const A factor = b[static_cast<std::size_t>(col * depth + k)];
        const A* column = a.data() + k * rows;
        for (std::int64_t row = 0; row < rows; ++row)
          sums[static_cast<std::size_t>(row)] += column[row] * factor;
      }
      for (std::int64_t row = 0; row < rows; ++row) {
        A value = static_cast<A>(call.alpha) * sums[static_cast<std::size_t>(row)];
        // If beta is zero, c is not read.
        if (call.beta != 0)
          value += static_cast<A>(call.beta) *
                   load<A>(call.c.type, call.c_at,
                           batch * call.c.batch_stride + col * call.c.leading + row);
        store<A>(call.d.type, call.d_at, batch * call.d.batch_stride + col * call.d.leading + row,
                 with_epilogue(call, value, row, col));
      }
    }
  }
}

cublasStatus_t check(const Call& call) {
  const bool doubles = call.product.compute == CUBLAS_COMPUTE_64F;
  const bool narrow = call.a.type == CUDA_R_16BF || call.a.type == CUDA_R_16F;
  if (call.a.type != call.b.type || call.c.type != call.d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (call.d.type != call.a.type && !(narrow && call.d.type == CUDA_R_32F))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (doubles != (call.a.type == CUDA_R_64F)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (call.product.scale != (doubles ? CUDA_R_64F : CUDA_R_32F)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool turn_a = call.product.operation_a != CUBLAS_OP_N;
  const bool turn_b = call.product.operation_b != CUBLAS_OP_N;
  const bool agree = (turn_a ? call.a.cols : call.a.rows) == call.d.rows &&
                     (turn_b ? call.b.rows : call.b.cols) == call.d.cols &&
                     (turn_a ? call.a.rows : call.a.cols) == (turn_b ? call.b.cols : call.b.rows) &&
                     call.c.rows == call.d.rows && call.c.cols == call.d.cols;
  if (!agree) return CUBLAS_STATUS_INVALID_VALUE;
  const Product& product = call.product;
  if (product.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
    const bool known = product.epilogue == CUBLASLT_EPILOGUE_BIAS || product.has_gelu();
    if (!known || doubles || call.d.batches != 1) return CUBLAS_STATUS_NOT_SUPPORTED;
    const bool aux_fits =
        product.aux != 0 && product.aux_leading % 8 == 0 && product.aux_leading >= call.d.rows;
    if (product.bias == 0 || (product.has_gelu() && !aux_fits)) return CUBLAS_STATUS_INVALID_VALUE;
  }
  for (const Layout* layout : {&call.a, &call.b, &call.c, &call.d})
    if (layout->leading < static_cast<std::int64_t>(layout->rows) ||
        layout->batches != call.d.batches)
      return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_operand(const char* name, const void* at, std::size_t bytes,
                             std::uint64_t alignment) {
  if (find(at) != Place::device || check_range(name, at, bytes) != cudaSuccess) {
    std::fprintf(stderr, "virtual GPU: cublasLtMatmul: %s of %zu bytes is %s\n", name, bytes,
                 describe(at).c_str());
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (alignment > 0 && reinterpret_cast<std::uintptr_t>(at) % alignment != 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace
}  // namespace machine::virtual_gpu

using namespace machine::virtual_gpu;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (enter() != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasLtContext{current_device()};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t cols,
                                          std::int64_t leading) {
  *made = new cublasLtMatrixLayoutOpaque_t{};
  put(*made, Layout{static_cast<std::uint64_t>(type), rows, cols, leading, 1, 0});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t bytes) {
  auto contents = get<Layout>(layout);
  cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
    status = set<std::int32_t>(contents.batches, value, bytes);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
    status = set<std::int64_t>(contents.batch_stride, value, bytes);
  put(layout, contents);
  return status;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *made = new cublasLtMatmulDescOpaque_t{};
  put(*made, Product{static_cast<std::uint64_t>(compute), static_cast<std::uint64_t>(scale),
                     CUBLAS_OP_N, CUBLAS_OP_N});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete product;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  auto contents = get<Product>(product);
  cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA)
    status = set<cublasOperation_t>(contents.operation_a, value, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSB)
    status = set<cublasOperation_t>(contents.operation_b, value, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE)
    status = set<std::uint32_t>(contents.epilogue, value, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER)
    status = set<std::uint64_t>(contents.bias, value, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER)
    status = set<std::uint64_t>(contents.aux, value, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD)
    status = set<std::int64_t>(contents.aux_leading, value, bytes);
  put(product, contents);
  return status;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = new cublasLtMatmulPreferenceOpaque_t{};
  put(*made, Preference{0, CUBLASLT_REDUCTION_SCHEME_MASK, 256, 256, 256, 256});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  auto contents = get<Preference>(preference);
  cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    status = set<std::uint64_t>(contents.workspace, value, bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
    status = set<std::uint32_t>(contents.reductions, value, bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
    status = set<std::uint32_t>(contents.align_a, value, bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES)
    status = set<std::uint32_t>(contents.align_b, value, bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES)
    status = set<std::uint32_t>(contents.align_c, value, bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
    status = set<std::uint32_t>(contents.align_d, value, bytes);
  put(preference, contents);
  return status;
}

// The algorithm uses all of the alignment that the preference promises, up to 16 bytes. A result
// whose state is an error comes first, as cuBLASLt allows. Its algorithm is not valid.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/,
                                              cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  *found = 0;
  if (requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const Call call{get<Product>(product),
                  get<Layout>(a),
                  get<Layout>(b),
                  get<Layout>(c),
                  get<Layout>(d),
                  nullptr,
                  nullptr,
                  nullptr,
                  nullptr,
                  1,
                  0};
  const cublasStatus_t status = check(call);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const auto promised = get<Preference>(preference);
  const auto used = [](std::uint64_t alignment) { return std::min<std::uint64_t>(alignment, 16); };
  results[0] = {};
  results[0].state = CUBLAS_STATUS_NOT_SUPPORTED;
  *found = 1;
  if (requested == 1) return CUBLAS_STATUS_SUCCESS;
  results[1] = {};
  put(&results[1].algo, Algorithm{our_algorithm, used(promised.align_a), used(promised.align_b),
                                  used(promised.align_c), used(promised.align_d)});
  results[1].state = CUBLAS_STATUS_SUCCESS;
  *found = 2;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void* alpha, const void* a_at, cublasLtMatrixLayout_t a,
                              const void* b_at, cublasLtMatrixLayout_t b, const void* beta,
                              const void* c_at, cublasLtMatrixLayout_t c, void* d_at,
                              cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algorithm,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  if (enter() != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  const auto queue = queue_of(stream);
  if (!queue || queue->device != handle->device || current_device() != handle->device)
    return CUBLAS_STATUS_ARCH_MISMATCH;
  Call call{get<Product>(product),
            get<Layout>(a),
            get<Layout>(b),
            get<Layout>(c),
            get<Layout>(d),
            a_at,
            b_at,
            c_at,
            d_at,
            0,
            0};
  if (const cublasStatus_t status = check(call); status != CUBLAS_STATUS_SUCCESS) return status;
  const bool doubles = call.product.compute == CUBLAS_COMPUTE_64F;
  call.alpha = doubles ? *static_cast<const double*>(alpha) : *static_cast<const float*>(alpha);
  call.beta = doubles ? *static_cast<const double*>(beta) : *static_cast<const float*>(beta);
  const auto chosen = get<Algorithm>(algorithm);
  if (chosen.kind != our_algorithm) return CUBLAS_STATUS_INVALID_VALUE;
  const Product& described = call.product;
  const auto bytes_of_aux = static_cast<std::size_t>(
      (described.aux_leading * (call.d.cols - 1) + call.d.rows) * size_of(call.d.type));
  for (const cublasStatus_t status :
       {described.has_bias() ? check_operand("bias", reinterpret_cast<const void*>(described.bias),
                                             call.d.rows * size_of(call.d.type), 0)
                             : CUBLAS_STATUS_SUCCESS,
        described.has_gelu()
            ? check_operand("aux", reinterpret_cast<const void*>(described.aux), bytes_of_aux, 16)
            : CUBLAS_STATUS_SUCCESS,
        check_operand("A", a_at, bytes_of(call.a), chosen.align_a),
        check_operand("B", b_at, bytes_of(call.b), chosen.align_b),
        check_operand("C", c_at, bytes_of(call.c), chosen.align_c),
        check_operand("D", d_at, bytes_of(call.d), chosen.align_d),
        workspace_bytes == 0 ? CUBLAS_STATUS_SUCCESS
                             : check_operand("workspace", workspace, workspace_bytes, 16)})
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  Operation operation;
  operation.run = [call, doubles] { doubles ? multiply<double>(call) : multiply<float>(call); };
  append(queue, std::move(operation));
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "another CUBLAS_STATUS";
  }
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }
}
