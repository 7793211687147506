#pragma once
// Relative position bias (Raffel et al. 2020, arXiv:1910.10683, section 2.1):
//
//   score[sequence, head, query, key] += table[head, bucket(key - query)]
//
// All layers of a stack share one table [heads/tp, buckets]. Half of the buckets of an encoder are
// for keys behind the query; a decoder sees no such keys. The first half of the buckets of a
// direction holds one distance each, the others grow logarithmically up to a distance of 128.

#include <cstdint>
#include <span>

#include "layers/context.h"
#include "layers/gpt_config.h"

namespace layers {

// offset: the key's position minus the query's.
int relative_bucket(std::int64_t offset, bool causal);
// Writes the buckets of all pairs, [positions, positions], query by query.
void relative_buckets(std::int64_t positions, bool causal, std::span<std::int32_t> buckets);

// A stack's table and the buckets of its pairs. Empty: no bias.
struct RelativeBias {
  Tensor table;                           // [heads/tp, buckets]
  const std::int32_t* buckets = nullptr;  // [positions, positions], in memory the device reads
  explicit operator bool() const { return static_cast<bool>(table); }
};

// scores: [sequences * heads/tp, positions, positions], the heads of one sequence after another.
// Allocates a buffer of the scores of one sequence.
void add_relative_bias(const Context& context, const RelativeBias& bias, const Tensor& scores);
// Adds the gradient of the table to d_table, which has the dtype of the values. Allocates buffers
// of the scores of one sequence and of the table, both in the accumulator, and of the table.
void add_relative_bias_gradient(const Context& context, const RelativeBias& bias,
                                const Tensor& d_scores, const Tensor& d_table);

}  // namespace layers
