#pragma once
// What column_parallel_linear and row_parallel_linear have in common as units (Shoeybi et al. 2019,
// arXiv:1909.08053, section 3): forward, backward_input and backward_weights of one layer over tp
// ranks, against the unsharded layer in double.
//
// Inputs and parameters are random functions of the global index, biases are not zero, and the
// gradients that the layer adds to are those of an earlier micro-batch, so that a bias added on
// each rank or a gradient overwritten shows. Column-parallel: y [tokens, out/tp], all-reduces d_x.
// Row-parallel: x [tokens, in/tp], all-reduces y. `ranks` is tp; the sizes are Megatron's
// input_size and output_size.

#include <array>
#include <string>
#include <type_traits>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "collectives/plan.h"
#include "harness/unit/unit.h"
#include "layers/column_parallel_linear.h"
#include "layers/row_parallel_linear.h"
#include "machine/link/connect.h"

namespace suite {

struct LinearCase {
  int ranks = 2;
  machine::Transport transport{};
  machine::Dtype dtype{};
  int tokens = 0, input_size = 0, output_size = 0;
  bool bias = true, skip_bias_add = false;
  bool gather_output = false;     // of column-parallel only
  bool input_is_parallel = true;  // of row-parallel only
};

enum class LinearCut : unsigned char { column, row };

// One that it makes, by the communicator's usual algorithm; count: of the whole, or of a share.
struct LinearCollective {
  const collectives::Algorithm* algorithm = nullptr;
  collectives::Call call;
  std::int64_t count = 0;
};

harness::Sweep<LinearCase> linear_sweep(LinearCut cut);

template <class Layer>
class LinearUnit {
 public:
  using Case = LinearCase;
  static constexpr bool limit_applies = true;
  static constexpr LinearCut cut =
      std::is_same_v<Layer, layers::ColumnParallelLinear> ? LinearCut::column : LinearCut::row;
  static constexpr harness::Oracle oracles[] = {harness::Oracle::numerics, harness::Oracle::volume,
                                                harness::Oracle::memory,
                                                harness::Oracle::determinism};
  static harness::Sweep<Case> sweep() { return linear_sweep(cut); }
  LinearUnit(const Case& c, harness::Context& context);

  void prepare() {}  // gradients grow from run to run, as over micro-batches
  void run();
  void judge(harness::Judge& judge);
  harness::Cost cost() const;
  void describe(harness::Description& description);

 private:
  void start_gradients();
  void judge_memory(harness::Judge& judge) const;
  void judge_volume(harness::Judge& judge) const;
  void judge_numerics(harness::Judge& judge);
  static Layer make(const layers::Context& context, const Case& c);
  // What the layer all-reduces: y or d_x. And what it may gather: the other.
  const machine::Tensor& reduced() const { return cut == LinearCut::column ? d_x_ : y_; }
  const machine::Tensor& other() const { return cut == LinearCut::column ? y_ : d_x_; }
  bool gathers() const {
    return case_.ranks > 1 && (case_.gather_output || !case_.input_is_parallel);
  }
  bool adds_bias() const { return case_.bias && !case_.skip_bias_add; }
  std::vector<LinearCollective> collectives_called() const;

  Case case_;
  harness::Context& context_;
  std::array<std::size_t, machine::num_categories> held_before_;  // not this unit's
  collectives::Communicator tp_;
  layers::Context layer_context_;
  Layer layer_;
  machine::Tensor x_, y_, d_y_, d_x_;
};

extern template class LinearUnit<layers::ColumnParallelLinear>;
extern template class LinearUnit<layers::RowParallelLinear>;

}  // namespace suite
