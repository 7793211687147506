#include "layers/attention/relative_bias.h"

#include <algorithm>
#include <cmath>

#include "machine/base/error.h"

namespace layers {
namespace {

// Returns the rows of one head, each with one column.
Tensor column_of(const Tensor& of_heads, std::int64_t head) {
  const std::int64_t size = of_heads.size() / of_heads.shape()[0];
  return of_heads.slice(head * size, {size, 1});
}

}  // namespace

int relative_bucket(std::int64_t offset, bool causal) {
  constexpr int most_distance = 128;
  const int count = causal ? relative_buckets_count : relative_buckets_count / 2;
  const int behind = !causal && offset > 0 ? count : 0;
  const std::int64_t distance = causal ? std::max<std::int64_t>(-offset, 0) : std::abs(offset);
  const int exact = count / 2;
  if (distance < exact) return behind + static_cast<int>(distance);
  const double part = std::log2(static_cast<double>(distance) / exact) /
                      std::log2(static_cast<double>(most_distance) / exact);
  return behind + std::min(exact + static_cast<int>(part * (count - exact)), count - 1);
}

void relative_buckets(std::int64_t positions, bool causal, std::span<std::int32_t> buckets) {
  for (std::int64_t query = 0; query < positions; ++query)
    for (std::int64_t key = 0; key < positions; ++key)
      buckets[static_cast<std::size_t>(query * positions + key)] =
          relative_bucket(key - query, causal);
}

void add_relative_bias(const Context& context, const RelativeBias& bias, const Tensor& scores) {
  const std::int64_t heads = bias.table.shape()[0], positions = scores.cols();
  SHARDMARK_CHECK(scores.shape()[0] % heads, ==, 0);
  const Tensor of_pairs = context.tensor({heads, positions, positions}, Category::buffers);
  for (std::int64_t head = 0; head < heads; ++head)
    context.kernels().embedding(bias.buckets, column_of(bias.table, head), 0,
                                column_of(of_pairs, head));
  const Tensor sequences =
      scores.reshape({scores.shape()[0] / heads, heads * positions * positions});
  context.kernels().add_bias(sequences, of_pairs.reshape({of_pairs.size()}), sequences);
}

void add_relative_bias_gradient(const Context& context, const RelativeBias& bias,
                                const Tensor& d_scores, const Tensor& d_table) {
  const std::int64_t heads = bias.table.shape()[0], positions = d_scores.cols();
  const auto sums = [&](Shape shape) {
    const Tensor zeros(context.device, context.accumulator(), shape, Category::buffers);
    context.kernels().fill(zeros, 0);
    return zeros;
  };
  const Tensor of_pairs = sums({heads, positions, positions}), of_buckets = sums(d_table.shape());
  context.kernels().accumulate_column_sums(
      d_scores.reshape({d_scores.shape()[0] / heads, of_pairs.size()}),
      of_pairs.reshape({of_pairs.size()}));
  for (std::int64_t head = 0; head < heads; ++head)
    context.kernels().embedding_backward(bias.buckets, column_of(of_pairs, head), 0,
                                         column_of(of_buckets, head));
  const Tensor rounded = context.tensor(d_table.shape(), Category::buffers);
  context.kernels().cast(of_buckets, rounded);
  context.kernels().add(d_table, rounded, d_table);
}

}  // namespace layers
