// Fine-grained scaling (DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.2): a float scale for 128
// elements along the sum of a product, and for 128 x 128 of a weight.

#include "layers/fp8/quantizer.h"

namespace layers {

using machine::Blocks, machine::Category, machine::Dtype, machine::Tensor;

namespace {

constexpr std::int64_t block = 128;

class Blockwise final : public Quantizer {
 public:
  Blockwise(Dtype float8, bool weight) : float8_(float8), weight_(weight) {}

  Scales choose(const Tensor& /*values*/, Category /*category*/) override { return {}; }
  Quantized encode(const Tensor& values, const Scales& /*scales*/, Along along,
                   Category category) const override {
    const Blocks blocks = weight_                ? Blocks{block, block}
                          : along == Along::cols ? Blocks{1, block}
                                                 : Blocks{block, 1};
    const auto factors = [&](Category of) {
      return Tensor(values.device(), Dtype::float32, blocks.scales_of(values), of);
    };
    const Tensor amax = factors(Category::buffers), scale = factors(Category::buffers);
    Quantized result{Tensor(values.device(), float8_, {values.rows(), values.cols()}, category),
                     factors(category), blocks};
    machine::Stream& stream = values.device().stream();
    machine::largest_magnitudes(stream, values, blocks, amax);
    machine::choose_scales(stream, amax, float8_, {}, scale, result.inverse);
    machine::encode(stream, values, blocks, scale, result.codes);
    return result;
  }

 private:
  Dtype float8_;
  bool weight_;
};

}  // namespace

std::unique_ptr<Quantizer> make_blockwise(Dtype float8, bool weight) {
  return std::make_unique<Blockwise>(float8, weight);
}

}  // namespace layers
