// Parameters that are not trained: their names, the errors of patterns, and the memory that they
// save.

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "suite/configuration/models.h"
#include "suite/trainer/trainer.h"

namespace suite {
namespace {

TrainingConfig tiny(const std::string& frozen) {
  TrainingConfig config;
  set_model(config, "tiny");
  config.frozen = frozen;
  return config;
}

// Returns the message of an invalid pattern, or calls work with the trainer.
std::string why_not(const std::string& frozen, const std::function<void(Trainer&)>& work = {}) {
  std::string why;
  machine::run_ranks(1, [&](machine::World& world) {
    const TrainingConfig config = tiny(frozen);
    const Corpus corpus = Corpus::generated(config.seed, config.model.tokens);
    const auto device = machine::make_host_device();
    try {
      Trainer trainer(world, world.group(), *device, config, corpus);
      if (work) work(trainer);
    } catch (const std::invalid_argument& error) {
      why = error.what();
    }
  });
  return why;
}

TEST(Frozen, PatternsSelectNames) {
  const std::vector<std::string> names{"embedding.token.weight", "blocks.0.norm1.gain",
                                       "blocks.0.norm1.bias", "blocks.10.mlp.fc1.weight"};
  const auto selected = [&](const std::string& frozen) { return tiny(frozen).frozen_names(names); };
  EXPECT_EQ(selected(""), std::vector<std::string>{});
  EXPECT_EQ(selected("blocks.0.*"), (std::vector{names[1], names[2]}));
  EXPECT_EQ(selected("*.weight"), (std::vector{names[0], names[3]}));
  EXPECT_EQ(selected("*.gain+embedding.token.weight"), (std::vector{names[0], names[1]}));
  EXPECT_EQ(selected("blocks"), std::vector<std::string>{});
}

TEST(Frozen, RejectsPatternsThatCannotBeHonoured) {
  EXPECT_EQ(why_not("blocks.0.*"), "");
  EXPECT_NE(why_not("embeding.token.weight").find("did you mean 'embedding.token.weight'"),
            std::string::npos);
  EXPECT_NE(why_not("blocks.0.norm1.gain").find("gain and the bias of a norm together"),
            std::string::npos);
  EXPECT_NE(why_not("*").find("leave a parameter to train"), std::string::npos);
}

// AdamW keeps 8 bytes a trained parameter in float; every parameter is padded to 64 elements.
TEST(Frozen, HaveNeitherGradientsNorStates) {
  EXPECT_EQ(why_not("*.weight",
                    [](Trainer& trainer) {
                      std::size_t trained = 0, all = 0;
                      for (const collectives::Parameter* parameter : trainer.parameters()) {
                        const auto padded = static_cast<std::size_t>(
                            (parameter->global_shape.size() + 63) / 64 * 64);
                        all += padded;
                        if (!parameter->name.ends_with(".weight")) trained += padded;
                      }
                      trainer.step();
                      const machine::Ledger& ledger = trainer.states().device().ledger();
                      EXPECT_EQ(ledger.current(machine::Category::parameters), 4 * all);
                      EXPECT_EQ(ledger.current(machine::Category::gradients), 4 * trained);
                      EXPECT_EQ(ledger.current(machine::Category::optimizer), 8 * trained);
                    }),
            "");
}

}  // namespace
}  // namespace suite
