#pragma once
// What the units column_parallel_linear and row_parallel_linear have in common
// (Shoeybi et al. 2019, arXiv:1909.08053, section 3). Their reference is the unsharded product in
// double by plain loops (product_reference.h), so `judge_numerics` is their own.
//
// Biases are as large as the products. Column-parallel: y [tokens, out/tp], all-reduces d_x.
// Row-parallel: x [tokens, in/tp], all-reduces y. The sizes are Megatron's input_size and
// output_size.

#include "suite/layers/layer_unit.h"

namespace suite {

enum class LinearCut : unsigned char { column, row };

// Whether the other end of the product, which is not all-reduced, is gathered.
bool gathers(const LayerCase& c);
Sweep<LayerCase> linear_sweep(LinearCut cut);
void judge_linear(Judge& judge, const Context& context, const LayerRun& run, const LayerCase& c,
                  LinearCut cut);

}  // namespace suite
