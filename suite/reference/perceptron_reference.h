#pragma once
// A perceptron of two layers and its gradients in double, by plain loops over whole matrices:
// y = gelu(x W1 + b1) W2 + b2, with GELU in the tanh form, W1 [hidden, ffn] and W2 [ffn, hidden].

#include <cstdint>
#include <functional>
#include <tuple>
#include <vector>

namespace suite {

// Row-major.
struct PerceptronValues {
  std::int64_t tokens = 1, hidden = 1, ffn = 1;
  std::vector<double> x, weight1, bias1, weight2, bias2, d_y;
};
struct PerceptronReference {
  std::vector<double> y, d_x, d_weight1, d_bias1, d_weight2, d_bias2;
  static auto members(auto& self) {
    return std::tie(self.y, self.d_x, self.d_weight1, self.d_bias1, self.d_weight2, self.d_bias2);
  }
};

// Calls `progressed` after every product.
PerceptronReference perceptron_reference(const PerceptronValues& values,
                                         const std::function<void()>& progressed);

}  // namespace suite
