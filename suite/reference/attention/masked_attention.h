#pragma once
// An attention layer in double by plain loops over all pairs of a query and a key, of which a
// predicate selects some: QKV, core attention and projection, forward and backward. GPT-2's shape:
// the rows of the QKV weight are (q, k, v) of head 0, then of head 1, ….
//
//   [q k v] = x Wᵀ + b,   context_i = sum_j p_ij v_j,   y = context Uᵀ + c
//   p_ij = softmax over the j that i sees of q_i · k_j / sqrt(head)

#include <cstdint>
#include <functional>
#include <tuple>
#include <vector>

namespace suite {

struct MaskedAttentionSizes {
  std::int64_t sequences = 1, sequence = 1, heads = 1, head = 1;
  std::int64_t hidden() const { return heads * head; }
};
struct MaskedAttentionValues {
  std::vector<double> x, d_y;            // [sequences * sequence, hidden]
  std::vector<double> qkv, qkv_bias;     // [3 hidden, hidden], [3 hidden]
  std::vector<double> projection, bias;  // [hidden, hidden], [hidden]
};
struct MaskedAttentionReference {
  std::vector<double> y, d_x, d_qkv, d_qkv_bias, d_projection, d_bias;
  static auto members(auto& self) {
    return std::tie(self.y, self.d_x, self.d_qkv, self.d_qkv_bias, self.d_projection, self.d_bias);
  }
};
using SeesKey = std::function<bool(std::int64_t head, std::int64_t query, std::int64_t key)>;

// Every query must see at least one key. Calls `progressed` after every head.
MaskedAttentionReference masked_attention(const MaskedAttentionSizes& sizes,
                                          const MaskedAttentionValues& values, const SeesKey& sees,
                                          const std::function<void()>& progressed);

}  // namespace suite
