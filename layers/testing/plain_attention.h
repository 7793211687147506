#pragma once
// Attention and its gradients of whole sequences as plain loops in double: every score of a query
// is computed at once. The reference of context parallelism; it shares no code with the layers.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace layers::reference {

struct PlainAttention {
  std::int64_t sequences = 1, sequence = 1, heads = 1, kv_heads = 1, head = 1;
  double scale = 1;
  bool causal = true;

  using Values = std::vector<double>;  // [sequences, sequence, heads or kv_heads, head]
  struct Result {
    Values out, d_q, d_k, d_v;
  };

  Result run(const Values& q, const Values& k, const Values& v, const Values& d_out) const {
    Result result{Values(q.size()), Values(q.size()), Values(k.size()), Values(v.size())};
    for (std::int64_t s = 0; s < sequences; ++s)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t i = 0; i < sequence; ++i) query(s, h, i, q, k, v, d_out, result);
    return result;
  }

 private:
  std::size_t at(std::int64_t s, std::int64_t row, std::int64_t h, std::int64_t of_heads) const {
    return static_cast<std::size_t>(((s * sequence + row) * of_heads + h) * head);
  }
  double dot(const Values& a, std::size_t i, const Values& b, std::size_t j) const {
    double sum = 0;
    for (std::size_t c = 0; c < static_cast<std::size_t>(head); ++c) sum += a[i + c] * b[j + c];
    return sum;
  }
  void query(std::int64_t s, std::int64_t h, std::int64_t i, const Values& q, const Values& k,
             const Values& v, const Values& d_out, Result& result) const {
    const std::size_t mine = at(s, i, h, heads);
    const auto key = [&](std::int64_t j) { return at(s, j, h * kv_heads / heads, kv_heads); };
    const std::int64_t keys = causal ? i + 1 : sequence;
    const auto columns = static_cast<std::size_t>(head);
    std::vector<double> p;
    double top = -std::numeric_limits<double>::infinity(), total = 0, delta = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      p.push_back(scale * dot(q, mine, k, key(j)));
      top = std::max(top, p.back());
    }
    for (double& weight : p) total += weight = std::exp(weight - top);
    for (std::int64_t j = 0; j < keys; ++j) {
      double& weight = p[static_cast<std::size_t>(j)];
      weight /= total;
      delta += weight * dot(d_out, mine, v, key(j));
      for (std::size_t c = 0; c < columns; ++c) result.out[mine + c] += weight * v[key(j) + c];
    }
    for (std::int64_t j = 0; j < keys; ++j) {
      const double weight = p[static_cast<std::size_t>(j)],
                   slope = scale * weight * (dot(d_out, mine, v, key(j)) - delta);
      for (std::size_t c = 0; c < columns; ++c) {
        result.d_q[mine + c] += slope * k[key(j) + c];
        result.d_k[key(j) + c] += slope * q[mine + c];
        result.d_v[key(j) + c] += weight * d_out[mine + c];
      }
    }
  }
};

}  // namespace layers::reference
