#include "layers/models/grids/grid_gpt_cost.h"

#include <algorithm>
#include <array>

#include "layers/tensor_grids/grid_cost.h"

namespace layers::grids {
namespace {

// The parts of a stage with their costs, and the notation of the header in bytes.
struct Parts {
  GridLinearCost tokens, positions, qkv, projection, fc1, fc2, table;
  GridNormCost norm;
  std::size_t layers, M, F, S, R, H, row_values;
  std::int64_t rows, vocabulary_ranks;
  bool first, last, cube;

  Parts(const GptConfig& config, const StageCase& stage) {
    const auto& [shape, rank, by_cannon] = stage.grid;
    const std::int64_t n = stage.tokens(config), h = config.hidden, f = config.ffn();
    cube = shape.mode == TensorParallelMode::three_d;
    GridLinearCase c{.mode = shape.mode,
                     .q = shape.columns,
                     .depth = cube ? 1 : shape.depth,
                     .place = shape.place(rank),
                     .cannon = by_cannon,
                     .tokens = n,
                     .dtype = stage.dtype};
    const auto with = [&](PairPlace layer, std::int64_t in, std::int64_t out) {
      c.layer = layer;
      c.in = in;
      c.out = out;
      return c;
    };
    tokens = grid_embedding_cost(with(PairPlace::second, config.vocabulary, h));
    positions = grid_embedding_cost(with(PairPlace::second, config.sequence, h));
    table = grid_head_cost(with(PairPlace::second, config.vocabulary, h));
    qkv = grid_linear_cost(with(PairPlace::first, h, 3 * h));
    projection = grid_linear_cost(with(PairPlace::second, h, h));
    fc1 = grid_linear_cost(with(PairPlace::first, h, f));
    fc2 = grid_linear_cost(with(PairPlace::second, f, h));
    norm = grid_norm_cost(with(PairPlace::second, h, h));

    layers = static_cast<std::size_t>(stage.stage.blocks(config).size());
    first = stage.stage.first();
    last = stage.stage.last();
    rows = n / (cube ? shape.columns * shape.columns : shape.columns * shape.depth);
    vocabulary_ranks = shape.columns;
    const std::size_t E = machine::size_of(stage.dtype), A = stage.dtype == Dtype::float64 ? 8 : 4;
    const auto block = [&](std::int64_t columns, std::size_t width) {
      return static_cast<std::size_t>(n * columns / shape.ranks()) * width;
    };
    M = block(h, E);
    F = block(f, E);
    H = block(config.vocabulary, E);
    S = block(config.heads, A);
    row_values = static_cast<std::size_t>(rows) * A;
    R = 2 * row_values;
  }
};

void add(std::vector<CollectiveCalls>& all, const GridPass& pass, std::size_t times = 1) {
  for (CollectiveCalls call : pass.calls) {
    call.calls *= static_cast<std::int64_t>(times);
    if (times > 0) all.push_back(call);
  }
}

// Adds a pass of all parts but the logits' row values.
std::vector<CollectiveCalls> calls_of(const Parts& parts, GridPass GridLinearCost::*pass,
                                      GridPass GridNormCost::*of_norm) {
  std::vector<CollectiveCalls> all;
  if (parts.first)
    for (const GridLinearCost* one : {&parts.tokens, &parts.positions}) add(all, one->*pass);
  for (const GridLinearCost* one : {&parts.qkv, &parts.projection, &parts.fc1, &parts.fc2})
    add(all, one->*pass, parts.layers);
  add(all, parts.norm.*of_norm, 2 * parts.layers + (parts.last ? 1 : 0));
  if (parts.last) add(all, parts.table.*pass);
  return all;
}

// Returns the messages of Cannon's products that no call has.
ContextMessages messages_of(const Parts& parts, GridPass GridLinearCost::*pass) {
  ContextMessages all;
  for (const GridLinearCost* one : {&parts.qkv, &parts.projection, &parts.fc1, &parts.fc2})
    layers::add(all, (one->*pass).messages, static_cast<int>(parts.layers));
  if (parts.last) layers::add(all, (parts.table.*pass).messages);
  return all;
}

// Bytes of the two categories now and at most.
class Ledger {
 public:
  void hold(Category category, std::size_t bytes) {
    of(now_, category) += bytes;
    of(peak_, category) = std::max(peak(category), now(category));
  }
  void drop(Category category, std::size_t bytes) { of(now_, category) -= bytes; }
  // Adds a call that needs these buffers.
  void call(std::size_t buffers) {
    hold(Category::buffers, buffers);
    drop(Category::buffers, buffers);
  }
  std::size_t now(Category category) const { return now_[at(category)]; }
  std::size_t peak(Category category) const { return peak_[at(category)]; }
  void reset_peaks() { peak_ = now_; }

 private:
  using Bytes = std::array<std::size_t, 2>;
  static std::size_t at(Category category) { return category == Category::buffers ? 1 : 0; }
  static std::size_t& of(Bytes& bytes, Category category) { return bytes[at(category)]; }
  Bytes now_{}, peak_{};
};

constexpr Category kept = Category::activations, buffers = Category::buffers;

// The passage of a micro-batch. later: the category of tensors from backward_input for
// backward_weights.
class Passage {
 public:
  Passage(const Parts& parts, Category later) : z_(parts), later_(later) {}

  const Ledger& ledger() const { return ledger_; }
  Ledger& ledger() { return ledger_; }

  void forward() {
    if (z_.first) {
      ledger_.hold(kept, z_.M);
      ledger_.call(z_.tokens.forward.buffers);
      ledger_.call(z_.M + z_.positions.forward.buffers);
    }
    for (std::size_t block = 0; block < z_.layers; ++block) {
      if (block + 1 < z_.layers || z_.last) ledger_.hold(kept, z_.M);  // y
      ledger_.hold(kept, 7 * z_.M + 2 * z_.F + z_.S + 2 * z_.R);
      ledger_.call(z_.norm.forward.buffers);
      for (const GridLinearCost* one : {&z_.qkv, &z_.projection, &z_.fc1, &z_.fc2})
        ledger_.call(one->forward.buffers);
    }
    if (!z_.last) return;
    ledger_.hold(kept, z_.M + z_.R + z_.H + 2 * z_.row_values);
    ledger_.call(z_.norm.forward.buffers);
    ledger_.call(z_.table.forward.buffers);
    ledger_.call(2 * z_.row_values);
  }

  void head_input() {
    ledger_.hold(later_, z_.M);  // d_x, the d_y of the last block
    ledger_.drop(kept, 2 * z_.row_values);
    ledger_.hold(later_, z_.M);  // d_norm
    ledger_.call(z_.table.backward_input.buffers);
    ledger_.call(z_.norm.backward_input.buffers);
  }
  void head_weights() {
    ledger_.call(z_.table.backward_weights.buffers);
    ledger_.call(z_.norm.backward_weights.buffers);
    ledger_.drop(kept, 2 * z_.M + z_.R + z_.H);  // with its input
    ledger_.drop(later_, z_.M);
  }

  void block_input(std::size_t block) {
    if (block > 0 || z_.first) ledger_.hold(later_, z_.M);  // d_x
    ledger_.hold(later_, z_.M + z_.F);                      // d_norm2, d_inner
    ledger_.hold(buffers, z_.F);                            // d_active
    ledger_.hold(later_, z_.fc2.kept);
    ledger_.call(z_.fc2.backward_input.buffers);
    ledger_.drop(buffers, z_.F);
    ledger_.drop(kept, z_.F);  // inner
    ledger_.hold(later_, z_.fc1.kept);
    ledger_.call(z_.fc1.backward_input.buffers);
    if (z_.cube) ledger_.drop(later_, z_.F);
    ledger_.hold(later_, z_.M);  // d_residual
    ledger_.call(z_.norm.backward_input.buffers);
    ledger_.hold(later_, 4 * z_.M);  // d_norm1, d_qkv
    ledger_.hold(buffers, z_.M);     // d_attended
    ledger_.hold(later_, z_.projection.kept);
    ledger_.call(z_.projection.backward_input.buffers);
    ledger_.drop(buffers, z_.M);
    ledger_.drop(kept, 3 * z_.M + z_.S);  // qkv, log_sum_exp
    ledger_.hold(later_, z_.qkv.kept);
    ledger_.call(z_.qkv.backward_input.buffers);
    if (z_.cube) ledger_.drop(later_, 3 * z_.M);
    ledger_.call(z_.norm.backward_input.buffers);
    if (z_.cube) ledger_.drop(later_, z_.M + d_y(block));
  }
  void block_weights(std::size_t block) {
    ledger_.call(z_.fc2.backward_weights.buffers);
    ledger_.call(z_.fc1.backward_weights.buffers);
    ledger_.drop(kept, z_.M + z_.F);  // norm2, active
    ledger_.drop(later_, z_.fc1.kept + z_.fc2.kept + (z_.cube ? 0 : z_.F + d_y(block)));
    ledger_.call(z_.norm.backward_weights.buffers);
    ledger_.call(z_.projection.backward_weights.buffers);
    ledger_.call(z_.qkv.backward_weights.buffers);
    ledger_.drop(kept, 2 * z_.M);  // norm1, attended
    ledger_.drop(later_, z_.projection.kept + z_.qkv.kept + (z_.cube ? 0 : 4 * z_.M));
    ledger_.call(z_.norm.backward_weights.buffers);
    ledger_.drop(kept, z_.M + 2 * z_.R + (block > 0 || z_.first ? z_.M : 0));  // with its input
    ledger_.drop(later_, 2 * z_.M);                                            // d_norm1, d_norm2
  }

  void embedding_weights() {
    ledger_.call(z_.tokens.backward_weights.buffers);
    ledger_.call(z_.positions.backward_weights.buffers);
    ledger_.drop(later_, z_.M);  // d_x of block 0
  }

 private:
  // The gradient of a block's output is the caller's at the end of a stage without a head.
  std::size_t d_y(std::size_t block) const { return block + 1 < z_.layers || z_.last ? z_.M : 0; }

  const Parts& z_;
  Category later_;
  Ledger ledger_;
};

}  // namespace

std::int64_t stage_parameters_count(const GptConfig& config, const StageCase& stage) {
  const Parts z(config, stage);
  std::int64_t count = 0;
  for (const std::int64_t one : {z.qkv.parameters, z.projection.parameters, z.fc1.parameters,
                                 z.fc2.parameters, 2 * z.norm.parameters})
    count += static_cast<std::int64_t>(z.layers) * one;
  if (z.first) count += z.tokens.parameters + z.positions.parameters;
  if (z.last) count += z.norm.parameters;
  if (z.last && (config.untie_embeddings_and_output_weights || !z.first))
    count += z.tokens.parameters;
  return count;
}

Shape boundary_shape(const GptConfig& config, const StageCase& stage) {
  return {Parts(config, stage).rows, config.hidden / stage.grid.shape.columns};
}

std::vector<CollectiveCalls> forward_calls(const GptConfig& config, const StageCase& stage) {
  const Parts z(config, stage);
  std::vector<CollectiveCalls> all = calls_of(z, &GridLinearCost::forward, &GridNormCost::forward);
  if (z.last && z.vocabulary_ranks > 1)
    all.push_back({z.cube ? "tp_depth" : "tp_row", machine::Operation::all_reduce,
                   stage.dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32,
                   static_cast<int>(z.vocabulary_ranks), z.rows, 3});
  return all;
}

std::vector<CollectiveCalls> backward_input_calls(const GptConfig& config, const StageCase& stage) {
  return calls_of(Parts(config, stage), &GridLinearCost::backward_input,
                  &GridNormCost::backward_input);
}

std::vector<CollectiveCalls> backward_weights_calls(const GptConfig& config,
                                                    const StageCase& stage) {
  return calls_of(Parts(config, stage), &GridLinearCost::backward_weights,
                  &GridNormCost::backward_weights);
}

ContextMessages forward_messages(const GptConfig& config, const StageCase& stage) {
  return messages_of(Parts(config, stage), &GridLinearCost::forward);
}

ContextMessages backward_input_messages(const GptConfig& config, const StageCase& stage) {
  return messages_of(Parts(config, stage), &GridLinearCost::backward_input);
}

ContextMessages backward_weights_messages(const GptConfig& config, const StageCase& stage) {
  return messages_of(Parts(config, stage), &GridLinearCost::backward_weights);
}

StageMemory stage_memory(const GptConfig& config, const StageCase& stage) {
  const Parts z(config, stage);
  StageMemory memory;
  Passage together(z, buffers), apart(z, kept);
  for (Passage* passage : {&together, &apart}) {
    passage->forward();
    memory.saved = passage->ledger().now(kept);
    memory.forward_buffers = passage->ledger().peak(buffers);
    passage->ledger().reset_peaks();
  }
  if (z.last) {
    together.head_input();
    together.head_weights();
    apart.head_input();
  }
  for (std::size_t block = z.layers; block-- > 0;) {
    together.block_input(block);
    together.block_weights(block);
    apart.block_input(block);
  }
  if (z.first) together.embedding_weights();
  memory.backward_buffers = together.ledger().peak(buffers);
  memory.input_half_peak = apart.ledger().peak(kept);
  memory.input_half_saved = apart.ledger().now(kept);
  memory.input_half_buffers = apart.ledger().peak(buffers);
  apart.ledger().reset_peaks();
  if (z.last) apart.head_weights();
  for (std::size_t block = z.layers; block-- > 0;) apart.block_weights(block);
  if (z.first) apart.embedding_weights();
  memory.weight_half_buffers = apart.ledger().peak(buffers);
  return memory;
}

std::size_t stage_state(const GptConfig& config, const StageCase& stage) {
  if (!stage.stage.first()) return 0;
  const TensorGrid& grid = stage.grid.shape;
  const std::int64_t rows_of =
      grid.mode == TensorParallelMode::three_d ? grid.rows : grid.rows * grid.depth;
  return static_cast<std::size_t>(stage.tokens(config) / rows_of) * sizeof(std::int32_t);
}

}  // namespace layers::grids
