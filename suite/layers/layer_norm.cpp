// Claim: LayerNorm on every rank of tp sends nothing, keeps a mean and a deviation a row, and gives
// one rank's bits; with sequence parallelism each rank norms its own rows, and the gradients of
// gain and bias are sums over the ranks (Ba, Kiros, Hinton 2016, arXiv:1607.06450; Korthikanti et
// al. 2022, arXiv:2205.05198, section 4.2.2).
#include "layers/layer_norm.h"

#include "suite/layers/layer_unit.h"

namespace suite {
namespace {

class LayerNorm final : public JudgedLayer {
 public:
  static constexpr std::string_view name = "layer_norm";
  static constexpr std::string_view about =
      "LayerNorm, replicated or of own rows: all three passes";
  static constexpr LayerTraits traits{.same_bits_at_every_degree = true};

  static LayerClaims claims(const LayerCase& c) {
    const LayerSizes z(c);
    return {
        .parameters = std::int64_t{2} * c.hidden_size,
        .saved = 2 * z.n / z.c * z.A,
        .saved_for_weights = 2 * z.n / z.c * z.A,
        .longest_sum = std::max<std::int64_t>(c.hidden_size, c.tokens()),
    };
  }

  LayerNorm(const layers::Context& context, const LayerCase& c)
      : layer_(context, std::string(name), c.hidden_size, 1e-5) {}

  layers::Parameters parameters() override { return layer_.parameters(); }
  void initialize(const layers::Initializer& initializer) override {
    layer_.initialize(initializer);
  }
  void forward(const LayerInput& in, const machine::Tensor& y) override {
    x_ = in.x;
    layer_.forward(x_, y, statistics_, machine::Category::activations);
  }
  void backward_input(const machine::Tensor& d_y, const machine::Tensor& d_x) override {
    d_y_ = d_y;
    layer_.backward_input(x_, statistics_, d_y, d_x);
  }
  void backward_weights() override {
    layer_.backward_weights(x_, statistics_, d_y_);
    statistics_ = {};
  }

 private:
  layers::LayerNorm layer_;
  layers::LayerNorm::Statistics statistics_;
  machine::Tensor x_, d_y_;  // the caller's
};

const bool registered = harness::add<LayerUnit<LayerNorm>>();

}  // namespace
}  // namespace suite
