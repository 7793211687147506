#include "zero/stages/step.h"

#include <gtest/gtest.h>

#include <limits>

#include "machine/base/error.h"
#include "zero/cost/cost.h"
#include "zero/testing/expected_traffic.h"
#include "zero/testing/model_case.h"

namespace zero {
namespace {

using machine::Category;
using machine::Dtype;
using testing::Bounded;
using testing::RankModel;
using testing::Reference;

constexpr double divisor = 48;
constexpr double infinity = std::numeric_limits<double>::infinity();

const std::vector<machine::Degrees> grids = {{},
                                             {.dp = 2},
                                             {.dp = 3},
                                             {.dp = 4},
                                             {.tp = 2},
                                             {.tp = 3, .dp = 2},
                                             {.dp = 2, .pp = 2},
                                             {.tp = 2, .dp = 3},
                                             {.pp = 3},
                                             {.tp = 2, .dp = 2, .pp = 2}};

std::string describe(const machine::Degrees& degrees, int stage, Dtype dtype) {
  return "tp " + std::to_string(degrees.tp) + " dp " + std::to_string(degrees.dp) + " pp " +
         std::to_string(degrees.pp) + " stage " + std::to_string(stage) + " " +
         std::string(name(dtype));
}

// Stages 2 and 3 of a pipeline keep tied parameters apart.
LayoutOptions layout_of(const GradientPlan& plan, int stage) {
  LayoutOptions options;
  if (stage < 2 || plan.pp == 1) return options;
  options.parts.resize(plan.rows.size());
  options.persistence_threshold = 0;
  return options;
}

// One rank's model with its states and step.
struct Trained {
  RankModel model;
  GradientPlan plan;
  FlatStates states;
  std::unique_ptr<Step> step;

  Trained(machine::World& world, machine::Degrees degrees, int stage, Dtype dtype,
          const StepOptions& options)
      : model(world, degrees),
        plan(plan_of(model, dtype, options)),
        states(world.device(), plan, model.list(), layout_of(plan, stage)) {
    model.set_values();
    step = make_step(stage, states, plan, model.communicators(), options);
  }
  static GradientPlan plan_of(RankModel& model, Dtype dtype, const StepOptions& options) {
    const GradientPlan plan = gradient_plan(model.list(), dtype, model.grid, divisor);
    const bool all = std::holds_alternative<Adafactor>(options.rule);
    if (!all && !std::holds_alternative<Muon>(options.rule)) return plan;
    return with_matrices(plan, testing::declare(model.stage(), plan.pp), all);
  }
  // One micro-batch, which uses all parameters at once.
  void backward(int seed, const std::function<void()>& then = {}, bool last = true) {
    step->begin_micro_batch(last);
    step->before_use(model.list());
    step->before_gradients(model.list());
    model.set_gradients(seed);
    if (then) then();
    step->after_use(model.list());
    step->gradients_ready(model.list());
    step->end_micro_batch();
  }
  std::vector<std::uint64_t> bits() {
    std::vector<std::uint64_t> all;
    step->before_use(model.list());
    for (const collectives::Parameter& p : model.parameters) all.push_back(hash(p.value));
    step->after_use(model.list());
    return all;
  }
  Usage usage() const {
    std::vector<int> all;
    for (std::size_t row = 0; row < plan.rows.size(); ++row) all.push_back(static_cast<int>(row));
    return {1, {all}, {all}, {all}};
  }
};

void expect_within(double got, const Bounded& expected, double extra, const std::string& what) {
  const double bound = expected.error + extra;
  EXPECT_LE(std::abs(got - expected.value), bound)
      << what << ": " << got << " against " << expected.value;
}

// Compares three steps with the whole model in double: summed gradients, norm, clipping and values.
void compare_with_reference(machine::Degrees degrees, int stage, Dtype dtype,
                            const StepOptions& options) {
  machine::run_ranks(degrees.ranks(), [&](machine::World& world) {
    SCOPED_TRACE(describe(degrees, stage, dtype));
    Trained trained(world, degrees, stage, dtype, options);
    Reference reference(degrees, divisor, trained.plan.gradient_dtype);
    for (int step = 0; step < 3; ++step) {
      trained.backward(step);
      trained.step->reduce();
      trained.step->gather_gradients();
      const Bounded norm = reference.reduce(step);
      trained.step->before_use(trained.model.list());
      for (const collectives::Parameter& p : trained.model.parameters) {
        const auto indices = trained.model.global_indices(p);
        const auto got = to_doubles(p.gradient);
        for (std::size_t i = 0; i < got.size(); ++i) {
          expect_within(got[i], reference.gradient(p.name, indices[i]), 0, p.name + " gradient");
        }
      }
      trained.step->after_use(trained.model.list());
      const StepResult result = trained.step->update();
      expect_within(result.gradient_norm, norm, 0, "norm");
      EXPECT_TRUE(result.updated);
      Bounded clip{1, 0};
      if (norm.value > options.clip_norm) {
        clip = Bounded{options.clip_norm, 0} / norm;
        expect_within(result.clip_factor, clip, 0, "clip");
      } else {
        EXPECT_EQ(result.clip_factor, 1);
      }
      reference.update(options.rule, step + 1, clip);
      trained.step->before_use(trained.model.list());
      for (const collectives::Parameter& p : trained.model.parameters) {
        const auto indices = trained.model.global_indices(p);
        const auto got = to_doubles(p.value);
        for (std::size_t i = 0; i < got.size(); ++i) {
          const Bounded& master = reference.master(p.name, indices[i]);
          // A narrow value is the master, rounded once more.
          const double rounding =
              dtype == trained.plan.gradient_dtype
                  ? 0
                  : machine::unit_roundoff(dtype) * (std::abs(master.value) + master.error);
          expect_within(got[i], master, rounding, p.name);
        }
      }
      trained.step->after_use(trained.model.list());
      if (stage >= 2) continue;
      for (const double gradient : to_doubles(trained.states.gradients())) ASSERT_EQ(gradient, 0);
    }
  });
}

const Lamb lamb{.learning_rate = 0.01, .weight_decay = 0.1};

TEST(Step, LambMatchesTheWholeModelInDouble) {
  for (const machine::Degrees& degrees : grids)
    for (int stage = 0; stage < num_stages; ++stage)
      for (Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float64})
        if (stage < 2 || dtype == Dtype::bfloat16)
          compare_with_reference(degrees, stage, dtype, {.rule = lamb, .clip_norm = 0.25});
  // A ratio is about 0.6, so these limit all of them.
  Lamb above = lamb, below = lamb;
  above.max_coeff = 0.3;
  below.min_coeff = 2;
  for (const Lamb& limited : {above, below})
    compare_with_reference({.tp = 2, .dp = 2}, 1, Dtype::float32, {.rule = limited});
}

const Muon muon{.learning_rate = 0.01,
                .momentum = 0.9,
                .weight_decay = 0.1,
                .coefficients = NewtonSchulzType::simple,
                .extra_scale_factor = 0.2};

TEST(Step, MuonMatchesTheWholeModelInDouble) {
  for (const machine::Degrees& degrees : grids)
    for (int stage = 0; stage < num_stages; ++stage)
      for (Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float64})
        if (stage < 2 ? dtype != Dtype::float32 : dtype == Dtype::bfloat16)
          compare_with_reference(degrees, stage, dtype, {.rule = muon, .clip_norm = 0.25});
  Muon nesterov = muon;
  nesterov.nesterov = true;
  nesterov.num_ns_steps = 4;
  compare_with_reference({.tp = 2, .dp = 2}, 1, Dtype::float64, {.rule = nesterov});
}

const Adafactor adafactor{.learning_rate = 0.01, .weight_decay = 0.1};

TEST(Step, AdafactorMatchesTheWholeModelInDouble) {
  for (const machine::Degrees& degrees : grids)
    for (int stage = 0; stage < num_stages; ++stage)
      for (Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float64})
        if (stage < 2 ? dtype != Dtype::float32 : dtype == Dtype::bfloat16)
          compare_with_reference(degrees, stage, dtype, {.rule = adafactor, .clip_norm = 0.25});
  Adafactor clipped = adafactor;  // an update has a root of the mean square near 1
  clipped.clip_threshold = 0.5;
  compare_with_reference({.tp = 2, .dp = 2}, 1, Dtype::float32, {.rule = clipped});
}

TEST(Step, MatchesTheWholeModelInDouble) {
  const AdamW adamw{.learning_rate = 0.01, .weight_decay = 0.1};
  for (const machine::Degrees& degrees : grids) {
    for (int stage = 0; stage < num_stages; ++stage) {
      for (Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float64}) {
        if (stage >= 2 && dtype != Dtype::bfloat16) continue;
        compare_with_reference(degrees, stage, dtype, {.rule = adamw});
      }
      if (stage >= 2) continue;
      compare_with_reference(degrees, stage, Dtype::float32, {.rule = adamw, .clip_norm = 0.25});
      compare_with_reference(degrees, stage, Dtype::float32, {.rule = adamw, .clip_norm = 1e9});
      compare_with_reference(degrees, stage, Dtype::float32, {.rule = Sgd{0.1}});
    }
  }
}

// Returns the bits of all values and norms after three steps.
std::vector<std::uint64_t> bits_after_three(machine::World& world, machine::Degrees degrees,
                                            int stage, Dtype dtype, const StepOptions& options) {
  Trained trained(world, degrees, stage, dtype, options);
  std::vector<std::uint64_t> bits;
  for (int step = 0; step < 3; ++step) {
    trained.backward(step);
    bits.push_back(std::bit_cast<std::uint64_t>(trained.step->step().gradient_norm));
  }
  for (const std::uint64_t each : trained.bits()) bits.push_back(each);
  return bits;
}

// Reduce-scatter and all-reduce must sum in the same order. The algorithm direct does so for any
// number of ranks, ring for two ranks (two terms have one order). With pipelines stages 2 and 3 add
// a tied parameter's copies after the ranks of dp, and so agree only with each other. SGD is tested
// because Adam's first steps hide the last bits of a gradient.
TEST(Step, StagesAgreeBitForBit) {
  for (const machine::Degrees& degrees : grids) {
    machine::run_ranks(degrees.ranks(), [&](machine::World& world) {
      for (const char* algorithm : {"ring", "direct"}) {
        if (degrees.dp > 2 && algorithm == std::string("ring")) continue;
        for (Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
          for (double clip : {infinity, 0.25}) {
            for (const Rule& rule : {Rule(AdamW{}), Rule(Sgd{0.1}), Rule(lamb), Rule(muon)}) {
              const StepOptions options{rule, clip, algorithm, algorithm, algorithm};
              std::vector<std::uint64_t> bits;
              for (int stage = 0; stage < num_stages; ++stage) {
                if (stage >= 2 && std::holds_alternative<AdamW>(rule)) continue;
                const auto own = bits_after_three(world, degrees, stage, dtype, options);
                if (stage == 0 || (stage == 2 && degrees.pp > 1)) bits = own;
                EXPECT_EQ(own, bits) << describe(degrees, stage, dtype);
              }
            }
          }
        }
      }
    });
  }
}

TEST(Step, ReplicasStayBitwiseEqual) {
  const machine::Degrees degrees{.tp = 2, .dp = 2, .pp = 2};
  machine::run_ranks(degrees.ranks(), [&](machine::World& world) {
    for (int stage : {0, 1}) {
      Trained trained(world, degrees, stage, Dtype::float32, {.clip_norm = 0.25});
      for (int step = 0; step < 3; ++step) {
        trained.backward(step);
        trained.step->step();
      }
      // Values equal those of every data-parallel replica. The tied table equals that of the other
      // stage.
      std::string mine;
      for (const collectives::Parameter& p : trained.model.parameters)
        mine += std::to_string(hash(p.value)) + " ";
      for (const std::string& other :
           world.all_gather(trained.model.grid.group(machine::Axis::dp), mine)) {
        EXPECT_EQ(other, mine);
      }
      const std::string table = std::to_string(hash(trained.model.parameters[0].value));
      for (const std::string& other :
           world.all_gather(trained.model.grid.embedding_group(), table)) {
        EXPECT_EQ(other, table);
      }
    }
  });
}

TEST(Step, LedgerMatchesTheFormula) {
  for (const machine::Degrees& degrees : grids) {
    machine::run_ranks(degrees.ranks(), [&](machine::World& world) {
      for (int stage = 0; stage < num_stages; ++stage) {
        for (Dtype dtype : machine::floating_dtypes) {
          for (const Rule& rule :
               {Rule(AdamW{}), Rule(Sgd{}), Rule(lamb), Rule(muon), Rule(adafactor)}) {
            SCOPED_TRACE(describe(degrees, stage, dtype));
            machine::Ledger& ledger = world.device().ledger();
            std::map<Category, std::size_t> before;
            for (Category category : machine::all_categories)
              before[category] = ledger.current(category);
            Trained trained(world, degrees, stage, dtype, {.rule = rule});
            const ExpectedMemory expected = expected_memory(
                stage, trained.plan, trained.states.layout(), rule, {}, trained.usage());
            if (stage >= 2) {
              ledger.reset_peaks();
              trained.backward(0);
              trained.step->step();
              EXPECT_EQ(ledger.peak(Category::parameters) - before[Category::parameters],
                        expected.parameters);
              EXPECT_EQ(ledger.peak(Category::gradients) - before[Category::gradients],
                        expected.gradients);
              continue;
            }
            const auto held = [&](Category category) {
              return ledger.current(category) - before[category];
            };
            EXPECT_EQ(held(Category::parameters), expected.parameters);
            EXPECT_EQ(held(Category::gradients), expected.gradients);
            EXPECT_EQ(held(Category::optimizer), expected.optimizer);
            EXPECT_EQ(held(Category::buffers), expected.buffers);
            ledger.reset_peaks();
            trained.backward(0);
            trained.step->step();
            for (Category category :
                 {Category::parameters, Category::gradients, Category::optimizer}) {
              EXPECT_EQ(ledger.peak(category), ledger.current(category));
            }
          }
        }
      }
    });
  }
}

TEST(Step, TrafficMatchesTheFormula) {
  for (const machine::Degrees& degrees : grids) {
    machine::run_ranks(degrees.ranks(), [&](machine::World& world) {
      for (int stage = 0; stage < num_stages; ++stage) {
        for (Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float64}) {
          for (const std::string algorithm : {"ring", "direct", ""}) {
            SCOPED_TRACE(describe(degrees, stage, dtype) + " " + algorithm);
            const Rule rule = dtype == Dtype::bfloat16  ? Rule(lamb)
                              : dtype == Dtype::float32 ? Rule(muon)
                                                        : Rule(adafactor);
            const StepOptions options{rule, 1.0, algorithm, algorithm, algorithm};
            Trained trained(world, degrees, stage, dtype, options);
            const Communicators groups = trained.model.communicators();
            const std::map<std::string, collectives::Communicator*> by_name = {
                {"tp", groups.tp},
                {"pp", groups.pp},
                {"dp", groups.dp},
                {"embedding", groups.embedding}};
            for (const auto& [name, group] : by_name) {
              if (group) group->link().reset_traffic();
            }
            trained.backward(0);
            trained.step->step();

            std::map<std::pair<std::string, machine::TrafficLabel>, std::uint64_t> measured,
                expected;
            for (const auto& [name, group] : by_name) {
              if (!group) continue;
              for (const auto& [label, traffic] : group->link().traffic()) {
                if (traffic.bytes_sent > 0) measured[{name, label}] = traffic.bytes_sent;
              }
            }
            const testing::SentElements sent =
                algorithm.empty() ? testing::as_run(options)
                                  : testing::SentElements(testing::bandwidth_optimal);
            for (const testing::TrafficRow& row : testing::expected_traffic(
                     stage, trained.plan, trained.states.layout(), sent, options, trained.usage(),
                     trained.model.grid.coordinate(machine::Axis::dp))) {
              expected[{row.group, row.label}] = row.bytes_sent;
            }
            EXPECT_EQ(measured, expected);
          }
        }
      }
    });
  }
}

// The gradient of one rank overflows. Every rank reports it, no rank updates, and the next step is
// not affected.
TEST(Step, NonFiniteGradientsAreReportedAndSkipped) {
  for (const machine::Degrees& degrees :
       {machine::Degrees{.tp = 2, .dp = 2, .pp = 2}, machine::Degrees{.tp = 2, .dp = 3}}) {
    machine::run_ranks(degrees.ranks(), [&](machine::World& world) {
      for (int stage = 0; stage < num_stages; ++stage) {
        for (double clip : {infinity, 0.25}) {
          for (double poison : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
            Trained clean(world, degrees, stage, Dtype::float32, {.clip_norm = clip});
            Trained trained(world, degrees, stage, Dtype::float32, {.clip_norm = clip});
            trained.backward(0, [&] {
              if (world.rank() != 5) return;
              auto gradient = to_doubles(trained.model.parameters[2].gradient);
              gradient[3] = poison;
              from_doubles(trained.model.parameters[2].gradient, gradient);
            });
            const StepResult result = trained.step->step();
            EXPECT_FALSE(std::isfinite(result.gradient_norm));
            EXPECT_FALSE(result.updated);
            EXPECT_EQ(result.clip_factor, 1);
            EXPECT_EQ(trained.step->optimizer().steps(), 0);
            EXPECT_EQ(trained.bits(), clean.bits());
            for (Trained* each : {&clean, &trained}) {
              each->backward(1);
              EXPECT_TRUE(each->step->step().updated);
            }
            EXPECT_EQ(trained.bits(), clean.bits());
          }
        }
      }
    });
  }
}

TEST(Step, ExternalValuesReachTheMaster) {
  machine::run_ranks(1, [](machine::World& world) {
    Trained trained(world, {}, 0, Dtype::bfloat16, {});
    world.device().stream().kernels().fill(trained.states.values(), 3);
    trained.step->optimizer().values_changed();
    trained.step->optimizer().visit(false, [](Range, const RangeStates& states) {
      for (const double master : to_doubles(states.master)) ASSERT_EQ(master, 3);
    });
  });
}

TEST(Step, RejectsInvalidOptionsAndCalls) {
  machine::run_ranks(2, [](machine::World& world) {
    const machine::Degrees degrees{.dp = 2};
    Trained trained(world, degrees, 0, Dtype::float32, {});
    const auto make = [&](int stage, Communicators groups, double clip) {
      return make_step(stage, trained.states, trained.plan, groups, {.clip_norm = clip});
    };
    const Communicators groups = trained.model.communicators();
    EXPECT_THROW(make(4, groups, 1), std::invalid_argument);
    EXPECT_THROW(make(0, groups, 0), std::invalid_argument);
    EXPECT_THROW(make(0, groups, std::numeric_limits<double>::quiet_NaN()), std::invalid_argument);
    EXPECT_THROW(make(0, {}, 1), std::logic_error);
    EXPECT_THROW(make(1, {}, 1), std::logic_error);
    const auto make_lamb = [&](const Lamb& rule, OffloadDevice device) {
      return make_step(0, trained.states, trained.plan, groups,
                       {.rule = rule, .offload_optimizer = {.device = device}});
    };
    EXPECT_THROW(make_lamb({.min_coeff = 2, .max_coeff = 1}, OffloadDevice::none),
                 std::invalid_argument);
    EXPECT_THROW(make_lamb({.min_coeff = 0}, OffloadDevice::none), std::invalid_argument);
    EXPECT_THROW(make_lamb({}, OffloadDevice::cpu), std::invalid_argument);
    const auto make_with = [&](const Rule& rule, StepOptions options) {
      options.rule = rule;
      return make_step(0, trained.states, trained.plan, groups, std::move(options));
    };
    const StepOptions offloaded{.offload_optimizer = {.device = OffloadDevice::cpu}};
    for (const Rule& rule :
         {Rule(Muon{.momentum = 1}), Rule(Muon{.num_ns_steps = 0}),
          Rule(Adafactor{.decay_rate = 0}), Rule(Adafactor{.clip_threshold = 0})})
      EXPECT_THROW(make_with(rule, {}), std::invalid_argument);
    for (const Rule& rule : {Rule(muon), Rule(adafactor)})
      EXPECT_THROW(make_with(rule, offloaded), std::invalid_argument);
    EXPECT_THROW(make_with(muon, {.gradient_compression = {.algorithm = "one_bit"}}),
                 std::invalid_argument);
    EXPECT_THROW(trained.step->update(), std::logic_error);
    trained.step->reduce();
    EXPECT_THROW(trained.step->reduce(), std::logic_error);
  });
}

// With overlap_comm, one bucket exists twice, because that of the previous micro-batch is pending.
TEST(Step, LedgerHoldsTheLastBucketOfThePreviousMicroBatch) {
  machine::run_ranks(2, [](machine::World& world) {
    StepOptions options;
    options.overlap_comm = true;
    machine::Ledger& ledger = world.device().ledger();
    const std::size_t before = ledger.current(Category::gradients);
    Trained trained(world, {.dp = 2}, 2, Dtype::float32, options);
    for (int step = 0; step < 2; ++step) {
      ledger.reset_peaks();
      for (int i = 0; i < 3; ++i) trained.backward(i, {}, i == 2);
      trained.step->step();
    }
    Usage usage = trained.usage();
    usage.micro_batches = 3;
    EXPECT_EQ(
        ledger.peak(Category::gradients) - before,
        expected_memory(2, trained.plan, trained.states.layout(), options.rule, options, usage)
            .gradients);
  });
}

}  // namespace
}  // namespace zero
