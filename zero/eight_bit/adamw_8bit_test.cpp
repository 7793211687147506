#include "zero/eight_bit/adamw_8bit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>

#include "collectives/communicator/communicator.h"
#include "machine/device/dynamic_codes/adamw_8bit.h"
#include "machine/world/world.h"
#include "zero/cost/cost.h"
#include "zero/stages/step.h"

namespace zero {
namespace {

using machine::Category;
using machine::Dtype;
using Values = std::vector<double>;

constexpr double divisor = 4;
constexpr std::int64_t least = 700;  // elements of a parameter with codes
const AdamW8Bit rule{.learning_rate = 0.01, .beta2 = 0.9, .weight_decay = 0.1};

// Vectors whose lengths are not multiples of a block. Three have codes.
struct Trained {
  std::vector<Parameter> parameters;
  machine::Grid grid;
  std::unique_ptr<collectives::Communicator> dp;
  GradientPlan plan;
  std::unique_ptr<FlatStates> states;
  std::unique_ptr<Step> step;

  Trained(machine::World& world, int ranks, int stage, Dtype dtype,
          const StepOptions& options = {.rule = rule}, std::int64_t alignment = 256)
      : grid({.dp = ranks}, world.rank()) {
    for (const auto& [name, elements] :
         {std::pair("a", 1500), {"b", 90}, {"c", 3001}, {"d", 400}, {"e", 700}}) {
      Parameter parameter;
      parameter.name = name;
      parameter.global_shape = {elements};
      parameter.weight_decay = parameter.name != "c";
      parameters.push_back(std::move(parameter));
    }
    if (ranks > 1)
      dp = std::make_unique<collectives::Communicator>(world, grid.group(machine::Axis::dp),
                                                       machine::Transport::shared_memory);
    plan = gradient_plan(list(), dtype, grid, divisor);
    for (GradientRow& row : plan.rows)
      if (row.elements >= least) row.matrix.columns = row.elements;
    states = std::make_unique<FlatStates>(
        world.device(), plan, list(),
        LayoutOptions{.reduce_bucket_size = 2000, .alignment = alignment});
    for (const Parameter& parameter : parameters) from_doubles(parameter.value, initial(parameter));
    step = make_step(stage, *states, plan, {.dp = dp.get()}, options);
  }
  std::vector<Parameter*> list() {
    std::vector<Parameter*> all;
    for (Parameter& parameter : parameters) all.push_back(&parameter);
    return all;
  }
  static Values initial(const Parameter& parameter) {
    Values values;
    for (std::int64_t i = 0; i < parameter.global_shape.size(); ++i)
      values.push_back(static_cast<double>(i * 37 % 128 - 64) / 128);
    return values;
  }
  // Multiples of 2^-12 of very different sizes, whose sums are exact in float.
  static Values gradient(const Parameter& parameter, int at, int rank) {
    Values values;
    for (std::int64_t i = 0; i < parameter.global_shape.size(); ++i)
      values.push_back(std::ldexp(static_cast<double>((i * 13 + at * 29 + rank * 7) % 101 - 50),
                                  static_cast<int>(i % 9) - 12));
    return values;
  }
  void train(int at) {
    step->begin_micro_batch(true);
    step->before_use(list());
    step->before_gradients(list());
    for (const Parameter& parameter : parameters)
      from_doubles(parameter.gradient, gradient(parameter, at, grid.coordinate(machine::Axis::dp)));
    step->after_use(list());
    step->gradients_ready(list());
    step->end_micro_batch();
    EXPECT_TRUE(step->step().updated);
  }
};

// A parameter alone, of which nothing is sharded.
struct Alone {
  Tensor values, master, first, second, scales;
  double decay;

  Alone(machine::Device& device, const Parameter& parameter, Dtype dtype)
      : decay(parameter.weight_decay ? rule.weight_decay : 0) {
    const machine::Shape shape{parameter.global_shape.size()};
    values = Tensor(device, dtype, shape, Category::buffers);
    from_doubles(values, Trained::initial(parameter));
    master =
        dtype == Dtype::float32 ? values : Tensor(device, Dtype::float32, shape, Category::buffers);
    if (dtype != Dtype::float32) from_doubles(master, to_doubles(values));
    if (shape.size() >= least) {
      const machine::Moments8Bit moments =
          machine::zero_moments(device, shape.size(), Category::buffers);
      first = moments.first;
      second = moments.second;
      scales = moments.scales;
    } else {
      for (Tensor* const moment : {&first, &second}) {
        *moment = Tensor(device, Dtype::float32, shape, Category::buffers);
        device.stream().kernels().fill(*moment, 0);
      }
    }
  }
  void train(const Parameter& parameter, int at, int ranks) const {
    machine::Stream& stream = values.device().stream();
    const Tensor gradient(values.device(), Dtype::float32, values.shape(), Category::buffers);
    Values sum(static_cast<std::size_t>(values.size()));
    for (int rank = 0; rank < ranks; ++rank) {
      const Values own = Trained::gradient(parameter, at, rank);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += own[i];
    }
    from_doubles(gradient, sum);
    AdamW adamw = rule.adamw();
    adamw.weight_decay = decay;
    if (scales)
      machine::adamw_8bit(stream, gradient, 1 / divisor, adamw, at + 1, nullptr, master,
                          {first, second, scales}, values);
    else
      stream.kernels().adamw(gradient, 1 / divisor, adamw, at + 1, nullptr, master, first, second,
                             values);
  }
};

Values part(const Tensor& tensor, std::int64_t begin, std::int64_t size) {
  return to_doubles(tensor.slice(begin, {size}));
}

// Codes, scales and values have the bits of each parameter alone, in every stage, also if a shard
// ends inside of a parameter.
TEST(AdamW8Bit, EveryStageHasTheCodesOfWholeParameters) {
  for (const int ranks : {1, 2, 3})
    for (int stage = 0; stage < num_stages; ++stage)
      machine::run_ranks(ranks, [&](machine::World& world) {
        const Dtype dtype = stage % 2 == 0 ? Dtype::float32 : Dtype::bfloat16;
        SCOPED_TRACE(std::to_string(ranks) + " ranks, stage " + std::to_string(stage));
        Trained trained(world, ranks, stage, dtype);
        std::vector<Alone> alone;
        for (const Parameter& parameter : trained.parameters)
          alone.emplace_back(world.device(), parameter, dtype);
        for (int at = 0; at < 3; ++at) {
          trained.train(at);
          std::size_t coded = 0, cut = 0;
          for (std::size_t i = 0; i < alone.size(); ++i)
            alone[i].train(trained.parameters[i], at, ranks);
          trained.step->optimizer().visit(false, [&](Range range, const RangeStates& states) {
            for (std::size_t i = 0; i < alone.size(); ++i) {
              const std::int64_t begin = trained.states->layout().offsets[i];
              const Range here = intersection({begin, begin + alone[i].values.size()}, range);
              if (here.size() == 0) continue;
              const std::int64_t in_range = here.begin - range.begin, first = here.begin - begin;
              EXPECT_EQ(bool(states.scales), bool(alone[i].scales));
              for (const auto& [got, wanted] : {std::pair(states.first_moment, alone[i].first),
                                                {states.second_moment, alone[i].second},
                                                {states.master, alone[i].master}})
                EXPECT_EQ(part(got, in_range, here.size()), part(wanted, first, here.size()));
              if (!states.scales) continue;
              ++coded;
              if (first > 0) ++cut;
              const std::int64_t blocks = machine::moment_blocks(here.size());
              for (const int of : {0, 1})
                EXPECT_EQ(
                    part(states.scales, of * states.scales.size() / 2 + in_range / 256, blocks),
                    part(alone[i].scales, of * alone[i].scales.size() / 2 + first / 256, blocks));
            }
          });
          EXPECT_GT(coded, 0u);
          if (stage > 0 && world.rank() > 0) {
            EXPECT_GT(cut, 0u);
          }
          trained.step->before_use(trained.list());
          for (std::size_t i = 0; i < alone.size(); ++i)
            EXPECT_EQ(hash(trained.parameters[i].value), hash(alone[i].values)) << i;
          trained.step->after_use(trained.list());
        }
      });
}

// 2 bytes and 8/256 an element with codes, 8 without, and the master of values of 16 bits.
TEST(AdamW8Bit, HoldsTwoBytesAnElementAndTwoScalesABlock) {
  for (int stage = 0; stage < num_stages; ++stage)
    machine::run_ranks(2, [&](machine::World& world) {
      for (const Dtype dtype : {Dtype::float32, Dtype::float16}) {
        machine::Ledger& ledger = world.device().ledger();
        const std::size_t states = ledger.current(Category::optimizer),
                          buffers = ledger.current(Category::buffers);
        Trained trained(world, 2, stage, dtype);
        const Layout& layout = trained.states->layout();
        std::size_t coded = 0, others = 0;
        for (const Bucket& bucket : layout.buckets)
          (bucket.matrices ? coded : others) += static_cast<std::size_t>(
              stage == 0 ? bucket.range.size() : layout.shard_elements(bucket));
        EXPECT_EQ(coded % 256, 0u);
        const std::size_t master = dtype == Dtype::float16 ? 4 : 0;
        EXPECT_EQ(ledger.current(Category::optimizer) - states,
                  coded * (2 + master) + coded / 256 * 8 + others * (8 + master));
        const ExpectedMemory expected = expected_memory(stage, trained.plan, layout, rule, {});
        EXPECT_EQ(ledger.current(Category::optimizer) - states, expected.optimizer);
        if (stage < 2) {
          EXPECT_EQ(ledger.current(Category::buffers) - buffers, expected.buffers);
        }
      }
    });
}

TEST(AdamW8Bit, RejectsWhatItDoesNotSupport) {
  const auto why = [](const MatrixLimits& limits) {
    try {
      check_adamw_8bit(rule, limits);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(why({.value_dtype = Dtype::float32}), "");
  EXPECT_NE(why({.value_dtype = Dtype::float64}).find("(got double)"), std::string::npos);
  EXPECT_NE(why({.value_dtype = Dtype::float32, .offloads = true}).find("offload_param none"),
            std::string::npos);
  machine::run_ranks(2, [](machine::World& world) {
    // Shards of 64 would cut blocks.
    EXPECT_ANY_THROW(Trained(world, 2, 1, Dtype::float32, {.rule = rule}, 64));
  });
}

}  // namespace
}  // namespace zero
