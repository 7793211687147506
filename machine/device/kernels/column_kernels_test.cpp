#include "machine/device/kernels/column_kernels.h"

#include "machine/testing/on_device.h"

namespace machine {
namespace {

struct Extent {
  std::int64_t rows, cols;
};
constexpr Extent extents[] = {{1, 1}, {0, 4}, {5, 3}, {70, 37}, {1500, 33}, {3, 2100}};

class ColumnKernels : public OnDevice {
 protected:
  Real u() const { return sum_roundoff(dtype()); }
};

std::size_t at(std::int64_t row, std::int64_t cols, std::int64_t col) {
  return static_cast<std::size_t>(row * cols + col);
}

TEST_P(ColumnKernels, ColumnSumsAreAdded) {
  for (const auto [rows, cols] : extents) {
    for (const Dtype to : sums()) {
      const Tensor x = random({rows, cols}), out = random({cols}, to);
      const Values v = to_doubles(x), before = to_doubles(out);
      kernels().accumulate_column_sums(x, out);
      std::vector<Real> reference, error;
      for (std::int64_t c = 0; c < cols; ++c) {
        Real sum = before[static_cast<std::size_t>(c)], size = std::abs(sum);
        for (std::int64_t row = 0; row < rows; ++row) {
          sum += v[at(row, cols, c)];
          size += std::abs(v[at(row, cols, c)]);
        }
        reference.push_back(sum);
        error.push_back(1.01L * u() * static_cast<Real>(rows + 1) * size);
      }
      expect_within(to_doubles(out), reference, error, to);
    }
  }
}

TEST_P(ColumnKernels, LayerNormBackwardWeights) {
  for (const auto [rows, cols] : extents) {
    for (const Dtype to : sums()) {
      const Tensor x = random({rows, cols}), slope = random({rows, cols});
      const Tensor mean = random({rows}, wide(), -0.1, 0.1),
                   rstd = random({rows}, wide(), 0.8, 1.2);
      const Tensor d_gain = random({cols}, to), d_bias = random({cols}, to);
      const Values v = to_doubles(x), d = to_doubles(slope), mu = to_doubles(mean),
                   r = to_doubles(rstd), gain_before = to_doubles(d_gain),
                   bias_before = to_doubles(d_bias);
      kernels().layer_norm_backward_weights(x, mean, rstd, slope, d_gain, d_bias);
      std::vector<Real> gains, gain_errors, biases, bias_errors;
      for (std::int64_t c = 0; c < cols; ++c) {
        Real gain = gain_before[static_cast<std::size_t>(c)], gain_size = std::abs(gain);
        Real bias = bias_before[static_cast<std::size_t>(c)], bias_size = std::abs(bias);
        for (std::int64_t row = 0; row < rows; ++row) {
          const auto k = static_cast<std::size_t>(row);
          const Real term = Real{d[at(row, cols, c)]} * (Real{v[at(row, cols, c)]} - mu[k]) * r[k];
          gain += term;
          gain_size += std::abs(term);
          bias += d[at(row, cols, c)];
          bias_size += std::abs(d[at(row, cols, c)]);
        }
        gains.push_back(gain);
        gain_errors.push_back(1.01L * u() * static_cast<Real>(rows + 4) * gain_size);
        biases.push_back(bias);
        bias_errors.push_back(1.01L * u() * static_cast<Real>(rows + 1) * bias_size);
      }
      expect_within(to_doubles(d_gain), gains, gain_errors, to);
      expect_within(to_doubles(d_bias), biases, bias_errors, to);
    }
  }
}

// Rows are added in ascending order, and each sum is rounded to the table's dtype. Only one result
// is therefore possible, bit by bit.
TEST_P(ColumnKernels, EmbeddingBackwardInOrder) {
  for (const auto [rows, cols] : extents) {
    for (const Dtype to : sums()) {
      const Tensor slope = random({rows, cols}), table = random({7, cols}, to);
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows));
      for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(generator_() % 12);
      // One token comes late, after many others.
      std::replace(tokens.begin(), tokens.begin() + rows / 2, 9, 0);
      const Memory ids = upload(tokens);
      const Values d = to_doubles(slope);
      Values expected = to_doubles(table);
      const auto add = [&](double a, double b) {
        double sum = 0;
        visit(to, [&]<class T>(T) {
          using A = Accumulator<T>;
          sum = static_cast<double>(
              static_cast<A>(static_cast<T>(static_cast<A>(a) + static_cast<A>(b))));
        });
        return sum;
      };
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t entry = tokens[static_cast<std::size_t>(row)] - 3;
        if (entry < 0 || entry >= 7) continue;
        for (std::int64_t c = 0; c < cols; ++c) {
          double& sum = expected[at(entry, cols, c)];
          sum = add(sum, d[at(row, cols, c)]);
        }
      }
      kernels().embedding_backward(static_cast<std::int32_t*>(ids.data()), slope, 3, table);
      ASSERT_EQ(to_doubles(table), expected);
    }
  }
}

TEST_P(ColumnKernels, TotalsInDouble) {
  for (const std::int64_t size : {0, 1, 31, 4096, 100003}) {
    const Tensor in = random({size});
    const Tensor sum = empty({}, Dtype::float64), squares = empty({1}, Dtype::float64);
    kernels().sum(in, sum);
    kernels().sum_of_squares(in, squares);
    Real total = 0, total_size = 0, total_squares = 0;
    for (const double value : to_doubles(in)) {
      total += value;
      total_size += std::abs(value);
      total_squares += Real{value} * value;
    }
    const Real n = 0x1p-53L * static_cast<Real>(size + 2);
    expect_within(to_doubles(sum), {total}, {n * total_size}, Dtype::float64);
    expect_within(to_doubles(squares), {total_squares}, {n * total_squares}, Dtype::float64);
  }
}

TEST_P(ColumnKernels, MismatchesAreRejected) {
  const Tensor x = random({4, 6}), vector = random({6});
  EXPECT_THROW(kernels().accumulate_column_sums(x, random({5})), std::logic_error);
  const Dtype other = dtype() == Dtype::bfloat16 ? Dtype::float16 : Dtype::bfloat16;
  EXPECT_THROW(kernels().accumulate_column_sums(x, random({6}, other)), std::logic_error);
  EXPECT_THROW(kernels().sum(x, random({2}, Dtype::float64)), std::logic_error);
}

SHARDMARK_ON_EVERY_DEVICE(ColumnKernels);

// Compares backward with differences of forward, in double on the host. The error of a central
// difference D(h) is about a third of D(2h) - D(h), plus the forward's roundoffs over h.
class Differences : public testing::Test {
 protected:
  Tensor normal(Shape shape, std::uint64_t seed) {
    Tensor tensor(*device, Dtype::float64, shape, Category::buffers);
    kernels.fill_normal(tensor, seed, {}, 0, 1);
    return tensor;
  }
  Tensor zeros(Shape shape) {
    Tensor tensor(*device, Dtype::float64, shape, Category::buffers);
    kernels.fill(tensor, 0);
    return tensor;
  }
  double dot(const Tensor& a, const Tensor& b) {
    const Values x = to_doubles(a), y = to_doubles(b);
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
    return sum;
  }
  template <class Loss>
  void check(const Tensor& x, const Tensor& gradient, Loss loss) {
    const Values at = to_doubles(x), slope = to_doubles(gradient);
    const double h = 1e-4, noise = 4096 * 0x1p-53 * (1 + std::abs(loss())) / h;
    for (std::size_t i = 0; i < at.size(); ++i) {
      const auto difference = [&](double step) {
        Values moved = at;
        moved[i] = at[i] + step;
        from_doubles(x, moved);
        const double above = loss();
        moved[i] = at[i] - step;
        from_doubles(x, moved);
        return (above - loss()) / (2 * step);
      };
      const double near = difference(h), far = difference(2 * h);
      EXPECT_LE(std::abs(slope[i] - near), std::abs(far - near) + noise) << "element " << i;
    }
    from_doubles(x, at);
  }

  std::unique_ptr<Device> device = make_host_device();
  Kernels& kernels = device->stream().kernels();
};

TEST_F(Differences, LayerNorm) {
  const Tensor x = normal({3, 8}, 1), gain = normal({8}, 2), bias = normal({8}, 3),
               weight = normal({3, 8}, 4), out = zeros({3, 8}), mean = zeros({3}),
               rstd = zeros({3});
  const auto loss = [&] {
    kernels.layer_norm(x, gain, bias, 1e-3, out, mean, rstd);
    return dot(out, weight);
  };
  loss();
  const Tensor d_x = zeros({3, 8}), d_gain = zeros({8}), d_bias = zeros({8});
  kernels.layer_norm_backward_input(x, gain, mean, rstd, weight, d_x);
  kernels.layer_norm_backward_weights(x, mean, rstd, weight, d_gain, d_bias);
  check(x, d_x, loss);
  check(gain, d_gain, loss);
  check(bias, d_bias, loss);
}

TEST_F(Differences, Softmax) {
  const Tensor scores = normal({2, 4, 4}, 5), weight = normal({2, 4, 4}, 6), p = zeros({2, 4, 4});
  const auto loss = [&] {
    kernels.softmax(scores, 0.7, {}, p);
    return dot(p, weight);
  };
  loss();
  const Tensor d_scores = zeros({2, 4, 4});
  kernels.softmax_backward(p, weight, 0.7, {}, d_scores);
  check(scores, d_scores, loss);
}

TEST_F(Differences, CrossEntropy) {
  const Tensor logits = normal({3, 7}, 7), max = zeros({3}), sum = zeros({3}), target = zeros({3}),
               losses = zeros({3}), total = zeros({});
  const std::int32_t targets[] = {6, -1, 3};
  const auto loss = [&] {
    kernels.row_max(logits, 0, 7, max);
    kernels.exp_sums(logits, max, targets, 0, 7, sum, target);
    kernels.cross_entropy(sum, target, targets, losses);
    kernels.sum(losses, total);
    return to_doubles(total)[0] / 3;
  };
  loss();
  const Tensor d_logits = zeros({3, 7});
  kernels.cross_entropy_backward(logits, max, sum, targets, 0, 7, 1.0 / 3, d_logits);
  check(logits, d_logits, loss);
}

}  // namespace
}  // namespace machine
