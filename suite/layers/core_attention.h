#pragma once
// The core of attention on one rank, for comparisons of its time: matrices of this rank's heads,
// and both passes by blocks.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "machine/base/clock.h"
#include "machine/device/flash_attention.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"

namespace suite {

struct CoreShape {
  std::int64_t sequences, length, heads, kv_heads, head;
  bool causal;
};

class CoreAttention {
 public:
  CoreAttention(machine::Device& device, machine::Dtype dtype, const CoreShape& shape)
      : stream_(device.stream()) {
    std::array<machine::Matrix, 8> m;
    for (std::size_t i = 0; i < m.size(); ++i) {
      const bool of_keys = i == 1 || i == 2 || i == 6 || i == 7;
      const std::int64_t heads = of_keys ? shape.kv_heads : shape.heads, width = heads * shape.head;
      tensors_[i] = machine::Tensor(device, dtype, {shape.sequences * shape.length, width},
                                    machine::Category::buffers);
      stream_.kernels().fill_normal(tensors_[i], i, {}, 0, 1);
      m[i] = machine::matrix(tensors_[i]);
      m[i].rows = shape.length;
      m[i].cols = shape.head;
      m[i].batch = {shape.sequences, heads};
      m[i].batch_stride = {shape.length * width, shape.head};
    }
    const machine::Tensor sums(
        device,
        dtype == machine::Dtype::float64 ? machine::Dtype::float64 : machine::Dtype::float32,
        {shape.sequences * shape.heads, shape.length}, machine::Category::buffers);
    const machine::AttentionOptions options{.scale = 1 / std::sqrt(static_cast<double>(shape.head)),
                                            .causal = shape.causal};
    call_ = {{m[0], m[1], m[2], options, m[3], sums}, m[4], m[5], m[6], m[7]};
  }

  machine::Stream& stream() const { return stream_; }
  const machine::AttentionBackward& call() const { return call_; }
  const machine::Tensor& out() const { return tensors_[3]; }
  void forward() const {
    const machine::AttentionForward& f = call_.forward;
    flash_attention(stream_, f.q, f.k, f.v, f.options, f.out, f.log_sum_exp);
  }
  void backward() const {
    const machine::AttentionForward& f = call_.forward;
    flash_attention_backward(stream_, f.q, f.k, f.v, f.options, f.out, f.log_sum_exp, call_.d_out,
                             call_.d_q, call_.d_k, call_.d_v);
  }

  // Returns the middle of five ratios of the times of two kinds of work, which run in turn.
  double time_over(const std::function<void()>& work, const std::function<void()>& other) const {
    const auto seconds = [&](const std::function<void()>& timed) {
      stream_.synchronize();
      const double begin = machine::steady_s();
      timed();
      stream_.synchronize();
      return machine::steady_s() - begin;
    };
    std::array<double, 5> ratios{};
    for (double& ratio : ratios) {
      const double theirs = seconds(other);
      ratio = seconds(work) / theirs;
    }
    std::ranges::sort(ratios);
    return ratios[ratios.size() / 2];
  }

 private:
  machine::Stream& stream_;
  std::array<machine::Tensor, 8> tensors_;  // q, k, v, out, d_out, d_q, d_k, d_v
  machine::AttentionBackward call_;
};

}  // namespace suite
