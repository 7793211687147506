#include "machine/device/cuda/flash_attention.h"

#include "machine/device/cuda/attention_plain.cuh"
#include "machine/device/cuda/attention_tensor_cores.cuh"
#include "machine/device/cuda/ptx.cuh"

namespace machine::cuda {
namespace {

template <class T>
class Launcher {
  using Arguments = AttentionArguments<T>;

 public:
  Launcher(int device, cudaStream_t stream, const Arguments& arguments)
      : device_(device), stream_(stream), arguments_(arguments) {
    make_current(device);
  }

  void forward() const {
    const Arguments& a = arguments_;
    if constexpr (is_narrow<T>) {
      if (a.head <= 64) return forward_mma<64>();
      if (a.head <= 128) return forward_mma<128>();
    }
    constexpr int tile = attention_warps * forward_rows;
    by_width([&]<int per_lane>() {
      start(attend_plain<T, per_lane>, a.heads * blocks_for(a.queries, tile), attention_threads,
            plain_forward_bytes<T>(a.head));
    });
  }

  void backward() const {
    const Arguments& a = arguments_;
    if (a.queries > 0) {
      const std::int64_t rows = a.sequences * a.heads * a.queries;
      SHARDMARK_LAUNCH(attention_delta<T>, static_cast<unsigned>(blocks_for(rows, warps_per_block)),
                       block_size, 0, stream_, a);
      check(device_, "an attention's delta", cudaGetLastError());
    }
    if constexpr (is_narrow<T>) {
      if (a.head <= 64) return backward_mma<64>();
      if (a.head <= 128) return backward_mma<128>();
    }
    constexpr int tile = attention_warps * backward_rows;
    const std::size_t bytes = plain_backward_bytes<T>(a.head);
    by_width([&]<int per_lane>() {
      start(attend_backward_plain<T, per_lane, false>, a.heads * blocks_for(a.queries, tile),
            attention_threads, bytes);
      start(attend_backward_plain<T, per_lane, true>, a.kv_heads * blocks_for(a.keys, tile),
            attention_threads, bytes);
    });
  }

 private:
  template <int width>
  void forward_mma() const {
    const Arguments& a = arguments_;
    start(attend_mma<T, width>, a.heads * blocks_for(a.queries, own_rows), mma_threads,
          mma_bytes<T, width>(1, 2, forward_keys));
  }
  template <int width>
  void backward_mma() const {
    const Arguments& a = arguments_;
    constexpr std::size_t bytes = mma_bytes<T, width>(2, 2, backward_others);
    start(attend_backward_mma<T, width, false>, a.heads * blocks_for(a.queries, own_rows),
          mma_threads, bytes);
    start(attend_backward_mma<T, width, true>, a.kv_heads * blocks_for(a.keys, own_rows),
          mma_threads, bytes);
  }

  template <class Visitor>
  void by_width(const Visitor& visitor) const {
    if (arguments_.head <= 64) return visitor.template operator()<2>();
    if (arguments_.head <= 128) return visitor.template operator()<4>();
    visitor.template operator()<8>();
  }

  template <class Kernel>
  void start(Kernel kernel, std::int64_t blocks_of_sequence, int threads, std::size_t bytes) const {
    const std::int64_t blocks = arguments_.sequences * blocks_of_sequence;
    if (blocks == 0) return;
    SHARDMARK_CUDA(device_,
                   cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(bytes)));
    SHARDMARK_LAUNCH(kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), bytes,
                     stream_, arguments_);
    check(device_, "an attention kernel", cudaGetLastError());
  }

  int device_;
  cudaStream_t stream_;
  Arguments arguments_;
};

}  // namespace

void attend(int device, cudaStream_t stream, const AttentionForward& call) {
  visit(call.q.dtype,
        [&]<class T>(T) { Launcher<T>(device, stream, AttentionArguments<T>(call)).forward(); });
}

void attend_backward(int device, cudaStream_t stream, const AttentionBackward& call,
                     Scratch& scratch) {
  visit(call.forward.q.dtype, [&]<class T>(T) {
    const auto bytes =
        static_cast<std::size_t>(call.forward.log_sum_exp.size()) * sizeof(kernel::Value<T>);
    Launcher<T>(device, stream, AttentionArguments<T>(call, scratch.at_least(bytes))).backward();
  });
}

}  // namespace machine::cuda
