#include "zero/states/flat_states.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <tuple>

#include "zero/cost/cost.h"
#include "zero/testing/expected_traffic.h"

namespace zero {
namespace {

using collectives::Parameter;
using machine::Category;
using machine::Dtype;

GradientRow row(std::string name, std::int64_t elements, std::vector<Over> reduce, int replicas,
                bool decay = true) {
  return {std::move(name), elements, Dtype::float32, std::move(reduce), replicas, decay};
}

// Returns the plan of the first stage at tp 2, pp 2, dp 3.
GradientPlan example() {
  using enum Over;
  GradientPlan plan{1, Dtype::bfloat16, Dtype::float32, 2, 2, 3, {}};
  plan.rows = {row("fc", 100, {dp}, 1),
               row("tied.b", 70, {embedding, dp}, 2),
               row("bias", 5, {dp}, 2, false),
               row("gain", 65, {tp, dp}, 2, false),
               row("tied.a", 1, {embedding, dp}, 2),
               row("fc2", 64, {dp}, 1)};
  return plan;
}

// Rank d of dp has the experts d % ep, and is the d / ep-th of their holders.
TEST(Layout, ExpertsHaveTheirOwnBucketsAndShards) {
  GradientPlan plan{1, Dtype::float32, Dtype::float32, 1, 1, 4, {}, 2};
  using enum Over;
  plan.rows = {row("dense", 100, {dp}, 1), row("expert", 200, {edp}, 1), row("norm", 8, {dp}, 1)};
  plan.rows[1].expert = true;
  const Layout layout = zero::layout(plan);
  ASSERT_EQ(layout.buckets.size(), 2u);
  const Bucket &expert = layout.buckets[0], &dense = layout.buckets[1];
  EXPECT_EQ(expert.rows, std::vector{1});
  EXPECT_EQ(dense.rows, (std::vector{0, 2}));
  EXPECT_EQ(expert.over, edp);
  EXPECT_EQ(layout.shard_elements(expert), expert.range.size() / 2);
  EXPECT_EQ(layout.shard_elements(dense), dense.range.size() / 4);
  for (const int dp_rank : {0, 1, 2, 3}) {
    EXPECT_EQ(layout.shard(expert, dp_rank).begin,
              expert.range.begin + dp_rank / 2 * layout.shard_elements(expert));
    EXPECT_EQ(layout.shard(dense, dp_rank).begin,
              dense.range.begin + dp_rank * layout.shard_elements(dense));
  }
  EXPECT_EQ(layout.in_shards(dense).begin, layout.in_shards(expert).end);
  EXPECT_EQ(layout.own_elements, layout.in_shards(dense).end);
}

// All four ranks of a stage with tp 2 hold each expert whole: rank 2 d + t has shard 2 d + t.
TEST(Layout, ShardsOfExpertsCountRanksOfTp) {
  using enum Over;
  for (const auto& [ep, etp, holders] : {std::tuple(1, 1, 4), {2, 1, 2}, {1, 4, 1}})
    for (const int tp_rank : {0, 1}) {
      GradientPlan plan{1, Dtype::float32, Dtype::float32, 2, 1, 2, {}, ep, etp, tp_rank};
      plan.rows = {row("dense", 100, {dp}, 1), row("expert", 200, {edp}, 1)};
      plan.rows[1].expert = true;
      const Layout layout = zero::layout(plan);
      const Bucket &expert = layout.buckets[0], &dense = layout.buckets[1];
      EXPECT_EQ(expert.shards, holders);
      EXPECT_EQ(expert.range.size() % (64 * holders), 0);
      for (const int dp_rank : {0, 1}) {
        EXPECT_EQ(layout.index(expert, dp_rank), (2 * dp_rank + tp_rank) * holders / 4);
        EXPECT_EQ(layout.index(dense, dp_rank), dp_rank);
      }
    }
}

TEST(Layout, SegmentsPaddingAndOrder) {
  const Layout layout = zero::layout(example());
  using enum Over;
  ASSERT_EQ(layout.segments.size(), 4u);
  // Tied parameters, by name: 64 + 128, padded to a multiple of 64 * 2.
  EXPECT_EQ(layout.segments[0].reduce, std::vector<Over>{embedding});
  EXPECT_EQ(layout.segments[0].range, (Range{0, 256}));
  EXPECT_EQ(layout.offsets[4], 0);
  EXPECT_EQ(layout.offsets[1], 64);
  // Partial over tp: 128.
  EXPECT_EQ(layout.segments[1].reduce, std::vector<Over>{tp});
  EXPECT_EQ(layout.segments[1].range, (Range{256, 384}));
  // Replicated, then sharded parameters. Only dp divides them.
  EXPECT_EQ(layout.segments[2].replicas, 2);
  EXPECT_EQ(layout.segments[2].range, (Range{384, 448}));
  EXPECT_EQ(layout.segments[3].replicas, 1);
  EXPECT_EQ(layout.segments[3].range, (Range{448, 640}));
  EXPECT_EQ(layout.offsets[0], 448);
  EXPECT_EQ(layout.offsets[5], 576);
  // The whole layout: 640, padded to a multiple of 64 * 3.
  EXPECT_EQ(layout.elements, 768);
  EXPECT_EQ(layout.shard(layout.buckets[0], 2), (Range{512, 768}));
  EXPECT_EQ(intersection(layout.shard(layout.buckets[0], 2), layout.segments[3].range),
            (Range{512, 640}));
  EXPECT_EQ(intersection(layout.shard(layout.buckets[0], 2), layout.segments[0].range).size(), 0);
}

TEST(Layout, NoParameters) {
  GradientPlan plan = example();
  plan.rows.clear();
  EXPECT_EQ(zero::layout(plan).elements, 0);
  EXPECT_TRUE(zero::layout(plan).segments.empty());
}

struct Held {
  std::unique_ptr<machine::Device> device = machine::make_host_device();
  Parameter weight, bias;
  std::vector<double> values;
  GradientPlan plan;

  explicit Held(Dtype dtype) {
    weight.name = "weight";
    weight.global_shape = {3, 7};
    bias.name = "bias";
    bias.global_shape = {70};
    bias.weight_decay = false;
    weight.value = machine::Tensor(*device, dtype, {3, 7}, Category::parameters);
    for (int i = 0; i < 21; ++i) values.push_back(i * 7 % 23 - 11.5);
    from_doubles(weight.value, values);
    plan = gradient_plan({&weight, &bias}, dtype, machine::Grid({}, 0), 1);
  }
};

TEST(FlatStates, MovesParametersAndCountsExactly) {
  for (const Dtype dtype : machine::floating_dtypes) {
    Held held(dtype);
    FlatStates states(*held.device, held.plan, {&held.weight, &held.bias});
    EXPECT_EQ(to_doubles(held.weight.value), held.values);
    EXPECT_EQ(to_doubles(held.bias.value), std::vector<double>(70, 0));
    EXPECT_EQ(held.weight.value.shape(), (machine::Shape{3, 7}));
    EXPECT_EQ(held.weight.gradient.dtype(), collectives::gradient_dtype(dtype));
    // Views of the flat buffers, at multiples of 64 elements: 64 + 128.
    EXPECT_EQ(states.layout().elements, 192);
    const auto bytes = [](const machine::Tensor& a, const machine::Tensor& b) {
      return static_cast<const char*>(a.data()) - static_cast<const char*>(b.data());
    };
    EXPECT_EQ(bytes(held.bias.value, states.values()), 64 * static_cast<long>(size_of(dtype)));
    held.device->stream().kernels().fill(held.bias.gradient, 3);
    const auto gradients = to_doubles(states.gradients());
    for (std::size_t i = 0; i < gradients.size(); ++i)
      EXPECT_EQ(gradients[i], i >= 64 && i < 134 ? 3 : 0) << i;
    const auto& ledger = held.device->ledger();
    EXPECT_EQ(ledger.current(Category::parameters), 192 * size_of(dtype));
    EXPECT_EQ(ledger.current(Category::gradients),
              192 * size_of(collectives::gradient_dtype(dtype)));
    EXPECT_EQ(ledger.current(),
              ledger.current(Category::parameters) + ledger.current(Category::gradients));

    const auto mask = states.decay_mask(held.plan, {10, 100});
    for (std::size_t i = 0; i < mask.size(); ++i) EXPECT_EQ(mask[i], i < 11 ? 1 : 0) << i;
  }
}

// The layer's first product writes over them. If it does not run, they are cleared.
TEST(FlatStates, LeavesGradientsThatTheLayerWritesOver) {
  Held held(Dtype::float32);
  held.weight.layer_writes_first_sum = true;
  FlatStates states(*held.device, held.plan, {&held.weight, &held.bias});
  EXPECT_EQ(held.weight.kept_gradient(), 1);
  held.device->stream().kernels().fill(held.weight.gradient, 3);
  held.device->stream().kernels().fill(held.bias.gradient, 3);
  states.clear_gradients();
  EXPECT_EQ(to_doubles(held.weight.gradient), std::vector<double>(21, 3));
  EXPECT_EQ(to_doubles(held.bias.gradient), std::vector<double>(70, 0));
  EXPECT_EQ(held.weight.kept_gradient(), 0);
  EXPECT_EQ(held.weight.kept_gradient(), 1);
  states.clear_gradients();
  for (const Bucket& bucket : states.layout().buckets) states.clear_stale_gradients(bucket);
  EXPECT_EQ(to_doubles(held.weight.gradient), std::vector<double>(21, 0));
  EXPECT_EQ(held.weight.kept_gradient(), 1);
}

TEST(FlatStates, RejectsAnotherDtypeOrShape) {
  Held held(Dtype::float32);
  held.plan.value_dtype = Dtype::float64;
  EXPECT_THROW(FlatStates(*held.device, held.plan, {&held.weight, &held.bias}),
               std::invalid_argument);
  held.plan.value_dtype = Dtype::float32;
  held.weight.value = held.weight.value.reshape({7, 3});
  EXPECT_THROW(FlatStates(*held.device, held.plan, {&held.weight, &held.bias}),
               std::invalid_argument);
}

TEST(Cost, MemoryMatchesThePaper) {
  const GradientPlan plan = example();  // 768 elements, dp 3, 4 segments, bfloat16
  const Layout layout = zero::layout(plan);
  // ZeRO stage 0: 2 + 4 + 12 bytes per element (Rajbhandari et al. 2020, with float gradients).
  // Buffers hold the mask and doubles: a square per segment of 3 shards, 3 sums, and the sums of
  // both ranks of tp or pp.
  EXPECT_EQ(expected_memory(0, plan, layout, AdamW{}),
            (ExpectedMemory{768 * 2, 768 * 4, 768 * 12, 768 + 8 * (12 + 3 + 6)}));
  // ZeRO stage 1: the optimizer's third. Doubles: 4 squares, 1 sum, and those of the 3 ranks of dp.
  EXPECT_EQ(expected_memory(1, plan, layout, AdamW{}),
            (ExpectedMemory{768 * 2, 768 * 4, 256 * 12, 256 + 8 * (4 + 1 + 3)}));
  EXPECT_EQ(expected_memory(0, plan, layout, Sgd{}).optimizer, 768u * 4);
  EXPECT_THROW(expected_memory(7, plan, layout, Sgd{}), std::invalid_argument);
}

// ---- ZeRO's 1/d of the optimizer, in closed form, without the layout's code

struct Weights {
  std::int64_t elements = 0;
  int part = 0;
  bool partial = false, frozen = false;  // partial over tp
};
struct Sizes {
  int tp = 1, dp = 1;
  std::int64_t reduce_bucket_size = 500'000'000, persistence_threshold = -1;  // -1: without parts
};

// Each parameter begins a line of 64 elements. Bucket b with parameters n_i has
// L_b = sum ceil(n_i / 64) lines. The lines of partial parameters are padded to a multiple of tp. A
// rank of d owns ceil(L_b / d) lines. Buckets are filled from the last parameter on. Small
// parameters have their own bucket. No other bucket spans two parts.
struct Share {
  std::int64_t elements = 0, buckets = 0, padding = 0;  // of a rank; of all, but bucket ends
};
Share share_of(const std::vector<Weights>& model, const Sizes& sizes) {
  const auto ceil = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  Share share;
  for (const bool small : {false, true}) {
    std::int64_t held = 0, whole = 0, partial = 0;
    int part = 0;
    const auto close = [&] {
      const std::int64_t lines = whole + sizes.tp * ceil(partial, sizes.tp);
      share.elements += 64 * ceil(lines, sizes.dp);
      share.padding += 64 * lines - held;
      share.buckets += lines > 0;
      held = whole = partial = 0;
    };
    for (auto each = model.rbegin(); each != model.rend(); ++each) {
      if (each->frozen || small != (each->elements <= sizes.persistence_threshold)) continue;
      const bool next_part = sizes.persistence_threshold >= 0 && !small && each->part != part;
      if (next_part || (held > 0 && held + each->elements > sizes.reduce_bucket_size)) close();
      part = each->part;
      held += each->elements;
      (each->partial ? partial : whole) += ceil(each->elements, 64);
    }
    close();
  }
  return share;
}

GradientPlan plan_of(const std::vector<Weights>& model, const Sizes& sizes, Dtype value) {
  GradientPlan plan{1, value, collectives::gradient_dtype(value), sizes.tp, 1, sizes.dp, {}};
  for (const Weights& each : model) {
    std::vector<Over> reduce;
    if (each.partial && sizes.tp > 1) reduce.push_back(Over::tp);
    if (sizes.dp > 1) reduce.push_back(Over::dp);
    plan.rows.push_back(row(fmt::format("w{}", plan.rows.size()), each.elements, reduce,
                            each.partial ? sizes.tp : 1));
    plan.rows.back().frozen = each.frozen;
  }
  return plan;
}
Layout layout_of(const std::vector<Weights>& model, const Sizes& sizes, const GradientPlan& plan) {
  LayoutOptions options{.reduce_bucket_size = sizes.reduce_bucket_size};
  if (sizes.persistence_threshold >= 0) {
    for (const Weights& each : model) options.parts.push_back(each.part);
    options.persistence_threshold = sizes.persistence_threshold;
  }
  return layout(plan, options);
}

// Bytes per element in the paper's table: 12 for Adam with narrow values.
struct Kept {
  Rule rule;
  Dtype value;
  std::size_t on_device, on_host;  // on the host, values that are their own master have a copy
};
const std::vector<Kept> kept = {{AdamW{}, Dtype::bfloat16, 12, 12},
                                {AdamW{}, Dtype::float32, 8, 12},
                                {Momentum{}, Dtype::float16, 8, 8},
                                {Lion{}, Dtype::bfloat16, 8, 8},
                                {Sgd{}, Dtype::float32, 0, 4}};

void expect_share(const std::vector<Weights>& model, const Sizes& sizes) {
  SCOPED_TRACE(fmt::format("{} parameters, tp {}, dp {}, buckets of {}, persistent up to {}",
                           model.size(), sizes.tp, sizes.dp, sizes.reduce_bucket_size,
                           sizes.persistence_threshold));
  const Share share = share_of(model, sizes);
  std::int64_t trained = 0;
  for (const Weights& each : model) trained += each.frozen ? 0 : each.elements;
  const std::int64_t whole = share.elements * sizes.dp;
  // The law is 1/d, plus the rest of the last line of each parameter and less than d lines per
  // bucket.
  EXPECT_GE(whole, trained + share.padding);
  EXPECT_LE(whole, trained + share.padding + share.buckets * 64 * (sizes.dp - 1));

  const Layout layout = layout_of(model, sizes, plan_of(model, sizes, Dtype::bfloat16));
  EXPECT_EQ(layout.elements, whole);
  for (const bool sharded : {false, sizes.dp > 1}) {
    std::vector<Range> all;
    for (int rank = 0; rank < (sharded ? sizes.dp : 1); ++rank) {
      std::int64_t owned = 0;
      for (const Range range : owned_ranges(layout, sharded, rank)) {
        owned += range.size();
        if (range.size() > 0) all.push_back(range);
      }
      EXPECT_EQ(owned, sharded ? share.elements : whole) << "rank " << rank;
    }
    // Every element has one owner.
    std::sort(all.begin(), all.end(), [](Range a, Range b) { return a.begin < b.begin; });
    std::int64_t end = 0;
    for (const Range range : all) {
      EXPECT_EQ(range.begin, end);
      end = range.end;
    }
    EXPECT_EQ(end, whole);
  }
  for (const Kept& each : kept) {
    const GradientPlan plan = plan_of(model, sizes, each.value);
    for (int stage = 0; stage < num_stages; ++stage) {
      const auto elements = static_cast<std::size_t>(stage == 0 ? whole : share.elements);
      StepOptions options{.rule = each.rule};
      EXPECT_EQ(expected_memory(stage, plan, layout, each.rule, options).optimizer,
                elements * each.on_device)
          << "stage " << stage;
      options.offload_optimizer.device = OffloadDevice::cpu;
      const ExpectedMemory away = expected_memory(stage, plan, layout, each.rule, options);
      EXPECT_EQ(away.optimizer, 0u) << "stage " << stage;
      EXPECT_EQ(away.host_optimizer, elements * each.on_host) << "stage " << stage;
      // In a file, a sub-group is padded to 4096 bytes. Gradients and values that are their own
      // master move down.
      options.offload_optimizer.device = OffloadDevice::nvme;
      const std::size_t in_file = expected_in_files(stage, plan, layout, each.rule, options).states;
      const auto groups = static_cast<std::size_t>(
          share.buckets + whole / options.offload_optimizer.nvme.buffer_size);
      EXPECT_GE(in_file, elements * each.on_device) << "stage " << stage;
      EXPECT_LE(in_file, elements * each.on_device + groups * 4095) << "stage " << stage;
      const std::size_t value = size_of(each.value), down = value == 4 ? 8 : 4;
      EXPECT_EQ(expected_offload_traffic(stage, plan, layout, each.rule, options),
                (OffloadTraffic{elements * down, elements * value, in_file, in_file}))
          << "stage " << stage;
    }
  }
}

TEST(Cost, EveryRankHoldsAShardOfTheOptimizer) {
  const std::vector<int> degrees = {1, 2, 3, 4, 7, 8, 64};
  std::mt19937 draw(7);
  constexpr std::int64_t lengths[] = {0, 1, 5, 63, 64, 65, 127, 200, 1000, 4096, 65'537};
  // The last two models exactly fill a bucket of 64 and of 300 elements.
  std::vector<std::vector<Weights>> models = {{},     {{0}},       {{1}},       {{64}},
                                              {{65}}, {{100'003}}, {{63}, {1}}, {{100}, {200}}};
  for (const std::size_t parameters : {2u, 5u, 13u, 40u}) {
    for (int times = 0; times < 3; ++times) {
      std::vector<Weights>& model = models.emplace_back();
      for (std::size_t i = 0; i < parameters; ++i)
        model.push_back({lengths[draw() % std::size(lengths)], static_cast<int>(i / 4),
                         draw() % 3 == 0, draw() % 5 == 0});
    }
  }
  for (const std::vector<Weights>& model : models)
    for (const int dp : degrees)
      for (const int tp : {1, 2, 3})
        for (const std::int64_t bucket : {1, 64, 300, 5000, 500'000'000})
          for (const std::int64_t threshold : {-1, 0, 127})
            expect_share(model, {tp, dp, bucket, threshold});
}

// A model with about the 7.5e9 parameters of the paper's figure 1. d ranks hold as much as one
// rank, byte for byte if 64 d divides every bucket.
TEST(Cost, AShardIsInverseToTheDegree) {
  std::vector<Weights> model = {{51'200 * 4096}};
  for (int layer = 1; layer <= 36; ++layer)
    for (const std::int64_t columns : {3, 1, 4, 4}) model.push_back({4096 * 4096 * columns, layer});
  std::int64_t elements = 0;
  for (const Weights& each : model) elements += each.elements;
  for (const std::int64_t bucket : {std::int64_t{200'000'000}, std::int64_t{500'000'000}}) {
    for (int dp = 1; dp <= 1024; dp *= 2) {
      const Sizes sizes{.dp = dp, .reduce_bucket_size = bucket};
      const GradientPlan plan = plan_of(model, sizes, Dtype::bfloat16);
      const Layout layout = layout_of(model, sizes, plan);
      for (int stage = 1; stage < num_stages; ++stage)
        EXPECT_EQ(expected_memory(stage, plan, layout, AdamW{}).optimizer,
                  12 * static_cast<std::size_t>(elements / dp))
            << dp;
      EXPECT_EQ(expected_memory(0, plan, layout, AdamW{}).optimizer,
                12 * static_cast<std::size_t>(elements));
    }
    expect_share(model, {.dp = 1000, .reduce_bucket_size = bucket});  // with padding
  }
}

TEST(Cost, TrafficMatchesThePaper) {
  using machine::Operation;
  const GradientPlan plan = example();
  const Layout layout = zero::layout(plan);
  const std::vector<testing::TrafficRow> stage0 = {
      {"embedding",
       {Operation::all_reduce, Dtype::float32},
       256 * 4,
       "gradients of the tied embedding"},
      {"tp", {Operation::all_reduce, Dtype::float32}, 128 * 4, "gradients partial over tp"},
      {"dp", {Operation::all_reduce, Dtype::float32}, 2 * 2 * 256 * 4, "gradients"},
      {"tp", {Operation::all_gather, Dtype::float64}, 3 * 8, "norm"},
      {"pp", {Operation::all_gather, Dtype::float64}, 3 * 8, "norm"}};
  EXPECT_EQ(testing::expected_traffic(0, plan, layout), stage0);
  const std::vector<testing::TrafficRow> stage1 = {
      stage0[0],
      stage0[1],
      {"dp", {Operation::reduce_scatter, Dtype::float32}, 2 * 256 * 4, "gradients"},
      {"dp", {Operation::all_gather, Dtype::bfloat16}, 2 * 256 * 2, "values"},
      {"tp", {Operation::all_gather, Dtype::float64}, 8, "norm"},
      {"pp", {Operation::all_gather, Dtype::float64}, 8, "norm"},
      {"dp", {Operation::all_gather, Dtype::float64}, 2 * 8, "norm"}};
  EXPECT_EQ(testing::expected_traffic(1, plan, layout), stage1);
  EXPECT_THROW(testing::expected_traffic(4, plan, layout), std::invalid_argument);
}

}  // namespace
}  // namespace zero
