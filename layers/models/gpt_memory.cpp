#include "layers/models/gpt_memory.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "layers/models/fp8_cost.h"
#include "layers/models/grids/grid_gpt_cost.h"
#include "layers/models/memory_rows.h"
#include "layers/models/mixture_memory.h"

namespace layers {
namespace {

// The notation of gpt_memory.h, in bytes; own: M/c. border: between two parts. gathered: a copy of
// all rows with sequence parallelism, M or 0; dropped: a gradient after dropout, M/c or 0. qkv,
// ffn, inner: Q/t, F/t, G/t.
struct Sizes {
  std::size_t n, c, A, E, t, L, M, own, border, gathered, dropped, qkv, ffn, inner, P, R, P_dropped,
      log_sum_exp, logits;
  bool first_stage, last_stage, selective, attends_again;  // attends_again: if blockwise
  bool over_cp, keeps_parts;  // attention is over cp: q, k and v are apart; backward reads them
  ContextCost context{};
  // Bytes of this rank's rows in the transform of an encoder's head, and in its embedding of token
  // types; else 0.
  std::size_t transform = 0;
  // For an encoder-decoder: elements of the relative bias of all pairs of positions, and of its
  // table.
  std::size_t pairs = 0, table = 0, spread = 0;  // spread: of positions that are made consecutive
  int first_block = 0, encoder_layers = 0;       // encoder_layers: 0 without an encoder-decoder
  std::vector<Mixture> mixtures{};               // of each block
  Fp8BlockMemory fp8{};

  Sizes(const GptConfig& config, const StageCase& stage)
      : n(static_cast<std::size_t>(stage.tokens(config))),
        c(stage.options.sequence_parallel ? static_cast<std::size_t>(stage.tp) : 1),
        A(stage.dtype == Dtype::float64 ? 8 : 4),
        E(machine::size_of(stage.dtype)),
        t(static_cast<std::size_t>(stage.tp)),
        L(static_cast<std::size_t>(stage.stage.blocks(config).size())),
        M(n * static_cast<std::size_t>(config.hidden) * E),
        own(M / c),
        border(boundary_bytes(config, stage)),
        gathered(stage.options.sequence_parallel ? M : 0),
        dropped(config.hidden_dropout > 0 ? own : 0),
        qkv(columns(config, config.qkv())),
        ffn(columns(config, config.ffn())),
        inner(columns(config, config.inner())),
        P(stage.options.blockwise(config) ? 0
                                          : M / static_cast<std::size_t>(config.hidden) *
                                                static_cast<std::size_t>(config.heads) / t *
                                                static_cast<std::size_t>(config.sequence)),
        R((config.normalization == Normalization::rms_norm ? 1 : 2) * n / c * A),
        P_dropped(config.attention_dropout > 0 ? P : 0),
        log_sum_exp(stage.options.blockwise(config) && stage.cp.ranks == 1
                        ? n * static_cast<std::size_t>(config.heads) / t * A
                        : 0),
        logits(M / static_cast<std::size_t>(config.hidden) *
               (static_cast<std::size_t>(config.vocabulary) / t)),
        first_stage(stage.stage.first()),
        last_stage(stage.stage.last()),
        selective(stage.options.recompute_granularity == RecomputeGranularity::selective),
        attends_again(selective && stage.options.blockwise(config)),
        over_cp(stage.cp.ranks > 1),
        keeps_parts(over_cp && (attends_again || (stage.cp.options.comm_type != CpCommType::a2a &&
                                                  !stage.cp.options.is_hybrid()))),
        fp8(fp8_memory(config, stage)) {
    if (config.encoder()) transform = own;
    for (std::size_t block = 0; block < L; ++block) mixtures.emplace_back(config, stage, block);
    first_block = stage.stage.blocks(config).begin;
    if (config.encoder_decoder()) {
      const auto heads = static_cast<std::size_t>(config.heads) / t;
      pairs = heads * static_cast<std::size_t>(config.sequence * config.sequence);
      table = heads * static_cast<std::size_t>(relative_buckets_count);
      encoder_layers = config.encoder_layers();
    }
    if (!over_cp) return;
    context = core_attention_cost(config, stage);
    if (stage.cp.options.order == SequenceOrder::striped && !config.rotary())
      spread = std::min(n / c, n / static_cast<std::size_t>(stage.sequences)) *
               static_cast<std::size_t>(config.hidden);
  }

  // Returns the bytes of all rows of this rank's part of `whole` columns.
  std::size_t columns(const GptConfig& config, int whole) const {
    return M / static_cast<std::size_t>(config.hidden) * (static_cast<std::size_t>(whole) / t);
  }
  // Return whether a block of the stage has cross attention, and whether the encoder ends with it.
  bool crosses(std::size_t block) const {
    return encoder_layers > 0 && at(block) >= encoder_layers;
  }
  bool ends_encoder(std::size_t block) const { return at(block) + 1 == encoder_layers; }
  int at(std::size_t block) const { return first_block + static_cast<int>(block); }
  // Returns whether the weights use the gradient that enters a layer unchanged.
  bool passes_on() const { return gathered == 0 && dropped == 0; }
  bool mlp_passes_on(std::size_t block) const {
    return passes_on() && (!mixtures[block].present || mixtures[block].F > 0);
  }
};

// clang-format off
// joined: backward computes both halves of the first product of attention and of the perceptron.
// apart: the halves of backward are separate calls.
std::vector<Row> block_rows(const Sizes& z, std::size_t block, bool joined, bool apart) {
  enum Moment : int {
    norm1 = forward, qkv, split, core, context, projection,
    cross_norm, cross_q, cross_kv, cross_core, cross_context, cross_projection, fc1 = of_mlp, fc2, end = of_mlp + of_experts,
    d_mlp = d_of_mlp, d_active, d_fc1, d_norm2 = d_of_mlp + of_experts,
    d_cross, d_cross_core, d_cross_q, d_cross_kv, d_cross_norm,
    d_again, d_attend, d_recompute, d_core, d_return, d_join, d_qkv,
    w_fc2 = weight_half, w_mlp = mlp_weights_end, w_cross, w_projection, w_attention
  };
  using enum Held;
  const std::size_t again = z.selective ? z.P : 0, of_core = z.P + z.log_sum_exp + z.context.kept,
                    core_again = z.selective ? of_core : 0, chunks = z.context.kept_on_host,
                    chunks_again = z.selective ? chunks : 0;
  const auto crossed = [cross = z.crosses(block)](std::size_t bytes) { return cross ? bytes : 0; };
  const auto ended = [end = z.ends_encoder(block)](std::size_t bytes) { return end ? bytes : 0; };
  const std::size_t q = crossed(z.M / z.t), P = crossed(z.P), gathered = crossed(z.gathered),
                    own = crossed(z.own);
  const bool cross = own > 0;
  const std::size_t entered = z.fp8.on() ? 0 : z.gathered, beside = joined ? z.gathered : 0,
                    later_again = entered - beside;
  const int qkv_end = joined ? d_qkv : w_attention, fc1_end = joined ? d_fc1 : w_mlp;
  const auto mlp = [moe = z.mixtures[block].present](std::size_t bytes) { return moe ? 0 : bytes; };
  std::vector<Row> rows{
      {saved, "norm1", z.own, norm1, qkv_end},
      {saved, "statistics of norm1", z.R, norm1, done},
      {saved, "residual", z.own, norm1, done},
      {now,   "norm1 of all rows", entered, qkv, qkv},
      {saved, "qkv", z.over_cp ? 0 : z.qkv, qkv, d_core},
      {now,   "qkv before its split", z.over_cp ? z.qkv : 0, qkv, split},
      {saved, "q, k and v", z.keeps_parts ? z.qkv : 0, split, d_core},
      {now,   "q, k and v, otherwise", z.over_cp && !z.keeps_parts ? z.qkv : 0, split, core},
      {now,   "attention over cp", z.context.forward.buffers, core, core},
      {now,   "scores", z.P, core, core},
      {now,   "relative bias of all pairs", z.pairs * z.E, core, core},
      {now,   "probabilities or log of the sum of exp, if recomputed", core_again, core, context},
      {saved, "the same, otherwise", of_core - core_again, core, d_core},
      {now,   "chunks of attention, if recomputed", chunks_again, core, context, Place::host},
      {saved, "chunks of attention, otherwise", chunks - chunks_again, core, d_core, Place::host},
      {now,   "probabilities dropped", z.P_dropped, context, context},
      {saved, "context", z.M / z.t, z.over_cp ? core : context, w_attention},
      {now,   "residual before its scatter", z.gathered, projection, projection},
      {saved, "cross norm", own, cross_norm, w_cross},
      {saved, "statistics of the cross norm", crossed(z.R), cross_norm, done},
      {saved, "crossed", own, cross_q, done},
      {saved, "queries of cross attention", q, cross_q, d_cross_core},
      {now,   "cross norm of all rows", gathered, cross_q, cross_q},
      {saved, "its keys and values", 2 * q, cross_kv, d_cross_core},
      {now,   "encoded rows, all", gathered, cross_kv, cross_kv},
      {now,   "its scores", P, cross_core, cross_core},
      {now,   "its probabilities, if recomputed", crossed(again), cross_core, cross_context},
      {saved, "its probabilities, otherwise", P - crossed(again), cross_core, d_cross_core},
      {now,   "its probabilities dropped", crossed(z.P_dropped), cross_context, cross_context},
      {saved, "its context", q, cross_context, w_cross},
      {now,   "crossed before its scatter", gathered, cross_projection, cross_projection},
      {saved, "encoder's end before its norm", ended(z.own), norm1, done},
      {saved, "statistics of that norm", ended(z.R), end, done},
      {saved, "norm2", mlp(z.own), fc1, fc1_end},
      {saved, "statistics of norm2", mlp(z.R), fc1, done},
      {now,   "norm2 of all rows", mlp(entered), fc1, fc1},
      {saved, "inner", mlp(z.inner), fc1, d_active},
      {saved, "active", mlp(z.ffn), fc1, w_mlp},
      {now,   "y before its scatter", mlp(z.gathered), fc2, fc2},

      {later, "d_y dropped", mlp(z.dropped), d_mlp, z.gathered > 0 ? d_fc1 : w_mlp},
      {later, "d_y of all rows", mlp(entered), d_mlp, w_mlp},
      {later, "d_norm2", mlp(z.own), d_mlp, done},
      {later, "d_inner", mlp(z.inner), d_mlp, fc1_end},
      {now,   "d_active", mlp(z.ffn), d_mlp, d_active},
      {now,   "d_norm2 before its scatter", mlp(z.gathered), d_fc1, d_fc1},
      {now,   "norm2 of all rows beside it", mlp(beside), d_fc1, d_fc1},
      {later, "d_unnormed of the encoder's end", ended(z.own), d_mlp, done},
      {later, "d_crossed", own, d_norm2, z.passes_on() ? w_cross : d_cross_norm},
      {later, "d_cross_norm", own, d_cross, done},
      {later, "d_crossed dropped", crossed(z.dropped), d_cross,
       z.gathered > 0 ? d_cross_kv : w_cross},
      {later, "d_crossed of all rows", gathered, d_cross_core, w_cross},
      {later, "d_q and d_kv", 3 * q, d_cross, w_cross},
      {now,   "d_context of cross attention", q, d_cross_core, d_cross_core},
      {now,   "its probabilities again", crossed(again), d_cross_core, d_cross_core},
      {now,   "its scores again, dropped probabilities, or d_scores", P, d_cross_core,
       d_cross_core},
      {now,   "d_cross_norm before its scatter", gathered, d_cross_q, d_cross_q},
      {now,   "d_encoded of this block", own + gathered, d_cross_kv, d_cross_kv},
      {later, "d_residual", z.own, cross ? d_cross_norm : d_norm2,
       z.passes_on() ? w_attention : input_end},
      {later, "d_residual dropped", z.dropped, d_again, z.gathered > 0 ? d_qkv : w_attention},
      {later, "d_residual of all rows", entered, d_attend, w_attention},
      {later, "d_norm1", z.own, d_again, done},
      {later, "d_qkv", z.qkv, z.over_cp ? d_join : d_again, qkv_end},
      {now,   "gradients of q, k and v", z.over_cp ? z.qkv : 0, d_core, d_join},
      {now,   "backward of attention over cp", z.context.backward.buffers, d_core, d_core},
      {now,   "its end", z.context.backward.buffers_at_end, d_return, d_return},
      {now,   "attention over cp again", z.attends_again ? z.context.forward.buffers : 0, d_recompute, d_recompute},
      {now,   "scores again", again, d_recompute, d_recompute},
      {now,   "probabilities or log of the sum of exp again", core_again, d_recompute, d_core},
      {now,   "chunks of attention again", chunks_again, d_recompute, d_core, Place::host},
      {now,   "chunks of d_out and sums of d_q", z.context.backward.host_buffers, d_core, d_core, Place::host},
      {now,   "d_context", z.M / z.t, d_attend, z.over_cp ? d_return : d_core},
      {now,   "probabilities dropped, then d_scores", z.P, d_core, d_core},
      {now,   "gradient of the relative bias", z.pairs * z.A + z.table * (z.A + z.E), d_core, d_core},
      {now,   "d_norm1 before its scatter", z.gathered, d_qkv, d_qkv},
      {now,   "norm1 of all rows beside it", beside, d_qkv, d_qkv},

      {now,   "norm2 of all rows again", mlp(later_again), w_mlp, w_mlp},
      {now,   "cross norm or encoded rows again", gathered, w_cross, w_cross},
      {now,   "norm1 of all rows again", later_again, w_attention, w_attention},
  };
  if (z.fp8.on())
    for (const auto& [m, f, d, d_end, w, w_end] :
         {std::tuple(&z.fp8.qkv, int{qkv}, int{d_qkv}, int{d_qkv}, int{w_attention}, int{w_attention}),
          {&z.fp8.projection, projection, d_attend, d_recompute, w_projection, w_attention},
          {&z.fp8.fc1, fc1, d_fc1, d_fc1, w_mlp, w_mlp},
          {&z.fp8.fc2, fc2, d_mlp, d_active, w_fc2, w_mlp}}) {
      const std::vector<Row> of_fp8{
          {saved, "scale of x", m->scale, f, w},
          {now,   "operands in 8 bits", m->forward, f, f},
          {now,   "those of d_x", std::max(m->backward_input, apart ? 0 : m->gathered_again), d, d},
          {later, "scale of d_y", m->scale_of_d_y - m->inverse_of_d_y, d, d},
          {later, "its inverse", m->inverse_of_d_y, d, w},
          {later, "codes of d_y of all rows", m->gathered, m->scale > 0 ? d : d_end, w_end},
          {later, "their scales", m->gathered_scales, d_end, w},
          {later, "sums of their columns", m->bias_sums, d, w},
          {now,   "operands of the weights' gradient", m->backward_weights, w, w},
      };
      rows.insert(rows.end(), of_fp8.begin(), of_fp8.end());
    }
  if (z.mixtures[block].present) {
    const std::vector<Row> experts =
        mixture_rows(z.mixtures[block], {z.own, z.R, z.dropped, z.gathered});
    rows.insert(rows.end(), experts.begin(), experts.end());
  }
  return rows;
}

std::vector<Row> head_rows(const Sizes& z) {
  enum Moment : int {
    norm_and_logits = forward, loss, d_logits = input_half, d_features, d_norm,
    w_table = weight_half
  };
  using enum Held;
  return {
      {saved, "norm", z.own, norm_and_logits, done},
      {saved, "statistics", z.R, norm_and_logits, done},
      {saved, "inner of the transform", z.transform, norm_and_logits, d_norm},
      {saved, "active of the transform", z.transform, norm_and_logits, done},
      {saved, "statistics of the transform", z.transform > 0 ? z.R : 0, norm_and_logits, done},
      {saved, "features", z.transform, norm_and_logits, done},
      {saved, "logits, then their gradient", z.logits, norm_and_logits, done},
      {now,   "features of all rows", z.gathered, norm_and_logits, norm_and_logits},
      {saved, "max and sum of exp", 2 * z.n * z.A, loss, d_logits},
      {now,   "target and token loss", 2 * z.n * z.A, loss, loss},
      {later, "d_features", z.own, d_features, done},
      {now,   "d_features before its scatter", z.gathered, d_features, d_features},
      {later, "d_norm, if it is not d_features", z.transform, d_norm, done},
      {later, "d_inner of the transform", z.transform, d_norm, done},
      {now,   "d_active of the transform", z.transform, d_norm, d_norm},
      {now,   "features of all rows again", z.gathered, w_table, w_table},
  };
}

std::vector<Row> embedding_rows(const Sizes& z) {
  return {
      {Held::now, "x before its scatter", z.gathered, forward, forward},
      {Held::now, "d_x of all rows", z.gathered, weight_half, weight_half},
      {Held::now, "types", z.transform, forward + 1, forward + 1},
      {Held::now, "positions", z.spread * z.E, forward + 1, forward + 1},
      {Held::now, "their gradients", z.spread * z.A, weight_half + 1, weight_half + 1},
  };
}
// clang-format on

// The passage of one micro-batch through a stage: embedding, blocks and head, forward and backward.
class Passage {
 public:
  Passage(const Sizes& z, const ActivationOptions& options, bool apart);

  std::size_t held_before(Place place, Category category, int pass) const;
  std::size_t peak(Place place, Category category, int begin, int stop) const;

  int backward = 0, weights = 0, end = 0;  // begins of the calls; weights: for separate halves
  std::size_t checkpoints_on_host = 0;

 private:
  // The times of a part's passes; again: of its second forward.
  struct Part {
    std::array<int, 3> pass{-1, -1, -1};
    int again = -1;
    int at(int moment) const {
      return pass[static_cast<std::size_t>(moment / steps)] + moment % steps;
    }
  };
  int next_pass() { return std::exchange(end, end + steps); }
  void run(const Sizes& z, bool apart);
  void hold(Category category, std::size_t bytes, int from, int to, Place place = Place::device);
  void hold(const Part& part, const std::vector<Row>& rows);
  void hold_borders(const Sizes& z, const ActivationOptions& options);

  Category later_;
  std::vector<Part> parts_;  // 0: embedding, 1 to L: blocks, L + 1: head
  std::vector<LayerGroup> groups_;
  std::vector<int> gathers_;  // when the kept input of a group is gathered
  using Changes = std::array<std::vector<std::int64_t>, machine::num_categories>;
  std::array<Changes, 2> changes_;  // by place
};

Passage::Passage(const Sizes& z, const ActivationOptions& options, bool apart)
    : later_(apart ? Category::activations : Category::buffers),
      parts_(z.L + 2),
      groups_(layer_groups(options, z.L)),
      gathers_(groups_.size(), -1) {
  run(z, apart);
  for (Changes& of_place : changes_)
    for (auto& changes : of_place) changes.resize(static_cast<std::size_t>(end) + 1);
  if (z.first_stage) hold(parts_.front(), embedding_rows(z));
  const bool joined = !apart && z.t > 1 && options.tp_comm.joins_halves(options.sequence_parallel);
  for (std::size_t block = 0; block < z.L; ++block)
    hold(parts_[block + 1], block_rows(z, block, joined, apart));
  if (z.last_stage) hold(parts_.back(), head_rows(z));
  hold_borders(z, options);
}

// Orders the passes as GptStage runs them.
void Passage::run(const Sizes& z, bool apart) {
  Part &embedding = parts_.front(), &head = parts_.back();
  for (Part& part : parts_) part.pass[0] = next_pass();
  backward = end;
  const auto weights_of = [&](Part& part) { part.pass[2] = next_pass(); };
  head.pass[1] = next_pass();
  if (!apart) weights_of(head);
  for (std::size_t g = groups_.size(); g-- > 0;) {
    const LayerGroup& group = groups_[g];
    gathers_[g] = next_pass();
    for (std::size_t block = group.begin; block < group.end && group.recomputed; ++block)
      parts_[block + 1].again = next_pass();
    for (std::size_t block = group.end; block-- > group.begin;) {
      parts_[block + 1].pass[1] = next_pass();
      if (!apart) weights_of(parts_[block + 1]);
    }
  }
  embedding.pass[1] = next_pass();
  weights = end;
  if (apart) {
    weights_of(head);
    for (std::size_t block = z.L; block-- > 0;) weights_of(parts_[block + 1]);
  }
  weights_of(embedding);
}

void Passage::hold(Category category, std::size_t bytes, int from, int to, Place place) {
  auto& changes = changes_[static_cast<std::size_t>(place)][static_cast<std::size_t>(category)];
  changes[static_cast<std::size_t>(from)] += static_cast<std::int64_t>(bytes);
  changes[static_cast<std::size_t>(to) + 1] -= static_cast<std::int64_t>(bytes);
}

void Passage::hold(const Part& part, const std::vector<Row>& rows) {
  const bool recomputed = part.again >= 0;
  for (const Row& row : rows) {
    const int from = part.at(row.from), to = part.at(row.to);
    switch (row.held) {
      case Held::saved:
        if (recomputed) {
          hold(Category::buffers, row.bytes, from, part.at(forward_end), row.place);
          hold(later_, row.bytes, part.again + row.from, to, row.place);
        } else {
          hold(Category::activations, row.bytes, from, to, row.place);
        }
        break;
      case Held::later:
        hold(later_, row.bytes, from, to, row.place);
        break;
      case Held::now:
        hold(Category::buffers, row.bytes, from, to, row.place);
        if (recomputed && row.to <= forward_end)
          hold(Category::buffers, row.bytes, part.again + row.from, part.again + row.to, row.place);
        break;
    }
  }
}

// Tensors between two parts of a stage: x in forward, allocated before the part that fills it runs,
// and d_x in backward. The caller owns the tensors between stages.
void Passage::hold_borders(const Sizes& z, const ActivationOptions& options) {
  const bool distribute = options.distribute_saved_activations, to_host = options.cpu_checkpointing;
  const std::size_t share = distribute ? z.border / z.t : z.border;
  std::size_t apart = 0;                     // checkpoints
  int first_kept = -1, first_restored = -1;  // when the first one is kept and restored
  for (std::size_t to = 1; to < parts_.size(); ++to) {
    if ((to == 1 && !z.first_stage) || (to == parts_.size() - 1 && !z.last_stage)) continue;
    const Part &before = parts_[to - 1], &part = parts_[to];
    // The weights of the part before use d_x, unless they use a gathered or dropped copy.
    const int user = to == 1 || z.ends_encoder(to - 2) ? done
                     : z.mlp_passes_on(to - 2)         ? mlp_weights_end
                                                       : input_end;
    hold(later_, z.border, part.at(input_half), before.at(user));

    const std::size_t block = to - 1;
    const auto group = std::find_if(groups_.begin(), groups_.end(), [&](const LayerGroup& one) {
      return one.recomputed && one.begin <= block && block < one.end;
    });
    if (group == groups_.end() || (block == group->begin && !distribute && !to_host)) {
      hold(Category::activations, z.border, before.at(forward), part.at(done));
      continue;
    }
    hold(Category::buffers, z.border, before.at(forward), part.at(forward_end));
    if (block > group->begin) {
      hold(later_, z.border, before.again, part.at(done));
    } else {
      const int gathered = gathers_[static_cast<std::size_t>(group - groups_.begin())];
      // One allocation of all is made with the first, which is restored last.
      if (apart++ == 0) {
        first_kept = part.at(forward);
        first_restored = gathered;
      }
      hold(Category::activations, share, part.at(forward),
           options.contiguous_memory_optimization ? first_restored : gathered,
           to_host ? Place::host : Place::device);
      if (to_host) checkpoints_on_host += share;
      if (to_host && distribute) hold(Category::buffers, share, gathered, gathered);
      hold(later_, z.border, gathered, part.at(done));
    }
  }
  const auto room = static_cast<std::size_t>(options.number_checkpoints);
  if (options.contiguous_memory_optimization && apart > 0 && room > apart)
    hold(Category::activations, (room - apart) * share, first_kept, first_restored,
         to_host ? Place::host : Place::device);
  for (const LayerGroup& group : groups_) {  // the output of a second forward
    const int again = parts_[group.end].again;
    if (group.recomputed) hold(Category::buffers, z.border, again, again + last);
  }
}

std::size_t Passage::held_before(Place place, Category category, int pass) const {
  return peak(place, category, pass - 1, pass);
}

std::size_t Passage::peak(Place place, Category category, int begin, int stop) const {
  const auto& changes =
      changes_[static_cast<std::size_t>(place)][static_cast<std::size_t>(category)];
  std::int64_t bytes = 0, most = 0;
  for (int at = 0; at < stop; ++at) {
    bytes += changes[static_cast<std::size_t>(at)];
    if (at >= begin) most = std::max(most, bytes);
  }
  return static_cast<std::size_t>(most);
}

}  // namespace

StageMemory stage_memory(const GptConfig& config, const StageCase& stage) {
  if (stage.grid.on()) return grids::stage_memory(config, stage);
  const Sizes z(config, stage);
  const Passage together(z, stage.options, false), apart(z, stage.options, true);
  const auto held_in = [&](Place place) {
    using enum Category;
    return HeldMemory{
        .saved = together.held_before(place, activations, together.backward),
        .forward_buffers = together.peak(place, buffers, 0, together.backward),
        .backward_buffers = together.peak(place, buffers, together.backward, together.end),
        .input_half_saved = apart.held_before(place, activations, apart.weights),
        .input_half_peak = apart.peak(place, activations, apart.backward, apart.weights),
        .input_half_buffers = apart.peak(place, buffers, apart.backward, apart.weights),
        .weight_half_buffers = apart.peak(place, buffers, apart.weights, apart.end),
    };
  };
  return {held_in(Place::device), held_in(Place::host), together.checkpoints_on_host};
}

}  // namespace layers
