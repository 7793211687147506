// Keys of block-sparse attention: DeepSpeed's block `sparse_attention`, which Megatron-LM does not
// have, with names of the same form.

#include <algorithm>
#include <initializer_list>

#include "suite/configuration/keys.h"

namespace suite::configuration {
namespace {

using namespace predicted;
using layers::SparseMode;

bool is_one_of(const TrainingConfig& c, std::initializer_list<SparseMode> modes) {
  return std::ranges::find(modes, c.model.sparse.pattern.mode) != modes.end();
}

const Needs sparse{"sparse_attention.mode",
                   [](const TrainingConfig& c) { return c.model.sparse.on(); }};
const Needs pattern{
    "sparse_attention.mode fixed, variable, bigbird, bslongformer or local_sliding_window",
    [](const TrainingConfig& c) { return sparse.met(c) && !is_one_of(c, {SparseMode::dense}); }};
const Needs of_heads{"sparse_attention.mode fixed, variable, bigbird or bslongformer",
                     [](const TrainingConfig& c) {
                       return pattern.met(c) && !is_one_of(c, {SparseMode::local_sliding_window});
                     }};
const Needs windows{"sparse_attention.mode fixed or variable", [](const TrainingConfig& c) {
                      return is_one_of(c, {SparseMode::fixed, SparseMode::variable});
                    }};
const Needs fixed{"sparse_attention.mode fixed",
                  [](const TrainingConfig& c) { return is_one_of(c, {SparseMode::fixed}); }};
const Needs variable{"sparse_attention.mode variable",
                     [](const TrainingConfig& c) { return is_one_of(c, {SparseMode::variable}); }};
const Needs first_blocks{"sparse_attention.mode fixed or bigbird", [](const TrainingConfig& c) {
                           return is_one_of(c, {SparseMode::fixed, SparseMode::bigbird});
                         }};
const Needs random{"sparse_attention.mode variable or bigbird", [](const TrainingConfig& c) {
                     return is_one_of(c, {SparseMode::variable, SparseMode::bigbird});
                   }};
const Needs sliding{"sparse_attention.mode bigbird, bslongformer or local_sliding_window",
                    [](const TrainingConfig& c) {
                      return is_one_of(c, {SparseMode::bigbird, SparseMode::bslongformer,
                                           SparseMode::local_sliding_window});
                    }};
const Needs chosen{"sparse_attention.mode variable or bslongformer", [](const TrainingConfig& c) {
                     return is_one_of(c, {SparseMode::variable, SparseMode::bslongformer});
                   }};
constexpr Predicted of_layouts = unaffected("sparse_attention.mode, which they need, is rejected");
constexpr Limits count() { return {.least = 1, .most = 1e6}; }

}  // namespace

std::vector<Key> sparse_keys() {
  return {
      axis("--sparse-attention", "sparse_attention.mode",
           NAMED(model.sparse.pattern.mode, layers::sparse_mode),
           rejected("no cluster file has a rate of block-sparse kernels"),
           "layout of the blocks that attention computes",
           {.choices = {"none", "dense", "fixed", "variable", "bigbird", "bslongformer",
                        "local_sliding_window"}}),
      row("--sparse-attention-block", "sparse_attention.block", AT(model.sparse.block), of_layouts,
          {.least = 16, .most = 1e6}, &sparse),
      row("--sparse-attention-direction", "sparse_attention.attention", AT(model.sparse_direction),
          of_layouts, {.choices = {"unidirectional", "bidirectional"}}, &pattern),
      row("--sparse-attention-different-layout-per-head",
          "sparse_attention.different_layout_per_head",
          AT(model.sparse.pattern.different_layout_per_head), of_layouts, {}, &of_heads),
      row("--sparse-attention-horizontal-global-attention",
          "sparse_attention.horizontal_global_attention",
          AT(model.sparse.pattern.horizontal_global_attention), of_layouts, {}, &windows),
      row("--sparse-attention-num-local-blocks", "sparse_attention.num_local_blocks",
          AT(model.sparse.pattern.num_local_blocks), of_layouts, count(), &fixed),
      row("--sparse-attention-num-global-blocks", "sparse_attention.num_global_blocks",
          AT(model.sparse.pattern.num_global_blocks), of_layouts, count(), &first_blocks),
      row("--sparse-attention-num-different-global-patterns",
          "sparse_attention.num_different_global_patterns",
          AT(model.sparse.pattern.num_different_global_patterns), of_layouts, count(), &fixed),
      row("--sparse-attention-num-random-blocks", "sparse_attention.num_random_blocks",
          AT(model.sparse.pattern.num_random_blocks), of_layouts, {.most = 1e6}, &random),
      row("--sparse-attention-num-sliding-window-blocks",
          "sparse_attention.num_sliding_window_blocks",
          AT(model.sparse.pattern.num_sliding_window_blocks), of_layouts, count(), &sliding),
      row("--sparse-attention-local-window-blocks", "sparse_attention.local_window_blocks",
          AT(model.sparse.pattern.local_window_blocks), of_layouts, count(), &variable),
      row("--sparse-attention-global-block-indices", "sparse_attention.global_block_indices",
          AT(model.sparse.pattern.global_block_indices), of_layouts, {.most = 1e6}, &chosen),
      row("--sparse-attention-global-block-end-indices",
          "sparse_attention.global_block_end_indices",
          AT(model.sparse.pattern.global_block_end_indices), of_layouts, count(), &chosen),
  };
}

}  // namespace suite::configuration
