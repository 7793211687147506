#include "layers/gpt_cost.h"

#include <algorithm>

namespace layers {
namespace {

// The notation of gpt_cost.h, in bytes.
struct Sizes {
  std::size_t n, E, A, t, L, M, P, logits;
  bool first, last;

  Sizes(const GptConfig& config, const StageCase& stage)
      : n(static_cast<std::size_t>(stage.sequences) * static_cast<std::size_t>(config.sequence)),
        E(machine::size_of(stage.dtype)),
        A(stage.dtype == machine::Dtype::float64 ? 8 : 4),
        t(static_cast<std::size_t>(stage.tp)),
        L(static_cast<std::size_t>(config.layers / stage.stage.count)),
        M(E * n * static_cast<std::size_t>(config.hidden)),
        P(E * n * static_cast<std::size_t>(config.heads) / t *
          static_cast<std::size_t>(config.sequence)),
        logits(E * n * (static_cast<std::size_t>(config.vocabulary) / t)),
        first(stage.stage.first()),
        last(stage.stage.last()) {}
};

std::vector<CollectiveCalls> unless_alone(int tp, std::vector<CollectiveCalls> calls) {
  if (tp == 1) calls.clear();
  return calls;
}

}  // namespace

std::int64_t parameters_count(const GptConfig& config) {
  return stage_parameters_count(config, {});
}

std::int64_t stage_parameters_count(const GptConfig& config, const StageCase& stage) {
  const std::int64_t h = config.hidden, t = stage.tp;
  const std::int64_t table = config.vocabulary / t * h;
  std::int64_t count = config.layers / stage.stage.count * (12 * h * h / t + 7 * h / t + 6 * h);
  if (stage.stage.first() || stage.stage.last()) count += table;
  if (stage.stage.first()) count += config.sequence * h;
  if (stage.stage.last()) count += 2 * h;
  return count;
}

double model_flops(const GptConfig& config, std::int64_t tokens) {
  const double h = config.hidden, layers = config.layers;
  const double linear = layers * 12 * h * h + h * config.vocabulary;
  const double core_attention = layers * h * config.sequence;
  return 3 * 2 * static_cast<double>(tokens) * (linear + core_attention);
}

std::size_t boundary_bytes(const GptConfig& config, const StageCase& stage) {
  return Sizes(config, stage).M;
}

std::size_t activation_bytes(const GptConfig& config, const StageCase& stage) {
  const Sizes z(config, stage);
  std::size_t bytes = z.L * (4 * z.M + 12 * z.M / z.t + z.P + 4 * z.n * z.A);
  if (!z.first) bytes -= z.M;
  if (z.last) bytes += 2 * z.M + z.logits + 4 * z.n * z.A;
  return bytes;
}

std::size_t weight_half_bytes(const GptConfig& config, const StageCase& stage) {
  const Sizes z(config, stage);
  std::size_t bytes = z.L * (8 * z.M + 12 * z.M / z.t + 4 * z.n * z.A);
  if (z.first) bytes += z.M;
  if (!z.first) bytes -= z.M;
  if (!z.last) bytes -= z.M;
  if (z.last) bytes += 3 * z.M + z.logits + 2 * z.n * z.A;
  return bytes;
}

std::size_t backward_input_activation_peak_bytes(const GptConfig& config, const StageCase& stage) {
  const Sizes z(config, stage);
  std::size_t held = activation_bytes(config, stage);
  std::size_t peak = held;
  if (z.last) {
    peak = held + z.M;
    held += 2 * z.M - 2 * z.n * z.A;
  }
  for (std::size_t block = z.L; block-- > 0;) {
    if (block > 0 || z.first) held += z.M;
    held += 3 * z.M + 3 * z.M / z.t;
    peak = std::max(peak, held);
    held -= 3 * z.M / z.t + z.P;
  }
  return peak;
}

std::size_t forward_buffer_bytes(const GptConfig& config, const StageCase& stage) {
  const Sizes z(config, stage);
  return std::max(z.P, z.last ? 2 * z.n * z.A : 0);
}

std::size_t backward_buffer_bytes(const GptConfig& config, const StageCase& stage) {
  const Sizes z(config, stage);
  std::size_t own = 0;
  for (std::size_t block = 0; block < z.L; ++block) {
    const bool own_d_y = block + 1 < z.L || z.last;
    const bool own_d_x = block > 0 || z.first;
    own = std::max(own, z.M * (std::size_t{own_d_y} + std::size_t{own_d_x}));
  }
  return own + 3 * z.M + 8 * z.M / z.t + z.P;
}

std::size_t backward_input_buffer_bytes(const GptConfig& config, const StageCase& stage) {
  const Sizes z(config, stage);
  return std::max(4 * z.M / z.t, z.M / z.t + z.P);
}

std::vector<CollectiveCalls> forward_calls(const GptConfig& config, const StageCase& stage) {
  const Sizes z(config, stage);
  const auto n = static_cast<std::int64_t>(z.n);
  const int hidden_calls = (z.first ? 1 : 0) + 2 * static_cast<int>(z.L);
  std::vector<CollectiveCalls> calls{
      {machine::Operation::all_reduce, stage.dtype, n * config.hidden, hidden_calls}};
  if (z.last) {
    const auto accumulator = z.A == 8 ? machine::Dtype::float64 : machine::Dtype::float32;
    calls.push_back({machine::Operation::all_reduce, accumulator, n, 3});
  }
  return unless_alone(stage.tp, std::move(calls));
}

std::vector<CollectiveCalls> backward_calls(const GptConfig& config, const StageCase& stage) {
  const Sizes z(config, stage);
  const int calls = (z.last ? 1 : 0) + 2 * static_cast<int>(z.L);
  return unless_alone(stage.tp, {{machine::Operation::all_reduce, stage.dtype,
                                  static_cast<std::int64_t>(z.n) * config.hidden, calls}});
}

}  // namespace layers
