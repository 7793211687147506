// Buckets, micro-batches, overlap and the prefetches of ZeRO stage 3.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <semaphore>
#include <set>
#include <thread>

#include "machine/base/error.h"
#include "machine/device/random.h"
#include "zero/cost/cost.h"
#include "zero/cost/memory_cost.h"
#include "zero/stages/prefetch.h"
#include "zero/stages/step.h"
#include "zero/testing/expected_traffic.h"

namespace zero {
namespace {

using collectives::Parameter;
using machine::Category;
using machine::Dtype;

GradientPlan plan_of(const std::vector<std::int64_t>& sizes, int dp = 3) {
  GradientPlan plan{1, Dtype::float32, Dtype::float32, 1, 1, dp, {}};
  for (std::size_t i = 0; i < sizes.size(); ++i)
    plan.rows.push_back({std::to_string(i), sizes[i], Dtype::float32, {Over::dp}, 1, true, false});
  return plan;
}

std::vector<std::vector<int>> rows_of(const Layout& layout) {
  std::vector<std::vector<int>> rows;
  for (const Bucket& bucket : layout.buckets) rows.push_back(bucket.rows);
  return rows;
}

using Rows = std::vector<std::vector<int>>;

TEST(Buckets, AreFilledFromTheLastParameterOn) {
  const auto cut = [](const std::vector<std::int64_t>& sizes, std::int64_t bucket) {
    return rows_of(layout(plan_of(sizes), {bucket}));
  };
  EXPECT_EQ(cut({10, 20, 30}, 100), (Rows{{0, 1, 2}}));
  EXPECT_EQ(cut({50, 20, 30}, 50), (Rows{{1, 2}, {0}}));  // exactly full, twice
  EXPECT_EQ(cut({49, 20, 30}, 50), (Rows{{1, 2}, {0}}));
  EXPECT_EQ(cut({51, 20, 30}, 50), (Rows{{1, 2}, {0}}));  // larger than a bucket: has its own
  EXPECT_EQ(cut({1, 51, 1}, 50), (Rows{{2}, {1}, {0}}));
  EXPECT_EQ(cut({0, 50, 0}, 50), (Rows{{0, 1, 2}}));  // empty parameters need no space
  EXPECT_EQ(cut({}, 50), Rows{});
  EXPECT_THROW(cut({1}, 0), std::invalid_argument);
}

TEST(Buckets, ArePaddedAndSplitEqually) {
  const Layout layout = zero::layout(plan_of({100, 65, 1}), {100});
  ASSERT_EQ(rows_of(layout), (Rows{{1, 2}, {0}}));
  EXPECT_EQ(layout.buckets[0].range, (Range{0, 192}));  // 128 + 64, a multiple of 64 * 3
  EXPECT_EQ(layout.buckets[1].range, (Range{192, 384}));
  EXPECT_EQ(layout.offsets, (std::vector<std::int64_t>{192, 0, 128}));
  EXPECT_EQ(layout.bucket_of, (std::vector<int>{1, 0, 0}));
  EXPECT_EQ(layout.shard(layout.buckets[1], 2), (Range{320, 384}));
  EXPECT_EQ(layout.in_shards(layout.buckets[1]), (Range{64, 128}));
}

TEST(Buckets, SeparatePartsFrozenAndSmallParameters) {
  GradientPlan plan = plan_of({100, 3, 200, 5, 300});
  plan.rows[2].frozen = true;
  const Layout layout = zero::layout(plan, {1000, {0, 0, 1, 1, 1}, 5});
  EXPECT_EQ(rows_of(layout), (Rows{{4}, {1, 3}, {0}, {2}}))
      << "in the order in which they get complete";
  EXPECT_TRUE(layout.buckets[1].persistent);
  EXPECT_TRUE(layout.buckets[3].frozen);
  EXPECT_EQ(layout.buckets[3].segments_begin, layout.buckets[3].segments_end);
  EXPECT_EQ(layout.elements, 384 + 192 + 192);
  EXPECT_EQ(layout.value_elements, layout.elements + 384);
  EXPECT_THROW(zero::layout(plan, {1000, {0, 1}}), std::invalid_argument);
}

TEST(Buckets, TiedParametersAreSplitEquallyOnBothStages) {
  using enum Over;
  GradientPlan first = plan_of({70, 10, 80, 20}), last = plan_of({5, 80, 70});
  first.pp = last.pp = 2;
  for (const int row : {0, 2}) first.rows[static_cast<std::size_t>(row)].reduce = {embedding, dp};
  for (const int row : {1, 2}) last.rows[static_cast<std::size_t>(row)].reduce = {embedding, dp};
  first.rows[0].parameter = last.rows[2].parameter = "b";
  first.rows[2].parameter = last.rows[1].parameter = "a";
  const Layout a = layout(first, {100}), b = layout(last, {100});
  EXPECT_EQ(rows_of(a), (Rows{{2}, {0, 1, 3}}));
  EXPECT_EQ(rows_of(b), (Rows{{1}, {0, 2}}));
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(a.segments[i].range, b.segments[i].range);
}

// The gather of a bucket starts at the earliest use from which everything due before it fits. Only
// the buckets needed now may exceed the limit.
TEST(Prefetch, StopsAtTheBucketSizeAndTheLimit) {
  const Uses uses = {{0}, {1}, {2}, {2}, {1}, {0}};
  const std::vector<std::int64_t> sizes = {10, 20, 30};
  const auto plan = [&](std::int64_t bucket, std::int64_t most) {
    return prefetches(uses, sizes, bucket, most);
  };
  EXPECT_EQ(plan(0, 1000), Uses(6));
  EXPECT_EQ(plan(30, 1000), (Uses{{1}, {2}, {1, 0}, {}, {}, {}}))
      << "the second use of 2 follows the first: it is freed and gathered again";
  EXPECT_EQ(plan(1000, 1000), (Uses{{1, 2}, {0}, {1}, {}, {}, {}}));
  EXPECT_EQ(plan(1000, 30), (Uses{{1}, {}, {}, {}, {0}, {}}));
  EXPECT_EQ(plan(1000, 1), Uses(6));
}

// Without a limit, each gather has its time in closed form. Bucket b of use j starts at a use i
// after b's previous use. This is the first i from which everything due up to b, and not in use at
// i, fits.
TEST(Prefetch, MatchesTheClosedForm) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::uint64_t draws = 0;
    const auto draw = [&](int below) {
      return static_cast<int>(below * machine::uniform(seed, draws++));
    };
    Layout layout;
    for (int i = 0; i < 6; ++i) {
      Bucket bucket;
      bucket.range = {0, 1 + draw(40)};
      layout.buckets.push_back(bucket);
      layout.bucket_of.push_back(i);
    }
    Usage usage;
    for (int i = 0; i < 12; ++i) {
      std::vector<int>& use = usage.uses.emplace_back();
      for (int n = 1 + draw(2); n > 0; --n)
        if (const int row = draw(6); std::find(use.begin(), use.end(), row) == use.end())
          use.push_back(row);
    }
    StepOptions options;
    options.stage3_prefetch_bucket_size = draw(120);

    const auto size = [&](int b) {
      return layout.buckets[static_cast<std::size_t>(b)].range.size();
    };
    std::vector<std::int64_t> held(usage.uses.size(), 0);
    for (std::size_t j = 0; j < usage.uses.size(); ++j) {
      for (const int b : usage.uses[j]) {
        const auto uses = [&](std::size_t i) {
          return std::find(usage.uses[i].begin(), usage.uses[i].end(), b) != usage.uses[i].end();
        };
        std::size_t start = j;
        for (std::size_t i = j; i-- > 0 && !uses(i);) {
          std::set<int> come(usage.uses[i].begin(), usage.uses[i].end());
          std::int64_t ahead = 0;
          for (std::size_t later = i + 1; later <= j; ++later)
            for (const int other : usage.uses[later]) {
              if (come.insert(other).second) ahead += size(other);
              if (later == j && other == b) break;
            }
          if (ahead <= options.stage3_prefetch_bucket_size) start = i;
        }
        for (std::size_t t = start; t <= j; ++t) held[t] += size(b);
      }
    }
    EXPECT_EQ(most_gathered(layout, options, usage), *std::max_element(held.begin(), held.end()))
        << "seed " << seed;
    options.stage3_max_live_parameters = 60;
    EXPECT_LE(most_gathered(layout, options, usage), 80);  // two of 40 may be needed at once
  }
}

// Parts of 192, 384 and 576 elements on 3 ranks, one bucket each. Backward starts at the last part.
TEST(Cost, StagesTwoAndThreeMatchThePaper) {
  using machine::Operation;
  GradientPlan plan = plan_of({190, 380, 570});
  plan.value_dtype = Dtype::bfloat16;
  const Layout layout = zero::layout(plan, {1000, {0, 1, 2}, 0});
  const Usage usage = forward_and_backward({{0}, {1}, {2}}, 5);
  StepOptions options;
  options.stage3_prefetch_bucket_size = 0;
  const std::uint64_t psi = 192 + 384 + 576, others = psi / 3 * 2;
  const auto bytes = [&](int stage, Operation operation, Dtype dtype) {
    for (const testing::TrafficRow& row :
         testing::expected_traffic(stage, plan, layout, testing::bandwidth_optimal, options, usage))
      if (row.label == machine::TrafficLabel{operation, dtype}) return row.bytes_sent;
    return std::uint64_t{0};
  };
  EXPECT_EQ(bytes(1, Operation::reduce_scatter, Dtype::float32), others * 4);
  for (const int stage : {2, 3})
    EXPECT_EQ(bytes(stage, Operation::reduce_scatter, Dtype::float32), 5 * others * 4);
  EXPECT_EQ(bytes(2, Operation::all_gather, Dtype::bfloat16), others * 2);
  EXPECT_EQ(bytes(3, Operation::all_gather, Dtype::bfloat16), 5 * 2 * others * 2);
  options.communication_data_type = Dtype::float16;
  EXPECT_EQ(bytes(2, Operation::reduce_scatter, Dtype::float16), 5 * others * 2);
  EXPECT_EQ(bytes(2, Operation::reduce_scatter, Dtype::float32), 0u);
  options.communication_data_type = {};

  const auto memory = [&](int stage) {
    return expected_memory(stage, plan, layout, AdamW{}, options, usage);
  };
  EXPECT_EQ(memory(2).parameters, psi * 2);
  EXPECT_EQ(memory(2).gradients, (psi / 3 + 576) * 4) << "the largest bucket";
  EXPECT_EQ(memory(3).parameters, (psi / 3 + 576) * 2);
  EXPECT_EQ(memory(3).optimizer, psi / 3 * 12);
  options.overlap_comm = true;
  EXPECT_EQ(memory(2).gradients, (psi / 3 + 576 + 384) * 4) << "and the one under way";
  options.stage3_prefetch_bucket_size = 384;
  EXPECT_EQ(memory(3).parameters, (psi / 3 + 576 + 384) * 2);
}

// C_B of ZeRO-R (arXiv:1910.02054, sections 3.2 and 6.2). The size of temporary buffers does not
// depend on the model. A fused float buffer of 1.5 billion parameters takes 6 GB.
TEST(Cost, BuffersInBoundedBucketsDoNotGrowWithTheModel) {
  constexpr std::int64_t layer = 64 * 3 * 5120;
  for (const std::int64_t layers : {12, 96, 1536}) {
    GradientPlan plan = plan_of(std::vector<std::int64_t>(static_cast<std::size_t>(layers), layer));
    plan.value_dtype = Dtype::bfloat16;
    Rows parts;
    for (int row = 0; row < layers; ++row) parts.push_back({row});
    const Usage usage = forward_and_backward(parts, 1);
    const auto psi = static_cast<std::size_t>(layers * layer);
    const auto beyond_the_shards = [&](std::int64_t reduced, std::int64_t gathered) {
      StepOptions options;
      options.allgather_bucket_size = gathered;
      const Layout layout = zero::layout(plan, {reduced});
      const ExpectedMemory memory = expected_memory(2, plan, layout, Sgd{}, options, usage);
      const std::size_t norm = 8 * (layout.buckets.size() + 1 + 3);
      return std::pair(memory.gradients - 4 * psi / 3, memory.buffers - norm);
    };
    EXPECT_EQ(beyond_the_shards(6 * layer, 2 * layer),
              std::pair(std::size_t{4 * 6 * layer}, std::size_t{2 * 2 * layer}))
        << layers << " layers";
    EXPECT_EQ(beyond_the_shards(layers * layer, layers * layer), std::pair(4 * psi, std::size_t{0}))
        << layers << " layers";
  }
}

// Four parameters in parts of two, one of them empty, over dp.
struct Model {
  std::vector<Parameter> parameters;
  std::unique_ptr<collectives::Communicator> dp;
  GradientPlan plan;
  std::unique_ptr<FlatStates> states;
  std::unique_ptr<Step> step;

  static constexpr std::int64_t sizes[] = {130, 0, 300, 65};
  const Rows parts = {{0, 1}, {2, 3}};

  Model(machine::World& world, int stage, StepOptions options, LayoutOptions layout) {
    for (const std::int64_t size : sizes) {
      Parameter p;
      p.name = std::to_string(parameters.size());
      p.global_shape = {size};
      parameters.push_back(std::move(p));
    }
    if (world.size() > 1)
      dp = std::make_unique<collectives::Communicator>(world, world.group(),
                                                       machine::Transport::shared_memory);
    plan = gradient_plan(part({0, 1, 2, 3}), Dtype::float32,
                         machine::Grid({.dp = world.size()}, world.rank()), 7);
    layout.parts = {0, 0, 1, 1};
    states = std::make_unique<FlatStates>(world.device(), plan, part({0, 1, 2, 3}), layout);
    for (const Parameter& p : parameters) p.value.device().stream().kernels().fill(p.value, 0.5);
    step = make_step(stage, *states, plan, {.dp = dp.get()}, std::move(options));
  }
  Step::Part part(const std::vector<int>& rows) {
    Step::Part result;
    for (const int row : rows) result.push_back(&parameters[static_cast<std::size_t>(row)]);
    return result;
  }
  void micro_batch(bool last, double gradient) {
    step->begin_micro_batch(last);
    for (const auto& rows : parts) use(rows);
    for (std::size_t i = parts.size(); i-- > 0;) {
      use(parts[i]);
      step->before_gradients(part(parts[i]));
      for (const int row : parts[i]) {
        const Parameter& p = parameters[static_cast<std::size_t>(row)];
        if (p.gradient.size() == 0) continue;
        const machine::Tensor made(p.gradient.device(), Dtype::float32, p.gradient.shape(),
                                   Category::activations);
        made.device().stream().kernels().fill(made, gradient * (row + 1));
        made.device().stream().kernels().accumulate(made, p.gradient);
      }
      step->gradients_ready(part(parts[i]));
    }
    step->end_micro_batch();
  }
  void use(const std::vector<int>& rows) {
    step->before_use(part(rows));
    for (const int row : rows)
      for (const double value : to_doubles(parameters[static_cast<std::size_t>(row)].value))
        ASSERT_TRUE(std::isfinite(value));
    step->after_use(part(rows));
  }
};

// Gradients are the sum over ranks and micro-batches with every option. Padding stays zero.
TEST(Stages, SumEveryMicroBatchOnce) {
  for (int dp = 1; dp <= 3; ++dp) {
    machine::run_ranks(dp, [&](machine::World& world) {
      for (int stage = 0; stage < num_stages; ++stage) {
        for (const bool overlap : {false, true}) {
          for (const bool contiguous : {false, true}) {
            StepOptions options{.rule = Sgd{0.5}};
            options.overlap_comm = overlap;
            options.contiguous_gradients = contiguous;
            options.poison_freed = true;
            options.allgather_bucket_size = 100;
            options.before_transfer = [&](std::size_t) {
              std::this_thread::sleep_for(std::chrono::microseconds(30 * world.rank()));
            };
            Model model(world, stage, options, {200, {}, 100});
            double expected = 0.5;
            for (int step = 0; step < 2; ++step) {
              for (int i = 0; i < 3; ++i) model.micro_batch(i == 2, 1 + world.rank());
              model.step->reduce();
              model.step->gather_gradients();
              for (int row = 0; row < 4; ++row)
                for (const double sum :
                     to_doubles(model.parameters[static_cast<std::size_t>(row)].gradient))
                  ASSERT_EQ(sum, 3 * (row + 1) * dp * (dp + 1) / 2)
                      << "stage " << stage << " dp " << dp << " row " << row;
              ASSERT_TRUE(model.step->update().updated);
              expected -= static_cast<float>(
                  0.5 * static_cast<double>(static_cast<float>(1.0 / 7)) * 3 * dp * (dp + 1) / 2);
              model.step->before_use(model.part({0, 1, 2, 3}));
              for (const double value : to_doubles(model.parameters[0].value))
                ASSERT_NEAR(value, expected, 1e-5);
              model.step->after_use(model.part({0, 1, 2, 3}));
            }
            model.step->optimizer().visit(false, [&](Range range, const RangeStates& states) {
              const auto values = to_doubles(states.master);
              const Layout& layout = model.states->layout();
              for (std::int64_t i = 0; i < range.size(); ++i) {
                bool inside = false;
                for (std::size_t row = 0; row < 4; ++row)
                  inside |= layout.offsets[row] <= range.begin + i &&
                            range.begin + i < layout.offsets[row] + Model::sizes[row];
                if (!inside) {
                  ASSERT_EQ(values[static_cast<std::size_t>(i)], 0);
                }
              }
            });
          }
        }
      }
    });
  }
}

TEST(Stages, DivideByTheLossScale) {
  machine::run_ranks(2, [](machine::World& world) {
    // SGD, because Adam's first step does not depend on the scale.
    const StepOptions options{.rule = Sgd{0.5}};
    Model plain(world, 2, options, {}), scaled(world, 2, options, {});
    scaled.step->set_loss_scale(65536);
    plain.micro_batch(true, 1);
    scaled.micro_batch(true, 65536);
    const StepResult a = plain.step->step(), b = scaled.step->step();
    EXPECT_EQ(a.gradient_norm, b.gradient_norm);
    EXPECT_EQ(hash(plain.states->values()), hash(scaled.states->values()));
    EXPECT_THROW(scaled.step->set_loss_scale(0), std::invalid_argument);
  });
}

TEST(Stages, RejectSilentErrors) {
  machine::run_ranks(1, [](machine::World& world) {
    Model model(world, 2, {}, {200, {}, 10});
    Step& step = *model.step;
    EXPECT_THROW(step.before_gradients(model.part({0})), std::logic_error) << "no micro-batch";
    step.begin_micro_batch(true);
    EXPECT_THROW(step.begin_micro_batch(true), std::logic_error);
    EXPECT_THROW(step.reduce(), std::logic_error);
    step.before_gradients(model.part({2, 3}));
    step.gradients_ready(model.part({2, 3}));
    EXPECT_THROW(step.gradients_ready(model.part({3})), std::logic_error) << "twice";
    EXPECT_THROW(step.before_gradients(model.part({3})), std::logic_error) << "after it has gone";
    Parameter other;
    EXPECT_THROW(step.gradients_ready({&other}), std::logic_error);
    StepOptions options;
    options.communication_data_type = Dtype::int8;
    EXPECT_THROW(Model(world, 0, options, {}), std::invalid_argument);
    options = {};
    options.allgather_bucket_size = 0;
    EXPECT_THROW(Model(world, 0, options, {}), std::invalid_argument);
  });
}

// Three buckets: two of the second part, and one of the first part, which forward needs first.
TEST(Stages, ValuesArriveWhileTheNextStepBegins) {
  machine::run_ranks(2, [](machine::World& world) {
    for (int stage = 1; stage < num_stages; ++stage) {
      for (const std::int64_t run : {1000, 64}) {  // elements of a shard per transfer
        SCOPED_TRACE(fmt::format("stage {}, runs of {}", stage, run));
        StepOptions options{.rule = Sgd{0.5}};
        options.allgather_bucket_size = 2 * run;
        options.poison_freed = true;
        const LayoutOptions layout{200, {}, stage == 3 ? 1000 : 0};  // stage 3: all are persistent
        Model reference(world, stage, options, layout);
        std::counting_semaphore<> gate(1000);  // the number of transfers that may begin
        options.overlap_comm = true;
        options.before_transfer = [&](std::size_t) {
          (void)gate.try_acquire_for(std::chrono::seconds(1));
        };
        Model model(world, stage, options, layout);
        for (Model* each : {&reference, &model}) {
          for (int step = 0; step < 2; ++step) {
            each->micro_batch(true, 1 + world.rank());
            each->step->reduce();
            while (each == &model && step == 1 && gate.try_acquire()) {
            }
            ASSERT_TRUE(each->step->update().updated);
          }
        }
        const auto arrived = [&](std::size_t row) {
          return to_doubles(model.parameters[row].value) ==
                 to_doubles(reference.parameters[row].value);
        };
        for (const std::size_t row : {0u, 2u, 3u}) EXPECT_FALSE(arrived(row)) << row;
        gate.release(run == 64 ? 2 : 1);
        model.step->before_use(model.part(model.parts[0]));
        EXPECT_TRUE(arrived(0));
        for (const std::size_t row : {2u, 3u}) EXPECT_FALSE(arrived(row)) << row;
        std::thread later([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          gate.release(1000);
        });
        model.step->before_use(model.part(model.parts[1]));
        for (const std::size_t row : {0u, 2u, 3u}) EXPECT_TRUE(arrived(row)) << row;
        later.join();
      }
    }
  });
}

// One rank is done with its step while the others wait for it.
TEST(Stages, AStepEndsWhenItsValuesHaveArrived) {
  machine::run_ranks(
      3,
      [](machine::World& world) {
        StepOptions options;
        options.overlap_comm = true;
        options.before_transfer = [&](std::size_t) {
          std::this_thread::sleep_for(std::chrono::milliseconds(world.rank() == 0 ? 2 : 0));
        };
        Model model(world, 1, options, {200, {}, 0});
        for (int step = 0; step < 2; ++step) {
          model.micro_batch(true, 1);
          model.step->step();
        }
        if (world.rank() > 0) {
          EXPECT_NO_THROW(model.step->wait_for_values());
        }
        model.step.reset();
      },
      1);
}

// If a rank is late, the other rank reports the operation, the awaited rank and the waiting time.
TEST(Stages, ATimeoutOfTheProgressThreadIsNamed) {
  const auto said = [](int stage, int steps) {
    std::string text;
    try {
      machine::run_ranks(
          2,
          [&](machine::World& world) {
            std::atomic<bool> stays_away = false;
            StepOptions options;
            options.overlap_comm = true;
            options.before_transfer = [&](std::size_t) {
              if (stays_away) std::this_thread::sleep_for(std::chrono::milliseconds(700));
            };
            Model model(world, stage, options, {});
            for (int step = 0; step < steps; ++step) {
              model.micro_batch(true, 1);
              model.step->reduce();
              stays_away = world.rank() == 1 && step > 0;
              model.step->update();
            }
            stays_away = world.rank() == 1;
            model.micro_batch(true, 1);
          },
          0.3);
    } catch (const machine::Timeout& timeout) {
      text = timeout.what();
    }
    return text;
  };
  const std::string gradients = said(2, 0), values = said(1, 2);
  EXPECT_NE(gradients.find("ZeRO stage 2, gradients of bucket 0: rank 0 waited"), std::string::npos)
      << gradients;
  EXPECT_NE(values.find("ZeRO stage 1, values of bucket 0: rank 0 waited"), std::string::npos)
      << values;
}

}  // namespace
}  // namespace zero
