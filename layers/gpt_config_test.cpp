#include "layers/gpt_config.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "layers/models/activation_options.h"

namespace layers {
namespace {

std::string refusal(const GptConfig& config, int tp = 1, int pp = 1) {
  try {
    config.validate(tp, pp);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

const GptConfig config{.layers = 6, .hidden = 48, .heads = 12, .vocabulary = 200, .sequence = 8};

TEST(GptConfig, AcceptsValidDegrees) {
  EXPECT_EQ(refusal(config), "accepted");
  EXPECT_EQ(refusal(config, 4, 3), "accepted");
}

TEST(GptConfig, NamesKeyValueAndAnExample) {
  EXPECT_EQ(refusal(config, 5), "tp is 5; expected a divisor of heads 12 (example: 4)");
  EXPECT_EQ(refusal(config, 3),
            "tp is 3; expected a divisor of vocabulary 200; pad vocabulary to 201, or use tp 2");
  EXPECT_EQ(refusal(config, 1, 4), "pp is 4; expected a divisor of layers 6 (example: 3)");
  GptConfig odd = config;
  odd.heads = 7;
  EXPECT_EQ(refusal(odd), "heads is 7; expected a divisor of hidden 48 (example: 6)");
  odd = config;
  odd.sequence = 0;
  EXPECT_EQ(refusal(odd), "sequence is 0; expected more than 0");
  odd = config;
  odd.layer_norm_epsilon = -1;
  EXPECT_EQ(refusal(odd), "layer_norm_epsilon is -1; expected more than 0");
  EXPECT_EQ(refusal(config, 0), "tp is 0; expected more than 0");
}

std::string changed(void (*change)(GptConfig&), int tp = 1) {
  GptConfig other = config;
  change(other);
  return refusal(other, tp);
}

TEST(GptConfig, RejectsInvalidExperts) {
  const auto with = [](void (*change)(GptConfig&), int tp = 1) {
    GptConfig other = config;
    other.moe.num_experts = 4;
    change(other);
    return refusal(other, tp);
  };
  EXPECT_EQ(with([](GptConfig&) {}), "accepted");
  EXPECT_EQ(with([](GptConfig& c) { c.moe_layer_freq = 7; }),
            "moe-layer-freq is 7; expected 1 to num-layers 6");
  EXPECT_EQ(with([](GptConfig& c) { c.moe.topk = 5; }),
            "moe-router-topk is 5; expected 1 to num-experts 4");
  EXPECT_EQ(with([](GptConfig& c) { c.architecture = Architecture::encoder; }),
            "num-experts requires architecture decoder (got encoder)");
  EXPECT_EQ(with([](GptConfig& c) { c.moe.ffn_hidden_size = 30; }, 4),
            "tp is 4; expected a divisor of moe-ffn-hidden-size 30 (example: 3)");
  EXPECT_EQ(with([](GptConfig& c) { c.moe.shared_expert_intermediate_size = 30; }, 4),
            "tp is 4; expected a divisor of moe-shared-expert-intermediate-size 30 (example: 3)");
}

TEST(GptConfig, RejectsOptionsOfOtherShapes) {
  EXPECT_EQ(changed([](GptConfig& c) { c.group_query_attention = true, c.num_query_groups = 5; }),
            "num-query-groups is 5; expected a divisor of heads 12 (example: 4)");
  EXPECT_EQ(changed([](GptConfig& c) { c.num_query_groups = 2; }),
            "num-query-groups is 2; expected 1 without group-query-attention");
  EXPECT_EQ(
      changed([](GptConfig& c) { c.group_query_attention = true, c.num_query_groups = 2; }, 4),
      "tp is 4; expected a divisor of num-query-groups 2 (example: 2)");
  EXPECT_EQ(changed([](GptConfig& c) { c.ffn_hidden_size = 90; }, 4),
            "tp is 4; expected a divisor of ffn-hidden-size 90 (example: 2)");
  EXPECT_EQ(changed([](GptConfig& c) { c.ffn_hidden_size = -1; }),
            "ffn-hidden-size is -1; expected more than 0");
  EXPECT_EQ(changed([](GptConfig& c) { c.hidden = 12, c.swiglu = true; }),
            "ffn-hidden-size is 0 (unset: swiglu makes 0 of hidden 12); expected more than 0");
  EXPECT_EQ(
      changed(
          [](GptConfig& c) { c.hidden = 36, c.position_embedding_type = PositionEmbedding::rope; }),
      "heads is 12; position-embedding-type rope expects an even size of a head, but hidden 36 "
      "/ 12 is odd (example: 9)");
  EXPECT_EQ(changed([](GptConfig& c) { c.rotary_base = 5000; }),
            "rotary-base is 5000; expected 10000 with position-embedding-type learned_absolute");
  EXPECT_EQ(changed([](GptConfig& c) { c.hidden_dropout = 1; }),
            "hidden-dropout is 1; expected at least 0 and below 1 (example: 0.9)");
  EXPECT_EQ(changed([](GptConfig& c) { c.attention_dropout = -0.1; }),
            "attention-dropout is -0.1; expected at least 0 and below 1 (example: 0)");
}

TEST(GptConfig, IsReadByName) {
  EXPECT_EQ(normalization("RMSNorm"), Normalization::rms_norm);
  EXPECT_EQ(position_embedding_type("rope"), PositionEmbedding::rope);
  EXPECT_THROW(normalization("RMSNrom"), std::invalid_argument);
  try {
    position_embedding_type("rop");
    ADD_FAILURE() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'rope'"), std::string::npos)
        << error.what();
  }
}

// Llama has its own feed-forward width. The default follows Megatron-LM.
TEST(GptConfig, FeedsForwardByMegatronsRule) {
  GptConfig shape{.hidden = 4096};
  EXPECT_EQ(shape.ffn(), 16384);
  shape.swiglu = true;
  EXPECT_EQ(shape.ffn(), 10880);
  shape.ffn_hidden_size = 11008;
  EXPECT_EQ(shape.ffn(), 11008);
}

std::string refusal(const ActivationOptions& options, int tp, int pp = 1, int micro_batch = 1) {
  try {
    options.validate(config, tp, config.layers / pp);
    options.validate_rows(config.sequence, tp, micro_batch);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ActivationOptions, RejectIncompatibleOptions) {
  using enum RecomputeGranularity;
  EXPECT_EQ(refusal(ActivationOptions{}, 1), "accepted");
  EXPECT_EQ(refusal({.sequence_parallel = true}, 4), "accepted");
  EXPECT_EQ(refusal({.sequence_parallel = true}, 1),
            "sequence-parallel requires tp 2 or more (got 1)");
  EXPECT_EQ(
      refusal({.sequence_parallel = true}, 16, 1, 3),
      "sequence-parallel requires tokens that tp 16 divides (got micro-batch-size 3 x sequence "
      "8 = 24; example: micro-batch-size 4)");
  EXPECT_EQ(
      refusal({.sequence_parallel = true}, 3),
      "sequence-parallel requires tokens that tp 3 divides (got micro-batch-size 1 x sequence "
      "8 = 8; example: micro-batch-size 3)");
  EXPECT_EQ(refusal({.recompute_method = RecomputeMethod::block}, 2),
            "recompute-method block requires recompute-granularity full (got none)");
  EXPECT_EQ(refusal({.recompute_granularity = selective, .recompute_num_layers = 2}, 2),
            "recompute-num-layers 2 requires recompute-granularity full (got selective)");
  EXPECT_EQ(refusal({.recompute_granularity = full, .recompute_num_layers = 4}, 2, 2),
            "recompute-num-layers is 4; expected 1 to 3, the layers of a stage");
  EXPECT_EQ(refusal({.recompute_granularity = full, .recompute_num_layers = 0}, 2),
            "recompute-num-layers is 0; expected 1 to 6, the layers of a stage");
  EXPECT_EQ(refusal({.recompute_granularity = selective, .use_flash_attn = true}, 1), "accepted");
  EXPECT_EQ(refusal({.use_flash_attn = true}, 1), "accepted");
  EXPECT_EQ(refusal({.distribute_saved_activations = true}, 2),
            "distribute-saved-activations requires recompute-granularity full (got none)");
  EXPECT_EQ(refusal({.cpu_checkpointing = true}, 2),
            "cpu-checkpointing requires recompute-granularity full (got none)");
  EXPECT_EQ(refusal({.recompute_granularity = full, .cpu_checkpointing = true}, 1), "accepted");
  ActivationOptions distributed{.recompute_granularity = full,
                                .distribute_saved_activations = true};
  EXPECT_EQ(refusal(distributed, 2), "accepted");
  EXPECT_EQ(refusal(distributed, 1), "distribute-saved-activations requires tp 2 or more (got 1)");
  distributed.sequence_parallel = true;
  EXPECT_EQ(refusal(distributed, 2),
            "distribute-saved-activations does not support sequence-parallel; leave out one of the "
            "two");
}

TEST(ActivationOptions, AreReadByName) {
  EXPECT_EQ(recompute_granularity("selective"), RecomputeGranularity::selective);
  EXPECT_EQ(recompute_method("block"), RecomputeMethod::block);
  try {
    recompute_granularity("selectiv");
    ADD_FAILURE() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'selective'"), std::string::npos)
        << error.what();
  }
}

// Megatron-LM, core/transformer/transformer_block.py, _checkpointed_forward.
TEST(ActivationOptions, GroupLayersAsMegatronDoes) {
  using enum RecomputeGranularity;
  using Groups = std::vector<LayerGroup>;
  EXPECT_EQ(layer_groups({}, 3), (Groups{{0, 3, false}}));
  EXPECT_EQ(layer_groups({.recompute_granularity = selective}, 3), (Groups{{0, 3, false}}));
  ActivationOptions options{.recompute_granularity = full, .recompute_num_layers = 2};
  EXPECT_EQ(layer_groups(options, 5), (Groups{{0, 2, true}, {2, 4, true}, {4, 5, true}}));
  options.recompute_method = RecomputeMethod::block;
  EXPECT_EQ(layer_groups(options, 5), (Groups{{0, 1, true}, {1, 2, true}, {2, 5, false}}));
  EXPECT_EQ(layer_groups(options, 2), (Groups{{0, 1, true}, {1, 2, true}}));
}

}  // namespace
}  // namespace layers
