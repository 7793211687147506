// MXFP8 (OCP Microscaling Formats 1.0, sections 5 and 6.3): 32 elements along the sum of a product
// share a power of two, E8M0, which maps the largest of them to the largest exponent of the format.
// Elements beyond the largest number saturate. Transformer Engine rounds the exponent up instead,
// so that none saturates.

#include "layers/fp8/quantizer.h"

namespace layers {

using machine::Blocks, machine::Category, machine::Dtype, machine::Tensor;

namespace {

constexpr std::int64_t block = 32;

class Mxfp8 final : public Quantizer {
 public:
  explicit Mxfp8(Dtype float8) : float8_(float8) {}

  Scales choose(const Tensor& /*values*/, Category /*category*/) override { return {}; }
  Quantized encode(const Tensor& values, const Scales& /*scales*/, Along along,
                   Category category) const override {
    const Blocks blocks = along == Along::cols ? Blocks{1, block} : Blocks{block, 1};
    machine::Device& device = values.device();
    const machine::Shape shape = blocks.scales_of(values);
    const Tensor amax(device, Dtype::float32, shape, Category::buffers);
    Quantized result{Tensor(device, float8_, {values.rows(), values.cols()}, category),
                     Tensor(device, Dtype::uint8, shape, category), blocks};
    machine::largest_magnitudes(device.stream(), values, blocks, amax);
    machine::choose_exponents(device.stream(), amax, float8_, result.inverse);
    machine::encode(device.stream(), values, blocks, result.inverse, result.codes);
    return result;
  }

 private:
  Dtype float8_;
};

}  // namespace

std::unique_ptr<Quantizer> make_mxfp8(Dtype float8) { return std::make_unique<Mxfp8>(float8); }

}  // namespace layers
