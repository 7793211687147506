// The closed formulas against what the ledger and the link count.

#include "layers/gpt_cost.h"

#include "layers/gpt_case.h"

namespace layers::testing {
namespace {

using machine::Category;
using machine::Dtype;

struct Costs {
  GptConfig config;
  int tp, stages, sequences;
  Dtype dtype;
  StageCase stage(int index) const { return {tp, {index, stages}, sequences, dtype}; }
  GptCase run() const {
    return {.config = config, .tp = tp, .dtype = dtype, .stages = stages, .sequences = sequences};
  }
};

void PrintTo(const Costs& c, std::ostream* out) {
  *out << c.config.layers << " layers, tp " << c.tp << ", stages " << c.stages << ", sequences "
       << c.sequences << ", " << name(c.dtype);
}

// A long sequence, where scores are most of it; a wide model, where they are next to nothing; and
// one so short that the loss is what forward needs most for.
const GptConfig long_sequence{
    .layers = 6, .hidden = 8, .heads = 4, .vocabulary = 20, .sequence = 33};
const GptConfig wide{.layers = 3, .hidden = 32, .heads = 4, .vocabulary = 12, .sequence = 3};
const GptConfig shortest{.layers = 1, .hidden = 16, .heads = 2, .vocabulary = 8, .sequence = 1};

class GptCost : public ::testing::TestWithParam<Costs> {
 protected:
  // Runs body once for every stage of every rank, with the tensors that cross its borders.
  void on_stages(
      const std::function<void(Rank&, GptStage&, const StageCase&, const TokenBatch&,
                               const machine::Tensor& in, const machine::Tensor& out,
                               const machine::Tensor& d_out, const machine::Tensor& d_in)>& body) {
    const GptCase run = GetParam().run();
    on_ranks(run.tp, run.dtype, [&](Rank& rank) {
      GptRanks ranks(rank, run);
      const auto tokens = run.tokens(0), targets = run.targets(0);
      const auto boundary = [&] {
        const machine::Shape shape{run.rows(), run.config.hidden};
        return scatter(rank, random_values(shape.size(), 1, run.dtype), shape);
      };
      const machine::Tensor in = boundary(), out = boundary(), d_out = boundary(),
                            d_in = boundary();
      const machine::Tensor loss(rank.world.device(), Dtype::float64, {1}, Category::buffers);
      for (int i = 0; i < run.stages; ++i) {
        const bool first = i == 0, last = i + 1 == run.stages;
        const machine::Tensor none;
        body(rank, ranks.stage(i), GetParam().stage(i),
             {tokens.data(), targets.data(), run.sequences}, first ? none : in, last ? loss : out,
             last ? none : d_out, first ? none : d_in);
      }
    });
  }
};

TEST_P(GptCost, BytesHeldAreTheFormulas) {
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
    const std::size_t saved = activation_bytes(config, here);

    // Both halves together, two micro-batches in flight.
    EXPECT_EQ(peak_of_buffers([&] { stage.forward(0, batch, in, out); }),
              forward_buffer_bytes(config, here));
    EXPECT_EQ(ledger.current(Category::activations), saved);
    stage.forward(1, batch, in, out);
    EXPECT_EQ(ledger.current(Category::activations), 2 * saved);
    for (const int micro_batch : {0, 1}) {
      EXPECT_EQ(peak_of_buffers([&] { stage.backward(micro_batch, d_out, d_in); }),
                backward_buffer_bytes(config, here));
    }
    EXPECT_EQ(ledger.peak(Category::activations), saved);  // of the second backward
    EXPECT_EQ(ledger.current(Category::activations), 0u);

    // The halves apart.
    stage.forward(2, batch, in, out);
    EXPECT_EQ(peak_of_buffers([&] { stage.backward_input(2, d_out, d_in); }),
              backward_input_buffer_bytes(config, here));
    EXPECT_EQ(ledger.peak(Category::activations),
              backward_input_activation_peak_bytes(config, here));
    EXPECT_EQ(ledger.current(Category::activations), weight_half_bytes(config, here));
    EXPECT_EQ(peak_of_buffers([&] { stage.backward_weights(2); }), 0u);
    EXPECT_EQ(ledger.current(Category::activations), 0u);
  });
}

TEST_P(GptCost, ParametersAreTheFormula) {
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

// The same calls by themselves put as many bytes and messages on the wire.
TEST_P(GptCost, CollectivesAreThoseListed) {
  const GptConfig& config = GetParam().config;
  on_stages([&](Rank& rank, GptStage& stage, const StageCase& here, const TokenBatch& batch,
                const auto& in, const auto& out, const auto& d_out, const auto& d_in) {
    const auto traffic_of = [&](auto work) {
      rank.tp.link().reset_traffic();
      work();
      return rank.tp.link().traffic();
    };
    const auto run_listed = [&](const std::vector<CollectiveCalls>& list) {
      for (const CollectiveCalls& calls : list) {
        ASSERT_EQ(calls.operation, machine::Operation::all_reduce);
        const machine::Tensor data(rank.world.device(), calls.dtype, {calls.elements},
                                   Category::buffers);
        rank.context.kernels().fill(data, 1);
        for (int i = 0; i < calls.calls; ++i) rank.tp.all_reduce(data);
      }
    };
    const auto without_silent = [](std::map<machine::TrafficLabel, machine::Traffic> traffic) {
      std::erase_if(traffic, [](const auto& entry) { return entry.second == machine::Traffic{}; });
      return traffic;
    };
    const auto expect_same = [&](auto work, const std::vector<CollectiveCalls>& list) {
      const auto seen = without_silent(traffic_of(work));
      const auto listed = without_silent(traffic_of([&] { run_listed(list); }));
      EXPECT_EQ(seen.size(), listed.size());
      for (const auto& [label, traffic] : listed) {
        ASSERT_TRUE(seen.contains(label));
        EXPECT_EQ(seen.at(label).bytes_sent, traffic.bytes_sent);
        EXPECT_EQ(seen.at(label).messages_sent, traffic.messages_sent);
      }
    };
    expect_same([&] { stage.forward(0, batch, in, out); }, forward_calls(config, here));
    expect_same([&] { stage.backward(0, d_out, d_in); }, backward_calls(config, here));
    stage.forward(1, batch, in, out);
    expect_same([&] { stage.backward_input(1, d_out, d_in); }, backward_calls(config, here));
    expect_same([&] { stage.backward_weights(1); }, {});
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, GptCost,
                         ::testing::Values(Costs{long_sequence, 1, 1, 1, Dtype::float32},
                                           Costs{long_sequence, 2, 1, 2, Dtype::bfloat16},
                                           Costs{long_sequence, 4, 2, 1, Dtype::float64},
                                           Costs{long_sequence, 1, 3, 2, Dtype::float16},
                                           Costs{long_sequence, 2, 6, 1, Dtype::float32},
                                           Costs{wide, 1, 1, 1, Dtype::bfloat16},
                                           Costs{wide, 2, 3, 2, Dtype::float32},
                                           Costs{wide, 4, 1, 1, Dtype::float16},
                                           Costs{shortest, 2, 1, 1, Dtype::float16},
                                           Costs{shortest, 1, 1, 2, Dtype::float32}));

// 2 + 2 a layer, 1 for the embedding, 3 for the loss, 1 for the head's input.
TEST(GptCostCalls, AreMegatrons) {
  const StageCase all{2, {}, 2, Dtype::bfloat16};
  const std::int64_t tokens = 2 * 33;
  EXPECT_EQ(forward_calls(long_sequence, all),
            (std::vector<CollectiveCalls>{
                {machine::Operation::all_reduce, Dtype::bfloat16, tokens * 8, 13},
                {machine::Operation::all_reduce, Dtype::float32, tokens, 3}}));
  EXPECT_EQ(backward_calls(long_sequence, all),
            (std::vector<CollectiveCalls>{
                {machine::Operation::all_reduce, Dtype::bfloat16, tokens * 8, 13}}));
  EXPECT_TRUE(forward_calls(long_sequence, {}).empty());
}

// GPT-2 small has 124,439,808 parameters: Radford et al. 2019 say 117M, their released model this.
TEST(GptCostParameters, OfGpt2Small) {
  const GptConfig small{
      .layers = 12, .hidden = 768, .heads = 12, .vocabulary = 50257, .sequence = 1024};
  EXPECT_EQ(parameters_count(small), 124439808);
}

// GPT-3 175B at sequence 2048, by the published formula 72 B s L h² (1 + s/6h + V/12Lh) (Narayanan
// et al. 2021, without its recomputation), whose attention is twice ours: it does not count the
// causal half.
TEST(GptCostFlops, AreThoseOfThePaperWithHalfTheAttention) {
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
