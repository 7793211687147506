#include "layers/fp8/delayed_scaling.h"

#include "machine/device/kernels.h"

namespace layers {

using machine::Blocks, machine::Category, machine::Dtype, machine::Tensor;

class DelayedQuantizer final : public Quantizer {
 public:
  DelayedQuantizer(DelayedScaling& scaling, std::int64_t tensor)
      : scaling_(scaling), tensor_(tensor) {}

  Scales choose(const Tensor& values, Category category) override {
    scaling_.start();
    machine::Stream& stream = values.device().stream();
    machine::largest_magnitudes(stream, values, Blocks::whole(values),
                                scaling_.recorded_.slice(tensor_, {1}));
    // A copy, because the scale changes before backward uses it again.
    const Scales scales = one_scale(values.device(), category);
    stream.copy(scales.scale.data(), scaling_.scale_.slice(tensor_, {1}).data(), sizeof(float));
    stream.copy(scales.inverse.data(), scaling_.inverse_.slice(tensor_, {1}).data(), sizeof(float));
    return scales;
  }
  Quantized encode(const Tensor& values, const Scales& scales, Along /*along*/,
                   Category category) const override {
    return encode_whole(values, scaling_.float8_[static_cast<std::size_t>(tensor_)], scales,
                        category);
  }

 private:
  DelayedScaling& scaling_;
  std::int64_t tensor_;
};

DelayedScaling::DelayedScaling(machine::Device& device, const Fp8Options& options,
                               collectives::Communicator& amax_group, std::vector<Dtype> float8)
    : device_(device), options_(options), amax_group_(amax_group), float8_(std::move(float8)) {}

std::unique_ptr<Quantizer> DelayedScaling::quantizer(std::size_t tensor) {
  return std::make_unique<DelayedQuantizer>(*this, static_cast<std::int64_t>(tensor));
}

void DelayedScaling::start() {
  if (recorded_) return;
  const auto tensors = static_cast<std::int64_t>(float8_.size());
  const auto filled = [&](machine::Shape shape, double value) {
    const Tensor tensor(device_, Dtype::float32, shape, Category::buffers);
    device_.stream().kernels().fill(tensor, value);
    return tensor;
  };
  recorded_ = filled({tensors}, 0);
  history_ = filled({tensors, options_.amax_history_len}, 0);
  scale_ = filled({tensors}, 1);
  inverse_ = filled({tensors}, 1);
}

void DelayedScaling::update() {
  if (amax_group_.size() > 1)
    amax_group_.all_reduce(recorded_, recorded_, {}, machine::Reduction::max);
  machine::Stream& stream = device_.stream();
  const std::int64_t slot = passes_++ % options_.amax_history_len;
  const Tensor largest(device_, Dtype::float32, {1}, Category::buffers);
  for (std::int64_t i = 0; i < recorded_.size(); ++i) {
    const Tensor of_pass = recorded_.slice(i, {1}), history = history_.row_range(i, 1);
    stream.copy(history.slice(slot, {1}).data(), of_pass.data(), sizeof(float));
    const bool of_history = options_.algorithm == AmaxAlgorithm::max;
    if (of_history) machine::largest_magnitudes(stream, history, Blocks::whole(history), largest);
    machine::choose_scales(
        stream, of_history ? largest : of_pass, float8_[static_cast<std::size_t>(i)],
        {.margin = options_.margin, .keeps = true}, scale_.slice(i, {1}), inverse_.slice(i, {1}));
  }
}

}  // namespace layers
