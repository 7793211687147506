#include "suite/reference/attention/masked_attention.h"

#include <cmath>
#include <cstddef>

namespace suite {
namespace {

using Values = std::vector<double>;

// y [rows, out] = x [rows, in] wᵀ [out, in]ᵀ + b
Values linear(const Values& x, const Values& w, const Values& b) {
  const std::size_t out = b.size(), in = w.size() / out, rows = x.size() / in;
  Values y(rows * out);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t o = 0; o < out; ++o) {
      double sum = b[o];
      for (std::size_t i = 0; i < in; ++i) sum += x[r * in + i] * w[o * in + i];
      y[r * out + o] = sum;
    }
  return y;
}

// Computes the gradients of linear for this number of rows, and returns that of x.
Values linear_backward(std::size_t rows, const Values& x, const Values& w, const Values& d_y,
                       Values& d_w, Values& d_b) {
  const std::size_t in = x.size() / rows, out = d_y.size() / rows;
  Values d_x(x.size());
  d_w.assign(w.size(), 0);
  d_b.assign(out, 0);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t o = 0; o < out; ++o) {
      const double g = d_y[r * out + o];
      d_b[o] += g;
      for (std::size_t i = 0; i < in; ++i) {
        d_w[o * in + i] += g * x[r * in + i];
        d_x[r * in + i] += g * w[o * in + i];
      }
    }
  return d_x;
}

// One head of one sequence in qkv [rows, 3 hidden] and context [rows, hidden].
struct Head {
  const MaskedAttentionSizes& sizes;
  std::int64_t sequence, head;

  std::size_t of_qkv(std::int64_t row, int which) const {
    return static_cast<std::size_t>(((sequence * sizes.sequence + row) * sizes.heads + head) * 3 *
                                        sizes.head +
                                    which * sizes.head);
  }
  std::size_t of_context(std::int64_t row) const {
    return static_cast<std::size_t>(((sequence * sizes.sequence + row) * sizes.heads + head) *
                                    sizes.head);
  }
};

double dot(const Values& a, std::size_t i, const Values& b, std::size_t j, std::int64_t count) {
  double sum = 0;
  for (std::int64_t c = 0; c < count; ++c)
    sum += a[i + static_cast<std::size_t>(c)] * b[j + static_cast<std::size_t>(c)];
  return sum;
}
void add(double factor, const Values& from, std::size_t i, Values& to, std::size_t j,
         std::int64_t count) {
  for (std::int64_t c = 0; c < count; ++c)
    to[j + static_cast<std::size_t>(c)] += factor * from[i + static_cast<std::size_t>(c)];
}

// Returns p of a query: 0 for the keys that it does not see.
Values probabilities(const Head& at, const Values& qkv, std::int64_t query, const SeesKey& sees) {
  const MaskedAttentionSizes& sizes = at.sizes;
  Values p(static_cast<std::size_t>(sizes.sequence));
  double total = 0;
  for (std::int64_t key = 0; key < sizes.sequence; ++key) {
    if (!sees(at.head, query, key)) continue;
    const double score = dot(qkv, at.of_qkv(query, 0), qkv, at.of_qkv(key, 1), sizes.head);
    total += p[static_cast<std::size_t>(key)] =
        std::exp(score / std::sqrt(static_cast<double>(sizes.head)));
  }
  for (double& one : p) one /= total;
  return p;
}

}  // namespace

MaskedAttentionReference masked_attention(const MaskedAttentionSizes& sizes,
                                          const MaskedAttentionValues& values, const SeesKey& sees,
                                          const std::function<void()>& progressed) {
  const Values qkv = linear(values.x, values.qkv, values.qkv_bias);
  const double scale = 1 / std::sqrt(static_cast<double>(sizes.head));
  const auto rows = static_cast<std::size_t>(sizes.sequences * sizes.sequence);
  Values context(values.x.size()), d_qkv(qkv.size());
  const auto each_query = [&](const auto& body) {
    for (std::int64_t s = 0; s < sizes.sequences; ++s)
      for (std::int64_t h = 0; h < sizes.heads; ++h) {
        const Head at{sizes, s, h};
        for (std::int64_t i = 0; i < sizes.sequence; ++i)
          body(at, i, probabilities(at, qkv, i, sees));
        progressed();
      }
  };
  each_query([&](const Head& at, std::int64_t i, const Values& p) {
    for (std::int64_t j = 0; j < sizes.sequence; ++j)
      add(p[static_cast<std::size_t>(j)], qkv, at.of_qkv(j, 2), context, at.of_context(i),
          sizes.head);
  });
  MaskedAttentionReference result;
  result.y = linear(context, values.projection, values.bias);
  const Values d_context = linear_backward(rows, context, values.projection, values.d_y,
                                           result.d_projection, result.d_bias);
  each_query([&](const Head& at, std::int64_t i, const Values& p) {
    Values slope(p.size());
    double mean = 0;
    for (std::size_t j = 0; j < p.size(); ++j) {
      if (p[j] == 0) continue;
      slope[j] = dot(d_context, at.of_context(i), qkv, at.of_qkv(static_cast<std::int64_t>(j), 2),
                     sizes.head);
      mean += p[j] * slope[j];
    }
    for (std::size_t j = 0; j < p.size(); ++j) {
      if (p[j] == 0) continue;
      const auto key = static_cast<std::int64_t>(j);
      const double d_score = scale * p[j] * (slope[j] - mean);
      add(d_score, qkv, at.of_qkv(key, 1), d_qkv, at.of_qkv(i, 0), sizes.head);
      add(d_score, qkv, at.of_qkv(i, 0), d_qkv, at.of_qkv(key, 1), sizes.head);
      add(p[j], d_context, at.of_context(i), d_qkv, at.of_qkv(key, 2), sizes.head);
    }
  });
  result.d_x = linear_backward(rows, values.x, values.qkv, d_qkv, result.d_qkv, result.d_qkv_bias);
  return result;
}

}  // namespace suite
