// Compares the closed formulas of a stage in 8 bits with the counts of the ledger and the link.

#include "layers/models/fp8_cost.h"

#include "layers/models/gpt_memory.h"
#include "layers/testing/gpt_case.h"

namespace layers::testing {
namespace {

using machine::Category, machine::Dtype, machine::Tensor;

struct Fp8Costs {
  GptConfig config;
  int tp;
  Dtype dtype;
  ActivationOptions options{};
  Fp8Recipe recipe = Fp8Recipe::delayed;
  int sequences = 1;

  StageCase stage() const {
    return {.tp = tp,
            .stage = {},
            .sequences = sequences,
            .dtype = dtype,
            .options = options,
            .fp8 = fp8(),
            .amax_ranks = tp};
  }
  Fp8Options fp8() const {
    return {.format = Fp8Format::hybrid,
            .recipe = recipe,
            .amax_history_len = recipe == Fp8Recipe::delayed ? 5 : 1};
  }
};

void PrintTo(const Fp8Costs& c, std::ostream* out) {
  *out << name(c.recipe) << ", hidden " << c.config.hidden << ", tp " << c.tp << ", "
       << name(c.dtype) << (c.options.sequence_parallel ? ", sequence" : "") << ", recompute "
       << name(c.options.recompute_granularity) << (c.options.use_flash_attn ? ", blockwise" : "")
       << (c.config.swiglu ? ", llama" : "") << (c.config.hidden_dropout > 0 ? ", dropping" : "");
}

class Fp8Cost : public ::testing::TestWithParam<Fp8Costs> {
 protected:
  // Runs body on every rank, with a stage whose scales exist.
  void on_stage(
      const std::function<void(Rank&, GptStage&, const TokenBatch&, const Tensor&)>& body) {
    const Fp8Costs& c = GetParam();
    on_ranks(c.tp, c.dtype, [&](Rank& rank) {
      GptStage stage(c.config, rank.world.device(), rank.tp, c.dtype, {}, c.options, nullptr,
                     nullptr, {}, {}, {.options = c.fp8()});
      stage.initialize(Initializer::conformance(17, c.config.layers));
      stage.zero_gradients();
      const GptCase data{.config = c.config, .sequences = c.sequences};
      const auto tokens = data.tokens(0), targets = data.targets(0);
      const TokenBatch batch{tokens.data(), targets.data(), c.sequences, data.draw(0)};
      const Tensor loss(rank.world.device(), Dtype::float64, {1}, Category::optimizer);
      stage.forward(0, batch, {}, loss);
      stage.backward(0, {}, {});
      body(rank, stage, batch, loss);
    });
  }
};

TEST_P(Fp8Cost, BytesMatchTheFormula) {
  const GptConfig& config = GetParam().config;
  const StageCase here = GetParam().stage();
  on_stage([&](Rank& rank, GptStage& stage, const TokenBatch& batch, const Tensor& loss) {
    machine::Ledger& ledger = rank.world.device().ledger();
    // The scratch of collectives and the state.
    const std::size_t outside = ledger.current(Category::buffers);
    if (rank.tp.size() == 1) {
      EXPECT_EQ(outside, fp8_state(config, here));
    }
    const auto peak_of_buffers = [&](auto work) {
      ledger.reset_peaks();
      work();
      EXPECT_EQ(ledger.current(Category::buffers), outside);
      return ledger.peak(Category::buffers) - outside;
    };
    const StageMemory want = stage_memory(config, here);
    EXPECT_EQ(peak_of_buffers([&] { stage.forward(0, batch, {}, loss); }), want.forward_buffers);
    EXPECT_EQ(ledger.current(Category::activations), want.saved);
    stage.forward(1, batch, {}, loss);
    EXPECT_EQ(ledger.peak(Category::activations), 2 * want.saved);
    for (const int micro_batch : {0, 1}) {
      EXPECT_EQ(peak_of_buffers([&] { stage.backward(micro_batch, {}, {}); }),
                want.backward_buffers);
    }
    EXPECT_EQ(ledger.peak(Category::activations), want.saved);
    EXPECT_EQ(ledger.current(Category::activations), 0u);
    stage.forward(2, batch, {}, loss);
    EXPECT_EQ(peak_of_buffers([&] { stage.backward_input(2, {}, {}); }), want.input_half_buffers);
    EXPECT_EQ(ledger.peak(Category::activations), want.input_half_peak);
    EXPECT_EQ(ledger.current(Category::activations), want.input_half_saved);
    EXPECT_EQ(peak_of_buffers([&] { stage.backward_weights(2); }), want.weight_half_buffers);
    EXPECT_EQ(ledger.current(Category::activations), 0u);
  });
}

TEST_P(Fp8Cost, CollectivesMatchTheTable) {
  const GptConfig& config = GetParam().config;
  const StageCase here = GetParam().stage();
  on_stage([&](Rank& rank, GptStage& stage, const TokenBatch& batch, const Tensor& loss) {
    const auto expect_same = [&](auto work, const std::vector<CollectiveCalls>& list) {
      rank.tp.link().reset_traffic();
      work();
      auto seen = rank.tp.link().traffic();
      std::erase_if(seen, [](const auto& one) { return one.second == machine::Traffic{}; });
      collectives::CallsCost cost;
      for (CollectiveCalls calls : list) {
        calls.group = "tp";  // which shares the amaxes here
        cost.add(calls, rank.tp);
      }
      EXPECT_EQ(seen, cost.traffic("tp"));
    };
    expect_same([&] { stage.forward(0, batch, {}, loss); }, forward_calls(config, here));
    expect_same([&] { stage.backward_input(0, {}, {}); }, backward_input_calls(config, here));
    expect_same([&] { stage.backward_weights(0); }, backward_weights_calls(config, here));
  });
}

std::vector<Fp8Costs> fp8_cases() {
  const GptConfig narrow{.layers = 2, .hidden = 16, .heads = 4, .vocabulary = 12, .sequence = 34},
      wide{.layers = 2, .hidden = 72, .heads = 4, .vocabulary = 12, .sequence = 6};
  GptConfig dropping = wide;
  dropping.hidden_dropout = dropping.attention_dropout = 0.5;
  std::vector<Fp8Costs> cases;
  for (const Fp8Recipe recipe :
       {Fp8Recipe::delayed, Fp8Recipe::tensorwise, Fp8Recipe::blockwise, Fp8Recipe::mxfp8}) {
    cases.push_back({narrow, 1, Dtype::float32, {}, recipe});
    cases.push_back({llama(wide), 2, Dtype::bfloat16, {.use_flash_attn = true}, recipe});
    cases.push_back({dropping,
                     1,
                     Dtype::bfloat16,
                     {.recompute_granularity = RecomputeGranularity::selective},
                     recipe});
    GptConfig whole = wide;  // rows of a rank that the blocks divide
    whole.sequence = recipe == Fp8Recipe::blockwise ? 256 : 64;
    whole.layers = 1;
    for (const GptConfig& shape : {whole, llama(whole)})
      cases.push_back(
          {shape, 2, Dtype::bfloat16, {.sequence_parallel = true, .use_flash_attn = true}, recipe});
  }
  cases.push_back(
      {dropping,
       2,
       Dtype::float32,
       {.sequence_parallel = true, .recompute_granularity = RecomputeGranularity::selective},
       Fp8Recipe::tensorwise});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, Fp8Cost, ::testing::ValuesIn(fp8_cases()));

}  // namespace
}  // namespace layers::testing
