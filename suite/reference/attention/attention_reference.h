#pragma once
// Attention of whole sequences and its gradients in double, by plain loops over all queries and
// keys: no blocks, no running maximum, no order of ranks.
//
//   out_i = sum_j p_ij v_j,  p_ij = softmax over j of scale q_i · k_j
//   with g_ij = d_out_i · v_j:  d_s_ij = p_ij (g_ij - sum_j p_ij g_ij)
//   d_q_i = scale sum_j d_s_ij k_j,  d_k_j = scale sum_i d_s_ij q_i,  d_v_j = sum_i p_ij d_out_i
//
// The gradients of keys and values are sums over all queries of the heads that share them.

#include <cstdint>
#include <functional>
#include <tuple>
#include <vector>

namespace suite {

struct AttentionSizes {
  std::int64_t sequences = 1, sequence = 1, heads = 1, kv_heads = 1, head = 1;
  double scale = 1;
  bool causal = true;
};

// Row-major [sequences, sequence, heads or kv_heads, head].
struct AttentionValues {
  std::vector<double> q, k, v, d_out;
};
struct AttentionReference {
  std::vector<double> out, d_q, d_k, d_v;
  static auto members(auto& self) { return std::tie(self.out, self.d_q, self.d_k, self.d_v); }
};

// Calls `progressed` after every head.
AttentionReference attention_reference(const AttentionSizes& sizes, const AttentionValues& values,
                                       const std::function<void()>& progressed);

}  // namespace suite
