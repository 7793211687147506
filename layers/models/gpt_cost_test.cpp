// Compares the closed formulas with the counts of the ledger and the link.

#include "layers/models/gpt_cost.h"

#include <algorithm>

#include "layers/testing/gpt_case.h"

namespace layers::testing {
namespace {

using machine::Category;
using machine::Dtype;

struct Costs {
  GptConfig config;
  int tp, stages, sequences;
  Dtype dtype;
  ActivationOptions options{};
  StageCase stage(int index) const {
    return {.tp = tp,
            .stage = {index, stages},
            .sequences = sequences,
            .dtype = dtype,
            .options = options,
            .experts = {.degrees = {1, tp}}};
  }
  GptCase run() const {
    return {.config = config,
            .tp = tp,
            .dtype = dtype,
            .stages = stages,
            .sequences = sequences,
            .options = options};
  }
};

void PrintTo(const Costs& c, std::ostream* out) {
  *out << c.config.layers << " layers, tp " << c.tp << ", stages " << c.stages << ", sequences "
       << c.sequences << ", " << name(c.dtype) << ", recompute "
       << name(c.options.recompute_granularity) << " " << name(c.options.recompute_method) << " "
       << c.options.recompute_num_layers << (c.options.sequence_parallel ? ", sequence" : "")
       << (c.options.distribute_saved_activations ? ", distributed" : "")
       << (c.options.cpu_checkpointing ? ", on the host" : "")
       << (c.options.use_flash_attn ? ", blockwise" : "")
       << (c.options.tp_comm.enabled ? ", overlapped" : "") << (c.config.swiglu ? ", llama" : "")
       << (c.config.encoder() ? ", bert" : "") << (c.config.encoder_decoder() ? ", t5" : "")
       << (c.config.hidden_dropout > 0 ? ", dropping" : "");
}

// Scores take most of the memory of a long sequence and almost none of a wide model. In the
// shortest sequence, the loss determines the peak of forward.
const GptConfig long_sequence{
    .layers = 6, .hidden = 8, .heads = 4, .vocabulary = 20, .sequence = 33};
const GptConfig wide{.layers = 3, .hidden = 32, .heads = 4, .vocabulary = 12, .sequence = 3};
const GptConfig shortest{.layers = 1, .hidden = 16, .heads = 2, .vocabulary = 8, .sequence = 1};
const GptConfig in_blocks{.layers = 3,
                          .hidden = 8,
                          .heads = 4,
                          .vocabulary = 20,
                          .sequence = 32,
                          .sparse = {.pattern = {.num_local_blocks = 1}}};
// Llama's shape, with and without dropout.
const GptConfig grouped =
    llama({.layers = 3, .hidden = 16, .heads = 8, .vocabulary = 20, .sequence = 17});
const GptConfig encoder =
    bert({.layers = 3, .hidden = 16, .heads = 4, .vocabulary = 20, .sequence = 9});
// The encoder's end is in a stage with other blocks, and last in a stage.
const GptConfig both_stacks =
    t5({.layers = 6, .hidden = 16, .heads = 4, .vocabulary = 20, .sequence = 9});
// Without drops a rank that has all experts has topk rows for each token.
GptConfig experts(TokenDispatcherType dispatcher, int shared, int layer_freq) {
  GptConfig config =
      with_experts({.layers = 4, .hidden = 16, .heads = 2, .vocabulary = 20, .sequence = 9});
  config.moe.token_dispatcher_type = dispatcher;
  config.moe.shared_expert_intermediate_size = shared;
  config.moe_layer_freq = layer_freq;
  config.moe.ffn_hidden_size = 24;
  return config;
}
const GptConfig exchanging = experts(TokenDispatcherType::alltoall, 0, 1),
                gathering = experts(TokenDispatcherType::allgather, 40, 2);
GptConfig dropping(GptConfig config) {
  config.hidden_dropout = config.attention_dropout = 0.5;
  return config;
}

class GptCost : public ::testing::TestWithParam<Costs> {
 protected:
  // Runs `body` once for every stage of every rank, with the tensors that cross the stage's
  // borders.
  void on_stages(
      const std::function<void(Rank&, GptStage&, const StageCase&, const TokenBatch&,
                               const machine::Tensor& in, const machine::Tensor& out,
                               const machine::Tensor& d_out, const machine::Tensor& d_in)>& body) {
    const GptCase run = GetParam().run();
    on_ranks(run.tp, run.dtype, [&](Rank& rank) {
      GptRanks ranks(rank, run);
      const auto boundary = [&] {
        const machine::Shape shape = ranks.stage(0).boundary(run.sequences);
        return scatter(rank, random_values(shape.size(), 1, run.dtype), shape);
      };
      const machine::Tensor in = boundary(), out = boundary(), d_out = boundary(),
                            d_in = boundary();
      const machine::Tensor loss(rank.world.device(), Dtype::float64, {1}, Category::buffers);
      for (int i = 0; i < run.stages; ++i) {
        const bool first = i == 0, last = i + 1 == run.stages;
        const machine::Tensor none;
        body(rank, ranks.stage(i), GetParam().stage(i), ranks.batch(0), first ? none : in,
             last ? loss : out, last ? none : d_out, first ? none : d_in);
      }
    });
  }
};

class GptCostStates : public GptCost {};

TEST_P(GptCost, BytesMatchTheFormula) {
  const GptConfig& config = GetParam().config;
  on_stages([&](Rank& rank, GptStage& stage, const StageCase& here, const TokenBatch& batch,
                const auto& in, const auto& out, const auto& d_out, const auto& d_in) {
    machine::Ledger& ledger = rank.world.device().ledger();
    const std::size_t outside = ledger.current(Category::buffers);
    const auto peak_of_buffers = [&](auto work) {
      ledger.reset_peaks();
      work();
      EXPECT_EQ(ledger.current(Category::buffers), outside);
      return ledger.peak(Category::buffers) - outside;
    };
    const StageMemory want = stage_memory(config, here);

    // Both halves together, two micro-batches in flight.
    EXPECT_EQ(peak_of_buffers([&] { stage.forward(0, batch, in, out); }), want.forward_buffers);
    EXPECT_EQ(ledger.current(Category::activations), want.saved);
    stage.forward(1, batch, in, out);
    EXPECT_EQ(ledger.current(Category::activations), 2 * want.saved);
    EXPECT_EQ(ledger.peak(Category::activations), 2 * want.saved);
    for (const int micro_batch : {0, 1}) {
      EXPECT_EQ(peak_of_buffers([&] { stage.backward(micro_batch, d_out, d_in); }),
                want.backward_buffers);
    }
    EXPECT_EQ(ledger.peak(Category::activations), want.saved);  // in the second backward
    EXPECT_EQ(ledger.current(Category::activations), 0u);

    // The halves separately.
    stage.forward(2, batch, in, out);
    EXPECT_EQ(peak_of_buffers([&] { stage.backward_input(2, d_out, d_in); }),
              want.input_half_buffers);
    EXPECT_EQ(ledger.peak(Category::activations), want.input_half_peak);
    EXPECT_EQ(ledger.current(Category::activations), want.input_half_saved);
    EXPECT_EQ(peak_of_buffers([&] { stage.backward_weights(2); }), want.weight_half_buffers);
    EXPECT_EQ(ledger.current(Category::activations), 0u);
  });
}

TEST_P(GptCostStates, MatchTheFormula) {
  const GptCase run = GetParam().run();
  on_ranks(run.tp, run.dtype, [&](Rank& rank) {
    machine::Ledger& ledger = rank.world.device().ledger();
    std::size_t values = 0, gradients = 0;
    const GptRanks ranks(rank, run);
    for (int i = 0; i < run.stages; ++i) {
      const auto count =
          static_cast<std::size_t>(stage_parameters_count(run.config, GetParam().stage(i)));
      values += count * machine::size_of(run.dtype);
      gradients += count * machine::size_of(collectives::gradient_dtype(run.dtype));
    }
    EXPECT_EQ(ledger.current(Category::parameters), values);
    EXPECT_EQ(ledger.current(Category::gradients), gradients);
  });
}

// The listed calls, run separately, send the same bytes and messages.
TEST_P(GptCost, CollectivesMatchTheTable) {
  const GptConfig& config = GetParam().config;
  on_stages([&](Rank& rank, GptStage& stage, const StageCase& here, const TokenBatch& batch,
                const auto& in, const auto& out, const auto& d_out, const auto& d_in) {
    const auto traffic_of = [&](auto work) {
      rank.tp.link().reset_traffic();
      work();
      return rank.tp.link().traffic();
    };
    const auto run_listed = [&](const std::vector<CollectiveCalls>& list) {
      for (const CollectiveCalls& calls : list)
        for (int i = 0; i < calls.calls; ++i) run_once(rank, calls);
    };
    const auto without_silent = [](std::map<machine::TrafficLabel, machine::Traffic> traffic) {
      std::erase_if(traffic, [](const auto& entry) { return entry.second == machine::Traffic{}; });
      return traffic;
    };
    const auto expect_same = [&](auto work, const std::vector<CollectiveCalls>& list) {
      auto seen = without_silent(traffic_of(work));
      if (config.has_experts())  // messages of alltoall: experts/moe_cost.h
        std::erase_if(seen, [](const auto& entry) {
          return entry.first.operation == machine::Operation::all_to_all_v;
        });
      const auto listed = without_silent(traffic_of([&] { run_listed(list); }));
      EXPECT_EQ(seen.size(), listed.size());
      for (const auto& [label, traffic] : listed) {
        ASSERT_TRUE(seen.contains(label));
        EXPECT_EQ(seen.at(label).bytes_sent, traffic.bytes_sent);
        EXPECT_EQ(seen.at(label).messages_sent, traffic.messages_sent);
      }
    };
    expect_same([&] { stage.forward(0, batch, in, out); }, forward_calls(config, here));
    std::vector<CollectiveCalls> both = backward_input_calls(config, here);
    const std::vector<CollectiveCalls> weights = backward_weights_calls(config, here);
    both.insert(both.end(), weights.begin(), weights.end());
    expect_same([&] { stage.backward(0, d_out, d_in); }, both);
    stage.forward(1, batch, in, out);
    expect_same([&] { stage.backward_input(1, d_out, d_in); }, backward_input_calls(config, here));
    expect_same([&] { stage.backward_weights(1); }, weights);
  });
}

const ActivationOptions over_rows{.sequence_parallel = true};
const std::vector<Costs> plain_cases{{long_sequence, 1, 1, 1, Dtype::float32},
                                     {long_sequence, 2, 1, 2, Dtype::bfloat16},
                                     {long_sequence, 4, 2, 1, Dtype::float64},
                                     {long_sequence, 1, 3, 2, Dtype::float16},
                                     {long_sequence, 2, 6, 1, Dtype::float32},
                                     {wide, 1, 1, 1, Dtype::bfloat16},
                                     {wide, 2, 3, 2, Dtype::float32},
                                     {wide, 4, 1, 1, Dtype::float16},
                                     {shortest, 2, 1, 1, Dtype::float16},
                                     {shortest, 1, 1, 2, Dtype::float32},
                                     {grouped, 4, 1, 1, Dtype::bfloat16},
                                     {grouped, 2, 3, 2, Dtype::float32},
                                     {dropping(grouped), 1, 1, 1, Dtype::float64},
                                     {exchanging, 1, 1, 2, Dtype::float32},
                                     {exchanging, 1, 2, 1, Dtype::bfloat16},
                                     {exchanging, 2, 2, 2, Dtype::bfloat16, over_rows},
                                     {gathering, 2, 1, 2, Dtype::float32, over_rows},
                                     {gathering, 1, 4, 1, Dtype::float32},
                                     {llama(gathering), 1, 2, 2, Dtype::bfloat16},
                                     {encoder, 1, 1, 2, Dtype::float32},
                                     {encoder, 4, 3, 1, Dtype::bfloat16},
                                     {in_blocks, 2, 1, 2, Dtype::float32},
                                     {both_stacks, 1, 1, 2, Dtype::float32},
                                     {both_stacks, 2, 2, 1, Dtype::bfloat16},
                                     {both_stacks, 4, 3, 1, Dtype::float64}};

std::vector<Costs> cost_cases() {
  std::vector<Costs> cases = plain_cases;
  // Every option at every position of a stage in the pipeline. Groups of 4 of 6 layers leave a
  // shorter group.
  for (const auto& [config, tp, stages, sequences, dtype] :
       {std::tuple(long_sequence, 4, 1, 4, Dtype::bfloat16),
        {long_sequence, 2, 3, 2, Dtype::float32},
        {wide, 4, 3, 4, Dtype::float32},
        {shortest, 2, 1, 2, Dtype::float32},
        {long_sequence, 1, 2, 1, Dtype::float16},
        {dropping(wide), 4, 1, 4, Dtype::bfloat16},
        {grouped, 4, 1, 4, Dtype::bfloat16},
        {dropping(grouped), 2, 3, 2, Dtype::float32},
        {exchanging, 1, 1, 2, Dtype::bfloat16},
        {dropping(exchanging), 1, 2, 1, Dtype::float32},
        {exchanging, 2, 2, 2, Dtype::bfloat16},
        {dropping(gathering), 2, 1, 2, Dtype::float32},
        {gathering, 1, 1, 2, Dtype::float32},
        {dropping(gathering), 1, 2, 2, Dtype::bfloat16},
        {encoder, 4, 1, 4, Dtype::bfloat16},
        {encoder, 2, 3, 2, Dtype::float32},
        {dropping(both_stacks), 4, 1, 4, Dtype::bfloat16},
        {both_stacks, 2, 2, 2, Dtype::float32}}) {
    const bool stacks = config.encoder_decoder();  // without distribution and blockwise attention
    for (ActivationOptions options : recomputations(config.layers / stages)) {
      const bool cut = tp > 1 && config.has_experts();  // requires sequence parallelism
      if (options.recompute_granularity == RecomputeGranularity::full && !cut) {
        options.cpu_checkpointing = true;
        cases.push_back({config, tp, stages, sequences, dtype, options});
        options.distribute_saved_activations = tp > 1 && !stacks;
        if (tp > 1 && !stacks) cases.push_back({config, tp, stages, sequences, dtype, options});
        options.cpu_checkpointing = false;
        if (tp > 1) cases.push_back({config, tp, stages, sequences, dtype, options});
        options.distribute_saved_activations = false;
      }
      for (const bool sequence_parallel : {false, true}) {
        if (sequence_parallel ? tp == 1 : cut) continue;
        options.sequence_parallel = sequence_parallel;
        cases.push_back({config, tp, stages, sequences, dtype, options});
        if (tp > 1 && options.recompute_num_layers == 1) {
          options.tp_comm.enabled = true;
          cases.push_back({config, tp, stages, sequences, dtype, options});
          options.tp_comm = {};
        }
        if (stacks || options.recompute_num_layers > 1) continue;
        options.use_flash_attn = true;
        cases.push_back({config, tp, stages, sequences, dtype, options});
        options.use_flash_attn = false;
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, GptCost, ::testing::ValuesIn(cost_cases()));
INSTANTIATE_TEST_SUITE_P(Cases, GptCostStates, ::testing::ValuesIn(plain_cases));

// 2 + 2 per layer, 1 for the embedding, 3 for the loss, 1 for the head's input.
TEST(GptCostCalls, MatchMegatron) {
  using machine::Operation;
  StageCase all{2, {}, 2, Dtype::bfloat16};
  const std::int64_t tokens = 2 * 33, whole = tokens * 8;
  const CollectiveCalls loss{"tp", Operation::all_reduce, Dtype::float32, 2, tokens, 3};
  const auto of = [&](Operation operation, int calls) {
    return CollectiveCalls{"tp", operation, Dtype::bfloat16, 2, whole, calls};
  };
  using List = std::vector<CollectiveCalls>;
  EXPECT_EQ(forward_calls(long_sequence, all), (List{of(Operation::all_reduce, 13), loss}));
  EXPECT_EQ(backward_input_calls(long_sequence, all), (List{of(Operation::all_reduce, 13)}));
  EXPECT_TRUE(backward_weights_calls(long_sequence, all).empty());
  EXPECT_TRUE(forward_calls(long_sequence, {}).empty());

  // 4 per layer forward and 6 backward, 2 of them for the weights.
  all.options.sequence_parallel = true;
  EXPECT_EQ(forward_calls(long_sequence, all),
            (List{of(Operation::all_gather, 13), of(Operation::reduce_scatter, 13), loss}));
  EXPECT_EQ(backward_input_calls(long_sequence, all),
            (List{of(Operation::all_gather, 12), of(Operation::reduce_scatter, 13)}));
  EXPECT_EQ(backward_weights_calls(long_sequence, all), (List{of(Operation::all_gather, 14)}));

  // Four of six layers run forward once more.
  all.options.recompute_granularity = RecomputeGranularity::full;
  all.options.recompute_method = RecomputeMethod::block;
  all.options.recompute_num_layers = 4;
  EXPECT_EQ(backward_input_calls(long_sequence, all),
            (List{of(Operation::all_gather, 20), of(Operation::reduce_scatter, 21)}));
  all.options.sequence_parallel = false;
  all.options.distribute_saved_activations = true;
  EXPECT_EQ(backward_input_calls(long_sequence, all),
            (List{of(Operation::all_reduce, 21), of(Operation::all_gather, 4)}));
  all.stage = {1, 2};  // three layers; the caller keeps the first input
  all.options.recompute_num_layers = 3;
  EXPECT_EQ(backward_input_calls(long_sequence, all),
            (List{of(Operation::all_reduce, 13), of(Operation::all_gather, 2)}));
}

// Table 2 of Korthikanti et al. 2022 for a layer between others, and the memory that remains with
// full recomputation. Dropout (2 sbh, and 3as/h of sbh) is excluded, and the statistics of the
// norms are included.
TEST(GptCostMemory, LayerMatchesThePaper) {
  GptConfig config{.layers = 4, .hidden = 48, .heads = 8, .vocabulary = 16, .sequence = 20};
  const std::size_t s = 20, h = 48, a = 8;
  const auto of_a_layer = [&](int tp, std::size_t b, ActivationOptions options,
                              std::size_t StageMemory::*held = &StageMemory::saved) {
    StageCase stage{tp, {1, 4}, static_cast<int>(b), Dtype::bfloat16, options};
    config.layers = 8;
    const std::size_t two = stage_memory(config, stage).*held;
    config.layers = 4;
    return two - stage_memory(config, stage).*held;
  };
  for (const std::size_t t : {1, 2, 4}) {
    for (const std::size_t b : {1, 2}) {
      const int tp = static_cast<int>(t);
      ActivationOptions options;
      const std::size_t sbh = s * b * h, scores = 2 * a * s * s * b / t, statistics = 16 * s * b;
      EXPECT_EQ(of_a_layer(tp, b, options), 8 * sbh + 24 * sbh / t + scores + statistics);
      options.recompute_granularity = RecomputeGranularity::selective;
      EXPECT_EQ(of_a_layer(tp, b, options), 8 * sbh + 24 * sbh / t + statistics);
      options.recompute_granularity = RecomputeGranularity::full;
      EXPECT_EQ(of_a_layer(tp, b, options), 2 * sbh);
      options.distribute_saved_activations = t > 1;
      EXPECT_EQ(of_a_layer(tp, b, options), 2 * sbh / t);
      const auto between_halves = &StageMemory::input_half_saved;
      EXPECT_EQ(of_a_layer(tp, b, options, between_halves), 16 * sbh + 24 * sbh / t + statistics);
      if (t == 1) continue;
      options = {.sequence_parallel = true};
      EXPECT_EQ(of_a_layer(tp, b, options), (32 * sbh + statistics) / t + scores);
      options.recompute_granularity = RecomputeGranularity::selective;
      EXPECT_EQ(of_a_layer(tp, b, options), (32 * sbh + statistics) / t);
      EXPECT_EQ(of_a_layer(tp, b, options, between_halves), 4 * sbh + (36 * sbh + statistics) / t);
      options.recompute_granularity = RecomputeGranularity::full;
      EXPECT_EQ(of_a_layer(tp, b, options), 2 * sbh / t);
    }
  }
}

// P_a+cpu of ZeRO-R. The checkpoints of full recomputation, 2sbh per layer or a share, leave the
// device. They stay in host memory from forward until the layer is recomputed, and move once in
// each direction.
TEST(GptCostMemory, CheckpointsMoveToTheHost) {
  const GptConfig config{.layers = 4, .hidden = 48, .heads = 8, .vocabulary = 16, .sequence = 20};
  const std::size_t sbh = 20 * 2 * 48, layers = 4;
  for (const auto& [tp, distributed, sequence_parallel] :
       {std::tuple(1, false, false), {4, false, false}, {4, true, false}, {4, false, true}}) {
    GptCase run{.config = config, .tp = tp, .dtype = Dtype::bfloat16, .sequences = 2};
    run.options = {.sequence_parallel = sequence_parallel,
                   .recompute_granularity = RecomputeGranularity::full,
                   .distribute_saved_activations = distributed};
    StageCase stage{tp, {}, 2, Dtype::bfloat16, run.options};
    const StageMemory on_device = stage_memory(config, stage);
    EXPECT_EQ(on_device.host.saved, 0U);
    run.options.cpu_checkpointing = stage.options.cpu_checkpointing = true;
    const StageMemory on_host = stage_memory(config, stage);
    const std::size_t checkpoint =
        2 * sbh / static_cast<std::size_t>(distributed || sequence_parallel ? tp : 1);
    EXPECT_EQ(on_host.host.saved, layers * checkpoint);
    EXPECT_EQ(on_host.saved, on_device.saved - layers * checkpoint);

    run.micro_batches = 2;
    on_ranks(tp, run.dtype, [&](Rank& rank) {
      GptRanks ranks(rank, run);
      const machine::Ledger& host = ranks.checkpoint_host();
      const auto moved = [&] { return ranks.stage(0).checkpoints_moved(); };
      for (const std::size_t m : {1, 2}) {
        ranks.forward(static_cast<int>(m) - 1);
        EXPECT_EQ(host.current(Category::activations), m * on_host.host.saved);
        EXPECT_EQ(moved(), (Checkpoints::Moved{m * on_host.checkpoints_on_host, 0}));
      }
      for (const std::size_t m : {1, 2}) {
        ranks.backward(static_cast<int>(m) - 1);
        EXPECT_EQ(host.current(), (2 - m) * on_host.host.saved);
        EXPECT_EQ(moved(), (Checkpoints::Moved{2 * on_host.host.saved, m * on_host.host.saved}));
      }
      EXPECT_EQ(host.peak(), 2 * on_host.host.saved) << "of nothing else";
    });
  }
}

TEST(GptCostMemory, HostCheckpointsRequireAHost) {
  on_ranks(1, Dtype::float32, [&](Rank& rank) {
    EXPECT_THROW(
        GptStage(wide, rank.world.device(), rank.tp, Dtype::float32, {},
                 {.recompute_granularity = RecomputeGranularity::full, .cpu_checkpointing = true}),
        std::invalid_argument);
  });
}

// The released GPT-2 small has 124,439,808 parameters. Radford et al. 2019 state 117M.
TEST(GptCostParameters, MatchGpt2Small) {
  const GptConfig small{
      .layers = 12, .hidden = 768, .heads = 12, .vocabulary = 50257, .sequence = 1024};
  EXPECT_EQ(parameters_count(small), 124439808);
}

// Llama 2 7B (Touvron et al. 2023) has 6,738,415,616 parameters. Megatron-LM counts 42.9 GFLOP per
// token of its step at sequence 4096. These are six for each element of the matrices without the
// embedding, and the causal half of attention.
TEST(GptCostParameters, MatchLlama2) {
  GptConfig config =
      llama({.layers = 32, .hidden = 4096, .heads = 32, .vocabulary = 32000, .sequence = 4096});
  config.ffn_hidden_size = 11008;
  config.num_query_groups = 32;
  EXPECT_EQ(parameters_count(config), 6738415616);
  const double weights = 32 * (4 * 4096.0 * 4096 + 3 * 4096.0 * 11008) + 4096.0 * 32000;
  EXPECT_EQ(model_flops(config, 1), 6 * (weights + 32 * 4096.0 * 4096));
  config.num_query_groups = 8;  // narrower keys and values, the same number of scores
  EXPECT_EQ(parameters_count(config), 6738415616 - 32 * 2 * 24 * 128 * 4096);
  EXPECT_EQ(model_flops(config, 1),
            6 * (weights - 32 * 2 * 24 * 128 * 4096.0 + 32 * 4096.0 * 4096));
}

// Mixtral 8x7B (Jiang et al. 2024, arXiv:2401.04088) has 46,702,792,704 parameters, of which a
// token uses 12,879,925,248.
TEST(GptCostParameters, MatchMixtral) {
  GptConfig config =
      llama({.layers = 32, .hidden = 4096, .heads = 32, .vocabulary = 32000, .sequence = 4096});
  config.ffn_hidden_size = 14336;
  config.num_query_groups = 8;
  config.moe.num_experts = 8;
  EXPECT_EQ(parameters_count(config), 46702792704);
  const double used = 12879925248.0 - 65 * 4096.0 - 32000 * 4096.0;  // matrices, without embedding
  EXPECT_EQ(model_flops(config, 1), 6 * (used + 32 * 4096.0 * 4096));
}

// BertForMaskedLM of transformers has 109,514,298 parameters with bert-base-uncased. Its norm after
// the embedding has the size of ours after the blocks.
TEST(GptCostParameters, MatchBertBase) {
  const GptConfig base =
      bert({.layers = 12, .hidden = 768, .heads = 12, .vocabulary = 30522, .sequence = 512});
  EXPECT_EQ(parameters_count(base), 109514298);
  const double layers = 12 * (12 * 768.0 * 768 + 2 * 768.0 * 512);
  EXPECT_EQ(model_flops(base, 1), 6 * (layers + 768.0 * 768 + 768.0 * 30522));
}

// t5-large of transformers has 737,668,096 parameters.
TEST(GptCostParameters, MatchT5Large) {
  GptConfig large =
      t5({.layers = 48, .hidden = 1024, .heads = 16, .vocabulary = 32128, .sequence = 512});
  large.normalization = Normalization::rms_norm;
  large.disable_bias_linear = true;
  EXPECT_EQ(parameters_count(large), 737668096);
}

// GPT-3 175B at sequence 2048, by the published formula 72 B s L h² (1 + s/6h + V/12Lh) (Narayanan
// et al. 2021, without its recomputation). Its attention is twice ours, because it ignores the
// causal mask.
TEST(GptCostFlops, MatchThePaperWithHalfTheAttention) {
  const GptConfig gpt3{
      .layers = 96, .hidden = 12288, .heads = 96, .vocabulary = 51200, .sequence = 2048};
  const double tokens = 2048, h = 12288, layers = 96;
  const double paper =
      72 * tokens * layers * h * h * (1 + 2048 / (6 * h) / 2 + 51200 / (12 * layers * h));
  EXPECT_NEAR(model_flops(gpt3, 2048) / paper, 1,
              gamma(20, machine::unit_roundoff(Dtype::float64)));
}

}  // namespace
}  // namespace layers::testing
