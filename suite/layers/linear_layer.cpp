#include "suite/layers/linear_layer.h"

#include <algorithm>

#include "layers/parameter.h"

namespace suite {

using machine::Operation;

bool gathers(const LayerCase& c) {
  return c.ranks > 1 && (c.gather_output || !c.input_is_parallel);
}

LayerEnds linear_ends(LinearCut cut, const LayerCase& c) {
  const bool column = cut == LinearCut::column;
  return {c.input_size, column || gathers(c) ? c.input_size : c.input_size / c.ranks, c.output_size,
          column && !gathers(c) ? c.output_size / c.ranks : c.output_size};
}

// One all-reduce: of y [tokens, out] forward, or of d_x [tokens, in] backward; and of the other an
// all-gather, where it is gathered.
LayerClaims linear_claims(LinearCut cut, const LayerCase& c) {
  const bool column = cut == LinearCut::column;
  const std::int64_t in = c.input_size, out = c.output_size, n = c.tokens(), tp = c.ranks;
  const auto call = [&](Operation operation, std::int64_t columns) {
    return std::vector<collectives::CollectiveCalls>{
        {"tp", operation, c.dtype, c.ranks, n * columns, 1}};
  };
  LayerClaims claims;
  claims.parameters = in * out / tp + (!c.bias ? 0 : column ? out / tp : out);
  claims.flops = 3.0 * 2 * static_cast<double>(n) * static_cast<double>(in * out) / c.ranks;
  const auto pass = [&](Pass which) -> auto& {
    return claims.calls[static_cast<std::size_t>(which)];
  };
  if (c.ranks > 1)
    pass(column ? Pass::backward_input : Pass::forward) =
        call(Operation::all_reduce, column ? in : out);
  if (!gathers(c)) return claims;
  pass(column ? Pass::forward : Pass::backward_input) =
      call(Operation::all_gather, column ? out : in);
  // Gathered: a rank's part, and all parts before they are put next to each other; for the gradient
  // of the bias the sums of all columns.
  const std::int64_t columns = column ? out : in;
  const std::size_t parts =
      static_cast<std::size_t>(n * (columns / tp + columns)) * size_of(c.dtype);
  const std::size_t sums = column && c.bias ? static_cast<std::size_t>(out) *
                                                  size_of(collectives::gradient_dtype(c.dtype))
                                            : 0;
  claims.buffers = std::max(parts, sums);
  return claims;
}

}  // namespace suite
