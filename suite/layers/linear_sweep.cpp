// The cases of the linear layers.

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "layers/parameter.h"
#include "suite/layers/linear_layer.h"

namespace suite {

Sweep<LayerCase> linear_sweep(LinearCut cut) {
  using Case = LayerCase;
  using enum Profile;
  const bool column = cut == LinearCut::column;
  Sweep<Case> sweep;
  sweep.axis("transport", &Case::transport, Transport::shared_memory)
      .axis("dtype", &Case::dtype, Dtype::float32,
            {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64})
      .axis("ranks", &Case::ranks, 2)
      .axis("tokens", &Case::seq_length, 64)
      .axis("input_size", &Case::input_size, 192)
      .axis("output_size", &Case::output_size, 384)
      .axis("bias", &Case::bias, true);
  if (column)
    sweep.axis("gather_output", &Case::gather_output, false);
  else
    sweep.axis("input_is_parallel", &Case::input_is_parallel, true);
  sweep.axis("skip_bias_add", &Case::skip_bias_add, false).only([column](const Case& c) {
    for (const auto& [axis, value] : {std::pair("tokens", c.seq_length),
                                      {"input_size", c.input_size},
                                      {"output_size", c.output_size}})
      if (value < 1)
        throw harness::UsageError(fmt::format("--{}: {} is not at least 1", axis, value));
    if (c.skip_bias_add && !c.bias) return std::string("skip_bias_add requires bias on (got off)");
    try {
      collectives::Parameter::local_shape(
          column ? "column_parallel_linear.weight" : "row_parallel_linear.weight",
          {c.output_size, c.input_size},
          {.tp = collectives::Spread::sharded, .dim = column ? 0 : 1}, c.ranks);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  });
  const auto dtypes = vary(&Case::dtype, {Dtype::float32, Dtype::bfloat16});
  const auto mpi = vary(&Case::transport, {Transport::mpi});
  const auto biases = vary(&Case::bias, {true, false}),
             skips = vary(&Case::skip_bias_add, {false, true});
  const auto whole =
      column ? vary(&Case::gather_output, {true}) : vary(&Case::input_is_parallel, {false});
  const auto either = column ? vary(&Case::gather_output, {false, true})
                             : vary(&Case::input_is_parallel, {true, false});
  sweep
      .slice({acceptance, paper}, "matrix",
             {dtypes, vary(&Case::ranks, {2, 3, 4, 8}), biases, either, skips})
      // Its own output and input are the whole ones.
      .slice({acceptance, paper}, "one rank", {dtypes, vary(&Case::ranks, {1}), biases, skips})
      .slice({acceptance, paper}, "transports", {mpi, dtypes, vary(&Case::ranks, {2, 3, 4, 8})})
      .slice({quick}, "usual", {vary(&Case::ranks, {1, 2})})
      .slice({quick}, "transports", {mpi, vary(&Case::bias, {false})})
      .slice({quick}, "edges",
             {vary(&Case::ranks, {3}), vary(&Case::seq_length, {61}),
              vary(&Case::input_size, {201}), vary(&Case::output_size, {309}), whole})
      .slice({quick}, "edges",
             {vary(&Case::dtype, {Dtype::bfloat16}), vary(&Case::ranks, {3}),
              vary(&Case::seq_length, {1}), vary(&Case::skip_bias_add, {true})})
      .slice(
          {smoke}, "smoke",
          {dtypes, vary(&Case::ranks, {1, 3}), vary(&Case::seq_length, {1, 13}),
           vary(&Case::input_size, {21}), vary(&Case::output_size, {39}), biases, either, skips});
  return sweep;
}

}  // namespace suite
