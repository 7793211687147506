#include "suite/predict/stage_time.h"

#include <algorithm>

#include "layers/models/gpt_cost.h"
#include "suite/predict/collective_time.h"
#include "suite/predict/kernel_time.h"
#include "suite/predict/zero/zero_calls.h"
#include "suite/trainer/model_chunks.h"

namespace suite::predict {
namespace {

using layers::RecomputeGranularity;
using machine::Operation;

double as_double(std::int64_t value) { return static_cast<double>(value); }

// One layer of a rank. E: bytes of a value; n: its tokens; c: ranks that split them between the
// tensor-parallel regions.
class Layer {
 public:
  Layer(const TrainingConfig& config, const Gpu& gpu, const Software& software)
      : gpu_(gpu),
        software_(software),
        dtype_(config.precision.dtype),
        E(as_double(static_cast<std::int64_t>(machine::size_of(dtype_)))),
        t(config.degrees.tp),
        c(config.activations.sequence_parallel ? t : 1),
        s(config.model.sequence),
        n(as_double(config.batch.micro_batch_size) * s / config.degrees.cp),
        h(config.model.hidden),
        qkv(config.model.qkv()),
        inner(config.model.inner()),
        f(config.model.ffn()),
        heads(config.model.heads / t),
        head(config.model.head()),
        experts_(config.model.has_experts() ? mixture_case(config) : layers::MoeCase{}),
        dropout_(config.model.hidden_dropout > 0),
        score_dropout_(config.model.attention_dropout > 0),
        flash_(config.activations.use_flash_attn),
        fused_(config.activations.fused_epilogues),
        fp8_(config.fp8),
        causal_(!config.model.encoder()) {}

  // of: dense layers and layers with experts.
  Seconds forward(LayerCount of) const {
    return both(of, forward(false), [&] { return forward(true); });
  }
  Seconds backward_input(LayerCount of) const {
    return both(of, backward_input(false), [&] { return backward_input(true); });
  }
  Seconds backward_weights(LayerCount of) const {
    return both(of, backward_weights(false), [&] { return backward_weights(true); });
  }
  // Returns the scores and probabilities that selective recomputation computes again.
  Seconds core_again() const {
    Seconds out;
    out.attention = core(1, 2, softmax_bytes());
    return out;
  }

 private:
  enum class Way { forward, input, weights };

  template <class WithExperts>
  static Seconds both(LayerCount of, const Seconds& dense, const WithExperts& with_experts) {
    Seconds out = dense.scaled(of.dense);
    if (of.with_experts > 0) out += with_experts().scaled(of.with_experts);
    return out;
  }

  Seconds forward(bool with_experts) const {
    Seconds out;
    out.gemm = products(Way::forward, with_experts);
    out.attention = core(1, flash_ ? 1 : 2, softmax_bytes());
    const double mask = dropout_ ? 1 : 0;
    const double bytes = 2 * 2 * E * n * h / c             // norms
                         + 2 * (3 * E + mask) * n * h / c  // dropout and residual
                         + (with_experts ? expert_memory(1) : activation_bytes(inner + f)) +
                         2 * E * n * (qkv + h) / t;  // heads of queries, keys, values, result
    out.memory = streaming_s(gpu_, bytes, with_experts ? 9 + expert_kernels : 9);
    return out;
  }
  Seconds backward_input(bool with_experts) const {
    Seconds out;
    out.gemm = products(Way::input, with_experts);
    out.attention = core(flash_ ? 2.5 : 2, flash_ ? 1 : 4, softmax_gradient_bytes());
    const double mask = dropout_ ? 1 : 0;
    const double bytes = 2 * 5 * E * n * h / c + 2 * (3 * E + mask) * n * h / c +
                         (with_experts ? expert_memory(2) : activation_bytes(2 * inner + f)) +
                         2 * E * n * (qkv + h) / t;
    out.memory = streaming_s(gpu_, bytes, with_experts ? 11 + expert_kernels : 11);
    return out;
  }
  Seconds backward_weights(bool with_experts) const {
    Seconds out;
    out.gemm = products(Way::weights, with_experts);
    const double perceptron = with_experts ? expert_parameters() : (h * inner + f * h) / t;
    const double parameters = (h * qkv + h * h) / t + perceptron;
    // Without fusion the gradient is written by the product, read, and added.
    out.memory = streaming_s(gpu_, parameters * (software_.fused_accumulation ? 4 : 2 * E), 4);
    return out;
  }
  // A product with the activation inside keeps its own result for backward, which reads it.
  double activation_bytes(double columns) const { return E * n * (fused_ ? f : columns) / t; }
  static constexpr int expert_kernels = 6;  // router, and four copies of rows

  // [rows, in] times [in, out], `count` times.
  double product(Way way, double rows, double in, double out, double count = 1) const {
    const Gemm gemm = way == Way::forward ? Gemm{rows, out, in, count}
                      : way == Way::input ? Gemm{rows, in, out, count}
                                          : Gemm{in, out, rows, count};
    if (fp8_.on()) return product_of_codes(way, gemm, rows, in, out);
    return gemm_s(gpu_, gemm, dtype_);
  }
  // Both operands are read and coded before each product (layers/fp8/fp8_products.h). A scale for a
  // whole tensor needs a read of its own: of x and W in forward, of d_y in backward.
  double product_of_codes(Way way, const Gemm& gemm, double rows, double in, double out) const {
    const double x = rows * in, w = in * out, d_y = rows * out, amax = fp8_.per_tensor() ? E : 0;
    const double bytes = way == Way::forward ? (x + w) * (amax + E + 1)
                         : way == Way::input ? d_y * (amax + E + 1) + w * (E + 1)
                                             : (x + d_y) * (E + 1);
    return gemm_of_codes_s(gpu_, gemm, way == Way::weights ? 4 : E) + streaming_s(gpu_, bytes, 2);
  }
  double products(Way way, bool with_experts) const {
    const double attention = product(way, n, h, qkv / t) + product(way, n, h / t, h);
    if (with_experts) return attention + expert_products(way);
    return attention + product(way, n, h, inner / t) + product(way, n, f / t, h);
  }

  // Returns the time of a rank's experts in one grouped product each, of the router, and of the
  // shared expert.
  double expert_products(Way way) const {
    const layers::MoeConfig& mixture = experts_.config;
    const int own = mixture.num_experts / experts_.degrees.ep;
    const double rows = received() / own, etp = experts_.degrees.etp;
    double seconds = product(way, n / c, h, mixture.num_experts) +
                     product(way, rows, h, as_double(mixture.inner()) / etp, own) +
                     product(way, rows, as_double(mixture.ffn_hidden_size) / etp, h, own);
    if (const double shared = as_double(mixture.shared_expert_intermediate_size) / t; shared > 0)
      seconds += product(way, n, h, (mixture.swiglu ? 2 : 1) * shared) + product(way, n, shared, h);
    return seconds;
  }
  // Rows are gathered by destination, sorted by expert, sorted back, and added to their token.
  // times: reads and writes of the activation's input.
  double expert_memory(double times) const {
    const layers::MoeConfig& mixture = experts_.config;
    const double sent = as_double(moe_rows(experts_).sent), twice = mixture.swiglu ? 2 : 1;
    const double etp = experts_.degrees.etp,
                 of_experts = as_double(mixture.ffn_hidden_size) / etp * received(),
                 of_shared = as_double(mixture.shared_expert_intermediate_size) / t * n;
    return E * (2 * h * (n / c + sent) + 4 * h * received()) + 3 * 4 * n / c * mixture.num_experts +
           E * (times * twice + 1) * (of_experts + of_shared);
  }
  double expert_parameters() const {
    const layers::MoeParameters own =
        moe_parameters(experts_.config, experts_.degrees, static_cast<int>(t));
    return as_double(own.of_experts + own.replicated);
  }
  double received() const { return as_double(moe_rows(experts_).received); }

  // Core attention. work: in units of forward; gemms: products with stored scores.
  double core(double work, double gemms, double bytes) const {
    const double batches = n / s * heads;
    if (flash_) {  // of a decoder only the causal half, and no scores in memory
      const Gemm seen{causal_ ? s / 2 : s, s, head, 2 * batches * work};
      return gemm_s(gpu_, seen, dtype_) + gpu_.kernel_s;
    }
    return gemms / 2 *
               (gemm_s(gpu_, {s, s, head, batches}, dtype_) +
                gemm_s(gpu_, {s, head, s, batches}, dtype_)) +
           streaming_s(gpu_, bytes, 2);
  }
  double scores() const { return n * s * heads; }
  double softmax_bytes() const { return scores() * (2 * E + (score_dropout_ ? 2 * E + 1 : 0)); }
  double softmax_gradient_bytes() const {
    return scores() * (3 * E + (score_dropout_ ? 2 * E + 1 : 0));
  }

  const Gpu& gpu_;
  const Software& software_;
  machine::Dtype dtype_;
  double E, t, c, s, n, h, qkv, inner, f, heads, head;
  layers::MoeCase experts_;
  bool dropout_, score_dropout_, flash_, fused_;
  layers::Fp8Options fp8_;
  bool causal_;
};

void add_ends(const TrainingConfig& config, const Gpu& gpu, bool first, bool last,
              StageSeconds& out) {
  const double n =
      as_double(config.batch.micro_batch_size) * config.model.sequence / config.degrees.cp;
  const double h = config.model.hidden, v = as_double(config.model.vocabulary) / config.degrees.tp;
  const machine::Dtype dtype = config.precision.dtype;
  const auto E = static_cast<double>(machine::size_of(dtype));
  if (first) {
    out.forward.memory += streaming_s(gpu, 5 * E * n * h, 3);
    out.backward_weights.memory += streaming_s(gpu, 4 * E * n * h, 2);
  }
  if (last) {
    out.forward.gemm += gemm_s(gpu, {n, v, h}, dtype);
    // Logits as float32, their maximum, difference, exponent and sum; then the gradient.
    out.forward.memory += streaming_s(gpu, n * v * (E + 4 + 4 + 8 + 8) + 4 * E * n * h, 6);
    out.backward_input.gemm += gemm_s(gpu, {n, h, v}, dtype);
    out.backward_input.memory += streaming_s(gpu, n * v * (8 + 4 + E) + 5 * E * n * h, 4);
    out.backward_weights.gemm += gemm_s(gpu, {h, v, n}, dtype);
  }
}

// Splits communication between hidden and exposed. Products in t parts leave the first or last
// part's collective exposed.
void add_tp(Seconds& pass, double seconds, double beside, bool in_parts, int t) {
  const double exposed = in_parts ? std::max(seconds / t, seconds - beside * (t - 1) / t)
                                  : std::max(0.0, seconds - beside);
  pass.tp += exposed;
  pass.tp_hidden += seconds - exposed;
}

// Adds the collectives of tp, from the closed form (layers/models/gpt_cost.h).
void add_tp(const TrainingConfig& config, const Cluster& cluster, const Software& software,
            int stage, StageSeconds& out) {
  const int t = config.degrees.tp;
  if (t == 1) return;
  const layers::GptConfig shape = shape_of_rank(config);
  const layers::StageCase one = stage_case(config, stage);
  layers::StageCase kept = one;
  kept.options.recompute_granularity = RecomputeGranularity::none;
  const Spread tp = spread(cluster, t, 1);
  const double forward =
      collective_s(cluster, tp, calls_over("tp", layers::forward_calls(shape, one)));
  const double input =
      collective_s(cluster, tp, calls_over("tp", layers::backward_input_calls(shape, kept)));
  const double again =
      collective_s(cluster, tp, calls_over("tp", layers::backward_input_calls(shape, one))) - input;
  const double weights =
      collective_s(cluster, tp, calls_over("tp", layers::backward_weights_calls(shape, one)));
  const layers::TpCommOverlap& own = config.activations.tp_comm;
  const bool sharded = config.activations.sequence_parallel;
  const bool gathers = sharded && (software.tp_overlap || own.gathers_by_share()),
             scatters = sharded && (software.tp_overlap || own.scatters_by_share());
  // Half of the collectives gather, half reduce.
  for (const auto& [pass, seconds] : {std::pair(&out.forward, forward), {&out.recompute, again}}) {
    add_tp(*pass, seconds / 2, gathers ? pass->gemm / 2 : 0, gathers, t);
    add_tp(*pass, seconds / 2, scatters ? pass->gemm / 2 : 0, scatters, t);
  }
  // Half of the collectives of backward follow the product whose weights' gradients come next, or
  // send its shares as they are made.
  const bool gradients = sharded && own.scatters_gradients_by_share(),
             reduces = software.tp_beside_weights || own.reduces_beside(),
             gathers_inputs = software.tp_beside_weights || own.gathers_beside();
  add_tp(out.backward_input, input / 2,
         gradients ? out.backward_input.gemm / 2
         : reduces ? out.backward_weights.gemm / 2
                   : 0,
         gradients, t);
  // The other half of that product hides the inputs that are gathered again.
  add_tp(out.backward_input, input / 2, gathers ? out.backward_input.gemm / 2 : 0, gathers, t);
  add_tp(out.backward_weights, weights, gathers_inputs ? out.backward_input.gemm / 2 : 0, false, t);
}

// Attention over cp, by layers/context_parallel/context_cost.h. Messages of a ring pass during the
// attention of the current part, and copies of FPDT's chunks during that of the chunk before.
// Computing waits for other messages.
void add_cp(const TrainingConfig& config, const Cluster& cluster, double layers_of_stage,
            StageSeconds& out) {
  const int c = config.degrees.cp, t = config.degrees.tp;
  if (c == 1) return;
  const layers::StageCase one = context_case(config, 0);
  const layers::ContextCost cost = layers::core_attention_cost(config.model, one);
  const int near = config.context.is_hybrid() ? config.context.a2a_size : 1;
  const auto add = [&](Seconds& seconds, const layers::ContextPass& pass) {
    double ring = 0, others = 0;
    for (const auto& [group, labels] : pass.messages) {
      const bool passes_on =
          config.context.comm_type == layers::CpCommType::p2p || group == "cp_p2p";
      const Spread ranks = group == "cp_p2p"   ? spread(cluster, c / near, t * near)
                           : group == "cp_a2a" ? spread(cluster, near, t)
                                               : spread(cluster, c, t);
      for (const auto& [label, traffic] : labels) {
        const double messages = as_double(static_cast<std::int64_t>(traffic.messages_sent)),
                     bytes = as_double(static_cast<std::int64_t>(traffic.bytes_sent));
        const Connection link = connection(cluster, ranks);
        if (passes_on)
          ring += messages * link.latency_s + bytes / link.rate;
        else
          others += exchange_s(cluster, ranks, messages, bytes);
      }
    }
    others += collective_s(cluster, spread(cluster, c, t), calls_over("cp", pass.calls));
    const double parts = config.context.is_hybrid() ? c / near : c;
    const double hidden = std::min(layers_of_stage * ring, seconds.attention * (parts - 1) / parts);
    seconds.cp += layers_of_stage * (ring + others) - hidden;
    seconds.cp_hidden += hidden;
    const double copies =
        layers_of_stage *
        as_double(static_cast<std::int64_t>(std::max(pass.copies.to_host, pass.copies.to_device))) /
        cluster.pcie;
    if (copies > 0) seconds.memory += std::max(0.0, copies - seconds.attention);
  };
  add(out.forward, cost.forward);
  if (out.recompute.attention > 0) add(out.recompute, cost.forward);
  add(out.backward_input, cost.backward);
}

// Adds the time of the scales of products in 8 bits, which all ranks of a stage share.
void add_fp8(const TrainingConfig& config, const Cluster& cluster, int stage, StageSeconds& out) {
  if (!config.fp8.on()) return;
  const layers::StageCase one = stage_case(config, stage);
  const layers::GptConfig shape = shape_of_rank(config);
  const Spread ranks = spread(cluster, one.amax_ranks, 1);
  out.forward.fp8 = collective_s(cluster, ranks, calls_over("fp8", forward_calls(shape, one)));
  out.backward_input.fp8 =
      collective_s(cluster, ranks, calls_over("fp8", backward_input_calls(shape, one)));
}

// Checkpoints in host memory leave in forward and come back for recomputation.
void add_checkpoints(const TrainingConfig& config, const Cluster& cluster, double groups,
                     StageSeconds& out) {
  const layers::ActivationOptions& options = config.activations;
  if (!options.cpu_checkpointing) return;
  const bool split = options.sequence_parallel || options.distribute_saved_activations;
  const double rows = as_double(config.batch.micro_batch_size) * config.model.sequence /
                      config.degrees.cp / (split ? config.degrees.tp : 1);
  const double seconds = groups * rows * config.model.hidden *
                         static_cast<double>(machine::size_of(config.precision.dtype)) /
                         cluster.pcie;
  out.forward.memory += seconds;
  out.recompute.memory += seconds;
}

// Frozen matrices have no gradient.
void leave_out_frozen(const TrainingConfig& config, int stage, const Seconds& of_head,
                      StageSeconds& out) {
  if (config.frozen.empty()) return;
  const TrainedParts trained = trained_parts(config, stage);
  Seconds blocks = out.backward_weights;
  blocks.gemm -= of_head.gemm;
  out.backward_weights.gemm = trained.of_blocks * blocks.gemm + (trained.head ? of_head.gemm : 0);
  out.backward_weights.memory *= trained.of_blocks;
}

// Adds the messages between a token's rank and its experts. Computing waits for them.
void add_ep(const TrainingConfig& config, const Cluster& cluster, double layers_of_stage,
            double recomputed, StageSeconds& out) {
  if (layers_of_stage == 0) return;
  const layers::MoeCost cost = moe_cost(mixture_case(config));
  const Spread ep = spread(cluster, expert_degrees(config).ranks(), 1);
  const Spread parts = spread(cluster, config.degrees.tp * config.degrees.cp, 1);
  const auto seconds = [&](const layers::MoePass& pass) {
    double sum = collective_s(cluster, ep, calls_over("ep", pass.calls)) +
                 collective_s(cluster, parts, calls_over("tp_cp", pass.calls));
    for (const auto& [label, traffic] : pass.messages)
      sum += exchange_s(cluster, ep, static_cast<double>(traffic.messages_sent),
                        static_cast<double>(traffic.bytes_sent));
    return sum;
  };
  out.forward.ep += layers_of_stage * seconds(cost.forward);
  out.recompute.ep += recomputed * seconds(cost.forward);
  out.backward_input.ep += layers_of_stage * seconds(cost.backward_input);
}

}  // namespace

LayerCount count_layers(const TrainingConfig& config, int stage, int begin, int end) {
  const int first = stage * (config.model.layers / config.degrees.pp);
  LayerCount count;
  for (int layer = first + begin; layer < first + end; ++layer)
    ++(config.model.has_experts(layer) ? count.with_experts : count.dense);
  return count;
}

LayerCount count_layers(const TrainingConfig& config, int stage) {
  return count_layers(config, stage, 0, config.model.layers / config.degrees.pp);
}

layers::MoeCase mixture_case(const TrainingConfig& config) {
  return moe_case(config.model,
                  {.tp = config.degrees.tp,
                   .stage = {},
                   .sequences = config.batch.micro_batch_size,
                   .dtype = config.precision.dtype,
                   .options = config.activations,
                   .cp = {.ranks = config.degrees.cp},
                   .experts = {.degrees = expert_degrees(config)}},
                  0);
}

std::vector<collectives::CollectiveCalls> calls_over(
    std::string_view group, std::vector<collectives::CollectiveCalls> calls) {
  std::erase_if(calls, [&](const collectives::CollectiveCalls& one) {
    return one.group != group || one.ranks == 1;
  });
  return calls;
}

double expert_bytes(const layers::MoePass& pass) {
  double bytes = 0;
  for (const auto& [label, traffic] : pass.messages)
    bytes += static_cast<double>(traffic.bytes_sent);
  return bytes + sent_bytes(pass.calls);
}

layers::GptConfig shape_of_rank(const TrainingConfig& config) {
  layers::GptConfig shape = config.model;
  shape.sequence /= config.degrees.cp;
  return shape;
}

layers::StageCase stage_case(const TrainingConfig& config, int stage) {
  return {.tp = config.degrees.tp,
          .stage = {.index = stage, .count = config.degrees.pp},
          .sequences = config.batch.micro_batch_size,
          .dtype = config.precision.dtype,
          .options = config.activations,
          .fp8 = config.fp8,
          .amax_ranks = config.degrees.ranks() / config.degrees.pp};
}

layers::StageCase context_case(const TrainingConfig& config, int stage) {
  layers::StageCase one = stage_case(config, stage);
  one.cp = {config.degrees.cp, 0, config.context};
  one.experts = {.degrees = expert_degrees(config)};
  return one;
}

Seconds& Seconds::operator+=(const Seconds& other) {
  gemm += other.gemm;
  attention += other.attention;
  memory += other.memory;
  tp += other.tp;
  cp += other.cp;
  ep += other.ep;
  fp8 += other.fp8;
  tp_hidden += other.tp_hidden;
  cp_hidden += other.cp_hidden;
  return *this;
}

Seconds Seconds::scaled(double by) const {
  return {gemm * by, attention * by, memory * by,    tp * by,       cp * by,
          ep * by,   fp8 * by,       tp_hidden * by, cp_hidden * by};
}

Seconds StageSeconds::sum() const {
  Seconds out = forward;
  out += recompute;
  out += backward_input;
  out += backward_weights;
  return out;
}

StageSeconds stage_seconds(const TrainingConfig& config, const Cluster& cluster,
                           const Software& software, int stage) {
  const Layer layer(config, cluster.gpu, software);
  const LayerCount own = count_layers(config, stage);
  const double layers = own.dense + own.with_experts;
  StageSeconds out;
  out.forward = layer.forward(own);
  out.backward_input = layer.backward_input(own);
  out.backward_weights = layer.backward_weights(own);
  LayerCount again;
  double groups = 0;  // of recomputed layers
  const layers::ActivationOptions& options = config.activations;
  if (options.recompute_granularity == RecomputeGranularity::full) {
    for (const layers::LayerGroup& group :
         layer_groups(options, static_cast<std::size_t>(config.model.layers / config.degrees.pp))) {
      if (!group.recomputed) continue;
      ++groups;
      const LayerCount of_group =
          count_layers(config, stage, static_cast<int>(group.begin), static_cast<int>(group.end));
      again.dense += of_group.dense;
      again.with_experts += of_group.with_experts;
    }
    out.recompute = layer.forward(again);
  } else if (options.recompute_granularity == RecomputeGranularity::selective) {
    out.recompute = layer.core_again().scaled(layers);
  }
  const double of_blocks = out.backward_weights.gemm;
  add_ends(config, cluster.gpu, stage == 0, stage == config.degrees.pp - 1, out);
  leave_out_frozen(config, stage, {.gemm = out.backward_weights.gemm - of_blocks}, out);
  add_checkpoints(config, cluster, groups, out);
  add_tp(config, cluster, software, stage, out);
  add_cp(config, cluster, layers, out);
  add_ep(config, cluster, own.with_experts, again.with_experts, out);
  add_fp8(config, cluster, stage, out);
  return out;
}

}  // namespace suite::predict
