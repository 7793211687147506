// The functions of cuBLASLt that machine/device/cuda/gemm.cpp and float8/scaled_gemm_cuda.cpp call.
// Products accumulate in float (double for double) and are rounded once. Products of 8-bit codes
// have the requirements of the documentation (cuBLAS, "Narrow Precision Data Types Usage"), and a
// scale of each operand. What breaks a requirement is named.

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "machine/virtual_gpu/configuration.h"
#include "machine/virtual_gpu/cublas_lt/scales.h"
#include "machine/virtual_gpu/errors.h"
#include "machine/virtual_gpu/faults.h"
#include "machine/virtual_gpu/memory.h"
#include "machine/virtual_gpu/streams.h"

struct cublasLtContext {
  int device;
};

namespace machine::virtual_gpu {
namespace {

// The contents of the opaque descriptions.
struct Layout {
  std::int64_t type, rows, cols, leading, batches, batch_stride;
};
struct Product {
  std::int64_t compute, scale, operation_a, operation_b;
  std::int64_t epilogue = CUBLASLT_EPILOGUE_DEFAULT, bias = 0, aux = 0, aux_leading = 0;
  std::int64_t scale_a = 0, scale_b = 0;  // addresses
  std::int64_t mode_a = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, mode_b = mode_a;
  bool has_bias() const { return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
  bool has_gelu() const { return epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }
};
struct Preference {
  std::int64_t workspace, reductions, align_a, align_b, align_c, align_d;
};
struct Algorithm {
  std::int64_t kind, align_a, align_b, align_c, align_d;
};
constexpr std::int64_t our_algorithm = 0x7669727475616c31;

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

template <class Opaque, class Contents>
cublasStatus_t create(Opaque** made, const Contents& contents) {
  *made = new Opaque{};
  put(*made, contents);
  return CUBLAS_STATUS_SUCCESS;
}
template <class Opaque>
cublasStatus_t destroy(Opaque* opaque) {
  delete opaque;
  return CUBLAS_STATUS_SUCCESS;
}

// The field that an attribute sets, and the size of its values.
template <class Contents, class Attribute>
struct Field {
  Attribute attribute;
  std::size_t bytes;
  std::int64_t Contents::*field;
};
template <class Contents, class Opaque, class Attribute>
cublasStatus_t set(Opaque* opaque, Attribute attribute, const void* value, std::size_t bytes,
                   std::initializer_list<Field<Contents, Attribute>> fields) {
  auto contents = get<Contents>(opaque);
  for (const auto& [known, size, field] : fields) {
    if (known != attribute) continue;
    if (bytes != size) return CUBLAS_STATUS_INVALID_VALUE;
    contents.*field = 0;
    std::memcpy(&(contents.*field), value, bytes);
    put(opaque, contents);
    return CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

bool is_8_bit(std::int64_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
std::size_t size_of(std::int64_t type) {
  return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : is_8_bit(type) ? 1 : 2;
}
std::size_t bytes_of(const Layout& layout) {
  const std::int64_t last =
      (layout.batches - 1) * layout.batch_stride + (layout.cols - 1) * layout.leading + layout.rows;
  return static_cast<std::size_t>(last) * size_of(layout.type);
}

template <class A>
A load(std::int64_t type, const void* memory, std::int64_t i) {
  if (type == CUDA_R_64F) return static_cast<A>(static_cast<const double*>(memory)[i]);
  if (type == CUDA_R_32F) return static_cast<A>(static_cast<const float*>(memory)[i]);
  if (type == CUDA_R_16BF)
    return static_cast<A>(__bfloat162float(static_cast<const __nv_bfloat16*>(memory)[i]));
  if (is_8_bit(type))
    return static_cast<A>(__half2float(
        __half(__nv_cvt_fp8_to_halfraw(static_cast<const __nv_fp8_storage_t*>(memory)[i],
                                       type == CUDA_R_8F_E4M3 ? __NV_E4M3 : __NV_E5M2))));
  return static_cast<A>(__half2float(static_cast<const __half*>(memory)[i]));
}
template <class A>
void store(std::int64_t type, void* memory, std::int64_t i, A value) {
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
  const std::int64_t rows = layout.rows, cols = layout.cols;
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
  const void *a_at = nullptr, *b_at = nullptr, *c_at = nullptr;
  void* d_at = nullptr;
  double alpha = 1, beta = 0;

  bool of_codes() const { return is_8_bit(a.type); }
  std::int64_t depth() const { return product.operation_a == CUBLAS_OP_N ? a.cols : a.rows; }
  Scales scales_a() const { return {product.mode_a, d.rows, depth(), product.scale_a}; }
  Scales scales_b() const { return {product.mode_b, d.cols, depth(), product.scale_b}; }
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
  const std::int64_t rows = call.d.rows, cols = call.d.cols;
  const bool transposed = call.product.operation_a != CUBLAS_OP_N;
  const std::int64_t depth = call.depth();
  const Scales scales_a = call.scales_a(), scales_b = call.scales_b();
  // Elements that share a scale are added up before they are scaled.
  const std::int64_t step = call.of_codes() ? scales_a.block() : depth;
  std::vector<A> sums(static_cast<std::size_t>(rows)), part(sums.size());
  for (std::int64_t batch = 0; batch < call.d.batches; ++batch) {
    const auto a = unpack<A>(call.a, transposed, call.a_at, batch);
    const auto b = unpack<A>(call.b, call.product.operation_b != CUBLAS_OP_N, call.b_at, batch);
    for (std::int64_t col = 0; col < cols; ++col) {
      std::fill(sums.begin(), sums.end(), A(0));
      for (std::int64_t first = 0; first < depth; first += step) {
        std::fill(part.begin(), part.end(), A(0));
        for (std::int64_t k = first; k < std::min(depth, first + step); ++k) {
          const A factor = b[static_cast<std::size_t>(col * depth + k)];
          const A* column = a.data() + k * rows;
          for (std::int64_t row = 0; row < rows; ++row)
            part[static_cast<std::size_t>(row)] += column[row] * factor;
        }
        for (std::int64_t row = 0; row < rows; ++row)
          sums[static_cast<std::size_t>(row)] +=
              part[static_cast<std::size_t>(row)] *
              (call.of_codes() ? static_cast<A>(scales_a.factor(row, first / step) *
                                                scales_b.factor(col, first / step))
                               : A(1));
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

Call call_of(cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
             cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  return {get<Product>(product), get<Layout>(a), get<Layout>(b), get<Layout>(c), get<Layout>(d)};
}

// Requirements of products of codes (cuBLAS, "cublasLtMatmul()", FP8 kernels; "Scaling Mode Support
// Overview"). Returns the broken one, or null.
const char* why_not_codes(const Call& call) {
  const Product& product = call.product;
  const int capability = 10 * configuration().major + configuration().minor;
  if (capability < 89) return "8-bit floats require compute capability 8.9";
  if (!is_8_bit(call.a.type) || !is_8_bit(call.b.type) ||
      (call.a.type == CUDA_R_8F_E5M2 && call.b.type == CUDA_R_8F_E5M2))
    return "A and B must be E4M3 and E4M3, E4M3 and E5M2, or E5M2 and E4M3";
  if (product.operation_a != CUBLAS_OP_T || product.operation_b != CUBLAS_OP_N)
    return "A must be transposed and B not (TN)";
  if (product.compute != CUBLAS_COMPUTE_32F || product.scale != CUDA_R_32F)
    return "the compute type must be CUBLAS_COMPUTE_32F, with scales in float";
  if (call.d.type != CUDA_R_32F && call.d.type != CUDA_R_16BF && call.d.type != CUDA_R_16F)
    return "D must be float, bfloat16 or half";
  if (product.epilogue != CUBLASLT_EPILOGUE_DEFAULT || call.d.batches != 1)
    return "the virtual cuBLASLt has no epilogue and no batches of 8-bit operands";
  for (const Layout* layout : {&call.a, &call.b, &call.c, &call.d})
    if (layout->rows % 16 != 0 || layout->cols % 16 != 0 || layout->leading % 16 != 0)
      return "extents and leading dimensions must be multiples of 16";
  const auto mode = [&](auto wanted) {
    return (product.mode_a == wanted) + (product.mode_b == wanted);
  };
  const int vec = mode(CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F),
            blk = mode(CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F),
            tiled = mode(CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0);
  if (vec + blk > 0 && capability != 90)
    return "scales of 128 elements require compute capability 9.0";
  if (tiled > 0 && capability < 100) return "scales of 32 elements require compute capability 10.0";
  const bool paired = (vec + blk == 2 && blk < 2) || tiled == 2 ||
                      mode(CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) == 2;
  return paired ? nullptr : "the scale modes of A and B cannot be combined";
}

cublasStatus_t check(const Call& call) {
  const bool codes = call.of_codes() || is_8_bit(call.b.type);
  if (const char* const why = codes ? why_not_codes(call) : nullptr) {
    std::fprintf(stderr, "virtual GPU: cublasLtMatmul: %s\n", why);
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (!codes && (call.product.scale_a != 0 || call.product.scale_b != 0)) {
    std::fprintf(stderr, "virtual GPU: cublasLtMatmul: scales require 8-bit operands\n");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool doubles = call.product.compute == CUBLAS_COMPUTE_64F;
  const bool narrow = call.a.type == CUDA_R_16BF || call.a.type == CUDA_R_16F;
  if ((call.a.type != call.b.type && !codes) || call.c.type != call.d.type)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (call.d.type != call.a.type && !(narrow && call.d.type == CUDA_R_32F) && !codes)
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
    if (layout->leading < layout->rows || layout->batches != call.d.batches)
      return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_operand(const char* name, const void* at, std::size_t bytes,
                             std::int64_t alignment) {
  if (find(at) != Place::device || check_range(name, at, bytes) != cudaSuccess) {
    std::fprintf(stderr, "virtual GPU: cublasLtMatmul: %s of %zu bytes is %s\n", name, bytes,
                 describe(at).c_str());
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (alignment > 0 && reinterpret_cast<std::intptr_t>(at) % alignment != 0) {
    std::fprintf(stderr, "virtual GPU: cublasLtMatmul: %s is not aligned to %lld bytes\n", name,
                 static_cast<long long>(alignment));
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  return CUBLAS_STATUS_SUCCESS;
}

// cuBLASLt takes a missing scale as 1. Here it is an error.
cublasStatus_t check_scales(const char* name, const Scales& scales) {
  const bool one = scales.mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  return check_operand(name, reinterpret_cast<const void*>(scales.at), scales.bytes(),
                       one ? 4 : 16);
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
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t cols,
                                          std::int64_t leading) {
  return create(made, Layout{type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols),
                             leading, 1, 0});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy(layout);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t bytes) {
  return set<Layout>(layout, attribute, value, bytes,
                     {{CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 4, &Layout::batches},
                      {CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 8, &Layout::batch_stride}});
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return create(made, Product{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) { return destroy(product); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  return set<Product>(product, attribute, value, bytes,
                      {{CUBLASLT_MATMUL_DESC_TRANSA, 4, &Product::operation_a},
                       {CUBLASLT_MATMUL_DESC_TRANSB, 4, &Product::operation_b},
                       {CUBLASLT_MATMUL_DESC_EPILOGUE, 4, &Product::epilogue},
                       {CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8, &Product::bias},
                       {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 8, &Product::aux},
                       {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 8, &Product::aux_leading},
                       {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, 8, &Product::scale_a},
                       {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, 8, &Product::scale_b},
                       {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, 4, &Product::mode_a},
                       {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, 4, &Product::mode_b}});
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  return create(made, Preference{0, CUBLASLT_REDUCTION_SCHEME_MASK, 256, 256, 256, 256});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  return set<Preference>(preference, attribute, value, bytes,
                         {{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 8, &Preference::workspace},
                          {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 4, &Preference::reductions},
                          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 4, &Preference::align_a},
                          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 4, &Preference::align_b},
                          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 4, &Preference::align_c},
                          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 4, &Preference::align_d}});
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
  const cublasStatus_t status = check(call_of(product, a, b, c, d));
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const auto promised = get<Preference>(preference);
  const auto used = [](std::int64_t alignment) { return std::min<std::int64_t>(alignment, 16); };
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
  Call call = call_of(product, a, b, c, d);
  call.a_at = a_at, call.b_at = b_at, call.c_at = c_at, call.d_at = d_at;
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
        call.of_codes() ? check_scales("the scale of A", call.scales_a()) : CUBLAS_STATUS_SUCCESS,
        call.of_codes() ? check_scales("the scale of B", call.scales_b()) : CUBLAS_STATUS_SUCCESS,
        check_operand("A", a_at, bytes_of(call.a), chosen.align_a),
        check_operand("B", b_at, bytes_of(call.b), chosen.align_b),
        check_operand("C", c_at, bytes_of(call.c), chosen.align_c),
        check_operand("D", d_at, bytes_of(call.d), chosen.align_d),
        workspace_bytes == 0 ? CUBLAS_STATUS_SUCCESS
                             : check_operand("workspace", workspace, workspace_bytes, 16)})
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  Operation operation;
  operation.run = [call, doubles, device = queue->device, number = count_launch(queue->device)] {
    if (call.of_codes() &&
        !(call.scales_a().padding_is_zero() && call.scales_b().padding_is_zero()))
      return break_device(device, cudaErrorInvalidValue,
                          "cublasLtMatmul: the padding of tiled scales is not zero");
    run_launch(device, number, product_name, {reinterpret_cast<std::uint64_t>(call.d_at)},
               [&] { doubles ? multiply<double>(call) : multiply<float>(call); });
  };
  append(queue, std::move(operation));
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
         : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
         : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                 : "another CUBLAS_STATUS";
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }
}
