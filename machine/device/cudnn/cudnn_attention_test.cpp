// cuDNN's attention: it has kernels for the calls of the units, and its results are ours.

#include "machine/device/cudnn/cudnn_attention.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "machine/device/kernels.h"

namespace machine {
namespace {

struct Shape {
  std::int64_t sequences, heads, kv_heads, length, head;
  bool causal;
};
constexpr Shape shapes[] = {{2, 12, 12, 1024, 64, true},
                            {1, 32, 8, 4096, 128, true},
                            {2, 16, 16, 512, 64, false},
                            {1, 4, 2, 192, 96, true}};

std::string text(const Shape& s) {
  return fmt::format("{} sequences of {}, {} heads of {}, {} of keys{}", s.sequences, s.length,
                     s.heads, s.head, s.kv_heads, s.causal ? ", causal" : "");
}

// Interleaved heads, as in the layers: [sequences * length, heads * head].
Matrix matrix_of(const Shape& shape, std::int64_t heads, Dtype dtype, void* data = nullptr) {
  Matrix m{.data = data, .dtype = dtype, .rows = shape.length, .cols = shape.head};
  m.row_stride = heads * shape.head;
  m.batch = {shape.sequences, heads};
  m.batch_stride = {shape.length * m.row_stride, shape.head};
  return m;
}

AttentionBackward call_of(const Shape& shape, Dtype dtype, const std::vector<void*>& data) {
  const auto of = [&](std::int64_t heads, std::size_t i) {
    return matrix_of(shape, heads, dtype, data[i]);
  };
  const AttentionOptions options{.scale = 1 / std::sqrt(static_cast<double>(shape.head)),
                                 .causal = shape.causal};
  const std::int64_t h = shape.heads, k = shape.kv_heads;
  return {{of(h, 0), of(k, 1), of(k, 2), options, of(h, 3), {}},
          of(h, 4),
          of(h, 5),
          of(k, 6),
          of(k, 7)};
}

// What cuDNN says of a GPU: an A100, an H200 and a B200 in the numbers that select kernels.
std::string properties(int compute_capability) {
  const bool first = compute_capability == 80;
  return fmt::format(
      R"({{"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
           "cudaDeviceId": 0, "deviceVer": {}, "driverVer": 13000, "isTccDriver": 0,
           "maxCtasPerSM": 32, "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
           "maxSharedMemoryPerBlockOptin": {}, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
           "memClockRateKHz": 3201000, "multiProcessorCount": {}, "pciDeviceId": 0,
           "regsPerBlock": 65536, "reservedSharedMemoryPerBlock": 1024, "smClockRateKHz": 1980000,
           "supportCoopLaunch": 1, "totalGlobalMem": 80000000000, "warpSize": 32,
           "l2CacheSize": 52428800, "deviceName": "a GPU"}})",
      10 * compute_capability, first ? 166912 : 232448,
      first                      ? 108
      : compute_capability == 90 ? 132
                                 : 148);
}

TEST(CudnnAttention, HasKernelsForTheCallsOfTheUnits) {
  if (!dlopen("libcuda.so.1", RTLD_LAZY)) GTEST_SKIP() << "cuDNN requires the driver's library";
  const std::vector<void*> none(8);
  const std::string absent =
      why_not_cudnn_attention(call_of(shapes[0], Dtype::bfloat16, none), 90, properties(90));
  for (const char* const reason : {"built without", "cannot be loaded"})
    if (absent.find(reason) != std::string::npos) GTEST_SKIP() << absent;
  for (const int compute_capability : {80, 90, 100})
    for (const Shape& shape : shapes)
      for (const Dtype dtype : {Dtype::bfloat16, Dtype::float16})
        EXPECT_EQ(why_not_cudnn_attention(call_of(shape, dtype, none), compute_capability,
                                          properties(compute_capability)),
                  "")
            << text(shape) << ", " << name(dtype) << ", sm_" << compute_capability;
  EXPECT_EQ(why_not_cudnn_attention(call_of(shapes[0], Dtype::float32, none), 90, properties(90)),
            "cuDNN's attention requires bfloat16 or half (got float)");
  const Shape wide{1, 4, 4, 512, 512, true};
  EXPECT_NE(why_not_cudnn_attention(call_of(wide, Dtype::bfloat16, none), 80, properties(80)), "");
}

double distance(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = to_doubles(a), y = to_doubles(b);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += x[i] * x[i];
  }
  return std::sqrt(difference / norm);
}

TEST(CudnnAttention, ComputesWhatFlashAttentionDoes) {
  if (cuda::count() == 0 || cuda::is_virtual()) GTEST_SKIP() << "no CUDA device";
  const auto device = cuda::make_device(0);
  Stream& stream = device->stream();
  for (const Shape& shape : shapes) {
    const auto tensors = [&] {
      std::vector<Tensor> made;
      for (const std::int64_t heads : {shape.heads, shape.kv_heads, shape.kv_heads, shape.heads,
                                       shape.heads, shape.heads, shape.kv_heads, shape.kv_heads}) {
        made.emplace_back(*device, Dtype::bfloat16,
                          machine::Shape{shape.sequences * shape.length, heads * shape.head},
                          Category::buffers);
        stream.kernels().fill_normal(made.back(), made.size(), {}, 0, 1);
      }
      return made;
    };
    const auto call_with = [&](const std::vector<Tensor>& of) {
      std::vector<void*> data;
      for (const Tensor& tensor : of) data.push_back(tensor.data());
      AttentionBackward call = call_of(shape, Dtype::bfloat16, data);
      call.forward.log_sum_exp =
          Tensor(*device, Dtype::float32, {shape.sequences * shape.heads, shape.length},
                 Category::buffers);
      return call;
    };
    const std::vector<Tensor> ours = tensors(), theirs = tensors();
    const AttentionBackward our_call = call_with(ours), their_call = call_with(theirs);
    const CudnnAttention cudnn = cudnn_attention(stream, their_call);
    if (!cudnn.why_not.empty()) GTEST_SKIP() << cudnn.why_not;
    const AttentionForward& f = our_call.forward;
    flash_attention(stream, f.q, f.k, f.v, f.options, f.out, f.log_sum_exp);
    flash_attention_backward(stream, f.q, f.k, f.v, f.options, f.out, f.log_sum_exp, our_call.d_out,
                             our_call.d_q, our_call.d_k, our_call.d_v);
    cudnn.forward();
    cudnn.backward();
    for (const std::size_t i : {3, 5, 6, 7})
      EXPECT_LT(distance(ours[i], theirs[i]), 0.01) << text(shape) << ", tensor " << i;
    EXPECT_LT(distance(f.log_sum_exp, their_call.forward.log_sum_exp), 1e-3) << text(shape);
  }
}

}  // namespace
}  // namespace machine
