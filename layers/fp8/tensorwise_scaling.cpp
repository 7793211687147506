// Current scaling (Transformer Engine's Float8CurrentScaling): the scale of a tensor from its own
// largest magnitude, over the ranks that hold its shards. 1 for a tensor of zeros.

#include "layers/fp8/quantizer.h"
#include "machine/device/kernels.h"

namespace layers {

using machine::Blocks, machine::Category, machine::Dtype, machine::Tensor;

Scales one_scale(machine::Device& device, Category category) {
  const auto one = [&] { return Tensor(device, Dtype::float32, {1}, category); };
  return {one(), one()};
}

Quantized encode_whole(const Tensor& values, Dtype float8, const Scales& scales,
                       Category category) {
  const Blocks whole = Blocks::whole(values);
  const Tensor codes(values.device(), float8, {values.rows(), values.cols()}, category);
  machine::encode(values.device().stream(), values, whole, scales.scale, codes);
  return {codes, scales.inverse, whole};
}

namespace {

class Tensorwise final : public Quantizer {
 public:
  Tensorwise(Dtype float8, collectives::Communicator* amax_group)
      : float8_(float8), amax_group_(amax_group) {}

  Scales choose(const Tensor& values, Category category) override {
    machine::Device& device = values.device();
    const Tensor amax(device, Dtype::float32, {1}, Category::buffers);
    machine::largest_magnitudes(device.stream(), values, Blocks::whole(values), amax);
    if (amax_group_ && amax_group_->size() > 1)
      amax_group_->all_reduce(amax, amax, {}, machine::Reduction::max);
    const Scales scales = one_scale(device, category);
    machine::choose_scales(device.stream(), amax, float8_, {}, scales.scale, scales.inverse);
    return scales;
  }
  Quantized encode(const Tensor& values, const Scales& scales, Along /*along*/,
                   Category category) const override {
    return encode_whole(values, float8_, scales, category);
  }

 private:
  Dtype float8_;
  collectives::Communicator* amax_group_;
};

}  // namespace

std::unique_ptr<Quantizer> make_tensorwise(Dtype float8, collectives::Communicator* amax_group) {
  return std::make_unique<Tensorwise>(float8, amax_group);
}

}  // namespace layers
