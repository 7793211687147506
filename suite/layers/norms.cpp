// Claim: LayerNorm on every rank of tp sends nothing, keeps a mean and a deviation a row, and gives
// one rank's bits; with sequence parallelism each rank norms its own rows, and the gradients of
// gain and bias are sums over the ranks (Ba, Kiros, Hinton 2016, arXiv:1607.06450; Korthikanti et
// al. 2022, arXiv:2205.05198, section 4.2.2).
//
// Claim: RMSNorm on every rank of tp sends nothing, keeps one number a row, and gives one rank's
// bits; with sequence parallelism each rank norms its own rows, and the gradient of gain is a sum
// over the ranks (Zhang and Sennrich 2019, arXiv:1910.07467; Korthikanti et al. 2022,
// arXiv:2205.05198, section 4.2.2).

#include <algorithm>

#include "layers/norm.h"
#include "suite/layers/layer_unit.h"

namespace suite {
namespace {

// vectors: the number of parameters [hidden]. values_a_row: the numbers kept for each row.
class JudgedNorm : public JudgedLayer {
 public:
  static constexpr LayerTraits traits{.same_bits_at_every_degree = true};

  static LayerClaims norm_claims(const LayerCase& c, std::int64_t vectors,
                                 std::size_t values_a_row) {
    const LayerSizes z(c);
    return {
        .parameters = vectors * c.hidden_size,
        .saved = values_a_row * z.n / z.c * z.A,
        .saved_for_weights = values_a_row * z.n / z.c * z.A,
        .longest_sum = std::max<std::int64_t>(c.hidden_size, c.tokens()),
    };
  }

  JudgedNorm(const layers::Context& context, const LayerCase& c, std::string_view name,
             layers::Normalization normalization)
      : layer_(context, std::string(name), normalization, c.hidden_size, 1e-5) {}

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
  Tensor x_, d_y_;  // the caller's
};

struct LayerNorm final : JudgedNorm {
  static constexpr std::string_view name = "layer_norm";
  static constexpr std::string_view about =
      "LayerNorm, replicated or of own rows: all three passes";
  static LayerClaims claims(const LayerCase& c) { return norm_claims(c, 2, 2); }

  LayerNorm(const layers::Context& context, const LayerCase& c)
      : JudgedNorm(context, c, name, layers::Normalization::layer_norm) {}
};

struct RmsNorm final : JudgedNorm {
  static constexpr std::string_view name = "rms_norm";
  static constexpr std::string_view about = "RMSNorm, replicated or of own rows: all three passes";
  static LayerClaims claims(const LayerCase& c) { return norm_claims(c, 1, 1); }

  RmsNorm(const layers::Context& context, const LayerCase& c)
      : JudgedNorm(context, c, name, layers::Normalization::rms_norm) {}
};

const bool registered = harness::add<LayerUnit<LayerNorm>>() && harness::add<LayerUnit<RmsNorm>>();

}  // namespace
}  // namespace suite
