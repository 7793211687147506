#include "machine/device/kernels/row_kernels.h"

#include <tuple>

#include "machine/testing/on_device.h"

namespace machine {
namespace {

// Rows from one element to more elements than a GPU block processes at once.
struct Extent {
  std::int64_t rows, cols;
};
constexpr Extent extents[] = {{1, 1}, {5, 3}, {37, 70}, {4, 1000}, {3, 4099}};

class RowKernels : public OnDevice {
 protected:
  Real u() const { return sum_roundoff(dtype()); }
  Memory tokens(std::int64_t rows, int low, int high) {
    std::uniform_int_distribution<std::int32_t> distribution(low, high);
    token_values.resize(static_cast<std::size_t>(rows));
    for (std::int32_t& token : token_values) token = distribution(generator_);
    return upload(token_values);
  }
  std::vector<std::int32_t> token_values;

  // Scores [matrices, queries, keys]. With lengths, two matrices belong to a sequence, and the
  // sequences repeat.
  struct Scores {
    std::int64_t matrices, queries, keys;
    bool causal = true;
    std::vector<std::int32_t> lengths = {};

    std::int64_t seen_by(std::int64_t row) const {
      const auto sequence = static_cast<std::size_t>(row / queries / 2);
      const std::int64_t own =
          lengths.empty() ? keys : std::min<std::int64_t>(keys, lengths[sequence % lengths.size()]);
      return causal ? std::min(row % queries + 1, own) : own;
    }
  };
  SoftmaxMask mask_of(const Scores& s, const Memory& lengths) {
    if (s.lengths.empty()) return {.causal = s.causal};
    return {s.causal, static_cast<const std::int32_t*>(lengths.data()),
            static_cast<std::int64_t>(s.lengths.size()), 2};
  }
};

std::size_t at(std::int64_t row, std::int64_t cols, std::int64_t col) {
  return static_cast<std::size_t>(row * cols + col);
}

TEST_P(RowKernels, AddBias) {
  for (const auto [rows, cols] : extents) {
    const Tensor x = random({rows, cols}), bias = random({cols});
    const Values v = to_doubles(x), b = to_doubles(bias);
    kernels().add_bias(x, bias, x);
    std::vector<Real> reference, error;
    for (std::int64_t i = 0; i < x.size(); ++i) {
      reference.push_back(Real{v[static_cast<std::size_t>(i)]} +
                          b[static_cast<std::size_t>(i % cols)]);
      error.push_back(u() * std::abs(reference.back()));
    }
    expect_within(to_doubles(x), reference, error, dtype());
  }
}

// First-order errors, with a factor of 1.01 for the rest. The mean has the error of a sum, which
// moves each deviation. The variance has two roundoffs per deviation and those of a sum. The
// reciprocal root halves the error and adds four.
TEST_P(RowKernels, LayerNorm) {
  for (const auto [rows, cols] : extents) {
    const Tensor x = random({rows, cols}, 1, 4), gain = random({cols}), bias = random({cols});
    const Tensor out = empty({rows, cols}), mean = empty({rows}, wide()),
                 rstd = empty({rows}, wide());
    const double epsilon = 1e-5;
    kernels().layer_norm(x, gain, bias, epsilon, out, mean, rstd);
    const Values v = to_doubles(x), g = to_doubles(gain), b = to_doubles(bias);
    std::vector<Real> reference, error, means, mean_errors, rstds, rstd_errors;
    const Real n = static_cast<Real>(cols);
    for (std::int64_t row = 0; row < rows; ++row) {
      Real sum = 0, size = 0, squares = 0, deviations = 0;
      for (std::int64_t c = 0; c < cols; ++c) {
        sum += v[at(row, cols, c)];
        size += std::abs(v[at(row, cols, c)]);
      }
      const Real mu = sum / n, mu_error = u() * (n + 1) * size / n;
      for (std::int64_t c = 0; c < cols; ++c) {
        const Real d = v[at(row, cols, c)] - mu;
        squares += d * d;
        deviations += std::abs(d);
      }
      const Real variance = squares / n;
      const Real variance_error =
          2 * mu_error * deviations / n + mu_error * mu_error + u() * (n + 4) * variance;
      const Real r = 1 / std::sqrt(variance + epsilon);
      const Real r_relative = 1.01L * (0.5L * variance_error / (variance + epsilon) + 4 * u());
      means.push_back(mu);
      mean_errors.push_back(mu_error);
      rstds.push_back(r);
      rstd_errors.push_back(r_relative * r);
      for (std::int64_t c = 0; c < cols; ++c) {
        const Real d = v[at(row, cols, c)] - mu, scale = g[static_cast<std::size_t>(c)];
        const Real normal = d * r * scale;
        reference.push_back(normal + b[static_cast<std::size_t>(c)]);
        error.push_back(1.01L * (std::abs(scale) * r * mu_error +
                                 std::abs(normal) * (r_relative + 3 * u()) +
                                 u() * std::abs(reference.back())));
      }
    }
    expect_within(to_doubles(mean), means, mean_errors, wide());
    expect_within(to_doubles(rstd), rstds, rstd_errors, wide());
    expect_within(to_doubles(out), reference, error, dtype());
  }
}

// Mean and rstd are inputs here, so only two sums of cols terms and ten operations remain.
TEST_P(RowKernels, LayerNormBackwardInput) {
  for (const auto [rows, cols] : extents) {
    const Tensor x = random({rows, cols}), gain = random({cols}), slope = random({rows, cols});
    const Tensor mean = random({rows}, wide(), -0.1, 0.1), rstd = random({rows}, wide(), 0.8, 1.2);
    const Tensor d_x = empty({rows, cols});
    kernels().layer_norm_backward_input(x, gain, mean, rstd, slope, d_x);
    const Values v = to_doubles(x), g = to_doubles(gain), d = to_doubles(slope),
                 mu = to_doubles(mean), r = to_doubles(rstd);
    std::vector<Real> reference, error;
    const Real n = static_cast<Real>(cols);
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto scaled = [&](std::int64_t c) {
        return Real{d[at(row, cols, c)]} * g[static_cast<std::size_t>(c)];
      };
      const auto normal = [&](std::int64_t c) {
        return (Real{v[at(row, cols, c)]} - mu[static_cast<std::size_t>(row)]) *
               r[static_cast<std::size_t>(row)];
      };
      Real sum = 0, dot = 0, sum_size = 0, dot_size = 0;
      for (std::int64_t c = 0; c < cols; ++c) {
        sum += scaled(c);
        dot += scaled(c) * normal(c);
        sum_size += std::abs(scaled(c));
        dot_size += std::abs(scaled(c) * normal(c));
      }
      for (std::int64_t c = 0; c < cols; ++c) {
        const Real scale = r[static_cast<std::size_t>(row)];
        reference.push_back(scale * (scaled(c) - sum / n - normal(c) * dot / n));
        error.push_back(1.01L * u() * (n + 10) * scale *
                        (std::abs(scaled(c)) + sum_size / n + std::abs(normal(c)) * dot_size / n));
      }
    }
    expect_within(to_doubles(d_x), reference, error, dtype());
  }
}

// The argument of the exponential has a roundoff per term, the exponential has 4. A sum, a division
// and a product follow.
TEST_P(RowKernels, Softmax) {
  for (const Scores& s : std::vector<Scores>{{1, 1, 1},
                                             {3, 7, 7},
                                             {2, 40, 40},
                                             {1, 5, 9},
                                             {1, 9, 5},
                                             {1, 3, 2100},
                                             {1, 300, 300},
                                             {2, 6, 40, false},
                                             {6, 5, 45, false, {45, 0, 17}},
                                             {12, 50, 50, true, {60, 20, 1}}}) {
    const auto [batches, queries, keys] = std::tuple(s.matrices, s.queries, s.keys);
    const Memory lengths = upload(s.lengths.empty() ? std::vector<std::int32_t>{0} : s.lengths);
    const Tensor scores = random({batches, queries, keys}, -20, 20);
    const Tensor p = empty({batches, queries, keys});
    kernels().softmax(scores, 0.125, mask_of(s, lengths), p);
    const Values in = to_doubles(scores), got = to_doubles(p);
    std::vector<Real> reference, error;
    for (std::int64_t row = 0; row < batches * queries; ++row) {
      const std::int64_t seen = s.seen_by(row);
      Real top = -INFINITY, sum = 0, largest = 0;
      for (std::int64_t c = 0; c < seen; ++c) top = std::max(top, 0.125L * in[at(row, keys, c)]);
      for (std::int64_t c = 0; c < seen; ++c) {
        const Real z = 0.125L * in[at(row, keys, c)];
        sum += std::exp(z - top);
        largest = std::max(largest, std::abs(z) + std::abs(top) + std::abs(z - top) + 4);
      }
      for (std::int64_t c = 0; c < keys; ++c) {
        const bool visible = c < seen;
        reference.push_back(visible ? std::exp(0.125L * in[at(row, keys, c)] - top) / sum : 0);
        error.push_back(1.01L * u() * (2 * largest + static_cast<Real>(seen) + 2) *
                        reference.back());
        if (!visible) {
          ASSERT_EQ(got[at(row, keys, c)], 0) << "masked key";
        }
      }
    }
    expect_within(got, reference, error, dtype());
  }
}

TEST_P(RowKernels, SoftmaxBackward) {
  for (const Scores& s : std::vector<Scores>{{2, 45, 45},
                                             {2, 45, 45, false},
                                             {8, 45, 45, true, {45, 31}},
                                             {8, 45, 45, false, {0, 31}}}) {
    const auto [batches, queries, keys] = std::tuple(s.matrices, s.queries, s.keys);
    const Memory lengths = upload(s.lengths.empty() ? std::vector<std::int32_t>{0} : s.lengths);
    const Tensor p = random({batches, queries, keys}, 0, 0.1),
                 slope = random({batches, queries, keys});
    const Values pv = to_doubles(p), d = to_doubles(slope);
    kernels().softmax_backward(p, slope, 0.3, mask_of(s, lengths), slope);  // in place
    const Values got = to_doubles(slope);
    std::vector<Real> reference, error;
    for (std::int64_t row = 0; row < batches * queries; ++row) {
      const std::int64_t seen = s.seen_by(row);
      Real dot = 0, size = 0;
      for (std::int64_t c = 0; c < seen; ++c) {
        const Real term = Real{pv[at(row, keys, c)]} * d[at(row, keys, c)];
        dot += term;
        size += std::abs(term);
      }
      for (std::int64_t c = 0; c < keys; ++c) {
        const Real probability = c < seen ? pv[at(row, keys, c)] : 0;
        reference.push_back(0.3L * probability * (d[at(row, keys, c)] - dot));
        error.push_back(1.01L * u() * static_cast<Real>(seen + 6) * 0.3L * probability *
                        (std::abs(d[at(row, keys, c)]) + size));
        if (c >= seen) {
          ASSERT_EQ(got[at(row, keys, c)], 0) << "masked key";
        }
      }
    }
    expect_within(got, reference, error, dtype());
  }
}

TEST_P(RowKernels, EmbeddingOfAShard) {
  // Rows 10..16 of a vocabulary 0..29.
  for (const auto [rows, cols] : extents) {
    const Tensor table = random({7, cols}), out = empty({rows, cols});
    const Memory ids = tokens(rows, 0, 29);
    kernels().embedding(static_cast<std::int32_t*>(ids.data()), table, 10, out);
    const Values from = to_doubles(table), got = to_doubles(out);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t entry = token_values[static_cast<std::size_t>(row)] - 10;
      for (std::int64_t c = 0; c < cols; ++c) {
        ASSERT_EQ(got[at(row, cols, c)], entry >= 0 && entry < 7 ? from[at(entry, cols, c)] : 0);
      }
    }
  }
}

// The second of three shards. Its table is padded from column `real` of this shard on. Padding has
// values that must not count, and rows with negative targets must not count either.
TEST_P(RowKernels, CrossEntropyOverAShardedVocabulary) {
  for (const auto [rows, cols] : extents)
    for (const std::int64_t real : {cols, cols - cols / 3, std::int64_t{1}}) {
      const Tensor logits = random({rows, cols}, -8, 8), max = empty({rows}, wide());
      const Tensor sum = empty({rows}, wide()), target = empty({rows}, wide());
      const std::int64_t first_col = cols, vocabulary = cols + real;
      const Memory ids = tokens(rows, static_cast<int>(-cols), static_cast<int>(3 * cols - 1));
      const auto* targets = static_cast<std::int32_t*>(ids.data());
      Values l = to_doubles(logits);
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t c = real; c < cols; ++c) l[at(row, cols, c)] = c % 2 == 0 ? NAN : 60;
      from_doubles(logits, l);
      kernels().row_max(logits, first_col, vocabulary, max);
      kernels().exp_sums(logits, max, targets, first_col, vocabulary, sum, target);
      const Values tops = to_doubles(max);
      std::vector<Real> sums, sum_errors, picked, picked_errors, gradient, gradient_errors;
      const Values stored_sums = to_doubles(sum);
      for (std::int64_t row = 0; row < rows; ++row) {
        const Real top = tops[static_cast<std::size_t>(row)];
        const bool counts = token_values[static_cast<std::size_t>(row)] >= 0;
        const std::int64_t mine = token_values[static_cast<std::size_t>(row)] - first_col;
        Real total = 0, largest = 0, exact_top = -INFINITY;
        for (std::int64_t c = 0; c < real; ++c) {
          const Real z = l[at(row, cols, c)] - top;
          exact_top = std::max(exact_top, Real{l[at(row, cols, c)]});
          total += std::exp(z);
          largest = std::max(largest, std::abs(z) + 4);
        }
        ASSERT_EQ(top, exact_top);
        sums.push_back(total);
        sum_errors.push_back(1.01L * u() * (largest + static_cast<Real>(cols)) * total);
        picked.push_back(mine >= 0 && mine < real ? l[at(row, cols, mine)] - top : 0);
        picked_errors.push_back(0);
        for (std::int64_t c = 0; c < real; ++c) {
          const Real z = l[at(row, cols, c)] - top;
          const Real p = std::exp(z) / stored_sums[static_cast<std::size_t>(row)];
          gradient.push_back(counts ? 0.125L * (p - (c == mine)) : 0);
          gradient_errors.push_back(
              counts
                  ? 1.01L * u() * 0.125L * (p * (std::abs(z) + 6) + 2 * std::abs(p - (c == mine)))
                  : 0);
        }
      }
      expect_within(to_doubles(sum), sums, sum_errors, wide());
      expect_within(to_doubles(target), picked, picked_errors, wide());
      kernels().cross_entropy_backward(logits, max, sum, targets, first_col, vocabulary, 0.125,
                                       logits);
      Values got;
      const Values all = to_doubles(logits);
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t c = 0; c < cols; ++c) {
          if (c < real) {
            got.push_back(all[at(row, cols, c)]);
          } else {
            ASSERT_EQ(all[at(row, cols, c)], 0) << "padding";
          }
        }
      expect_within(got, gradient, gradient_errors, dtype());
    }
}

// A shard that lies beyond the vocabulary.
TEST_P(RowKernels, CrossEntropyOfOnlyPadding) {
  const Tensor logits = random({3, 40}), max = empty({3}, wide()), sum = empty({3}, wide()),
               target = empty({3}, wide());
  const Memory ids = tokens(3, 0, 99);
  const auto* targets = static_cast<std::int32_t*>(ids.data());
  kernels().row_max(logits, 120, 100, max);
  EXPECT_EQ(to_doubles(max), Values(3, -INFINITY));
  kernels().fill(max, 2.5);  // maximum of another shard
  kernels().exp_sums(logits, max, targets, 120, 100, sum, target);
  EXPECT_EQ(to_doubles(sum), Values(3, 0.0));
  EXPECT_EQ(to_doubles(target), Values(3, 0.0));
  kernels().cross_entropy_backward(logits, max, max, targets, 120, 100, 1, logits);
  EXPECT_EQ(to_doubles(logits), Values(120, 0.0));
}

TEST_P(RowKernels, MismatchesAreRejected) {
  const Tensor x = random({4, 6}), short_vector = random({5}), vector = random({6});
  EXPECT_THROW(kernels().add_bias(x, short_vector, x), std::logic_error);
  EXPECT_THROW(kernels().layer_norm(x, vector, vector, 1e-5, x, short_vector, short_vector),
               std::logic_error);
  EXPECT_THROW(kernels().softmax(vector, 1, {}, vector), std::logic_error);
  EXPECT_THROW(kernels().embedding(nullptr, random({3, 5}), 0, x), std::logic_error);
}

SHARDMARK_ON_EVERY_DEVICE(RowKernels);

}  // namespace
}  // namespace machine
