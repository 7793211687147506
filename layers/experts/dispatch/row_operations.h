#pragma once
// Moves and weighs rows of tokens on every device, from the kernels of embeddings, and from batched
// products or, on the host, loops. An index is int32 [n] on the device; -1 marks padding.

#include <cstdint>
#include <vector>

#include "layers/context.h"

namespace layers {

// Copy to the device, into memory of `category`. Weights are rounded to the context's dtype.
Tensor make_index(const Context& context, const std::vector<std::int32_t>& index,
                  Category category);
Tensor make_weights(const Context& context, const std::vector<double>& weights, Category category);
std::vector<std::int32_t> index_on_host(const Context& context, const Tensor& index);

// Returns the weight of each row, whose slot is its place in `weights`; 0 for padding (slot -1).
std::vector<double> weights_of_rows(const std::vector<double>& weights,
                                    const std::vector<std::int32_t>& slots);
// Returns the sum of the values of each slot's rows.
std::vector<double> sums_of_slots(const std::vector<double>& values,
                                  const std::vector<std::int32_t>& slots, std::int64_t count);

// to[i] = from[index[i]]; zero for padding.
void gather_rows(const Context& context, const Tensor& index, const Tensor& from, const Tensor& to);
// to[index[i]] += from[i] in ascending order, starting from zero, summed in the accumulator's type.
void sum_rows(const Context& context, const Tensor& index, const Tensor& from, const Tensor& to);
// to[i] = weights[i] from[i]. weights: [n] in the context's dtype.
void scale_rows(const Context& context, const Tensor& weights, const Tensor& from,
                const Tensor& to);
// Returns a[i] · b[i], rounded to the accumulator's type. It needs n accumulators in buffers.
std::vector<double> dot_rows(const Context& context, const Tensor& a, const Tensor& b);

}  // namespace layers
