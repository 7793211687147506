#pragma once
// What layer_norm and rms_norm have in common as units: values_a_row numbers a row and parameters
// of so many vectors [hidden]; nothing is sent.

#include <algorithm>
#include <string>

#include "layers/norm.h"
#include "suite/layers/layer_unit.h"

namespace suite {

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
  void initialize(const layers::Initializer& initializer) final { layer_.initialize(initializer); }
  void forward(const LayerInput& in, const machine::Tensor& y) final {
    x_ = in.x;
    layer_.forward(x_, y, statistics_, machine::Category::activations);
  }
  void backward_input(const machine::Tensor& d_y, const machine::Tensor& d_x) final {
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
  machine::Tensor x_, d_y_;  // the caller's
};

}  // namespace suite
