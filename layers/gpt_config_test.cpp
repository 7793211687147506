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

TEST(GptConfig, AcceptsWhatDivides) {
  EXPECT_EQ(refusal(config), "accepted");
  EXPECT_EQ(refusal(config, 4, 3), "accepted");
}

TEST(GptConfig, NamesKeyValuesAndTheNearestValid) {
  EXPECT_EQ(refusal(config, 5),
            "tp is 5: it must divide heads, which is 12; the nearest degree that divides heads and "
            "vocabulary is 4");
  EXPECT_EQ(refusal(config, 3),
            "tp is 3: it must divide vocabulary, which is 200; pad vocabulary to 201, or use tp 2, "
            "the nearest degree that divides heads and vocabulary");
  EXPECT_EQ(refusal(config, 1, 4),
            "pp is 4: it must divide layers, which is 6; the nearest that does is 3");
  GptConfig odd = config;
  odd.heads = 7;
  EXPECT_EQ(refusal(odd),
            "heads is 7: it must divide hidden, which is 48; the nearest that does is 6");
  odd = config;
  odd.sequence = 0;
  EXPECT_EQ(refusal(odd), "sequence is 0: it must be greater than 0");
  odd = config;
  odd.layer_norm_epsilon = -1;
  EXPECT_EQ(refusal(odd), "layer_norm_epsilon is -1: it must be greater than 0");
  EXPECT_EQ(refusal(config, 0), "tp is 0: it must be greater than 0");
}

std::string changed(void (*change)(GptConfig&), int tp = 1) {
  GptConfig other = config;
  change(other);
  return refusal(other, tp);
}

TEST(GptConfig, NamesWhatIsNotOfItsShape) {
  EXPECT_EQ(changed([](GptConfig& c) { c.group_query_attention = true, c.num_query_groups = 5; }),
            "num-query-groups is 5: it must divide heads, which is 12; the nearest that does is 4");
  EXPECT_EQ(changed([](GptConfig& c) { c.num_query_groups = 2; }),
            "num-query-groups is 2, which is of group-query-attention: switch that on, or leave it "
            "at 1");
  EXPECT_EQ(
      changed([](GptConfig& c) { c.group_query_attention = true, c.num_query_groups = 2; }, 4),
      "tp is 4: it must divide num-query-groups, which is 2; the nearest degree that divides all "
      "that it cuts is 2");
  EXPECT_EQ(changed([](GptConfig& c) { c.ffn_hidden_size = 90; }, 4),
            "tp is 4: it must divide ffn-hidden-size, which is 90; the nearest degree that divides "
            "all that it cuts is 2");
  EXPECT_EQ(changed([](GptConfig& c) { c.ffn_hidden_size = -1; }),
            "ffn-hidden-size is -1: it must be greater than 0");
  EXPECT_EQ(changed([](GptConfig& c) { c.hidden = 12, c.swiglu = true; }),
            "ffn-hidden-size is 0 (unset), and of hidden 12 swiglu makes 0: it must be greater "
            "than 0");
  EXPECT_EQ(changed([](GptConfig& c) {
              c.hidden = 36, c.position_embedding_type = PositionEmbedding::rope;
            }),
            "heads is 12: position-embedding-type rope turns halves of a head, whose size, hidden "
            "36 / 12, is odd; the nearest heads for which it is even is 9");
  EXPECT_EQ(changed([](GptConfig& c) { c.rotary_base = 5000; }),
            "rotary-base is 5000, which is of position-embedding-type rope; the nearest that fits "
            "learned_absolute is 10000");
  EXPECT_EQ(changed([](GptConfig& c) { c.hidden_dropout = 1; }),
            "hidden-dropout is 1: it must be at least 0 and below 1; the nearest that is (in "
            "tenths) is 0.9");
  EXPECT_EQ(changed([](GptConfig& c) { c.attention_dropout = -0.1; }),
            "attention-dropout is -0.1: it must be at least 0 and below 1; the nearest that is (in "
            "tenths) is 0");
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

// Llama's feed-forward width is its own; the usual is Megatron-LM's.
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
    options.validate_rows(config, tp, micro_batch);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ActivationOptions, NameWhatDoesNotFitAndTheNearestThatDoes) {
  using enum RecomputeGranularity;
  EXPECT_EQ(refusal(ActivationOptions{}, 1), "accepted");
  EXPECT_EQ(refusal({.sequence_parallel = true}, 4), "accepted");
  EXPECT_EQ(refusal({.sequence_parallel = true}, 1),
            "sequence-parallel: there is none without tensor parallelism; tp is 1, the nearest "
            "that has one is 2");
  EXPECT_EQ(refusal({.sequence_parallel = true}, 16, 1, 3),
            "sequence-parallel: micro-batch-size 3 x sequence 8 = 24 tokens, which tp 16 does not "
            "divide; the nearest micro-batch-size whose tokens it divides is 4");
  EXPECT_EQ(refusal({.sequence_parallel = true}, 3),
            "sequence-parallel: micro-batch-size 1 x sequence 8 = 8 tokens, which tp 3 does not "
            "divide; the nearest micro-batch-size whose tokens it divides is 3");
  EXPECT_EQ(refusal({.recompute_method = RecomputeMethod::block}, 2),
            "recompute-method block is of recompute-granularity full, which is none");
  EXPECT_EQ(refusal({.recompute_granularity = selective, .recompute_num_layers = 2}, 2),
            "recompute-num-layers 2 is of recompute-granularity full, which is selective");
  EXPECT_EQ(refusal({.recompute_granularity = full, .recompute_num_layers = 4}, 2, 2),
            "recompute-num-layers is 4: a stage has 3 layers; the nearest that fits is 3");
  EXPECT_EQ(refusal({.recompute_granularity = full, .recompute_num_layers = 0}, 2),
            "recompute-num-layers is 0: a stage has 6 layers; the nearest that fits is 1");
  EXPECT_EQ(refusal({.recompute_granularity = selective, .use_flash_attn = true}, 1),
            "recompute-granularity selective: with use-flash-attn there are no probabilities to "
            "make again; leave out one of the two");
  EXPECT_EQ(refusal({.use_flash_attn = true}, 1), "accepted");
  EXPECT_EQ(refusal({.distribute_saved_activations = true}, 2),
            "distribute-saved-activations is of recompute-granularity full, which is none");
  EXPECT_EQ(refusal({.cpu_checkpointing = true}, 2),
            "cpu-checkpointing is of recompute-granularity full, which is none");
  EXPECT_EQ(refusal({.recompute_granularity = full, .cpu_checkpointing = true}, 1), "accepted");
  ActivationOptions distributed{.recompute_granularity = full,
                                .distribute_saved_activations = true};
  EXPECT_EQ(refusal(distributed, 2), "accepted");
  EXPECT_EQ(refusal(distributed, 1),
            "distribute-saved-activations: there is nothing to cut over; tp is 1, the nearest that "
            "fits is 2");
  distributed.sequence_parallel = true;
  EXPECT_EQ(refusal(distributed, 2),
            "distribute-saved-activations: with sequence-parallel they are cut already; leave out "
            "one of the two");
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
