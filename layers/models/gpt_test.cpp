// Tests the whole model. The loss is compared with plain loops in double. Every degree, number of
// stages and order of the halves is compared with one rank, and every type with double.

#include "layers/models/gpt.h"

#include "layers/testing/gpt_case.h"
#include "layers/testing/reference_model.h"

namespace layers::testing {
namespace {

using machine::Dtype;

const GptConfig config{.layers = 4, .hidden = 24, .heads = 4, .vocabulary = 44, .sequence = 7};

const GptConfig even{.layers = 4, .hidden = 24, .heads = 4, .vocabulary = 44, .sequence = 12};

// Llama's shape with eight heads in four groups, and with dropout.
GptConfig other(GptConfig shape) {
  shape.hidden = 32;
  shape.heads = 8;
  shape = llama(shape);
  shape.hidden_dropout = 0.25;
  return shape;
}
GptConfig t5_dropping(GptConfig shape) {
  shape = t5(shape);
  shape.hidden_dropout = shape.attention_dropout = 0.25;
  return shape;
}
const GptConfig shapes[] = {config, other(config), bert(config), t5_dropping(config)},
                even_shapes[] = {even, other(even), bert(even), t5(even)};
// One number of sequences for Llama, BERT and T5, because the behaviour of rows does not depend on
// the shape.
std::vector<int> sequences_of(const GptConfig& shape, const std::vector<int>& all) {
  return shape.rotary() || shape.architecture != Architecture::decoder ? std::vector{2} : all;
}

double norm_of(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

double bound(Dtype dtype, int depth) { return norm_bound_from_double(dtype, depth, config.ffn()); }

TEST(Gpt, LossMatchesTheReference) {
  for (const GptConfig& shape : shapes) {
    if (shape.encoder_decoder()) continue;  // suite/reference/plain/training.h is its reference
    for (const int tp : {1, 2, 4}) {
      for (const int sequences : sequences_of(shape, {1, 2})) {
        const GptCase run{.config = shape, .tp = tp, .sequences = sequences, .micro_batches = 2};
        const GptResult seen = train(run);
        double want = 0;
        for (int m = 0; m < run.micro_batches; ++m)
          want += reference::gpt(seen.values, run.tokens(m), run.targets(m), shape, run.draw(m),
                                 run.types(m), run.lengths(m));
        EXPECT_LE(relative_error({seen.loss}, {want}), bound(Dtype::float64, config.layers + 1))
            << "tp " << tp << ", sequences " << sequences;
      }
    }
  }
}

// Returns the number of blocks that the error of a gradient has passed in backward. The hidden
// layer of an encoder's head counts as a block.
int depth_of(const std::string& name, const GptConfig& shape) {
  const auto at = name.find("blocks.");
  const int head = shape.encoder() ? 1 : 0;
  if (at == std::string::npos)
    return head + (name.find("embedding") == std::string::npos ? 1 : config.layers + 1);
  return head + config.layers - std::stoi(name.substr(at + 7));
}

// Returns the gradients whose joint norm is the size of the terms of this one. A gradient that only
// passes through scores is a difference of terms as large as the gradients of the values. Without
// cross attention these are parts of the same parameter.
std::vector<std::string> terms_of(const std::string& name) {
  for (const char* part : {"cross.q.", "cross_norm."})
    if (const auto at = name.find(part); at != std::string::npos)
      return {name, name.substr(0, at) + "cross.kv.weight"};
  std::vector<std::string> terms{name};
  for (int block = 0; block < config.layers; ++block)
    if (name.find(block < config.layers / 2 ? "encoder_bias" : "decoder_bias") != std::string::npos)
      terms.push_back("gradient of blocks." + std::to_string(block) + ".attention.qkv.weight");
  return terms;
}

class GptTypes : public ::testing::TestWithParam<Dtype> {};

void expect_near(const GptResult& seen, const GptResult& exact, const GptCase& run) {
  EXPECT_LE(relative_error({seen.loss}, {exact.loss}), bound(run.dtype, config.layers + 1));
  ASSERT_EQ(seen.gradients.size(), exact.gradients.size());
  for (const auto& [name, want] : exact.gradients) {
    double terms = 0;
    for (const std::string& term : terms_of(name))
      terms = std::hypot(terms, norm_of(exact.gradients.at(term)));
    EXPECT_LE(relative_error(seen.gradients.at(name), want) * norm_of(want),
              bound(run.dtype, depth_of(name, run.config)) * terms)
        << name << ", tp " << run.tp << ", sequences " << run.sequences;
  }
}

TEST_P(GptTypes, EveryDegreeIsNearDouble) {
  const Dtype dtype = GetParam();
  for (const GptConfig& shape : shapes) {
    for (const int sequences : sequences_of(shape, {1, 2})) {
      GptCase run{.config = shape, .rounded_to = dtype, .sequences = sequences};
      const GptResult exact = train(run);
      run.dtype = dtype;
      if (dtype == Dtype::float16) run.loss_scale = 1024;  // else the encoder's underflow
      for (const int tp : {1, 2, 4}) {
        run.tp = tp;
        expect_near(train(run), exact, run);
      }
    }
  }
}

// The rows of a rank are a part of a sequence, a whole sequence, or more.
TEST_P(GptTypes, SequenceParallelIsNearDouble) {
  const Dtype dtype = GetParam();
  for (const GptConfig& shape : even_shapes) {
    for (const int sequences : sequences_of(shape, {1, 2, 4})) {
      GptCase run{.config = shape, .rounded_to = dtype, .sequences = sequences};
      const GptResult exact = train(run);
      run.dtype = dtype;
      if (dtype == Dtype::float16) run.loss_scale = 1024;
      run.options.sequence_parallel = true;
      for (const int tp : {2, 4}) {
        run.tp = tp;
        expect_near(train(run), exact, run);
      }
    }
  }
}

// Each rank of tp routes its own rows, and the auxiliary loss is that of all rows.
TEST(Gpt, ExpertsOverTensorParallelRanksAreThoseOfOneRank) {
  for (GptConfig shape : {with_experts(even), with_experts(other(even))}) {
    shape.moe.aux_loss_coeff = 1;
    shape.moe.shared_expert_intermediate_size = shape.swiglu ? 8 : 0;
    shape.hidden_dropout = 0;
    GptCase run{.config = shape, .sequences = 2};
    const GptResult exact = train(run);
    run.options.sequence_parallel = true;
    for (const int tp : {2, 4}) {
      run.tp = tp;
      expect_near(train(run), exact, run);
    }
  }
}

// Stages add no rounding, except for the gradient of a tied table. That gradient is summed from its
// two ends, and the addition of the two sums rounds once.
TEST_P(GptTypes, StagesChangeNothing) {
  for (const GptConfig& shape : shapes) {
    GptCase run{.config = shape, .tp = 2, .dtype = GetParam(), .micro_batches = 3};
    const GptResult whole = train(run);
    for (const int stages : {2, 4}) {
      run.stages = stages;
      const GptResult cut = train(run);
      EXPECT_EQ(cut.loss, whole.loss);
      EXPECT_EQ(cut.values, whole.values);
      ASSERT_EQ(cut.gradients.size(), whole.gradients.size());
      for (const auto& [name, want] : whole.gradients) {
        if (name == "gradient of embedding.token.weight" &&
            !shape.untie_embeddings_and_output_weights) {
          const double u = machine::unit_roundoff(collectives::gradient_dtype(GetParam()));
          // Each of 3 micro-batches adds at most rows() + 1 terms to an element at either end.
          const double additions = 3 * (static_cast<double>(run.rows()) + 1);
          EXPECT_LE(relative_error(cut.gradients.at(name), want), gamma(additions, u));
        } else {
          EXPECT_EQ(cut.gradients.at(name), want) << name << ", " << stages << " stages";
        }
      }
    }
  }
}

TEST_P(GptTypes, SeparateHalvesGiveTheSameBits) {
  for (const GptConfig& shape : shapes) {
    GptCase run{.config = shape, .tp = 2, .dtype = GetParam(), .micro_batches = 2};
    for (const int stages : {1, 2}) {
      run.stages = stages;
      run.halves_apart = false;
      const GptResult together = train(run);
      run.halves_apart = true;
      const GptResult apart = train(run);
      EXPECT_EQ(apart.loss, together.loss);
      EXPECT_EQ(apart.gradients, together.gradients) << stages << " stages";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GptTypes, ::testing::ValuesIn(machine::floating_dtypes),
                         [](const auto& info) { return std::string(name(info.param)); });

// Recomputed activations have the same bits as the dropped ones. Recomputation therefore changes no
// bit, with the halves together or separate.
TEST(Gpt, RecomputingChangesNothing) {
  for (const auto& [dtype, tp, sequence_parallel, sequences, stages, apart] :
       {std::tuple(Dtype::float32, 1, false, 2, 2, true),
        {Dtype::bfloat16, 2, false, 2, 2, false},
        {Dtype::float32, 4, false, 1, 1, true},
        {Dtype::bfloat16, 2, true, 1, 2, true},
        {Dtype::float32, 2, true, 2, 1, false},
        {Dtype::bfloat16, 4, true, 2, 1, false}}) {
    for (const GptConfig& shape : even_shapes) {
      if ((shape.rotary() || shape.architecture != Architecture::decoder) && tp != 2)
        continue;  // three of the combinations are enough
      GptCase run{.config = shape,
                  .tp = tp,
                  .dtype = dtype,
                  .stages = stages,
                  .sequences = sequences,
                  .micro_batches = 2};
      run.options.sequence_parallel = sequence_parallel;
      const GptResult want = train(run);
      run.halves_apart = apart;
      for (ActivationOptions options : recomputations(even.layers / stages)) {
        options.sequence_parallel = sequence_parallel;
        options.distribute_saved_activations =
            tp > 1 && !sequence_parallel && !shape.encoder_decoder() &&
            options.recompute_granularity == RecomputeGranularity::full;
        for (const bool on_the_host : {false, true}) {
          if (on_the_host && options.recompute_granularity != RecomputeGranularity::full) continue;
          options.cpu_checkpointing = on_the_host;
          run.options = options;
          const GptResult seen = train(run);
          EXPECT_EQ(seen.loss, want.loss);
          EXPECT_EQ(seen.gradients, want.gradients)
              << name(options.recompute_granularity) << " " << name(options.recompute_method) << " "
              << options.recompute_num_layers << ", tp " << tp << ", stages " << stages
              << (on_the_host ? ", on the host" : "");
        }
      }
    }
  }
}

TEST(Gpt, RecomputingBlockwiseAttentionChangesNothing) {
  for (const GptConfig& shape : {even, other(even), bert(even)})
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
      GptCase run{.config = shape, .tp = 2, .dtype = dtype, .sequences = 2};
      run.options.use_flash_attn = true;
      const GptResult want = train(run);
      run.options.recompute_granularity = RecomputeGranularity::selective;
      const GptResult seen = train(run);
      EXPECT_EQ(seen.loss, want.loss);
      EXPECT_EQ(seen.gradients, want.gradients) << name(dtype);
    }
}

TEST(Gpt, RejectsRowsThatTpDoesNotDivide) {
  on_ranks(2, Dtype::float32, [&](Rank& rank) {
    GptCase run{.config = config, .tp = 2, .dtype = Dtype::float32};
    run.options.sequence_parallel = true;
    GptStage stage(config, rank.world.device(), rank.tp, run.dtype, {}, run.options);
    EXPECT_EQ(stage.boundary(4).text(), "[14, 24]");
    try {
      stage.forward(0, {nullptr, nullptr, 1}, {}, {});
      ADD_FAILURE() << "accepted";
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find("= 7;"), std::string::npos) << error.what();
    }
    EXPECT_EQ(stage.in_flight(), 0);
  });
}

// Two micro-batches of one sequence equal one micro-batch of two sequences. Gradients are sums, not
// means, and dropout drops the same elements.
TEST(Gpt, MicroBatchesAddUp) {
  const GptCase run{.config = shapes[1], .micro_batches = 2};
  const GptResult seen = train(run);
  on_ranks(1, Dtype::float64, [&](Rank& rank) {
    GptCase together = run;
    together.sequences = 2;
    together.micro_batches = 1;
    GptRanks ranks(rank, together);
    std::vector<std::int32_t> tokens = run.tokens(0), targets = run.targets(0);
    for (const std::int32_t token : run.tokens(1)) tokens.push_back(token);
    for (const std::int32_t target : run.targets(1)) targets.push_back(target);
    const machine::Tensor loss(rank.world.device(), Dtype::float64, {1},
                               machine::Category::buffers);
    ranks.stage(0).forward(0, {tokens.data(), targets.data(), 2, run.draw(0)}, {}, loss);
    ranks.stage(0).backward(0, {}, {});
    const double off = bound(Dtype::float64, config.layers + 1);
    EXPECT_LE(relative_error(machine::to_doubles(loss), {seen.loss}), off);
    expect_within(ranks.gradients(), seen.gradients, off);
  });
}

TEST(Gpt, LossScaleScalesEveryGradient) {
  on_ranks(1, Dtype::float64, [&](Rank& rank) {
    GptRanks ranks(rank, {.config = config});
    ranks.step();
    const Observed plain = ranks.gradients();
    ranks.stage(0).zero_gradients();
    ranks.stage(0).set_loss_scale(1024);
    ranks.step();
    for (const auto& [name, values] : ranks.gradients()) {
      for (std::size_t i = 0; i < values.size(); ++i)  // a power of two: exact
        ASSERT_EQ(values[i], 1024 * plain.at(name)[i]) << name;
    }
  });
}

// Gradients are announced before they are computed, and once per micro-batch when they are
// complete. They do not change after that. Values are used once forward and once backward (not
// those of the embedding), and once more in recomputed layers.
TEST(Gpt, ReportsCompleteGradients) {
  const int usual = 2 * (config.layers + 2) - 1;
  for (const auto& [apart, granularity, wanted] :
       {std::tuple(false, RecomputeGranularity::none, usual),
        {true, RecomputeGranularity::none, usual},
        {true, RecomputeGranularity::full, usual + config.layers}}) {
    on_ranks(2, Dtype::float32, [&](Rank& rank) {
      GptRanks ranks(rank, {.config = config,
                            .dtype = Dtype::float32,
                            .halves_apart = apart,
                            .options = {.recompute_granularity = granularity}});
      std::map<const collectives::Parameter*, std::uint64_t> begun, announced;
      int uses = 0, open = 0;
      ranks.stage(0).observe(
          {.before_use = [&](const Parameters&) { ++uses, ++open; },
           .after_use = [&](const Parameters&) { --open; },
           .before_gradients =
               [&](const Parameters& parameters) {
                 for (const collectives::Parameter* p : parameters) {
                   EXPECT_FALSE(announced.contains(p)) << p->name;
                   begun.emplace(p, machine::hash(p->gradient));
                 }
               },
           .gradients_ready =
               [&](const Parameters& parameters) {
                 for (const collectives::Parameter* p : parameters)
                   EXPECT_TRUE(announced.emplace(p, machine::hash(p->gradient)).second) << p->name;
               }});
      std::map<const collectives::Parameter*, std::uint64_t> untouched;
      for (const collectives::Parameter* p : ranks.stage(0).parameters())
        untouched[p] = machine::hash(p->gradient);
      ranks.step();
      EXPECT_EQ(begun, untouched);
      EXPECT_EQ(uses, wanted);
      EXPECT_EQ(open, 0);
      const Parameters all = ranks.stage(0).parameters();
      EXPECT_EQ(announced.size(), all.size());
      for (const collectives::Parameter* p : all)
        EXPECT_EQ(announced.at(p), machine::hash(p->gradient)) << p->name;
    });
  }
}

TEST(Gpt, RejectsMicroBatchesOutOfOrder) {
  on_ranks(1, Dtype::float32, [&](Rank& rank) {
    GptRanks ranks(rank, {.config = config, .dtype = Dtype::float32});
    EXPECT_THROW(ranks.backward(0), std::logic_error);
    ranks.forward(0);
    EXPECT_THROW(ranks.forward(0), std::logic_error);
    EXPECT_THROW(ranks.stage(0).backward_weights(0), std::logic_error);
    ranks.stage(0).backward_input(0, {}, {});
    EXPECT_THROW(ranks.stage(0).backward_input(0, {}, {}), std::logic_error);
    ranks.stage(0).backward_weights(0);
    EXPECT_EQ(ranks.stage(0).in_flight(), 0);
  });
}

}  // namespace
}  // namespace layers::testing
