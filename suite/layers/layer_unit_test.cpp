// A perceptron with a preceding norm has one fault at a time. The oracle for this fault must fail
// and name it. The layer without a fault passes.

#include "suite/layers/layer_unit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "harness/measure/rates.h"
#include "layers/mlp.h"
#include "layers/norm.h"

namespace suite {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Tensor;

enum class Fault : unsigned char {
  none,
  bias_on_every_rank,
  norm_not_reduced,
  gradient_overwritten,
  one_all_reduce_more,
  one_tensor_more_kept,
  kept_too_long,
  one_buffer_more,
  rank_differs,
};

// A layer for this test, not registered.
class NormedMlp final : public JudgedLayer {
 public:
  static inline Fault fault = Fault::none;

  static LayerClaims claims(const LayerCase& c) {
    const LayerSizes z(c);
    const std::int64_t h = c.hidden_size, t = c.ranks;
    const std::size_t inner = 4 * z.M / z.t;
    return {
        .cut = {{"4 x hidden-size", 4 * h}},
        .parameters = 8 * h * h / t + 4 * h / t + 3 * h,
        .calls = {calls(c, {.inward = 1, .outward = 1}), calls(c, {.inward = 1, .outward = 1}),
                  calls(c, {.inward = 1})},
        .saved = z.own + 2 * z.n / z.c * z.A + 2 * inner,
        .saved_for_weights = z.own + 2 * z.n / z.c * z.A + inner,
        .buffers = z.own + inner + z.gathered + std::max(inner, z.gathered),
        .longest_sum = 4 * h,
    };
  }

  NormedMlp(const layers::Context& context, const std::string&, const LayerCase& c)
      : context_(context),
        norm_(context, "norm", layers::Normalization::layer_norm, c.hidden_size, 1e-5),
        mlp_(context, "mlp", c.model()) {
    if (fault == Fault::norm_not_reduced)
      for (collectives::Parameter* parameter : norm_.parameters())
        parameter->placement.gradient_partial_over_tp = false;
  }
  layers::Parameters parameters() override {
    layers::Parameters all = norm_.parameters();
    for (collectives::Parameter* parameter : mlp_.parameters()) all.push_back(parameter);
    return all;
  }
  void forward(const LayerInput& in, const Tensor& y) override {
    x_ = in.x;
    normed_ = context_.tensor(x_.shape(), Category::activations);
    norm_.forward(x_, normed_, statistics_, Category::activations);
    mlp_.forward(normed_, y, saved_, Category::activations);
    const int others = context_.tp.size() - 1;
    if (fault == Fault::bias_on_every_rank)
      for (int i = 0; i < others; ++i)
        context_.kernels().add_bias(y, mlp_.parameters().back()->value, y);
    if (fault == Fault::one_tensor_more_kept) kept_ = context_.tensor({1}, Category::activations);
    if (fault == Fault::rank_differs && context_.tp.rank() == others)
      context_.kernels().scale(y, 1 + 0x1p-20, y);
  }
  void backward_input(const Tensor& d_y, const Tensor& d_x) override {
    d_normed_ = context_.tensor(d_x.shape(), Category::buffers);
    if (fault == Fault::kept_too_long) kept_ = saved_.inner;
    mlp_.backward_input(d_y, d_normed_, saved_, Category::buffers);
    norm_.backward_input(x_, statistics_, d_normed_, d_x);
    if (fault == Fault::one_all_reduce_more && context_.tp.size() > 1)
      context_.tp.all_reduce(context_.tensor({1}, Category::buffers));
  }
  void backward_weights() override {
    Tensor more;
    if (fault == Fault::one_buffer_more)
      more = context_.tensor(saved_.active.shape(), Category::buffers);
    if (fault == Fault::gradient_overwritten)
      for (collectives::Parameter* parameter : norm_.parameters())
        context_.kernels().fill(parameter->gradient, 0);
    mlp_.backward_weights(saved_);
    norm_.backward_weights(x_, statistics_, d_normed_);
    normed_ = d_normed_ = kept_ = Tensor();
    statistics_ = {};
  }

 private:
  layers::Context context_;
  layers::Norm norm_;
  layers::Mlp mlp_;
  layers::Norm::Statistics statistics_;
  layers::Mlp::Saved saved_;
  Tensor x_, normed_, d_normed_, kept_;
};

constexpr LayerTraits normed_mlp{.claims = NormedMlp::claims, .make = make_layer<NormedMlp>};

// Returns the failed oracles of a run on threads.
std::vector<std::string> failures(Fault fault, LayerCase c) {
  NormedMlp::fault = fault;
  c.transport = machine::Transport::shared_memory;
  c.micro_batch_size = 2;
  c.seq_length = 6;
  c.hidden_size = 24;
  std::vector<std::string> failed;
  machine::run_ranks(c.ranks, [&](machine::World& world) {
    const harness::Rates rates;
    harness::Context context{world, world.group(), world.device(), rates, 1234, {}, {}, {}};
    LayerUnit<normed_mlp> unit(c, context);
    unit.run();
    harness::Judge judge(world.rank());
    unit.judge(judge);
    const std::vector<harness::Judge> judges = world.all_gather(world.group(), judge);
    if (world.rank() != 0) return;
    harness::Record record;
    merge(judges, LayerUnit<normed_mlp>::oracles, record);
    for (const harness::OracleResult& result : record.oracles)
      if (result.ruling == harness::Ruling::fail)
        failed.push_back(fmt::format("{}: {}", name(result.oracle), result.text));
  });
  return failed;
}

struct Found {
  Fault fault;
  bool sequence_parallel;
  std::vector<std::string> failures;  // the start of each text, in order
};

TEST(LayerUnit, FindsEveryFault) {
  const std::vector<Found> all{
      {Fault::none, false, {}},
      {Fault::none, true, {}},
      {Fault::bias_on_every_rank, false, {"numerics: rank 0: y against double"}},
      {Fault::bias_on_every_rank, true, {"numerics: rank 0: y against double"}},
      {Fault::norm_not_reduced,
       true,
       {"numerics: rank 0: gradient of norm.gain against double",
        "determinism: gradient of norm.bias"}},
      {Fault::gradient_overwritten,
       false,
       {"numerics: rank 0: gradient of norm.gain against double"}},
      {Fault::gradient_overwritten,
       true,
       {"numerics: rank 0: gradient of norm.gain against double"}},
      {Fault::one_all_reduce_more,
       false,
       {"volume: rank 0: world, backward_input all_reduce float: sent "}},
      {Fault::one_tensor_more_kept, false, {"memory: rank 0: activations: "}},
      {Fault::kept_too_long,
       true,
       {"memory: rank 0: activations: 5232 bytes after backward_input"}},
      {Fault::one_buffer_more, true, {"memory: rank 0: buffers"}},
      {Fault::rank_differs, false, {"determinism: y: rank "}},
  };
  for (const Found& found : all) {
    SCOPED_TRACE(static_cast<int>(found.fault));
    const std::vector<std::string> failed = failures(
        found.fault,
        {.ranks = 2, .dtype = Dtype::float32, .sequence_parallel = found.sequence_parallel});
    ASSERT_EQ(failed.size(), found.failures.size()) << fmt::format("{}", fmt::join(failed, "\n"));
    for (std::size_t i = 0; i < failed.size(); ++i)
      EXPECT_TRUE(failed[i].starts_with(found.failures[i])) << failed[i];
  }
}

std::string refusal(const harness::AxisFlags& flags) {
  LayerTraits traits = normed_mlp;
  traits.has_heads = true;
  try {
    layer_sweep(traits).cases(harness::Profile::acceptance, flags);
  } catch (const harness::UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(LayerSweep, RejectsInvalidDegreesWithAnExample) {
  EXPECT_EQ(
      refusal({{"num-attention-heads", "5"}}),
      "num-attention-heads 5: hidden-size is 96; expected a multiple of num-attention-heads 5 "
      "(example: 95)");
  EXPECT_EQ(refusal({{"ranks", "5"}}),
            "ranks 5: 4 x hidden-size is 384; expected a multiple of ranks 5 (example: 385)");
  EXPECT_EQ(refusal({{"ranks", "1"}, {"sequence-parallel", "1"}}),
            "sequence-parallel requires ranks 2 or more (got 1)");
  EXPECT_EQ(
      refusal({{"ranks", "8"},
               {"micro-batch-size", "1"},
               {"seq-length", "20"},
               {"sequence-parallel", "1"}}),
      "sequence-parallel: micro-batch-size x seq-length is 20; expected a multiple of ranks 8 "
      "(example: 24)");
  EXPECT_EQ(refusal({{"seq-length", "0"}}), "--seq-length is 0; expected at least 1");
  EXPECT_EQ(refusal({{"ranks", "3"}, {"num-attention-heads", "6"}}), "accepted");
}

TEST(LayerSweep, QuickCoversTheValuesOfEachAxis) {
  for (const bool heads : {false, true}) {
    LayerTraits traits = normed_mlp;
    traits.has_heads = heads;
    const auto cases = layer_sweep(traits).cases(harness::Profile::quick, {});
    EXPECT_EQ(cases.size(), heads ? 6U : 4U);  // plus two blockwise with heads
    for (const auto& [axis, values] :
         std::map<std::string, std::set<std::string>>{{"dtype", {"float", "bfloat16"}},
                                                      {"transport", {"mpi", "shared_memory"}},
                                                      {"ranks", {"2", "3", "4"}},
                                                      {"sequence-parallel", {"off", "on"}}}) {
      std::set<std::string> seen;
      for (const auto& [c, axes, slice] : cases)
        for (const auto& [name, value] : axes)
          if (name == axis) seen.insert(value);
      EXPECT_EQ(seen, values) << axis;
    }
  }
}

}  // namespace
}  // namespace suite
