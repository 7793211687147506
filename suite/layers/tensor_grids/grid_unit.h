#pragma once
// Layers over a grid of ranks as units: tensor parallelism in 1, 2, 2.5 and 3 dimensions, judged by
// every oracle. This is the common part of grid_linear, grid_mlp, grid_attention, grid_embedding
// and grid_norm.
//
// numerics: output and all gradients, compared with plain loops in double over whole matrices.
// volume: bytes and messages of each pass by group, exactly (layers/tensor_grids/grid_cost.h).
// memory: parameters, gradients, activations and the peak of buffers, exactly. determinism: a
// second run, and the copies of a gradient over the depth of 2.5d.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/communicator/calls.h"
#include "collectives/communicator/communicator.h"
#include "layers/tensor_grids/grid_context.h"
#include "layers/tensor_grids/grid_cost.h"
#include "suite/reference/unit.h"

namespace suite {

struct GridCase {
  int ranks = 4;
  Transport transport{};
  Dtype dtype{};
  std::string mode = "2d";
  int depth = 1;                  // of 2.5d
  std::string product = "summa";  // or cannon, of 2d
  // input_size: hidden-size of grid_mlp. output_size: the columns between its two products.
  int tokens = 1, input_size = 1, output_size = 1;
  bool bias = true;
  int micro_batch_size = 1, seq_length = 1, num_attention_heads = 1;  // of grid_attention

  // Throws std::invalid_argument if the ranks do not form the grid.
  layers::TensorGrid grid() const;
};

// Returns the axes that all units have, without sizes and slices. has_products: with the axis of
// the product.
Sweep<GridCase> grid_axes(bool has_products = true);

// A layer that a unit has: its place, and the names of its sizes. exchanged: its input has
// output_size columns and its output input_size, as the second layer of an MLP.
struct GridLayer {
  layers::PairPlace place = layers::PairPlace::first;
  layers::GridSizeNames names{};
  bool exchanged = false;
};
// Returns why there is no such grid of ranks, or why it does not divide the sizes of the layers, or
// empty. Throws UsageError for a size below 1.
std::string why_no_grid(const GridCase& c, const std::vector<GridLayer>& layers);
// Adds the slices of a unit, whose sizes suit up to 64 ranks. `small` makes them short for smoke
// cases.
void add_grid_slices(Sweep<GridCase>& sweep, const std::vector<harness::Variation>& small,
                     bool has_products = true);

// The three passes of a layer, as in layer_case.h.
enum class GridPassName : unsigned char { forward, backward_input, backward_weights };
inline constexpr std::array<std::string_view, 3> grid_passes{"forward", "backward_input",
                                                             "backward_weights"};

class JudgedGridLayer {
 public:
  virtual ~JudgedGridLayer() = default;
  virtual layers::GridParameters parameters() = 0;
  virtual layers::GridBlock input() const = 0;
  virtual layers::GridBlock output() const = 0;
  virtual void forward(const Tensor& x, const Tensor& y) = 0;
  virtual void backward_input(const Tensor& d_y, const Tensor& d_x) = 0;
  virtual void backward_weights() = 0;
};

struct GridClaims {
  std::array<layers::GridPass, 3> passes{};  // their buffers: with what is kept in buffers
  std::int64_t parameters = 0;
  std::size_t saved = 0, saved_for_weights = 0;  // bytes of activations
  double flops = 0;                              // of a rank, over all passes
  bool reads_parameters = true;  // all of them; an embedding reads the rows of its tokens
};
// Returns the case of a linear layer's cost.
layers::GridLinearCase cost_case(const GridCase& c, int rank, layers::PairPlace layer,
                                 std::int64_t in, std::int64_t out);

// Returns the claims for two layers with a function of a rank's own values between them, which
// communicates nothing: passes, parameters and flops of the products. The second layer's input has
// `inner` columns, and the first layer's output `width`, which backward holds in buffers.
GridClaims claims_of_pair(const GridCase& c, int rank, std::int64_t in, std::int64_t width,
                          std::int64_t inner, std::int64_t out);

class GridShell {
 public:
  using Case = GridCase;
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                       Oracle::determinism};
  static constexpr bool limit_applies = true;
  static std::string why_not(const Case& c, const Context& context);

  void prepare() {}  // gradients grow from run to run, as over micro-batches
  void run();
  void judge(Judge& judge);
  Cost cost() const;
  void describe(Description& description);

 protected:
  // The whole output has `columns` columns.
  GridShell(const Case& c, Context& context, std::int64_t columns);
  ~GridShell() = default;
  // Called by the constructor of a unit.
  void start(std::unique_ptr<JudgedGridLayer> layer, const GridClaims& claims);
  virtual void judge_numerics(Judge& judge) = 0;

  // Returns a whole matrix, rounded to the dtype: the same on every rank.
  std::vector<double> draw(std::uint64_t seed, std::int64_t rows, std::int64_t cols,
                           double stddev) const;
  std::vector<double> draw_x() const { return draw(context_.seed + 1, case_.tokens, in_, 1); }
  std::vector<double> draw_d_y() const { return draw(context_.seed + 2, case_.tokens, out_, 1); }
  std::vector<double> draw(const layers::GridParameter& parameter) const;
  static std::vector<double> part(const std::vector<double>& whole, std::int64_t columns,
                                  const layers::GridBlock& block);

  // Gradients of an earlier micro-batch, to which a layer must add.
  static constexpr double earlier_gradient = 0.5;
  static double weight_stddev(const layers::GridParameter& parameter);

  Case case_;
  Context& context_;
  std::int64_t in_, out_;  // columns of x and y
  collectives::Communicator all_;
  layers::GridGroups groups_;
  layers::GridContext layers_;
  std::unique_ptr<JudgedGridLayer> layer_;
  Tensor x_, y_, d_y_, d_x_;

 private:
  void pass(GridPassName name);
  void reset_traffic();
  void start_gradients();
  void spoil_results();
  void judge_memory(Judge& judge);
  void judge_volume(Judge& judge, GridPassName name);
  void judge_bits(Judge& judge);
  collectives::CallsCost calls_of(const layers::GridPass& pass) const;
  std::size_t passed_bytes() const;

  GridClaims claims_;
  harness::PeakMeter memory_;
  std::map<std::string, double> sent_;  // bytes by group, over all passes
};

}  // namespace suite
