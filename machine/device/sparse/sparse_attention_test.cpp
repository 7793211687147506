#include "machine/device/sparse/sparse_attention.h"

#include <fmt/format.h>

#include "machine/base/error.h"
#include "machine/device/random.h"
#include "machine/testing/on_device.h"

namespace machine {
namespace {

struct Sizes {
  std::int64_t sequences, heads, kv_heads, blocks, block, head;
  bool causal = false;
  int one_in = 2;  // of the blocks is present; 1: all; 0: those on the diagonal
  std::vector<std::int32_t> lengths = {};
  double dropout = 0;
  std::int64_t rows() const { return blocks * block; }
};
constexpr std::uint64_t dropout_seed = 11;
constexpr std::int64_t first_matrix = 5, matrices_apart = 9;
constexpr double scale = 0.125;

// Blocks that are shorter and longer than the tiles and panels of the kernels, alone and in ranges,
// up to the last key of the last panel. Rows and columns without a block. Grouped heads. Padding
// that hides all present keys of some queries. A block whose first keys come after a full panel.
// Dropout. Heads of each width of the CUDA kernels.
const Sizes cases[] = {
    {1, 1, 1, 1, 16, 1},
    {1, 2, 2, 6, 16, 20},
    {1, 1, 1, 7, 16, 16, true},
    {2, 1, 1, 3, 32, 33, true, 1},
    {1, 2, 1, 2, 64, 72},
    {1, 1, 1, 3, 64, 8, true, 0},
    {1, 1, 1, 2, 48, 130, true},
    {3, 2, 1, 4, 16, 8, false, 3, {64, 0, 21}},
    {2, 2, 2, 3, 32, 12, true, 3, {50, 96}, 0.3},
};

struct Heads {
  Tensor tensor;
  Matrix matrix;
};

struct Call {
  std::vector<std::uint8_t> present;
  Heads q, k, v, out, d_out, d_q, d_k, d_v;
  Tensor log_sum_exp;
  Memory lengths;
};

class SparseAttentions : public OnDevice {
 protected:
  Heads heads_of(Tensor tensor, const Sizes& s, std::int64_t heads) {
    Matrix m = matrix(tensor);
    m.rows = s.rows();
    m.cols = s.head;
    m.batch = {s.sequences, heads};
    m.batch_stride = {s.rows() * m.row_stride, s.head};
    return {std::move(tensor), m};
  }
  Call make(const Sizes& s) {
    Call c;
    std::uniform_int_distribution<int> draw(1, std::max(1, s.one_in));
    for (std::int64_t i = 0; i < s.heads * s.blocks * s.blocks; ++i)
      c.present.push_back(s.one_in > 0 ? draw(generator_) == 1
                                       : i / s.blocks % s.blocks == i % s.blocks);
    const auto heads = [&](std::int64_t count, bool result) {
      const Shape shape{s.sequences * s.rows(), count * s.head};
      return heads_of(result ? empty(shape) : random(shape), s, count);
    };
    for (auto [to, count] :
         {std::pair(&c.q, s.heads), {&c.k, s.kv_heads}, {&c.v, s.kv_heads}, {&c.d_out, s.heads}})
      *to = heads(count, false);
    for (auto [to, count] : {std::pair(&c.out, s.heads),
                             {&c.d_q, s.heads},
                             {&c.d_k, s.kv_heads},
                             {&c.d_v, s.kv_heads}})
      *to = heads(count, true);
    c.log_sum_exp = empty({s.sequences * s.heads, s.rows()}, wide());
    if (!s.lengths.empty()) c.lengths = upload(s.lengths);
    return c;
  }
  static BlockMask mask(const Sizes& s, const Call& c) {
    return {s.heads, s.blocks, s.block, c.present};
  }
  static AttentionOptions options(const Sizes& s, const Call& c) {
    return {scale,
            s.causal,
            s.lengths.empty() ? nullptr : static_cast<const std::int32_t*>(c.lengths.data()),
            {s.dropout, dropout_seed, first_matrix, matrices_apart}};
  }
  static void forward(SparseAttention& attention, const Sizes& s, const Call& c) {
    attention.forward(c.q.matrix, c.k.matrix, c.v.matrix, options(s, c), c.out.matrix,
                      c.log_sum_exp);
  }
  static void backward(SparseAttention& attention, const Sizes& s, const Call& c) {
    attention.backward(c.q.matrix, c.k.matrix, c.v.matrix, options(s, c), c.out.matrix,
                       c.log_sum_exp, c.d_out.matrix, c.d_q.matrix, c.d_k.matrix, c.d_v.matrix);
  }
  static std::vector<std::uint64_t> bits(const Call& c) {
    std::vector<std::uint64_t> all;
    for (const Tensor* one :
         {&c.out.tensor, &c.log_sum_exp, &c.d_q.tensor, &c.d_k.tensor, &c.d_v.tensor})
      all.push_back(hash(*one));
    return all;
  }

  // Relative to values of order 10 in addition to the values: gradients of scores are differences
  // of sums over a head.
  void expect_near(const char* what, const Tensor& got, const Values& want, const Sizes& s) {
    const Values values = to_doubles(got);
    ASSERT_EQ(values.size(), want.size());
    double off = 0, size = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      off += (values[i] - want[i]) * (values[i] - want[i]);
      size += want[i] * want[i];
    }
    const std::int64_t shared = s.heads / s.kv_heads;
    const double terms = static_cast<double>(s.head + s.rows() * shared);
    const double bound =
        (is_narrow() ? 8 * unit_roundoff(dtype()) : 0) + 4 * terms * sum_roundoff(dtype());
    EXPECT_TRUE(std::sqrt(off) <=
                bound * (std::sqrt(size) + 10 * std::sqrt(static_cast<double>(want.size()))))
        << what << ": " << std::sqrt(off) << " of " << std::sqrt(size);
  }
};

struct Plain {
  Values out, log_sum_exp, d_q, d_k, d_v;
};

// Every pair of a query and a key, in double.
Plain plain(const Sizes& s, const Call& c) {
  const Values q = to_doubles(c.q.tensor), k = to_doubles(c.k.tensor), v = to_doubles(c.v.tensor),
               d_out = to_doubles(c.d_out.tensor);
  Plain result{Values(q.size()), {}, Values(q.size()), Values(k.size()), Values(k.size())};
  const auto at = [&](std::int64_t a, std::int64_t row, std::int64_t h, std::int64_t heads) {
    return static_cast<std::size_t>(((a * s.rows() + row) * heads + h) * s.head);
  };
  const auto width = static_cast<std::size_t>(s.head);
  const auto dot = [&](const Values& x, std::size_t i, const Values& y, std::size_t j) {
    double sum = 0;
    for (std::size_t n = 0; n < width; ++n) sum += x[i + n] * y[j + n];
    return sum;
  };
  for (std::int64_t a = 0; a < s.sequences; ++a)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t i = 0; i < s.rows(); ++i) {
        const std::size_t mine = at(a, i, h, s.heads);
        const auto key = [&](std::int64_t j) {
          return at(a, j, h / (s.heads / s.kv_heads), s.kv_heads);
        };
        std::vector<std::int64_t> seen;
        Values weight, factor;
        double total = 0;
        for (std::int64_t j = 0; j < s.rows(); ++j) {
          const std::int64_t place = (h * s.blocks + i / s.block) * s.blocks + j / s.block;
          if (c.present[static_cast<std::size_t>(place)] == 0 || (s.causal && j > i)) continue;
          if (!s.lengths.empty() && j >= s.lengths[static_cast<std::size_t>(a)]) continue;
          const auto index = static_cast<std::uint64_t>(
              ((first_matrix + a * matrices_apart + h) * s.rows() + i) * s.rows() + j);
          const bool dropped = s.dropout > 0 && uniform(dropout_seed, index) < s.dropout;
          seen.push_back(j);
          factor.push_back(dropped ? 0 : 1 / (1 - s.dropout));
          weight.push_back(std::exp(scale * dot(q, mine, k, key(j))));
          total += weight.back();
        }
        result.log_sum_exp.push_back(std::log(total));
        double delta = 0;
        for (std::size_t n = 0; n < seen.size(); ++n) {
          weight[n] /= total;
          delta += weight[n] * factor[n] * dot(d_out, mine, v, key(seen[n]));
        }
        for (std::size_t n = 0; n < seen.size(); ++n) {
          const std::size_t other = key(seen[n]);
          const double p = weight[n] * factor[n];
          const double d_s = scale * weight[n] * (factor[n] * dot(d_out, mine, v, other) - delta);
          for (std::size_t x = 0; x < width; ++x) {
            result.out[mine + x] += p * v[other + x];
            result.d_q[mine + x] += d_s * k[other + x];
            result.d_k[other + x] += d_s * q[mine + x];
            result.d_v[other + x] += p * d_out[mine + x];
          }
        }
      }
  return result;
}

TEST_P(SparseAttentions, EqualPlainLoopsOverPresentPairs) {
  for (const Sizes& s : cases) {
    SCOPED_TRACE(fmt::format("{} blocks of {}, head {}", s.blocks, s.block, s.head));
    const Call c = make(s);
    SparseAttention attention(*device_, mask(s, c));
    forward(attention, s, c);
    backward(attention, s, c);
    const Plain want = plain(s, c);
    expect_near("out", c.out.tensor, want.out, s);
    expect_near("d_q", c.d_q.tensor, want.d_q, s);
    expect_near("d_k", c.d_k.tensor, want.d_k, s);
    expect_near("d_v", c.d_v.tensor, want.d_v, s);
    const Values sums = to_doubles(c.log_sum_exp);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (std::isinf(want.log_sum_exp[i]))
        ASSERT_EQ(sums[i], want.log_sum_exp[i]) << i;
      else
        ASSERT_NEAR(sums[i], want.log_sum_exp[i], 1e-4) << i;
    }
  }
}

// The order of sums is that of the blockwise kernel. On a GPU, other kernels compute the latter.
TEST_P(SparseAttentions, AllBlocksGiveTheBitsOfBlockwiseAttention) {
  if (device_->kind() != Device::Kind::host) GTEST_SKIP() << "the kernels differ on a GPU";
  for (const bool causal : {false, true})
    for (const std::int64_t block : {16, 32, 64}) {
      const Sizes s{1, 4, 2, 192 / block, block, 24, causal, 1};
      const Call c = make(s);
      SparseAttention attention(*device_, mask(s, c));
      forward(attention, s, c);
      backward(attention, s, c);
      const std::vector<std::uint64_t> sparse = bits(c);
      flash_attention(device_->stream(), c.q.matrix, c.k.matrix, c.v.matrix, options(s, c),
                      c.out.matrix, c.log_sum_exp);
      flash_attention_backward(device_->stream(), c.q.matrix, c.k.matrix, c.v.matrix, options(s, c),
                               c.out.matrix, c.log_sum_exp, c.d_out.matrix, c.d_q.matrix,
                               c.d_k.matrix, c.d_v.matrix);
      EXPECT_EQ(sparse, bits(c)) << "causal " << causal << " block " << block;
    }
}

TEST_P(SparseAttentions, ThreadsAndRunsComputeTheSameBits) {
  const Sizes s{1, 4, 2, 3, 16, 8};
  const Call c = make(s);
  SparseAttention attention(*device_, mask(s, c));
  std::vector<std::uint64_t> first;
  for (const int threads : {1, 3, 1}) {
    device_->set_threads(threads);
    for (const Tensor* result : {&c.out.tensor, &c.log_sum_exp, &c.d_q.tensor, &c.d_k.tensor})
      kernels().fill(*result, NAN);
    forward(attention, s, c);
    backward(attention, s, c);
    if (first.empty()) first = bits(c);
    EXPECT_EQ(bits(c), first) << threads << " threads";
  }
}

TEST_P(SparseAttentions, AbsentBlocksCostNoScores) {
  const Sizes s{2, 3, 3, 5, 16, 4};
  const Call c = make(s);
  const auto present = std::count(c.present.begin(), c.present.end(), 1);
  SparseAttention attention(*device_, mask(s, c));
  forward(attention, s, c);
  const auto of_forward = attention.scores();
  ASSERT_EQ(of_forward.has_value(), device_->kind() == Device::Kind::host);
  if (!of_forward) return;
  EXPECT_EQ(*of_forward, s.sequences * present * s.block * s.block);
  backward(attention, s, c);
  EXPECT_EQ(*attention.scores(), 2 * *of_forward);
}

TEST_P(SparseAttentions, MismatchesAreRejected) {
  const Sizes s{1, 2, 2, 3, 16, 8};
  const Call c = make(s);
  const auto attention_of = [&](const BlockMask& mask) { SparseAttention(*device_, mask); };
  attention_of(mask(s, c));
  for (const std::int64_t block : {0, 8, 24})
    EXPECT_THROW(attention_of({2, 3, block, c.present}), std::logic_error) << block;
  EXPECT_THROW(attention_of({2, 4, 16, c.present}), std::logic_error);
  SparseAttention attention(*device_, mask(s, c));
  for (const Sizes& other : {Sizes{1, 2, 2, 6, 16, 8}, Sizes{1, 1, 1, 3, 16, 8}}) {
    const Call wrong = make(other);
    EXPECT_THROW(forward(attention, other, wrong), std::logic_error);
    EXPECT_THROW(backward(attention, other, wrong), std::logic_error);
  }
}

SHARDMARK_ON_EVERY_DEVICE(SparseAttentions);

}  // namespace
}  // namespace machine
