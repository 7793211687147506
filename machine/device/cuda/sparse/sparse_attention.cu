#include "machine/device/cuda/sparse/sparse_attention.h"

#include <algorithm>
#include <set>

#include "machine/device/cuda/internals.h"
#include "machine/device/cuda/ptx.cuh"
#include "machine/device/cuda/sparse/attention_blocks.cuh"

namespace machine::cuda {
namespace {

class SparseKernels final : public kernel::SparseKernels {
 public:
  SparseKernels(Device& device, const kernel::BlockLists& lists)
      : device_(internals(device).index),
        stream_(internals(device).stream),
        scratch_({device, device_, stream_}) {
    int most = 0;
    SHARDMARK_CUDA(device_,
                   cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_));
    most_shared_ = most;
    const auto upload = [&](const std::vector<std::int32_t>& values) {
      const std::size_t bytes = values.size() * sizeof(std::int32_t);
      lists_.push_back(std::make_unique<Scratch>(Queue{device, device_, stream_}));
      void* const data = lists_.back()->at_least(bytes);
      device.stream().copy(data, values.data(), bytes);
      return static_cast<const std::int32_t*>(data);
    };
    const auto view = [&](const kernel::BlockList& list) {
      return BlockListView{upload(list.first), upload(list.other), lists.blocks, lists.block};
    };
    keys_of_queries_ = view(lists.keys_of_queries);
    queries_of_keys_ = view(lists.queries_of_keys);
    device.stream().synchronize();  // the lists of the host may be freed
  }

  void forward(const AttentionForward& call) override {
    by_case(call, [&]<class T, int per_lane, bool drops>() {
      const AttentionArguments<T> a(call);
      start(attend_blocks<T, per_lane, drops>, a, keys_of_queries_,
            a.heads * a.queries / (attention_warps * forward_rows), plain_forward_bytes<T>(a.head));
    });
  }

  void backward(const AttentionBackward& call) override {
    by_case(call.forward, [&]<class T, int per_lane, bool drops>() {
      using A = kernel::Value<T>;
      const std::int64_t rows = call.forward.log_sum_exp.size();
      const AttentionArguments<T> a(call,
                                    scratch_.at_least(static_cast<std::size_t>(rows) * sizeof(A)));
      SHARDMARK_LAUNCH(attention_delta<T>, static_cast<unsigned>(blocks_for(rows, warps_per_block)),
                       block_size, 0, stream_, a);
      check(device_, "a sparse attention's delta", cudaGetLastError());
      constexpr int tile = attention_warps * backward_rows;
      const std::size_t bytes = plain_backward_bytes<T>(a.head);
      start(attend_backward_blocks<T, per_lane, false, drops>, a, keys_of_queries_,
            a.heads * a.queries / tile, bytes);
      start(attend_backward_blocks<T, per_lane, true, drops>, a, queries_of_keys_,
            a.kv_heads * a.keys / tile, bytes);
    });
  }

  std::optional<std::int64_t> scores() const override { return {}; }

 private:
  template <class Visitor>
  void by_case(const AttentionForward& call, const Visitor& visitor) {
    make_current(device_);
    visit(call.q.dtype, [&]<class T>(T) {
      const auto by_width = [&]<bool drops>() {
        if (call.q.cols <= 64) return visitor.template operator()<T, 2, drops>();
        if (call.q.cols <= 128) return visitor.template operator()<T, 4, drops>();
        visitor.template operator()<T, 8, drops>();
      };
      if (call.options.dropout.probability > 0) return by_width.template operator()<true>();
      by_width.template operator()<false>();
    });
  }

  template <class Kernel, class Arguments>
  void start(Kernel kernel, const Arguments& arguments, const BlockListView& lists,
             std::int64_t tiles_of_sequence, std::size_t bytes) {
    if (opted_in_.insert(reinterpret_cast<const void*>(kernel)).second)
      SHARDMARK_CUDA(
          device_,
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared_));
    SHARDMARK_LAUNCH(kernel, static_cast<unsigned>(arguments.sequences * tiles_of_sequence),
                     attention_threads, bytes, stream_, arguments, lists);
    check(device_, "a sparse attention kernel", cudaGetLastError());
  }

  int device_;
  cudaStream_t stream_;
  Scratch scratch_;  // delta
  int most_shared_ = 0;
  std::set<const void*> opted_in_;  // the kernels that may use it
  std::vector<std::unique_ptr<Scratch>> lists_;
  BlockListView keys_of_queries_{}, queries_of_keys_{};
};

}  // namespace

std::unique_ptr<kernel::SparseKernels> make_sparse_kernels(Device& device,
                                                           const kernel::BlockLists& lists) {
  return std::make_unique<SparseKernels>(device, lists);
}

}  // namespace machine::cuda
