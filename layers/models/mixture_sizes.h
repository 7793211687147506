#pragma once
// The sizes of a block with experts in the notation of moe_cost.h, for gpt_memory.cpp.

#include <cstddef>
#include <cstdint>

#include "layers/models/gpt_cost.h"

namespace layers {

struct Mixture {
  bool present, all_to_all = true, pads = false;
  std::size_t P = 1, T = 0, N = 0, k = 0, S = 0, R = 0, h = 0, f = 0, i = 0, F = 0, I = 0, E = 0,
              A = 0, B = 0;

  Mixture(const GptConfig& config, const StageCase& stage, std::size_t block)
      : present(config.has_experts(stage.stage.blocks(config).begin + static_cast<int>(block))) {
    if (!present) return;
    const auto size = [](std::int64_t value) { return static_cast<std::size_t>(value); };
    const MoeCase c = moe_case(config, stage, block);
    const MoeRows rows = moe_rows(c);
    all_to_all = c.config.token_dispatcher_type == TokenDispatcherType::alltoall;
    pads = c.config.pads();
    P = size(c.degrees.ranks());
    T = size(c.tokens);
    N = size(c.config.num_experts);
    k = size(c.config.topk);
    S = size(rows.sent);
    R = size(rows.received);
    h = size(c.config.hidden);
    f = size(c.config.ffn_hidden_size / c.degrees.etp);
    i = (c.config.swiglu ? 2 : 1) * f;
    F = size(c.config.shared_expert_intermediate_size);
    I = (c.config.swiglu ? 2 : 1) * F;
    E = machine::size_of(c.dtype);
    A = c.dtype == Dtype::float64 ? 8 : 4;
    B = A == E ? 0 : A;
  }
};

}  // namespace layers
