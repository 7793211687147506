#pragma once
// One case of a layer as a unit, and the claims for the layer in that case, in closed form.
//
// Notation, as in layers/models/gpt_cost.h and layers/models/gpt_memory.h: n tokens of a
// micro-batch, h hidden, t = tp = ranks, c = t with sequence parallelism and 1 without, E bytes of
// a value, A of an accumulator; M = E n h, a [tokens, hidden] of all rows, M/c of a rank's own.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layers/models/gpt_cost.h"
#include "suite/reference/unit.h"

namespace suite {

struct LayerCase {
  int ranks = 1;
  Transport transport{};
  Dtype dtype{};
  std::string architecture = "gpt2";  // or "llama"
  bool sequence_parallel = false;
  bool tp_comm_overlap = false;
  std::string recompute_granularity = "none";
  bool use_flash_attn = false;
  // Megatron's arguments. A unit has the axes that apply to its layer.
  int micro_batch_size = 1, seq_length = 1, hidden_size = 1;
  int num_attention_heads = 1, vocab_size = 1;
  // Sizes of a linear layer, whose tokens are one sequence.
  int input_size = 1, output_size = 1;
  bool bias = true, skip_bias_add = false;
  bool gather_output = false;     // of column-parallel only
  bool input_is_parallel = true;  // of row-parallel only
  // Axes of sparse attention, with DeepSpeed's names; `pattern` is its mode. Bidirectional
  // attention is for encoders. Windows of `variable` have num_local_blocks.
  std::string pattern = "fixed", attention = "unidirectional";
  int block = 16, num_local_blocks = 4, num_global_blocks = 1, num_random_blocks = 1,
      num_sliding_window_blocks = 3;
  bool horizontal_global_attention = false, different_layout_per_head = false;

  std::int64_t tokens() const { return std::int64_t{micro_batch_size} * seq_length; }
  // Returns the model of the layer: GPT-2's shape or Llama's (layers/gpt_config.h). Llama's has two
  // heads of queries per head of keys and values, and 3 h columns of SwiGLU.
  layers::GptConfig model() const;
  bool recomputes_core() const { return recompute_granularity == "selective"; }
  // Returns whether backward_input computes the gradients of the first product's weights, too
  // (layers/tp_comm_overlap.h).
  bool joins_halves() const { return tp_comm_overlap && ranks > 1; }
  // Returns the number of rows that a rank holds between tensor-parallel regions.
  std::int64_t own_rows() const { return sequence_parallel ? tokens() / ranks : tokens(); }
  // Returns the same layer on one rank, with plain attention and without recomputation.
  LayerCase whole() const;
};

// Columns of x and y, and the number that a rank holds.
struct LayerEnds {
  std::int64_t input = 0, own_input = 0, output = 0, own_output = 0;
};
LayerEnds hidden_ends(const LayerCase& c);  // hidden-size, all of it on every rank

class JudgedLayer;
struct LayerClaims;
class LayerRun;

using MakeLayer = std::unique_ptr<JudgedLayer> (*)(const layers::Context& context,
                                                   const std::string& name, const LayerCase& c);

// The description of a layer's unit.
struct LayerTraits {
  std::string_view name{}, about{};
  LayerClaims (*claims)(const LayerCase& c) = nullptr;  // from the paper, not from the code
  MakeLayer make = nullptr;
  bool takes_tokens = false;  // instead of x [tokens, hidden]; without d_x
  bool gives_loss = false;    // one double, instead of y [tokens, hidden]; without d_y
  bool has_heads = false, has_vocabulary = false;
  bool has_architecture = false;  // differs between GPT-2 and Llama
  bool has_products = false;      // during which tp can communicate
  // Every degree gives the same bits, because each element is computed on one rank. The sums of
  // sequence parallelism over ranks are an exception.
  bool same_bits_at_every_degree = false;
  bool limit_applies = false;  // harness::Traits
  LayerEnds (*ends)(const LayerCase& c) = hidden_ends;
  Sweep<LayerCase> (*sweep)() = nullptr;  // null: layer_sweep
  // Compares the last passes with another reference. null: uses the layer on one rank
  // (layer_run.h).
  void (*judge_numerics)(Judge& judge, const Context& context, const LayerRun& run,
                         const LayerCase& c) = nullptr;
  // Sums are of order 1, so a bias that is added too often is far outside the bounds.
  double bias_stddev = 0.5;
};

// The sizes of the notation.
struct LayerSizes {
  explicit LayerSizes(const LayerCase& one);
  std::size_t n, h, t, c, E, A, M, own,
      gathered;   // own: M/c; gathered: M if rows are sharded, else 0
  std::size_t R;  // of the statistics of a norm: 2 n A/c of LayerNorm, n A/c of RMSNorm
  // Returns the bytes of all rows that the backward of the first product holds at once: x or d_x.
  std::size_t rows_of_first(const LayerCase& one) const {
    return (one.joins_halves() ? 2 : 1) * gathered;
  }
  // Returns the bytes of a rank's part of `whole` columns, for all rows.
  std::size_t columns(std::int64_t whole) const {
    return E * n * static_cast<std::size_t>(whole) / t;
  }
};

enum class Pass : unsigned char { forward, backward_input, backward_weights };
inline constexpr Pass all_passes[] = {Pass::forward, Pass::backward_input, Pass::backward_weights};
std::string_view name(Pass pass);

// Borders of tensor-parallel regions that [n, h] crosses in a pass. Inward it is gathered if rows
// are sharded. Outward it is all-reduced, or reduce-scattered if rows are sharded. row_values:
// all-reduces of [n] accumulators.
struct Borders {
  int inward = 0, outward = 0, row_values = 0;
};
std::vector<collectives::CollectiveCalls> calls(const LayerCase& c, Borders borders);
// Returns the calls of the three passes of a column-parallel product and a row-parallel one. The
// input of the first is gathered again for its weights.
std::array<std::vector<collectives::CollectiveCalls>, 3> calls_of_two_products(const LayerCase& c);

struct LayerClaims {
  // The extents that tp must divide, by name.
  std::vector<std::pair<std::string, std::int64_t>> cut{};
  std::int64_t parameters = 0;                                       // elements per rank
  std::array<std::vector<collectives::CollectiveCalls>, 3> calls{};  // by pass
  std::size_t saved = 0;              // bytes kept from forward for backward
  std::size_t saved_for_weights = 0;  // the part that backward_weights still reads
  std::size_t buffers = 0;  // peak bytes, without the caller's tensors and scratch of collectives
  double flops = 0;         // per rank, over all passes
  std::int64_t longest_sum = 1;
};

// Returns the cases of a layer's unit: a cross-section of four in quick, the full matrix in
// acceptance.
Sweep<LayerCase> layer_sweep(const LayerTraits& traits);
// Returns why the sizes of a case are not valid, or empty. Throws UsageError for a size below 1.
std::string why_no_case(const LayerTraits& traits, const LayerCase& c);

}  // namespace suite
