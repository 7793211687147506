#include "machine/device/flash_attention.h"

#include <fmt/format.h>

#include "machine/base/error.h"
#include "machine/device/random.h"
#include "machine/testing/on_device.h"
#ifdef SHARDMARK_VIRTUAL_GPU
#include "machine/virtual_gpu/counts.h"
#endif

namespace machine {
namespace {

struct Sizes {
  std::int64_t sequences, heads, kv_heads, queries, keys, head;
  bool causal = true;
  double scale = 0.125;
  std::vector<std::int32_t> lengths = {};  // of the sequences; empty: all keys
  double dropout = 0;
};
constexpr std::uint64_t dropout_seed = 11;
constexpr std::int64_t first_matrix = 5, matrices_apart = 9;

// One to several blocks, none a multiple of them. Heads are grouped, long or odd. Queries are more
// or fewer than keys. Some scores are so large that only their differences can be exponentiated.
// Sequences have no key, one key, some keys, all keys, or a length beyond them. Dropout drops some
// probabilities or most of them.
const Sizes cases[] = {
    {1, 1, 1, 1, 1, 1},
    {2, 3, 3, 7, 7, 10},
    {1, 1, 1, 110, 110, 64},
    {2, 4, 2, 41, 41, 33},
    {1, 3, 1, 49, 73, 16, false},
    {1, 1, 1, 100, 11, 8},
    {1, 1, 1, 23, 50, 256},
    {1, 2, 1, 40, 40, 128, true, 2},
    {1, 1, 1, 0, 5, 4},
    {3, 2, 1, 70, 70, 16, false, 0.125, {70, 0, 33}},
    {4, 1, 1, 53, 110, 24, true, 0.5, {200, 1, 0, 49}},
    {2, 4, 2, 60, 60, 20, true, 0.125, {}, 0.3},
    {3, 2, 2, 41, 100, 72, false, 0.125, {67, 0, 100}, 0.9},
};

// A batch of heads in a tensor. `first` is the offset of its first element.
struct Heads {
  Tensor tensor;
  Matrix matrix;
  Values values;
  double operator()(std::int64_t sequence, std::int64_t head, std::int64_t row,
                    std::int64_t col) const {
    return values[static_cast<std::size_t>(place(sequence, head, row, col))];
  }
  std::int64_t place(std::int64_t sequence, std::int64_t head, std::int64_t row,
                     std::int64_t col) const {
    return first + sequence * matrix.batch_stride[0] + head * matrix.batch_stride[1] +
           row * matrix.row_stride + col;
  }
  std::int64_t first = 0;
};

// Values or bounds of one result, in the layout of its heads: [sequences, heads, rows, cols].
struct Cube {
  std::int64_t heads, rows, cols;
  std::vector<Real> values;
  Cube(const Sizes& s, std::int64_t heads, std::int64_t rows)
      : heads(heads),
        rows(rows),
        cols(s.head),
        values(static_cast<std::size_t>(s.sequences * heads * rows * s.head)) {}
  Real& operator()(std::int64_t sequence, std::int64_t head, std::int64_t row, std::int64_t col) {
    return values[static_cast<std::size_t>(((sequence * heads + head) * rows + row) * cols + col)];
  }
};

class FlashAttention : public OnDevice {
 protected:
  Real u() const { return sum_roundoff(dtype()); }
  // Returns the error of a factor that a narrow dtype may round before the product.
  Real narrowing(Real x) const {
    return is_narrow() ? Real{rounding(dtype(), static_cast<double>(x))} : 0;
  }

  static Heads heads_of(const Tensor& tensor, std::int64_t sequences, std::int64_t heads,
                        std::int64_t rows, std::int64_t head, std::int64_t part,
                        std::int64_t parts) {
    Heads result;
    result.tensor = tensor;
    result.first = part * head;
    Matrix& m = result.matrix = matrix(tensor);
    m.data = static_cast<char*>(m.data) +
             static_cast<std::size_t>(result.first) * size_of(tensor.dtype());
    m.rows = rows;
    m.cols = head;
    m.row_stride = heads * parts * head;
    m.batch = {sequences, heads};
    m.batch_stride = {rows * m.row_stride, parts * head};
    result.values = to_doubles(tensor);
    return result;
  }
  static Values read(const Heads& heads) {
    const Values all = to_doubles(heads.tensor);
    Values result;
    for (std::int64_t a = 0; a < heads.matrix.batch[0]; ++a)
      for (std::int64_t b = 0; b < heads.matrix.batch[1]; ++b)
        for (std::int64_t row = 0; row < heads.matrix.rows; ++row)
          for (std::int64_t col = 0; col < heads.matrix.cols; ++col)
            result.push_back(all[static_cast<std::size_t>(heads.place(a, b, row, col))]);
    return result;
  }

  // Inputs and results. q, k and v share a tensor if they have the same numbers of heads and rows,
  // as in the layer. Otherwise only k and v share one.
  struct Call {
    Heads q, k, v, out, d_out, d_q, d_k, d_v;
    Tensor log_sum_exp;
    Memory lengths;
  };
  Call make(const Sizes& s) {
    const auto tensor = [&](std::int64_t heads, std::int64_t rows, std::int64_t parts,
                            bool result) {
      const Shape shape{s.sequences * rows, heads * parts * s.head};
      return result ? empty(shape) : random(shape);
    };
    const auto inputs = [&](bool result, Heads& q, Heads& k, Heads& v) {
      const bool together = s.heads == s.kv_heads && s.queries == s.keys;
      const Tensor own = tensor(s.heads, s.queries, 1, result);
      const Tensor rest = tensor(s.kv_heads, s.keys, together ? 3 : 2, result);
      const std::int64_t parts = together ? 3 : 2;
      q = together ? heads_of(rest, s.sequences, s.heads, s.keys, s.head, 0, 3)
                   : heads_of(own, s.sequences, s.heads, s.queries, s.head, 0, 1);
      k = heads_of(rest, s.sequences, s.kv_heads, s.keys, s.head, parts - 2, parts);
      v = heads_of(rest, s.sequences, s.kv_heads, s.keys, s.head, parts - 1, parts);
    };
    Call call;
    inputs(false, call.q, call.k, call.v);
    inputs(true, call.d_q, call.d_k, call.d_v);
    call.out = heads_of(tensor(s.heads, s.queries, 1, true), s.sequences, s.heads, s.queries,
                        s.head, 0, 1);
    call.d_out = heads_of(tensor(s.heads, s.queries, 1, false), s.sequences, s.heads, s.queries,
                          s.head, 0, 1);
    call.log_sum_exp = empty({s.sequences * s.heads, s.queries}, wide());
    if (!s.lengths.empty()) call.lengths = upload(s.lengths);
    return call;
  }
  // A device with little shared memory rejects long heads of wide dtypes.
  bool is_rejected(const Sizes& s) {
    const std::string why = why_not_flash_attention(device_->stream(), dtype(), s.head);
    if (why.empty()) return false;
    const Call c = make(s);
    EXPECT_THROW(forward(s, c), MachineError) << why;
    EXPECT_THROW(backward(s, c), MachineError) << why;
    return true;
  }
  static AttentionOptions options(const Sizes& s, const Call& c) {
    return {s.scale,
            s.causal,
            s.lengths.empty() ? nullptr : static_cast<const std::int32_t*>(c.lengths.data()),
            {s.dropout, dropout_seed, first_matrix, matrices_apart}};
  }
  void forward(const Sizes& s, const Call& c) {
    flash_attention(device_->stream(), c.q.matrix, c.k.matrix, c.v.matrix, options(s, c),
                    c.out.matrix, c.log_sum_exp);
  }
  void backward(const Sizes& s, const Call& c) {
    flash_attention_backward(device_->stream(), c.q.matrix, c.k.matrix, c.v.matrix, options(s, c),
                             c.out.matrix, c.log_sum_exp, c.d_out.matrix, c.d_q.matrix,
                             c.d_k.matrix, c.d_v.matrix);
  }

  struct Score {
    Real value, error;
  };
  // Returns a product of head terms. The scale is one more factor, on either side.
  Score score(const Sizes& s, const Call& c, std::int64_t a, std::int64_t h, std::int64_t i,
              std::int64_t j) const {
    Real sum = 0, size = 0;
    for (std::int64_t x = 0; x < s.head; ++x) {
      const Real term = Real{c.q(a, h, i, x)} * c.k(a, h / (s.heads / s.kv_heads), j, x);
      sum += term;
      size += std::abs(term);
    }
    return {s.scale * sum, u() * static_cast<Real>(s.head + 2) * s.scale * size};
  }
  static std::int64_t seen_by(const Sizes& s, std::int64_t a, std::int64_t query) {
    std::int64_t keys = s.keys;
    if (!s.lengths.empty())
      keys = std::min<std::int64_t>(keys, s.lengths[static_cast<std::size_t>(a)]);
    return s.causal ? std::min(query + 1, keys) : keys;
  }
  // Returns the factor of a probability by dropout.
  static Real kept(const Sizes& s, std::int64_t a, std::int64_t h, std::int64_t i, std::int64_t j) {
    if (s.dropout == 0) return 1;
    const std::int64_t matrix = first_matrix + a * matrices_apart + h;
    const auto index = static_cast<std::uint64_t>((matrix * s.queries + i) * s.keys + j);
    return uniform(dropout_seed, index) < s.dropout ? 0 : 1 / (1 - Real{s.dropout});
  }
};

// The error of a weight e^z has three parts. The first is the error of z. The second is a roundoff
// of the two differences between z and the final maximum, each at most the range of scores. Each
// exponential and product adds five roundoffs. There is at most one per 16 keys, where a maximum
// may rise. The third is the narrowing of the weight. Two sums over the keys and a division follow.
TEST_P(FlashAttention, Forward) {
  for (const Sizes& s : cases) {
    SCOPED_TRACE(fmt::format("queries {} keys {} head {}", s.queries, s.keys, s.head));
    if (is_rejected(s)) continue;
    const Call c = make(s);
    forward(s, c);
    Cube reference(s, s.heads, s.queries), bound(s, s.heads, s.queries);
    Values sums_got = to_doubles(c.log_sum_exp);
    std::vector<Real> sums, sum_bounds;
    for (std::int64_t a = 0; a < s.sequences; ++a)
      for (std::int64_t h = 0; h < s.heads; ++h)
        for (std::int64_t i = 0; i < s.queries; ++i) {
          const std::int64_t seen = seen_by(s, a, i), kv = h / (s.heads / s.kv_heads);
          double& log_sum_exp =
              sums_got[static_cast<std::size_t>((a * s.heads + h) * s.queries + i)];
          if (seen == 0) {  // out is exactly 0
            EXPECT_EQ(log_sum_exp, -INFINITY);
            log_sum_exp = 0;
            sums.push_back(0);
            sum_bounds.push_back(0);
            continue;
          }
          std::vector<Score> z;
          Real top = -INFINITY, bottom = INFINITY;
          for (std::int64_t j = 0; j < seen; ++j) {
            z.push_back(score(s, c, a, h, i, j));
            top = std::max(top, z.back().value);
            bottom = std::min(bottom, z.back().value);
          }
          const Real steps = static_cast<Real>(seen) / 16 + 2, n = static_cast<Real>(seen + 2);
          Real total = 0, total_error = 0;
          std::vector<Real> weight, error;
          for (const Score& one : z) {
            weight.push_back(std::exp(one.value - top));
            error.push_back(weight.back() * (one.error + u() * (2 * (top - bottom) + 5 * steps)) +
                            narrowing(weight.back()));
            total += weight.back();
            total_error += error.back();
          }
          sums.push_back(top + std::log(total));
          sum_bounds.push_back(1.01L * (total_error / total + u() * n +
                                        4 * u() * (std::abs(top) + std::log(total))));
          for (std::int64_t x = 0; x < s.head; ++x) {
            Real value = 0, size = 0, value_error = 0;
            for (std::int64_t j = 0; j < seen; ++j) {
              const auto at = static_cast<std::size_t>(j);
              const Real v = kept(s, a, h, i, j) * c.v(a, kv, j, x);
              value += weight[at] * v;
              size += weight[at] * std::abs(v);
              value_error += error[at] * std::abs(v);
            }
            reference(a, h, i, x) = value / total;
            bound(a, h, i, x) =
                1.01L * (value_error / total + u() * n * size / total +
                         std::abs(value) / total * (total_error / total + u() * (n + 4)));
          }
        }
    expect_within(read(c.out), reference.values, bound.values, dtype());
    expect_within(sums_got, sums, sum_bounds, wide());
  }
}

// out and log_sum_exp are inputs here. The error of a probability is that of its score and of the
// difference, plus five roundoffs. Products and sums add their own errors. p and d_s may be
// narrowed.
TEST_P(FlashAttention, Backward) {
  for (const Sizes& s : cases) {
    SCOPED_TRACE(fmt::format("queries {} keys {} head {}", s.queries, s.keys, s.head));
    if (is_rejected(s)) continue;
    Call c = make(s);
    forward(s, c);
    c.out.values = to_doubles(c.out.tensor);
    const Values log_sum_exp = to_doubles(c.log_sum_exp);
    backward(s, c);
    Cube d_q(s, s.heads, s.queries), q_bound = d_q, d_k(s, s.kv_heads, s.keys), k_bound = d_k,
                                     d_v = d_k, v_bound = d_k;
    const std::int64_t group = s.heads / s.kv_heads;
    const Real keys = static_cast<Real>(s.keys + 4),
               queries = static_cast<Real>(s.queries * group + 4),
               depth = static_cast<Real>(s.head + (s.dropout > 0 ? 3 : 1));
    for (std::int64_t a = 0; a < s.sequences; ++a)
      for (std::int64_t h = 0; h < s.heads; ++h)
        for (std::int64_t i = 0; i < s.queries; ++i) {
          const std::int64_t kv = h / group;
          Real delta = 0, delta_size = 0;
          for (std::int64_t x = 0; x < s.head; ++x) {
            const Real term = Real{c.d_out(a, h, i, x)} * c.out(a, h, i, x);
            delta += term;
            delta_size += std::abs(term);
          }
          for (std::int64_t j = 0; j < seen_by(s, a, i); ++j) {
            const Score z = score(s, c, a, h, i, j);
            const Real exponent =
                z.value - log_sum_exp[static_cast<std::size_t>((a * s.heads + h) * s.queries + i)];
            const Real p = std::exp(exponent);
            const Real p_error = p * (z.error + u() * (2 * std::abs(exponent) + 5));
            const Real factor = kept(s, a, h, i, j);
            const Real used = factor * p, used_error = factor * (p_error + 2 * u() * p);
            Real slope = -delta, size = 0;
            for (std::int64_t x = 0; x < s.head; ++x) {
              const Real term = factor * c.d_out(a, h, i, x) * c.v(a, kv, j, x);
              slope += term;
              size += std::abs(term);
            }
            const Real d_s = p * slope;
            const Real d_s_error = p_error * std::abs(slope) +
                                   p * u() * (depth * (size + delta_size) + 3 * std::abs(slope)) +
                                   narrowing(d_s);
            for (std::int64_t x = 0; x < s.head; ++x) {
              const Real q = std::abs(c.q(a, h, i, x)), k = std::abs(c.k(a, kv, j, x)),
                         d_out = std::abs(c.d_out(a, h, i, x));
              d_q(a, h, i, x) += s.scale * d_s * c.k(a, kv, j, x);
              q_bound(a, h, i, x) += 1.01L * s.scale * k * (d_s_error + keys * u() * std::abs(d_s));
              d_k(a, kv, j, x) += s.scale * d_s * c.q(a, h, i, x);
              k_bound(a, kv, j, x) +=
                  1.01L * s.scale * q * (d_s_error + queries * u() * std::abs(d_s));
              d_v(a, kv, j, x) += used * c.d_out(a, h, i, x);
              v_bound(a, kv, j, x) +=
                  1.01L * d_out * (used_error + narrowing(used) + queries * u() * used);
            }
          }
        }
    expect_within(read(c.d_q), d_q.values, q_bound.values, dtype());
    expect_within(read(c.d_k), d_k.values, k_bound.values, dtype());
    expect_within(read(c.d_v), d_v.values, v_bound.values, dtype());
  }
}

TEST_P(FlashAttention, ThreadsAndRunsComputeTheSameBits) {
  const Sizes s{2, 6, 3, 77, 77, 24};
  const Call c = make(s);
  std::vector<std::uint64_t> first;
  for (const int threads : {1, 2, 3, 8, 1}) {
    device_->set_threads(threads);
    const Tensor* const results[] = {&c.out.tensor, &c.log_sum_exp, &c.d_q.tensor, &c.d_k.tensor};
    for (const Tensor* result : results) kernels().fill(*result, NAN);
    forward(s, c);
    backward(s, c);
    std::vector<std::uint64_t> bits;
    for (const Tensor* result : results) bits.push_back(hash(*result));
    if (first.empty()) first = bits;
    EXPECT_EQ(bits, first) << threads << " threads";
  }
}

// 164,352 bytes of shared memory for heads of 256 doubles: more than a block has on compute
// capability 8.6.
TEST_P(FlashAttention, OnlyLongHeadsOfDoublesExceedSharedMemory) {
  const auto why_not = [&](std::int64_t head) {
    return why_not_flash_attention(device_->stream(), dtype(), head);
  };
  for (const std::int64_t head : {1, 64, 128}) EXPECT_EQ(why_not(head), "");
  const std::string why = why_not(256);
  if (device_->kind() == Device::Kind::host || dtype() != Dtype::float64) {
    EXPECT_EQ(why, "");
  } else if (!why.empty()) {
    EXPECT_NE(why.find("needs 164352 bytes of shared memory a block"), std::string::npos) << why;
  }
}

// A kernel that runs in two streams has one limit of shared memory.
TEST_P(FlashAttention, ShortHeadsInAnotherStreamDoNotLimitLongOnes) {
  const Sizes longer{1, 1, 1, 20, 20, 256}, shorter{1, 1, 1, 20, 20, 250};
  if (is_rejected(longer)) return;
  const Call a = make(longer), b = make(shorter);
  forward(longer, a);
  const std::uint64_t bits = hash(a.out.tensor);
  kernels().fill(a.out.tensor, NAN);
  device_->stream().synchronize();
  const auto other = device_->make_stream();
  flash_attention(*other, b.q.matrix, b.k.matrix, b.v.matrix, {}, b.out.matrix, b.log_sum_exp);
  other->synchronize();
  forward(longer, a);
  EXPECT_EQ(hash(a.out.tensor), bits);
}

#ifdef SHARDMARK_VIRTUAL_GPU
TEST_P(FlashAttention, KernelsGetTheirSharedMemoryOnce) {
  const Sizes s{1, 1, 1, 20, 20, 64};
  const Call c = make(s);
  const auto calls = [&] {
    const std::uint64_t before = virtual_gpu::counts.function_attributes;
    forward(s, c);
    backward(s, c);
    return virtual_gpu::counts.function_attributes - before;
  };
  EXPECT_EQ(calls(), device_->kind() == Device::Kind::cuda ? 3u : 0u);
  EXPECT_EQ(calls(), 0u);
}
#endif

TEST_P(FlashAttention, MismatchesAreRejected) {
  const Sizes s{1, 4, 2, 6, 6, 8};
  const Call c = make(s);
  const auto attend = [&](const Matrix& q, const Matrix& k, const Matrix& v, const Tensor& sums) {
    flash_attention(device_->stream(), q, k, v, {}, c.out.matrix, sums);
  };
  const auto with = [](Matrix matrix, auto change) {
    change(matrix);
    return matrix;
  };
  const Matrix &q = c.q.matrix, &k = c.k.matrix, &v = c.v.matrix;
  attend(q, k, v, c.log_sum_exp);
  const auto three = [](Matrix& m) { m.batch[1] = 3; };
  EXPECT_THROW(attend(q, with(k, three), with(v, three), c.log_sum_exp), std::logic_error);
  EXPECT_THROW(attend(q, k, with(v, [](Matrix& m) { m.rows = 5; }), c.log_sum_exp),
               std::logic_error);
  const auto none = [](Matrix& m) { m.rows = 0; };
  EXPECT_THROW(attend(q, with(k, none), with(v, none), c.log_sum_exp), std::logic_error);
  EXPECT_THROW(attend(q, k, v, empty({4, 5}, wide())), std::logic_error);
  EXPECT_THROW(attend(q.transposed(), k, v, c.log_sum_exp), std::logic_error);
}

SHARDMARK_ON_EVERY_DEVICE(FlashAttention);

}  // namespace
}  // namespace machine
