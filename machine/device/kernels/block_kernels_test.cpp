#include "machine/device/kernels/block_kernels.h"

#include "machine/testing/on_device.h"

namespace machine {
namespace {

struct Extent {
  std::int64_t rows, cols;
};
constexpr Extent extents[] = {{1, 1}, {5, 3}, {37, 70}, {4, 1000}, {3, 4099}};

std::size_t at(std::int64_t row, std::int64_t cols, std::int64_t col) {
  return static_cast<std::size_t>(row * cols + col);
}

class BlockKernels : public OnDevice {
 protected:
  Real u() const { return sum_roundoff(dtype()); }
};

// First-order errors, with a factor of 1.01 for the rest. The mean square has one roundoff per
// square, those of a sum, and two more. The reciprocal root halves the error and adds four.
TEST_P(BlockKernels, RmsNorm) {
  for (const auto [rows, cols] : extents) {
    const Tensor x = random({rows, cols}, 1, 4), gain = random({cols});
    const Tensor out = empty({rows, cols}), rstd = empty({rows}, wide());
    const double epsilon = 1e-5;
    kernels().rms_norm(x, gain, epsilon, out, rstd);
    const Values v = to_doubles(x), g = to_doubles(gain);
    std::vector<Real> reference, error, rstds, rstd_errors;
    const Real n = static_cast<Real>(cols);
    for (std::int64_t row = 0; row < rows; ++row) {
      Real squares = 0;
      for (std::int64_t c = 0; c < cols; ++c)
        squares += Real{v[at(row, cols, c)]} * v[at(row, cols, c)];
      const Real r = 1 / std::sqrt(squares / n + epsilon);
      const Real relative = 1.01L * u() * (0.5L * (n + 4) + 4);
      rstds.push_back(r);
      rstd_errors.push_back(relative * r);
      for (std::int64_t c = 0; c < cols; ++c) {
        reference.push_back(v[at(row, cols, c)] * r * g[static_cast<std::size_t>(c)]);
        error.push_back((relative + 2.02L * u()) * std::abs(reference.back()));
      }
    }
    expect_within(to_doubles(rstd), rstds, rstd_errors, wide());
    expect_within(to_doubles(out), reference, error, dtype());
  }
}

// rstd is an input here, so only a sum of cols terms and eight operations remain.
TEST_P(BlockKernels, RmsNormBackwardInput) {
  for (const auto [rows, cols] : extents) {
    const Tensor x = random({rows, cols}), gain = random({cols}), slope = random({rows, cols});
    const Tensor rstd = random({rows}, wide(), 0.8, 1.2), d_x = empty({rows, cols});
    kernels().rms_norm_backward_input(x, gain, rstd, slope, d_x);
    const Values v = to_doubles(x), g = to_doubles(gain), d = to_doubles(slope),
                 r = to_doubles(rstd);
    std::vector<Real> reference, error;
    const Real n = static_cast<Real>(cols);
    for (std::int64_t row = 0; row < rows; ++row) {
      const Real scale = r[static_cast<std::size_t>(row)];
      const auto scaled = [&](std::int64_t c) {
        return Real{d[at(row, cols, c)]} * g[static_cast<std::size_t>(c)];
      };
      const auto normal = [&](std::int64_t c) { return v[at(row, cols, c)] * scale; };
      Real dot = 0, size = 0;
      for (std::int64_t c = 0; c < cols; ++c) {
        dot += scaled(c) * normal(c);
        size += std::abs(scaled(c) * normal(c));
      }
      for (std::int64_t c = 0; c < cols; ++c) {
        reference.push_back(scale * (scaled(c) - normal(c) * dot / n));
        error.push_back(1.01L * u() * (n + 8) * scale *
                        (std::abs(scaled(c)) + std::abs(normal(c)) * size / n));
      }
    }
    expect_within(to_doubles(d_x), reference, error, dtype());
  }
}

TEST_P(BlockKernels, RmsNormBackwardWeights) {
  for (const auto [rows, cols] : {Extent{1, 1}, {0, 4}, {5, 3}, {70, 37}, {1500, 33}, {3, 2100}}) {
    for (const Dtype to : sums()) {
      const Tensor x = random({rows, cols}), slope = random({rows, cols});
      const Tensor rstd = random({rows}, wide(), 0.8, 1.2), d_gain = random({cols}, to);
      const Values v = to_doubles(x), d = to_doubles(slope), r = to_doubles(rstd),
                   before = to_doubles(d_gain);
      kernels().rms_norm_backward_weights(x, rstd, slope, d_gain);
      std::vector<Real> reference, error;
      for (std::int64_t c = 0; c < cols; ++c) {
        Real sum = before[static_cast<std::size_t>(c)], size = std::abs(sum);
        for (std::int64_t row = 0; row < rows; ++row) {
          const Real term =
              Real{d[at(row, cols, c)]} * v[at(row, cols, c)] * r[static_cast<std::size_t>(row)];
          sum += term;
          size += std::abs(term);
        }
        reference.push_back(sum);
        error.push_back(1.01L * u() * static_cast<Real>(rows + 3) * size);
      }
      expect_within(to_doubles(d_gain), reference, error, to);
    }
  }
}

// gate and up are the halves of one product's rows, or separate matrices (in place), with odd
// widths and odd offsets. The argument of the exponential is exact. The exponential has 4
// roundoffs, each operation one.
TEST_P(BlockKernels, Swiglu) {
  for (const auto [rows, cols] : {Extent{1, 1}, {7, 5}, {33, 64}, {9, 1031}}) {
    for (const bool halves : {true, false}) {
      const Tensor both = random({rows, 2 * cols}, -9, 9), d_both = empty({rows, 2 * cols});
      const Tensor d_out = random({rows, cols}), out = empty({rows, cols});
      const Tensor own_gate = random({rows, cols}, -9, 9), own_up = random({rows, cols});
      const auto half = [&](const Tensor& whole, std::int64_t which) {
        Matrix part = matrix(whole);
        part.data = static_cast<char*>(part.data) +
                    static_cast<std::size_t>(which * cols) * size_of(dtype());
        part.cols = cols;
        return part;
      };
      const Matrix gate = halves ? half(both, 0) : matrix(own_gate);
      const Matrix up = halves ? half(both, 1) : matrix(own_up);
      const Matrix d_gate = halves ? half(d_both, 0) : gate, d_up = halves ? half(d_both, 1) : up;
      Values g, w;
      const Values all = to_doubles(both), d = to_doubles(d_out);
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t c = 0; c < cols; ++c) {
          g.push_back(all[at(row, 2 * cols, c)]);
          w.push_back(all[at(row, 2 * cols, cols + c)]);
        }
      if (!halves) {
        g = to_doubles(own_gate);
        w = to_doubles(own_up);
      }
      kernels().swiglu(gate, up, matrix(out));
      kernels().swiglu_backward(gate, up, matrix(d_out), d_gate, d_up);
      std::vector<Real> values, errors, gates, gate_errors, ups, up_errors;
      for (std::size_t i = 0; i < g.size(); ++i) {
        const Real s = 1 / (1 + std::exp(-Real{g[i]})), silu = g[i] * s;
        values.push_back(silu * w[i]);
        errors.push_back(1.01L * 8 * u() * std::abs(values.back()));
        const Real spread = std::abs(g[i]) * s * (1 - s);
        gates.push_back(d[i] * w[i] * (s + g[i] * s * (1 - s)));
        gate_errors.push_back(1.01L * u() * std::abs(Real{d[i]} * w[i]) * (9 * s + 15 * spread));
        ups.push_back(d[i] * silu);
        up_errors.push_back(1.01L * 9 * u() * std::abs(ups.back()));
      }
      expect_within(to_doubles(out), values, errors, dtype());
      Values got_gate = to_doubles(own_gate), got_up = to_doubles(own_up);
      if (halves) {
        const Values got = to_doubles(d_both);
        got_gate.clear();
        got_up.clear();
        for (std::int64_t row = 0; row < rows; ++row)
          for (std::int64_t c = 0; c < cols; ++c) {
            got_gate.push_back(got[at(row, 2 * cols, c)]);
            got_up.push_back(got[at(row, 2 * cols, cols + c)]);
          }
      }
      expect_within(got_gate, gates, gate_errors, dtype());
      expect_within(got_up, ups, up_errors, dtype());
    }
  }
}

// The pack that a row ends in also holds padding, which must not change.
TEST_P(BlockKernels, SwigluOfPaddedRows) {
  constexpr std::int64_t rows = 3, cols = 13, stride = 16;
  const Tensor gate = random({rows, stride}, -9, 9), up = random({rows, stride});
  const Tensor out = empty({rows, stride});
  from_doubles(out, Values(rows * stride, -7));
  const auto unpadded = [](const Tensor& tensor) {
    Matrix part = matrix(tensor);
    part.cols = cols;
    return part;
  };
  kernels().swiglu(unpadded(gate), unpadded(up), unpadded(out));
  const Values g = to_doubles(gate), w = to_doubles(up);
  std::vector<Real> values(rows * stride, -7), errors(rows * stride, 0);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::size_t i = at(row, stride, c);
      values[i] = g[i] / (1 + std::exp(-Real{g[i]})) * w[i];
      errors[i] = 1.01L * 8 * u() * std::abs(values[i]);
    }
  expect_within(to_doubles(out), values, errors, dtype());
}

// Queries of heads that are stored (q, k, v) by head. Other elements must not change. The angle is
// a product of position and a power in double (3 roundoffs). Its sine and cosine have one roundoff
// of the accumulator. Two products and a sum follow.
TEST_P(BlockKernels, Rotary) {
  struct Case {
    std::int64_t sequences, length, heads, head;
  };
  for (const auto [sequences, length, heads, head] :
       {Case{1, 1, 1, 2}, {2, 7, 3, 10}, {1, 130, 2, 64}, {2, 5, 1, 258}}) {
    const std::int64_t width = 3 * heads * head;
    const Tensor qkv = random({sequences * length, width}),
                 out = random({sequences * length, width});
    const auto queries = [&](const Tensor& tensor) {
      Matrix m = matrix(tensor);
      m.rows = length;
      m.cols = head;
      m.batch = {sequences, heads};
      m.batch_stride = {length * width, 3 * head};
      return m;
    };
    const Rotary options{.base = 500, .first_position = 11, .step = 3};
    const Values v = to_doubles(qkv), before = to_doubles(out);
    kernels().rotary(queries(qkv), options, queries(out));
    std::vector<Real> reference, error;
    for (std::int64_t row = 0; row < sequences * length; ++row)
      for (std::int64_t c = 0; c < width; ++c) {
        const std::int64_t i = c % (3 * head);
        if (i >= head) {
          reference.push_back(before[at(row, width, c)]);
          error.push_back(0);
          continue;
        }
        const std::int64_t pair = i % (head / 2);
        const Real angle = static_cast<Real>(11 + 3 * (row % length)) *
                           std::pow(500.0L, -2 * static_cast<Real>(pair) / static_cast<Real>(head));
        const Real low = v[at(row, width, c - i + pair)],
                   high = v[at(row, width, c - i + pair + head / 2)];
        reference.push_back(i == pair ? low * std::cos(angle) - high * std::sin(angle)
                                      : high * std::cos(angle) + low * std::sin(angle));
        const Real turn = 1.01L * (0x1p-53L * (3 * angle + 2) + u());
        error.push_back((turn + 2.02L * u()) * (std::abs(low) + std::abs(high)));
      }
    expect_within(to_doubles(out), reference, error, dtype());

    // Backward is the transpose: <rotary(x), y> = <x, rotary_backward(y)>. The test rotates back.
    const Tensor wide_in = random({length, head}, wide()), there = empty({length, head}, wide());
    const auto one = [&](const Tensor& tensor) {
      Matrix m = matrix(tensor);
      m.dtype = wide();
      return m;
    };
    kernels().rotary(one(wide_in), options, one(there));
    kernels().rotary_backward(one(there), options, one(there));
    std::vector<Real> original, distance;
    for (const double value : to_doubles(wide_in)) original.push_back(value);
    for (std::size_t i = 0; i < original.size(); ++i) {
      const std::size_t column = i % static_cast<std::size_t>(head),
                        other = column < static_cast<std::size_t>(head / 2)
                                    ? i + static_cast<std::size_t>(head / 2)
                                    : i - static_cast<std::size_t>(head / 2);
      // Each direction has at most sqrt(2) (|low| + |high|) (turn + 2 u), both with the same turn.
      distance.push_back(4 * (4 * u()) * (std::abs(original[i]) + std::abs(original[other])));
    }
    expect_within(to_doubles(there), original, distance, wide());
  }
}

// Kept values are exact products. The mask is uniform() < probability by global index, so a shard
// has the mask of the whole.
TEST_P(BlockKernels, Dropout) {
  constexpr std::int64_t rows = 21, cols = 37;
  const Tensor x = random({rows, cols}), out = empty({rows, cols});
  const Values v = to_doubles(x);
  for (const double probability : {0.0, 0.1, 0.5}) {
    kernels().dropout(x, probability, 77, {5, 3, 100}, out);
    std::vector<Real> reference, error;
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t c = 0; c < cols; ++c) {
        const bool dropped =
            uniform(77, static_cast<std::uint64_t>((5 + row) * 100 + 3 + c)) < probability;
        reference.push_back(dropped ? 0 : v[at(row, cols, c)] / (1 - Real{probability}));
        error.push_back(2.02L * u() * std::abs(reference.back()));
        if (dropped) {
          ASSERT_EQ(to_doubles(out.slice(row * cols + c, {1}))[0], 0);
        }
      }
    expect_within(to_doubles(out), reference, error, dtype());
    if (probability == 0) {
      EXPECT_EQ(hash(out), hash(x));
    }
    const Tensor part = empty({4, 9}), own = empty({4, 9});
    from_doubles(part, Values(36, 1));
    kernels().dropout(part, probability, 77, {7, 10, 100}, part);  // in place
    for (std::int64_t i = 0; i < 36; ++i)
      ASSERT_EQ(to_doubles(part)[static_cast<std::size_t>(i)] == 0,
                reference[at(2 + i / 9, cols, 7 + i % 9)] == 0);
  }
  // A fraction p of n elements is dropped, within five standard errors. The seed is fixed.
  const Tensor many = empty({300, 400});
  kernels().fill(many, 1);
  kernels().dropout(many, 0.1, 3, {}, many);
  const Values kept = to_doubles(many);
  const double n = 300 * 400;
  EXPECT_NEAR(static_cast<double>(std::ranges::count(kept, 0.0)) / n, 0.1,
              5 * std::sqrt(0.1 * 0.9 / n));
}

// The weights of the two parts are e^(sum - top) / total: a difference, an exponential with four
// roundoffs, a sum, a reciprocal and a product each, then two products and a sum. out and the
// logarithms are columns of wider matrices. Some rows have no keys on one side: they are copied or
// kept, and what they do not use is NaN.
TEST_P(BlockKernels, MergeAttention) {
  constexpr std::int64_t sequences = 2, heads = 3, queries = 5, head = 7, wider = 9;
  constexpr double no_keys = -INFINITY;
  const Tensor block = random({sequences * queries, heads * head}),
               out = random({sequences * wider, heads * head}, wide()),
               block_sums = random({sequences * heads, queries}, wide(), -3, 3),
               sums = random({sequences * heads, wider}, wide(), -3, 3);
  const auto batch = [](const Tensor& tensor, std::int64_t first, std::int64_t rows) {
    Matrix m = matrix(tensor);
    m.data = tensor.slice(first * tensor.cols(), {head}).data();
    m.rows = queries;
    m.cols = head;
    m.batch = {sequences, heads};
    m.batch_stride = {rows * tensor.cols(), head};
    return m;
  };
  Values added = to_doubles(block_sums), before = to_doubles(sums), x = to_doubles(block),
         y = to_doubles(out);
  const auto place = [&](std::int64_t matrix, std::int64_t query, std::int64_t rows,
                         std::int64_t c) {
    return at(matrix / heads * rows + query, heads * head, matrix % heads * head + c);
  };
  for (std::int64_t m = 0; m < sequences * heads; ++m) {  // queries 0, 1, 2 of every matrix
    added[at(m, queries, 0)] = before[at(m, wider, 1 + 1)] = no_keys;
    added[at(m, queries, 2)] = before[at(m, wider, 2 + 1)] = no_keys;
    added[at(m, queries, 3)] = 4000;  // the other side has a weight of zero
    for (std::int64_t c = 0; c < head; ++c) {
      x[place(m, 0, queries, c)] = x[place(m, 2, queries, c)] = NAN;
      y[place(m, 1 + 1, wider, c)] = NAN;
    }
  }
  from_doubles(block_sums, added);
  from_doubles(sums, before);
  from_doubles(block, x);
  from_doubles(out, y);
  Matrix some_sums = matrix(sums);
  some_sums.data = sums.slice(1, {queries}).data();
  some_sums.cols = queries;
  kernels().merge_attention(batch(block, 0, queries), matrix(block_sums), batch(out, 1, wider),
                            some_sums);

  const Values merged = to_doubles(out), logs = to_doubles(sums);
  for (std::int64_t m = 0; m < sequences * heads; ++m) {
    EXPECT_EQ(logs[at(m, wider, 0)], before[at(m, wider, 0)]);  // not a column of the call
    EXPECT_EQ(logs[at(m, wider, 1)], before[at(m, wider, 1)]);
    EXPECT_EQ(logs[at(m, wider, 3)], no_keys);
    for (std::int64_t query = 0; query < queries; ++query) {
      const Real a = before[at(m, wider, query + 1)], b = added[at(m, queries, query)];
      if (query != 2) {
        const Real top = std::max(a, b), total = std::exp(a - top) + std::exp(b - top);
        const Real log = top + std::log(total);
        expect_within({logs[at(m, wider, query + 1)]}, {log}, {8 * u() * (1 + std::abs(log))},
                      wide());
      }
      for (std::int64_t c = 0; c < head; ++c) {
        const double got = merged[place(m, query + 1, wider, c)],
                     old = y[place(m, query + 1, wider, c)], part = x[place(m, query, queries, c)];
        if (query == 0 || query == 2) {
          EXPECT_EQ(got, old);
        } else if (query == 1) {
          EXPECT_EQ(got, part);
        } else {
          const Real top = std::max(a, b), total = std::exp(a - top) + std::exp(b - top);
          const Real of_old = std::exp(a - top) / total * old,
                     of_part = std::exp(b - top) / total * part;
          expect_within(
              {got}, {of_old + of_part},
              {1.01L * u() * (std::abs(a - b) + 12) * (std::abs(of_old) + std::abs(of_part))},
              wide());
        }
      }
    }
  }
}

TEST_P(BlockKernels, MismatchesAreRejected) {
  const Tensor x = random({4, 6}), y = random({4, 5}), vector = random({6});
  EXPECT_THROW(kernels().rms_norm(x, vector, 1e-5, y, vector), std::logic_error);
  EXPECT_THROW(kernels().swiglu(matrix(x), matrix(y), matrix(x)), std::logic_error);
  EXPECT_THROW(kernels().rotary(matrix(y), {}, matrix(y)), std::logic_error);
  EXPECT_THROW(kernels().rotary(matrix(x).transposed(), {}, matrix(x).transposed()),
               std::logic_error);
  EXPECT_THROW(kernels().dropout(x, 1, 0, {}, x), std::logic_error);
}

SHARDMARK_ON_EVERY_DEVICE(BlockKernels);

// Any number of threads gives the same bits. The sizes are large enough to be split among threads.
TEST(Threads, ComputeTheSameBits) {
  const auto device = make_host_device();
  Kernels& kernels = device->stream().kernels();
  const auto make = [&](Shape shape, Dtype dtype = Dtype::float32) {
    Tensor tensor(*device, dtype, shape, Category::buffers);
    kernels.fill_normal(tensor, 9, {}, 0, 1);
    return tensor;
  };
  std::vector<std::uint64_t> alone;
  for (const int threads : {1, 2, 3, 5}) {
    device->set_threads(threads);
    const Tensor x = make({700, 333}), y = make({700, 333}), gain = make({333}), rows = make({700});
    const Tensor out = make({700, 333}), mean = make({700}), rstd = make({700});
    const Tensor d_gain = make({333}), d_bias = make({333}), table = make({50, 333});
    const Tensor total = make({}, Dtype::float64);
    std::vector<std::int32_t> tokens(700);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i % 50);
    std::vector<std::uint64_t> hashes;
    const auto keep = [&](const Tensor& tensor) { hashes.push_back(hash(tensor)); };
    keep(x);
    kernels.gelu(x, out);
    keep(out);
    kernels.layer_norm(x, gain, gain, 1e-5, out, mean, rstd);
    keep(out);
    kernels.layer_norm_backward_weights(x, mean, rstd, y, d_gain, d_bias);
    keep(d_gain);
    kernels.embedding_backward(tokens.data(), y, 0, table);
    keep(table);
    kernels.sum_of_squares(x, total);
    keep(total);
    kernels.dropout(x, 0.3, 4, {}, out);
    keep(out);
    Matrix heads = matrix(out);
    heads.cols = 332;
    kernels.rotary(heads, {}, heads);
    keep(out);
    kernels.swiglu(matrix(x), matrix(y), matrix(out));
    keep(out);
    if (threads == 1) alone = hashes;
    EXPECT_EQ(hashes, alone) << threads << " threads";
  }
}

}  // namespace
}  // namespace machine
