// The scales of delayed scaling, pass by pass, compared with Transformer Engine's rule written out.

#include "layers/fp8/delayed_scaling.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "machine/world/world.h"

namespace layers {
namespace {

using machine::Category, machine::Dtype, machine::Tensor;
using Values = std::vector<double>;

struct Passes {
  Fp8Options options;
  Values amaxes;  // of each pass
};

// Returns the scale of each pass on rank 0. Only the last rank of the group has the amax.
Values scales_of(const Passes& passes, int ranks = 1) {
  Values scales;
  machine::run_ranks(ranks, [&](machine::World& world) {
    collectives::Communicator group(world, machine::first_ranks("fp8", ranks, world.rank()),
                                    machine::Transport::shared_memory);
    DelayedScaling scaling(world.device(), passes.options, group,
                           {Dtype::float8_e4m3, Dtype::float8_e5m2});
    const auto first = scaling.quantizer(0), second = scaling.quantizer(1);
    const Tensor x(world.device(), Dtype::float32, {2}, Category::buffers),
        other(world.device(), Dtype::float32, {1}, Category::buffers);
    machine::from_doubles(other, {3});
    for (const double amax : passes.amaxes) {
      machine::from_doubles(x, {group.rank() + 1 == ranks ? -amax : 0, 0});
      const Scales of_pass = first->choose(x, Category::buffers);
      second->choose(other, Category::buffers);
      const double scale = machine::to_doubles(of_pass.scale)[0];
      EXPECT_EQ(machine::to_doubles(of_pass.inverse)[0], static_cast<float>(1 / scale));
      if (world.rank() == 0) scales.push_back(scale);
      scaling.update();
    }
    group.barrier();
  });
  return scales;
}

TEST(DelayedScaling, UsesTheAmaxOfThePassBefore) {
  EXPECT_EQ(scales_of({{}, {1, 2, 4, 8}}), (Values{1, 448, 224, 112}));
}

TEST(DelayedScaling, MarginLeavesRangeFree) {
  EXPECT_EQ(scales_of({{.margin = 2}, {1, 2, 4}}), (Values{1, 112, 56}));
}

TEST(DelayedScaling, TheLargestOfTheHistory) {
  const Fp8Options options{.amax_history_len = 3, .algorithm = AmaxAlgorithm::max};
  EXPECT_EQ(scales_of({options, {4, 1, 2, 1, 1, 1}}), (Values{1, 112, 112, 112, 224, 224}));
}

TEST(DelayedScaling, TheMostRecentOfTheHistory) {
  EXPECT_EQ(scales_of({{.amax_history_len = 3}, {4, 1, 2, 1}}), (Values{1, 112, 448, 224}));
}

TEST(DelayedScaling, KeepsTheScaleWithoutAFiniteAmax) {
  EXPECT_EQ(scales_of({{}, {2, 0, INFINITY, 4, 1}}), (Values{1, 224, 224, 224, 112}));
}

TEST(DelayedScaling, RanksShareTheLargest) {
  EXPECT_EQ(scales_of({{}, {1, 2, 4}}, 3), (Values{1, 448, 224}));
}

TEST(Fp8Options, RejectOthersKeys) {
  const auto why = [](Fp8Options options) -> std::string {
    try {
      options.validate();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  using enum Fp8Format;
  EXPECT_EQ(why({.format = hybrid, .margin = 3, .amax_history_len = 1024}), "accepted");
  EXPECT_EQ(why({.format = hybrid, .recipe = Fp8Recipe::mxfp8, .margin = 3}),
            "fp8-margin requires fp8-recipe delayed (got mxfp8)");
  EXPECT_EQ(why({.format = e4m3, .recipe = Fp8Recipe::tensorwise, .algorithm = AmaxAlgorithm::max}),
            "fp8-amax-compute-algo max requires fp8-recipe delayed (got tensorwise)");
  EXPECT_EQ(why({.amax_history_len = 0}), "fp8-amax-history-len is 0; expected 1 to 1048576");
  EXPECT_EQ(fp8_recipe("blockwise"), Fp8Recipe::blockwise);
  EXPECT_THROW(fp8_format("e5m2"), std::invalid_argument);
}

}  // namespace
}  // namespace layers
