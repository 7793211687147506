// Claim: LayerNorm on every rank of tp sends nothing, keeps a mean and a deviation per row, and
// gives the bits of one rank. With sequence parallelism each rank normalizes its own rows, and the
// gradients of gain and bias are sums over the ranks (Ba, Kiros, Hinton 2016, arXiv:1607.06450;
// Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).
//
// Claim: RMSNorm on every rank of tp sends nothing, keeps one number per row, and gives the bits of
// one rank. With sequence parallelism each rank normalizes its own rows, and the gradient of gain
// is a sum over the ranks (Zhang and Sennrich 2019, arXiv:1910.07467; Korthikanti et al. 2022,
// arXiv:2205.05198, section 4.2.2).

#include <algorithm>

#include "layers/norm.h"
#include "suite/layers/layer_unit.h"

namespace suite {
namespace {

// values: the number of parameters [hidden], and of the numbers kept for each row.
template <int values>
LayerClaims claims(const LayerCase& c) {
  const LayerSizes z(c);
  return {
      .parameters = std::int64_t{values} * c.hidden_size,
      .saved = values * z.n / z.c * z.A,
      .saved_for_weights = values * z.n / z.c * z.A,
      .longest_sum = std::max<std::int64_t>(c.hidden_size, c.tokens()),
  };
}

template <layers::Normalization normalization>
class JudgedNorm final : public JudgedLayer {
 public:
  JudgedNorm(const layers::Context& context, const std::string& name, const LayerCase& c)
      : layer_(context, name, normalization, c.hidden_size, 1e-5) {}

  layers::Parameters parameters() final { return layer_.parameters(); }
  void forward(const LayerInput& in, const Tensor& y) final {
    x_ = in.x;
    layer_.forward(x_, y, statistics_, Category::activations);
  }
  void backward_input(const Tensor& d_y, const Tensor& d_x) final {
    d_y_ = d_y;
    layer_.backward_input(x_, statistics_, d_y, d_x);
  }
  void backward_weights() final {
    layer_.backward_weights(x_, statistics_, d_y_);
    statistics_ = {};
  }

 private:
  layers::Norm layer_;
  layers::Norm::Statistics statistics_;
  Tensor x_, d_y_;  // tensors of the layer's caller
};

constexpr LayerTraits layer_norm{.name = "layer_norm",
                                 .about = "LayerNorm, replicated or of own rows: all three passes",
                                 .claims = claims<2>,
                                 .make = make_layer<JudgedNorm<layers::Normalization::layer_norm>>,
                                 .same_bits_at_every_degree = true};
constexpr LayerTraits rms_norm{.name = "rms_norm",
                               .about = "RMSNorm, replicated or of own rows: all three passes",
                               .claims = claims<1>,
                               .make = make_layer<JudgedNorm<layers::Normalization::rms_norm>>,
                               .same_bits_at_every_degree = true};
const bool registered =
    harness::add<LayerUnit<layer_norm>>() && harness::add<LayerUnit<rms_norm>>();

}  // namespace
}  // namespace suite
