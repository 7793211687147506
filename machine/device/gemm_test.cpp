#include "machine/device/gemm.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <thread>

#include "machine/testing/on_device.h"

namespace machine {
namespace {

class Gemm : public OnDevice {
 protected:
  // Compares with the sum over k in long double. The componentwise error covers k products and sums
  // in the accumulator, the factors alpha and beta and their sum, and the rounding to c's dtype.
  void check(const Matrix& a, const Matrix& b, const Matrix& c, float alpha, float beta,
             const Tensor& a_in, const Tensor& b_in, const Tensor& c_in) {
    const Values av = to_doubles(a_in), bv = to_doubles(b_in), before = to_doubles(c_in);
    gemm(device_->stream(), a, b, c, alpha, beta);
    const Values after = to_doubles(c_in);
    const auto at = [](const Matrix& x, std::int64_t outer, std::int64_t inner, std::int64_t row,
                       std::int64_t col) {
      return static_cast<std::size_t>(outer * x.batch_stride[0] + inner * x.batch_stride[1] +
                                      row * x.row_stride + col * x.col_stride);
    };
    const double u = sum_roundoff(a.dtype);
    Values got;
    std::vector<Real> reference, error;
    std::vector<bool> written(after.size());
    for (std::int64_t outer = 0; outer < c.batch[0]; ++outer) {
      for (std::int64_t inner = 0; inner < c.batch[1]; ++inner) {
        for (std::int64_t i = 0; i < c.rows; ++i) {
          for (std::int64_t j = 0; j < c.cols; ++j) {
            Real sum = 0, size = 0;
            for (std::int64_t k = 0; k < a.cols; ++k) {
              const Real term =
                  static_cast<Real>(av[at(a, outer, inner, i, k)]) * bv[at(b, outer, inner, k, j)];
              sum += term;
              size += std::abs(term);
            }
            const std::size_t place = at(c, outer, inner, i, j);
            const Real old = beta == 0 ? 0 : static_cast<Real>(beta) * before[place];
            written[place] = true;
            got.push_back(after[place]);
            reference.push_back(alpha * sum + old);
            error.push_back(static_cast<Real>(a.cols + 4) * u *
                            (std::abs(alpha) * size + std::abs(old)));
          }
        }
      }
    }
    expect_within(got, reference, error, c.dtype);
    for (std::size_t i = 0; i < after.size(); ++i) {
      if (!written[i] && !std::isnan(before[i])) {
        ASSERT_EQ(after[i], before[i]) << "wrote outside of c, at " << i;
      }
    }
  }

  // Dtypes of c: the dtype of a, and also float if that is narrow.
  std::vector<Dtype> results() const { return sums(); }
};

TEST_P(Gemm, EveryTransposeAndSize) {
  struct Size {
    std::int64_t m, n, k;
  };
  for (const auto [m, n, k] :
       {Size{1, 1, 1}, Size{17, 33, 5}, Size{64, 48, 80}, Size{1, 65, 129}, Size{67, 1, 31},
        Size{3, 130, 1}, Size{128, 96, 257}, Size{5, 1030, 3}, Size{2, 3, 17000}}) {
    for (const int transposes : {0, 1, 2, 3}) {
      for (const Dtype result : results()) {
        const bool ta = transposes & 1, tb = transposes & 2;
        const Tensor a = ta ? random({k, m}) : random({m, k});
        const Tensor b = tb ? random({n, k}) : random({k, n});
        const Tensor c = empty({m, n}, result);  // NaN: beta 0 must not read it
        SCOPED_TRACE(fmt::format("m {} n {} k {} transposes {}", m, n, k, transposes));
        check(ta ? matrix(a).transposed() : matrix(a), tb ? matrix(b).transposed() : matrix(b),
              matrix(c), 1, 0, a, b, c);
      }
    }
  }
}

// Each sum has one order, regardless of the split among threads.
TEST_P(Gemm, DoublesHaveTheSameBitsOnAnyNumberOfThreads) {
  if (dtype() != Dtype::float64 || device_->kind() != Device::Kind::host) GTEST_SKIP();
  const Tensor a = random({12, 100, 170}), b = random({12, 170, 30});
  for (const std::int64_t batches : {1, 12}) {
    std::vector<std::uint64_t> hashes;
    for (const int threads : {1, 3}) {
      device_->set_threads(threads);
      const Tensor c = empty({12, 100, 30});
      Matrix ma = matrix(a), mb = matrix(b), mc = matrix(c);
      for (Matrix* x : {&ma, &mb, &mc}) {
        if (batches == 1) continue;  // all rows of a with the first matrix of b
        x->rows /= batches;
        x->batch = {1, batches};
        x->batch_stride[1] = x->rows * x->cols;
      }
      if (batches == 1) mb.rows = 170;
      gemm(device_->stream(), ma, mb, mc);
      hashes.push_back(hash(c));
    }
    EXPECT_EQ(hashes[0], hashes[1]) << batches << " batches";
  }
}

TEST_P(Gemm, ALogHoldsTheProducts) {
  const Tensor a = random({4, 3}), b = random({3, 5}), c = random({4, 5});
  {
    const GemmLog log;
    gemm(device_->stream(), matrix(a), matrix(b), matrix(c), 2, 1);
    gemm(device_->stream(), matrix(b).transposed(), matrix(a).transposed(), matrix(c).transposed());
    ASSERT_EQ(log.products().size(), 2U);
    EXPECT_EQ(log.products()[0].c.data, c.data());
    EXPECT_EQ(log.products()[0].alpha, 2);
    EXPECT_EQ(log.products()[0].beta, 1);
    EXPECT_EQ(log.products()[1].a.row_stride, 1);
    EXPECT_EQ(log.products()[0].flops(), 2 * 4 * 3 * 5);
  }
  gemm(device_->stream(), matrix(a), matrix(b), matrix(c));  // without a log
  const GemmLog fresh;
  EXPECT_TRUE(fresh.products().empty());
}

TEST_P(Gemm, AlphaAndBeta) {
  for (const Dtype result : results()) {
    for (const auto& [alpha, beta] : {std::pair{1.0f, 1.0f}, {0.37f, -1.5f}, {-2.0f, 0.0f}}) {
      const Tensor a = random({29, 41}), b = random({41, 23}), c = random({29, 23}, result);
      check(matrix(a), matrix(b), matrix(c), alpha, beta, a, b, c);
    }
  }
}

TEST_P(Gemm, TransposedResult) {
  for (const Dtype result : results()) {
    const Tensor a = random({19, 30}), b = random({30, 21}), c = random({21, 19}, result);
    check(matrix(a), matrix(b), matrix(c).transposed(), 1, 1, a, b, c);
  }
}

TEST_P(Gemm, PartOfWiderRows) {
  // Columns 3..12 of a [9, 20], columns 7..16 of the result: strides beyond the extents.
  const Tensor a = random({9, 20}), b = random({10, 9}), c = random({9, 31});
  Matrix part = matrix(a), to = matrix(c);
  part.data = static_cast<char*>(part.data) + 3 * size_of(dtype());
  part.cols = 10;
  to.data = static_cast<char*>(to.data) + 7 * size_of(dtype());
  to.cols = 9;
  const Values before = to_doubles(c);
  check(part, matrix(b), to, 1, 0.5f, a.slice(3, {177}), b, c.slice(7, {272}));
  const Values after = to_doubles(c);
  for (std::size_t i = 0; i < after.size(); ++i) {
    const std::size_t col = i % 31;
    if (col < 7 || col >= 16) {
      ASSERT_EQ(after[i], before[i]);
    }
  }
}

TEST_P(Gemm, PlainBatches) {
  for (const Dtype result : results()) {
    const Tensor a = random({6, 11, 7}), b = random({6, 7, 13}), c = random({6, 11, 13}, result);
    Matrix ma = matrix(a), mb = matrix(b), mc = matrix(c);
    for (Matrix* x : {&ma, &mb, &mc}) x->batch = {1, 6};
    ma.rows = mc.rows = 11;
    mb.rows = 7;
    ma.batch_stride[1] = 77;
    mb.batch_stride[1] = 91;
    mc.batch_stride[1] = 143;
    check(ma, mb, mc, 0.5f, 1, a, b, c);
  }
}

// Attention on interleaved heads: x [batch, tokens, 3, heads, size], scores [batch, heads, t, t].
TEST_P(Gemm, InterleavedHeads) {
  constexpr std::int64_t batch = 2, tokens = 18, heads = 3, size = 10, line = 3 * heads * size;
  const Tensor x = random({batch * tokens, line});
  const auto part = [&](std::int64_t which) {
    Matrix m;
    m.data = static_cast<char*>(x.data()) +
             static_cast<std::size_t>(which * heads * size) * size_of(dtype());
    m.dtype = dtype();
    m.rows = tokens;
    m.cols = size;
    m.row_stride = line;
    m.batch = {batch, heads};
    m.batch_stride = {tokens * line, size};
    return m;
  };
  const auto view = [&](std::int64_t which) {
    return x.slice(which * heads * size, {x.size() - which * heads * size});
  };
  const Tensor scores = random({batch, heads, tokens, tokens});
  Matrix s = matrix(scores);
  s.rows = tokens;
  s.batch = {batch, heads};
  s.batch_stride = {heads * tokens * tokens, tokens * tokens};
  check(part(0), part(1).transposed(), s, 0.25f, 0, view(0), view(1), scores);

  const Tensor out = random({batch * tokens, heads * size});
  Matrix o = matrix(out);
  o.rows = tokens;
  o.cols = size;
  o.batch = {batch, heads};
  o.batch_stride = {tokens * heads * size, size};
  check(s, part(2), o, 1, 0, scores, view(2), out);
  check(s.transposed(), part(2), o, 1, 1, scores, view(2), out);
}

TEST_P(Gemm, SharedOperandOfABatch) {
  // Stride 0: one b for every batch.
  const Tensor a = random({4, 5, 6}), b = random({6, 8}), c = random({4, 5, 8});
  Matrix ma = matrix(a), mb = matrix(b), mc = matrix(c);
  ma.rows = mc.rows = 5;
  for (Matrix* x : {&ma, &mb, &mc}) x->batch = {2, 2};
  ma.batch_stride = {60, 30};
  mc.batch_stride = {80, 40};
  check(ma, mb, mc, 1, 0, a, b, c);
}

TEST_P(Gemm, AnEmptySumScalesTheResult) {
  const Tensor a = random({3, 0}), b = random({0, 4}), c = random({3, 4});
  Matrix ma = matrix(a);
  ma.rows = 3;
  check(ma, matrix(b), matrix(c), 1, 0.5f, a, b, c);
  check(ma, matrix(b), matrix(c), 1, 0, a, b, c);
  EXPECT_EQ(to_doubles(c), Values(12, 0.0));
}

TEST_P(Gemm, AnEmptyResultNeedsNoWork) {
  const Tensor a = random({0, 4}), b = random({4, 5}), c = random({0, 5});
  gemm(device_->stream(), matrix(a), matrix(b), matrix(c));
}

TEST_P(Gemm, ThreadsComputeTheSame) {
  const Tensor a = random({150, 70}), b = random({70, 90});
  for (const int threads : {1, 2}) {
    device_->set_threads(threads);
    const Tensor first = empty({150, 90}), second = empty({150, 90});
    check(matrix(a), matrix(b), matrix(first), 1, 0, a, b, first);
    gemm(device_->stream(), matrix(a), matrix(b), matrix(second));
    EXPECT_EQ(hash(first), hash(second));  // the same bits in every run
  }
}

// On the host, panels of 512 rows, columns and terms are multiplied (host/widened_gemm.h).
TEST_P(Gemm, SeveralPanelsInEachExtent) {
  if (device_->kind() != Device::Kind::host) GTEST_SKIP() << "panels of the host";
  for (const auto& [m, n, k] :
       {std::array<std::int64_t, 3>{600, 700, 5}, {1100, 40, 40}, {40, 40, 1300}}) {
    const Tensor a = random({m, k}), b = random({n, k});
    for (const int threads : {1, 3}) {
      device_->set_threads(threads);
      for (const Dtype result : results()) {
        const Tensor c = random({m, n}, result);
        SCOPED_TRACE(fmt::format("m {} n {} k {} threads {}", m, n, k, threads));
        check(matrix(a), matrix(b).transposed(), matrix(c), -1, 0.5f, a, b, c);
      }
    }
  }
}

// On the host, products of floats whose right matrix has long rows are oneDNN's sgemm.
TEST_P(Gemm, LongRowsOfTheRightMatrix) {
  constexpr std::int64_t m = 9, n = 800, k = 70, left = m + k, right = n + 3, result = n + 30;
  const Tensor b = random({k, right}), c = random({m, result});
  Matrix mb = matrix(b), mc = matrix(c);
  mb.cols = mc.cols = n;
  for (const bool transposed : {false, true}) {
    const Tensor a = random({transposed ? k : m, left});
    Matrix ma = matrix(a);
    ma.cols = transposed ? m : k;
    if (transposed) ma = ma.transposed();
    for (const int threads : {1, 3}) {
      if (device_->kind() == Device::Kind::host) device_->set_threads(threads);
      for (const auto& [alpha, beta] : {std::pair{1.0f, 0.0f}, {-0.5f, 1.5f}}) {
        SCOPED_TRACE(fmt::format("transposed {} threads {} beta {}", transposed, threads, beta));
        const Values before = to_doubles(c);
        check(ma, mb, mc, alpha, beta, a, b, c);
        const Values after = to_doubles(c);
        for (std::size_t i = 0; i < after.size(); ++i) {
          if (i % result >= n) {
            ASSERT_EQ(after[i], before[i]) << "wrote outside of c, at " << i;
          }
        }
      }
    }
  }
}

// Ranks are threads of one process, each with its own device, thread count and cached primitives.
TEST_P(Gemm, RanksAtOnce) {
  if (device_->kind() != Device::Kind::host) GTEST_SKIP() << "one rank a CUDA device";
  const Tensor a = random({61, 83}), b = random({83, 47}), expected = empty({61, 47});
  check(matrix(a), matrix(b), matrix(expected), 1, 0, a, b, expected);
  const Values left = to_doubles(a), right = to_doubles(b), alone = to_doubles(expected);
  std::vector<Values> results(4);
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      const auto device = make_host_device();
      const Tensor x(*device, dtype(), {61, 83}, Category::buffers);
      const Tensor y(*device, dtype(), {83, 47}, Category::buffers);
      const Tensor z(*device, dtype(), {61, 47}, Category::buffers);
      from_doubles(x, left);
      from_doubles(y, right);
      for (int i = 0; i < 20; ++i) gemm(device->stream(), matrix(x), matrix(y), matrix(z));
      results[rank] = to_doubles(z);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const Values& result : results) EXPECT_EQ(result, alone);
}

// GELU's input is the sum before it is rounded. GELU's slope is at most 1.13. The errors of
// cuBLASLt 13.0 on an H200 are as if it rounded the product, too, and the sum before GELU.
TEST_P(Gemm, AFusedEpilogueAddsBiasAndGelu) {
  const bool supported = device_->kind() == Device::Kind::cuda && dtype() != Dtype::float64;
  const std::int64_t m = 17, k = 33;
  for (const std::int64_t n : {40, 44}) {
    for (const bool gelu : {false, true}) {
      SCOPED_TRACE(fmt::format("n {}{}", n, gelu ? ", with GELU" : ""));
      const Tensor x = random({m, k}), weight = random({n, k}), bias = random({n});
      const Tensor sums = empty({m, n}), y = empty({m, n});
      const bool done = fused_gemm(device_->stream(), matrix(x), matrix(weight).transposed(), bias,
                                   gelu ? sums : Tensor(), y);
      if (!supported || cuda::is_virtual()) {
        EXPECT_EQ(done, supported && (!gelu || n % 8 == 0)) << "rows of GELU's input are aligned";
      }
      if (!done) {
        for (const double value : to_doubles(y)) ASSERT_TRUE(std::isnan(value)) << "was written";
        continue;
      }
      const Values xv = to_doubles(x), wv = to_doubles(weight), bv = to_doubles(bias);
      std::vector<Real> exact, error;
      for (std::int64_t row = 0; row < m; ++row)
        for (std::int64_t col = 0; col < n; ++col) {
          const Real added = bv[static_cast<std::size_t>(col)];
          Real sum = added, size = std::abs(sum);
          for (std::int64_t i = 0; i < k; ++i) {
            const Real term = static_cast<Real>(xv[static_cast<std::size_t>(row * k + i)]) *
                              wv[static_cast<std::size_t>(col * k + i)];
            sum += term;
            size += std::abs(term);
          }
          exact.push_back(sum);
          error.push_back(static_cast<Real>(k + 4) * sum_roundoff(dtype()) * size);
          if (!cuda::is_virtual())
            error.back() +=
                unit_roundoff(dtype()) * (std::abs(sum - added) + (gelu ? std::abs(sum) : 0));
        }
      expect(
          gelu ? sums : y, [&](std::size_t i) { return exact[i]; },
          [&](std::size_t i) { return error[i]; });
      if (!gelu) continue;
      const Real slope = 1.13L, factor = std::sqrt(2 / std::acos(Real(-1)));
      expect(
          y,
          [&](std::size_t i) {
            const Real v = exact[i];
            return v / 2 * (1 + std::tanh(factor * (v + 0.044715L * v * v * v)));
          },
          [&](std::size_t i) {
            return slope * error[i] + 16 * sum_roundoff(dtype()) * (1 + std::abs(exact[i]));
          });
    }
  }
}

TEST_P(Gemm, MismatchesAreRejected) {
  const Tensor a = random({3, 4}), b = random({5, 6}), c = random({3, 6});
  EXPECT_THROW(gemm(device_->stream(), matrix(a), matrix(b), matrix(c)), std::logic_error);
  const Dtype other = dtype() == Dtype::float64 ? Dtype::bfloat16 : Dtype::float64;
  const Tensor mixed = random({4, 6}, other);
  EXPECT_THROW(gemm(device_->stream(), matrix(a), matrix(mixed), matrix(c)), std::logic_error);
}

SHARDMARK_ON_EVERY_DEVICE(Gemm);

}  // namespace
}  // namespace machine
