#include "suite/reference/attention/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace suite {
namespace {

// One head of all positions of a sequence.
struct Head {
  double* data;
  std::size_t row_stride;
  double* row(std::size_t i) const { return data + i * row_stride; }
};
struct ConstHead {
  const double* data;
  std::size_t row_stride;
  const double* row(std::size_t i) const { return data + i * row_stride; }
};

double dot(const double* a, const double* b, std::size_t n) {
  double sum = 0;
  for (std::size_t c = 0; c < n; ++c) sum += a[c] * b[c];
  return sum;
}
void add(double factor, const double* from, double* to, std::size_t n) {
  for (std::size_t c = 0; c < n; ++c) to[c] += factor * from[c];
}

}  // namespace

AttentionReference attention_reference(const AttentionSizes& sizes, const AttentionValues& values,
                                       const std::function<void()>& progressed) {
  AttentionReference result;
  result.out.resize(values.q.size());
  result.d_q.resize(values.q.size());
  result.d_k.resize(values.k.size());
  result.d_v.resize(values.v.size());
  const auto rows = static_cast<std::size_t>(sizes.sequence),
             width = static_cast<std::size_t>(sizes.head),
             heads = static_cast<std::size_t>(sizes.heads),
             kv_heads = static_cast<std::size_t>(sizes.kv_heads);
  std::vector<double> p(rows), g(rows);
  for (std::size_t s = 0; s < static_cast<std::size_t>(sizes.sequences); ++s)
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t shared = h / (heads / kv_heads);
      const std::size_t at = (s * rows * heads + h) * width,
                        kv_at = (s * rows * kv_heads + shared) * width;
      const std::size_t stride = heads * width, kv_stride = kv_heads * width;
      const ConstHead q{values.q.data() + at, stride}, k{values.k.data() + kv_at, kv_stride},
          v{values.v.data() + kv_at, kv_stride}, d_out{values.d_out.data() + at, stride};
      const Head out{result.out.data() + at, stride}, d_q{result.d_q.data() + at, stride},
          d_k{result.d_k.data() + kv_at, kv_stride}, d_v{result.d_v.data() + kv_at, kv_stride};
      for (std::size_t i = 0; i < rows; ++i) {
        const std::size_t seen = sizes.causal ? i + 1 : rows;
        for (std::size_t j = 0; j < seen; ++j) p[j] = sizes.scale * dot(q.row(i), k.row(j), width);
        const double top =
            *std::max_element(p.begin(), p.begin() + static_cast<std::ptrdiff_t>(seen));
        double total = 0, mean = 0;
        for (std::size_t j = 0; j < seen; ++j) total += p[j] = std::exp(p[j] - top);
        for (std::size_t j = 0; j < seen; ++j) {
          p[j] /= total;
          g[j] = dot(d_out.row(i), v.row(j), width);
          mean += p[j] * g[j];
          add(p[j], v.row(j), out.row(i), width);
        }
        for (std::size_t j = 0; j < seen; ++j) {
          const double d_s = sizes.scale * p[j] * (g[j] - mean);
          add(d_s, k.row(j), d_q.row(i), width);
          add(d_s, q.row(i), d_k.row(j), width);
          add(p[j], d_out.row(i), d_v.row(j), width);
        }
      }
      progressed();
    }
  return result;
}

}  // namespace suite
