// moe_values TOPK SWIGLU SOFTMAX_OVER_ALL CAPACITY: prints inputs and results of the reference of a
// mixture of experts, a line per tensor: its name and values. program/peer_moe_test.py compares
// them with PyTorch. Options are numbers; 0 turns SWIGLU, SOFTMAX_OVER_ALL and drops off.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <random>
#include <string>
#include <vector>

#include "suite/reference/moe_reference.h"

namespace suite {
namespace {

using Values = std::vector<double>;

void print(const std::string& name, const Values& values) {
  fmt::print("{} {:.17g}\n", name, fmt::join(values, " "));
}

void print(const std::string& name, const MoePerceptron& p) {
  print(name + ".weight1", p.weight1);
  print(name + ".bias1", p.bias1);
  print(name + ".weight2", p.weight2);
  print(name + ".bias2", p.bias2);
}

void run(const std::vector<int>& options) {
  MoeSizes z{.ranks = 2, .tokens = 9, .hidden = 6, .ffn = 10, .shared = 5, .experts = 4};
  z.topk = options[0];
  z.swiglu = options[1] != 0;
  z.bias = !z.swiglu;
  z.softmax_over_all = options[2] != 0;
  z.capacity = options[3];
  z.aux = 2;
  z.z = 0.5;
  z.loss_factor = 0.75;
  std::mt19937 generator(3);
  const auto draw = [&](std::int64_t size, double stddev) {
    std::normal_distribution<double> normal(0, stddev);
    Values values(static_cast<std::size_t>(size));
    for (double& value : values) value = normal(generator);
    return values;
  };
  const auto perceptron = [&](std::int64_t ffn) {
    const std::int64_t inner = z.swiglu ? 2 * ffn : ffn;
    MoePerceptron p{draw(inner * z.hidden, 0.4), {}, draw(z.hidden * ffn, 0.3), {}};
    if (z.bias) {
      p.bias1 = draw(inner, 0.5);
      p.bias2 = draw(z.hidden, 0.5);
    }
    return p;
  };
  const std::int64_t tokens = z.ranks * z.tokens;
  MoeValues v{.x = draw(tokens * z.hidden, 1),
              .d_y = draw(tokens * z.hidden, 1),
              .logits = {},
              .router = draw(z.experts * z.hidden, 0.4),
              .shared = perceptron(z.shared)};
  for (std::int64_t e = 0; e < z.experts; ++e) v.experts.push_back(perceptron(z.ffn));
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t e = 0; e < z.experts; ++e) {
      double sum = 0;
      for (std::int64_t c = 0; c < z.hidden; ++c)
        sum += v.x[static_cast<std::size_t>(t * z.hidden + c)] *
               v.router[static_cast<std::size_t>(e * z.hidden + c)];
      v.logits.push_back(sum);
    }
  const MoeReference r = moe_reference(z, v);
  print("x", v.x);
  print("d_y", v.d_y);
  print("router", v.router);
  for (std::size_t e = 0; e < v.experts.size(); ++e) {
    print(fmt::format("expert{}", e), v.experts[e]);
    print(fmt::format("d_expert{}", e), r.d_experts[e]);
  }
  print("shared", v.shared);
  print("d_shared", r.d_shared);
  print("y", r.y);
  print("d_x", r.d_x);
  print("d_router", r.d_router);
  print("aux_loss", r.aux_loss);
  print("z_loss", r.z_loss);
}

}  // namespace
}  // namespace suite

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  std::vector<int> options;
  for (int i = 1; i < argc; ++i) options.push_back(std::stoi(argv[i]));
  suite::run(options);
}
