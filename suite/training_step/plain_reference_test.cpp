// The plain implementation of training, and its agreement with the layers at degree 1 in double.

#include "suite/training_step/plain_reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "machine/world/world.h"
#include "suite/configuration/models.h"
#include "suite/reference/plain/training.h"

namespace suite {
namespace {

TrainingConfig tiny(const std::string& model, const std::function<void(TrainingConfig&)>& change) {
  TrainingConfig config;
  set_model(config, model);
  config.batch.global_batch_size = 6;
  change(config);
  return config;
}

// Returns the decisions of the layers' routers, which the plain loops take.
TrainingRouting routing_of(machine::World& world, const TrainingConfig& config,
                           const Corpus& corpus) {
  TrainingRouting routing;
  if (!config.model.has_experts()) return routing;
  const auto trainer = reference_trainer(world, config, corpus, machine::Dtype::float64);
  for (int step = 0; step < reference_steps; ++step) {
    trainer->step();
    routing.push_back(trainer->gathered_routing());
  }
  return routing;
}

// Trains this config by the layers and by plain loops, both in double. amplified: a step multiplies
// roundoffs of a gradient by up to this.
void expect_agreement(const std::string& what, const TrainingConfig& config,
                      const SkippedSteps& skipped = {}, double amplified = 1) {
  SCOPED_TRACE(what);
  ASSERT_EQ(why_not_plain(config), "");
  machine::run_ranks(1, [&](machine::World& world) {
    const Corpus corpus = Corpus::generated(config.seed, config.model.tokens);
    const TrainingRouting routing = routing_of(world, config, corpus);
    const History plain = plain_history(
        config, corpus, skipped, [] {}, routing);
    const auto trainer = reference_trainer(world, config, corpus, machine::Dtype::float64);
    const int first = first_taken(skipped);
    ASSERT_EQ(plain.parameters.size(), trainer->parameters().size());
    const auto expect_near = [&](const std::string& name, const std::vector<double>& got,
                                 const std::vector<double>& want) {
      EXPECT_LE(distance(got, want), 1e-11 * amplified * norm(want)) << name;
    };
    for (int step = 0; step < reference_steps; ++step) {
      SCOPED_TRACE(step);
      trainer->forward_backward();
      EXPECT_NEAR(plain.losses[static_cast<std::size_t>(step)], trainer->mean_loss(), 1e-11);
      trainer->reduce();
      if (step == first)
        for (const collectives::Parameter* parameter : trainer->parameters())
          expect_near(parameter->name + " gradient",
                      plain.parameters.at(parameter->name).first_gradient,
                      unscaled_gradient(*trainer, *parameter));
      if (skipped[static_cast<std::size_t>(step)]) make_overflow(*trainer);
      const zero::StepResult result = trainer->update();
      if (step == first) {
        EXPECT_NEAR(plain.gradient_norm, result.gradient_norm, 1e-11 * result.gradient_norm);
      }
      for (const collectives::Parameter* parameter : trainer->parameters()) {
        const ParameterHistory& mine = plain.parameters.at(parameter->name);
        const std::vector<double> values = to_doubles(parameter->value);
        if (step == first) expect_near(parameter->name + " after one", mine.after_one, values);
        if (step + 1 == reference_steps) expect_near(parameter->name, mine.after_all, values);
      }
    }
  });
}

TEST(PlainReference, AgreesWithTheLayersInDouble) {
  const auto nothing = [](TrainingConfig&) {};
  expect_agreement("gpt", tiny("tiny", nothing));
  expect_agreement("llama", tiny("llama_tiny", nothing));
  expect_agreement("bert", tiny("bert_tiny", nothing));
  expect_agreement("t5", tiny("t5_tiny", nothing));
  expect_agreement("experts", tiny("moe_tiny", nothing));
  expect_agreement("experts in Llama's shape with capacities and losses that dominate",
                   tiny("llama_tiny", [](TrainingConfig& c) {
                     c.model.moe.num_experts = 5;
                     c.model.moe.topk = 3;
                     c.model.moe.ffn_hidden_size = 40;
                     c.model.moe.shared_expert_intermediate_size = 24;
                     c.model.moe.aux_loss_coeff = 1;
                     c.model.moe.z_loss_coeff = 1;
                     c.model.moe.expert_capacity_factor = 0.75;
                     c.model.moe_layer_freq = 2;
                     c.model.hidden_dropout = 0.1;
                     c.batch.micro_batch_size = 2;
                   }));
  expect_agreement("bert, padded table, dropout, uneven tokens",
                   tiny("bert_tiny", [](TrainingConfig& c) {
                     c.model.tokens = 300;
                     c.model.hidden_dropout = 0.1;
                     c.model.attention_dropout = 0.2;
                     c.uneven_tokens = true;
                   }));
  expect_agreement("dropout, uneven tokens, decay, warm-up", tiny("tiny", [](TrainingConfig& c) {
                     c.model.hidden_dropout = 0.1;
                     c.model.attention_dropout = 0.2;
                     c.uneven_tokens = true;
                     c.optimizer.weight_decay = 0.1;
                     c.schedule.lr_warmup_iters = 3;
                     c.schedule.train_iters = 20;
                   }));
  expect_agreement("padded table, Adam", tiny("llama_tiny", [](TrainingConfig& c) {
                     c.model.vocabulary = 384;
                     c.model.hidden_dropout = 0.1;
                     c.optimizer.decoupled_decay = false;
                     c.optimizer.weight_decay = 0.1;
                     c.batch.micro_batch_size = 2;
                   }));
  expect_agreement("a vocabulary of fewer tokens than the text has bytes",
                   tiny("tiny", [](TrainingConfig& c) {
                     c.model.tokens = 64;
                     c.model.vocabulary = 128;
                   }));
  expect_agreement("sgd, clipped", tiny("tiny", [](TrainingConfig& c) {
                     c.optimizer.type = "sgd";
                     c.optimizer.momentum = 0.9;
                     c.optimizer.weight_decay = 0.1;
                     c.optimizer.clipping = 0.1;
                   }));
  expect_agreement("rmsprop, not clipped", tiny("tiny", [](TrainingConfig& c) {
                     c.optimizer.type = "rmsprop";
                     c.optimizer.clipping = 0;
                   }));
  expect_agreement("lamb, with ratios at both limits", tiny("tiny", [](TrainingConfig& c) {
                     c.optimizer.type = "lamb";
                     c.optimizer.weight_decay = 0.1;
                     c.optimizer.max_coeff = 0.3;
                     c.optimizer.min_coeff = 0.1;
                     c.optimizer.epsilon = 1e-3;  // the keys' biases have gradients of roundoffs
                   }));
  for (const char* type : {"one_bit_adam", "one_bit_lamb"})
    expect_agreement(type, tiny("tiny", [type](TrainingConfig& c) {
                       c.optimizer.type = type;
                       c.optimizer.weight_decay = 0.1;
                       c.optimizer.betas[1] = 0.9;
                       c.optimizer.freeze_step = 2;
                       c.optimizer.factor_threshold = 0.5;
                       c.optimizer.epsilon = 1e-3;
                     }));
  const auto with_muon = [](TrainingConfig& c) {
    c.optimizer.type = "muon";
    c.optimizer.momentum = 0.9;
    c.optimizer.weight_decay = 0.1;
    c.optimizer.epsilon = 1e-3;
  };
  expect_agreement("muon", tiny("tiny", with_muon), {}, 500);
  expect_agreement("muon of stacked matrices and groups of heads", tiny("llama_tiny", with_muon),
                   {}, 500);
  expect_agreement("Jordan's muon, of cross attention",
                   tiny("t5_tiny",
                        [&](TrainingConfig& c) {
                          with_muon(c);
                          c.optimizer.muon = {.nesterov = true,
                                              .split_qkv = false,
                                              .coefficient_type = "simple",
                                              .scale_mode = "shape_scaling"};
                        }),
                   {}, 500);
  expect_agreement("muon of experts",
                   tiny("moe_tiny",
                        [&](TrainingConfig& c) {
                          with_muon(c);
                          c.optimizer.muon.scale_mode = "unit_rms_norm";
                          c.optimizer.muon.extra_scale_factor = 0.2;
                        }),
                   {}, 500);
  expect_agreement("adafactor, clipped", tiny("llama_tiny", [](TrainingConfig& c) {
                     c.optimizer.type = "adafactor";
                     c.optimizer.weight_decay = 0.1;
                     c.optimizer.clip_threshold = 0.5;
                   }));
  // Without biases: the gradient of the keys' is zero but for roundoffs, whose signs are arbitrary.
  expect_agreement("lion, without biases", tiny("llama_tiny", [](TrainingConfig& c) {
                     c.optimizer.type = "lion";
                     c.optimizer.weight_decay = 0.1;
                   }));
}

// Skipped steps change no parameter, no moment and no learning rate.
TEST(PlainReference, SkippedStepsDoNotCount) {
  SkippedSteps skipped{};
  skipped[0] = skipped[3] = true;
  expect_agreement("skipped",
                   tiny("tiny",
                        [](TrainingConfig& c) {
                          c.schedule.lr_warmup_iters = 4;
                          c.schedule.train_iters = 20;
                          c.optimizer.weight_decay = 0.1;
                        }),
                   skipped);
}

// Gradients are the slopes of the loss: compares with central differences in some elements of every
// parameter.
TEST(PlainTraining, GradientsAreSlopes) {
  plain::Model gpt{.layers = 2,
                   .hidden = 8,
                   .heads = 4,
                   .groups = 4,
                   .table_rows = 12,
                   .vocabulary = 10,
                   .sequence = 6,
                   .ffn = 12};
  gpt.hidden_dropout = 0.2;
  gpt.attention_dropout = 0.3;
  plain::Model llama = gpt;
  llama.groups = 2;
  llama.rms_norm = llama.swiglu = llama.rotary = true;
  llama.biases = llama.tied = false;
  const plain::Batch batch{{1, 2, 3, 4, 5, 6, 9, 8, 7, 6, 5, 4},
                           {2, 3, 4, 5, 6, 7, 8, 7, 6, -1, -1, -1},
                           12,
                           {0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1},
                           {4, 6},
                           {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}};
  plain::Model bert = gpt;
  bert.encoder = true;
  plain::Model t5 = gpt;
  t5.encoder_decoder = true;
  for (const plain::Model& model : {gpt, llama, bert, t5}) {
    plain::Training training(model, {}, 5);
    training.step(batch, 0, true);
    const auto gradients = training.parameters();
    for (const auto& [name, parameter] : gradients)
      for (std::size_t i = 0; i < parameter.value.size(); i += parameter.value.size() / 3) {
        const auto loss = [&](double shift) {
          plain::Training moved(model, {}, 5);
          moved.move(name, i, shift);
          return 9 * moved.step(batch, 0, true).loss;  // nine tokens count
        };
        const double h = 1e-5, slope = (loss(h) - loss(-h)) / (2 * h);
        EXPECT_NEAR(parameter.gradient[i], slope, 1e-7 + 1e-6 * std::abs(slope)) << name << i;
      }
  }
}

TEST(PlainReference, LargeModelsAreNotTrainedByPlainLoops) {
  EXPECT_NE(why_not_plain(tiny("gpt2_124m", [](TrainingConfig&) {})), "");
  EXPECT_EQ(why_not_plain(tiny("small", [](TrainingConfig&) {})), "");
}

}  // namespace
}  // namespace suite
