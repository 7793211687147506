#include "machine/device/cuda/flash_attention.h"

#include <algorithm>
#include <string>

#include "machine/device/cuda/attention_plain.cuh"
#include "machine/device/cuda/attention_tensor_cores.cuh"
#include "machine/device/cuda/ptx.cuh"

namespace machine::cuda {

template <class T>
class AttentionKernels::Launch {
  using Arguments = AttentionArguments<T>;

 public:
  Launch(AttentionKernels& owner, const Arguments& arguments)
      : owner_(owner), device_(owner.device_), stream_(owner.stream_), arguments_(arguments) {
    make_current(device_);
  }
  // Returns the most bytes of shared memory that a kernel of this head uses.
  static std::size_t shared_bytes(int head) {
    if constexpr (is_narrow<T>) {
      if (head <= 64) return most_mma_bytes<64>;
      if (head <= 128) return most_mma_bytes<128>;
    }
    return std::max(plain_forward_bytes<T>(head), plain_backward_bytes<T>(head));
  }

  void forward() const { arguments_.kept.drops() ? forward<true>() : forward<false>(); }

  void backward() const {
    const Arguments& a = arguments_;
    if (a.queries > 0) {
      const std::int64_t rows = a.sequences * a.heads * a.queries;
      SHARDMARK_LAUNCH(attention_delta<T>, static_cast<unsigned>(blocks_for(rows, warps_per_block)),
                       block_size, 0, stream_, a);
      check(device_, "an attention's delta", cudaGetLastError());
    }
    a.kept.drops() ? backward<true>() : backward<false>();
  }

 private:
  template <bool drops>
  void forward() const {
    const Arguments& a = arguments_;
    if constexpr (is_narrow<T>) {
      if (a.head <= 64) return forward_mma<64, drops>();
      if (a.head <= 128) return forward_mma<128, drops>();
    }
    constexpr int tile = attention_warps * forward_rows;
    by_width([&]<int per_lane>() {
      start(attend_plain<T, per_lane, drops>, a.heads * blocks_for(a.queries, tile),
            attention_threads, plain_forward_bytes<T>(a.head));
    });
  }

  template <bool drops>
  void backward() const {
    const Arguments& a = arguments_;
    if constexpr (is_narrow<T>) {
      if (a.head <= 64) return backward_mma<64, drops>();
      if (a.head <= 128) return backward_mma<128, drops>();
    }
    constexpr int tile = attention_warps * backward_rows;
    const std::size_t bytes = plain_backward_bytes<T>(a.head);
    by_width([&]<int per_lane>() {
      start(attend_backward_plain<T, per_lane, false, drops>, a.heads * blocks_for(a.queries, tile),
            attention_threads, bytes);
      start(attend_backward_plain<T, per_lane, true, drops>, a.kv_heads * blocks_for(a.keys, tile),
            attention_threads, bytes);
    });
  }

  template <int width>
  static constexpr std::size_t forward_mma_bytes = mma_bytes<T, width>(1, 2, forward_keys);
  template <int width>
  static constexpr std::size_t backward_mma_bytes = mma_bytes<T, width>(2, 2, backward_others);
  template <int width>
  static constexpr std::size_t most_mma_bytes = std::max(forward_mma_bytes<width>,
                                                         backward_mma_bytes<width>);

  template <int width, bool drops>
  void forward_mma() const {
    const Arguments& a = arguments_;
    start(attend_mma<T, width, drops>, a.heads * blocks_for(a.queries, own_rows), mma_threads,
          forward_mma_bytes<width>);
  }
  template <int width, bool drops>
  void backward_mma() const {
    const Arguments& a = arguments_;
    constexpr std::size_t bytes = backward_mma_bytes<width>;
    start(attend_backward_mma<T, width, false, drops>, a.heads * blocks_for(a.queries, own_rows),
          mma_threads, bytes);
    start(attend_backward_mma<T, width, true, drops>, a.kv_heads * blocks_for(a.keys, own_rows),
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
    // The limit of a kernel holds for all streams, so it does not depend on this call.
    if (owner_.opted_in_.insert(reinterpret_cast<const void*>(kernel)).second)
      SHARDMARK_CUDA(device_,
                     cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(owner_.most_shared_)));
    SHARDMARK_LAUNCH(kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), bytes,
                     stream_, arguments_);
    check(device_, "an attention kernel", cudaGetLastError());
  }

  AttentionKernels& owner_;
  int device_;
  cudaStream_t stream_;
  Arguments arguments_;
};

AttentionKernels::AttentionKernels(const Queue& queue)
    : device_(queue.device), stream_(queue.stream), scratch_(queue) {
  int most = 0;
  SHARDMARK_CUDA(device_,
                 cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_));
  most_shared_ = static_cast<std::size_t>(most);
}

std::string AttentionKernels::why_not(Dtype dtype, std::int64_t head) const {
  std::size_t needed = 0;
  visit(dtype, [&]<class T>(T) { needed = Launch<T>::shared_bytes(static_cast<int>(head)); });
  if (needed <= most_shared_) return {};
  // nvcc does not compile the format strings of fmt.
  return "blockwise attention of " + std::string(name(dtype)) + " heads of " +
         std::to_string(head) + " needs " + std::to_string(needed) +
         " bytes of shared memory a block; CUDA device " + std::to_string(device_) + " has " +
         std::to_string(most_shared_);
}

void AttentionKernels::forward(const AttentionForward& call) {
  visit(call.q.dtype, [&]<class T>(T) { Launch<T>(*this, AttentionArguments<T>(call)).forward(); });
}

void AttentionKernels::backward(const AttentionBackward& call) {
  visit(call.forward.q.dtype, [&]<class T>(T) {
    const auto bytes =
        static_cast<std::size_t>(call.forward.log_sum_exp.size()) * sizeof(kernel::Value<T>);
    Launch<T>(*this, AttentionArguments<T>(call, scratch_.at_least(bytes))).backward();
  });
}

}  // namespace machine::cuda
