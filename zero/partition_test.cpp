#include "zero/partition.h"

#include <gtest/gtest.h>

#include "zero/cost.h"

namespace zero {
namespace {

using collectives::Parameter;
using machine::Category;
using machine::Dtype;

GradientRow row(std::string name, std::int64_t elements, std::vector<Over> reduce, int replicas,
                bool decay = true) {
  return {std::move(name), elements, Dtype::float32, std::move(reduce), replicas, decay};
}

// tp 2, pp 2, dp 3, as the first stage sees it.
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

TEST(Layout, SegmentsPaddingAndOrder) {
  const Layout layout = zero::layout(example());
  using enum Over;
  ASSERT_EQ(layout.segments.size(), 4u);
  // Tied, by name: 64 + 128, to a multiple of 64 * 2.
  EXPECT_EQ(layout.segments[0].reduce, std::vector<Over>{embedding});
  EXPECT_EQ(layout.segments[0].range, (Range{0, 256}));
  EXPECT_EQ(layout.offsets[4], 0);
  EXPECT_EQ(layout.offsets[1], 64);
  // Partial over tp: 128.
  EXPECT_EQ(layout.segments[1].reduce, std::vector<Over>{tp});
  EXPECT_EQ(layout.segments[1].range, (Range{256, 384}));
  // Replicated, then sharded; nothing but dp divides them.
  EXPECT_EQ(layout.segments[2].replicas, 2);
  EXPECT_EQ(layout.segments[2].range, (Range{384, 448}));
  EXPECT_EQ(layout.segments[3].replicas, 1);
  EXPECT_EQ(layout.segments[3].range, (Range{448, 640}));
  EXPECT_EQ(layout.offsets[0], 448);
  EXPECT_EQ(layout.offsets[5], 576);
  // The whole: 640 to a multiple of 64 * 3.
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

TEST(FlatStates, RehomesParametersAndCountsExactly) {
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

TEST(FlatStates, RefusesAnotherDtypeOrShape) {
  Held held(Dtype::float32);
  held.plan.value_dtype = Dtype::float64;
  EXPECT_THROW(FlatStates(*held.device, held.plan, {&held.weight, &held.bias}),
               std::invalid_argument);
  held.plan.value_dtype = Dtype::float32;
  held.weight.value = held.weight.value.reshape({7, 3});
  EXPECT_THROW(FlatStates(*held.device, held.plan, {&held.weight, &held.bias}),
               std::invalid_argument);
}

TEST(Cost, MemoryIsThePapers) {
  const GradientPlan plan = example();  // 768 elements, dp 3, 4 segments, bfloat16
  const Layout layout = zero::layout(plan);
  // Stage 0: 2 + 4 + 12 bytes an element (Rajbhandari et al. 2020, with float gradients). Buffers:
  // the mask, and doubles: a square for each segment of 3 shards, 3 sums, those of both ranks of tp
  // or pp.
  EXPECT_EQ(expected_memory(0, plan, layout, AdamW{}),
            (ExpectedMemory{768 * 2, 768 * 4, 768 * 12, 768 + 8 * (12 + 3 + 6)}));
  // Stage 1: the optimizer's third. Doubles: 4 squares, 1 sum, those of the 3 ranks of dp.
  EXPECT_EQ(expected_memory(1, plan, layout, AdamW{}),
            (ExpectedMemory{768 * 2, 768 * 4, 256 * 12, 256 + 8 * (4 + 1 + 3)}));
  EXPECT_EQ(expected_memory(0, plan, layout, Sgd{}).optimizer, 768u * 4);
  EXPECT_THROW(expected_memory(7, plan, layout, Sgd{}), std::invalid_argument);
}

TEST(Cost, TrafficIsThePapers) {
  using machine::Operation;
  const GradientPlan plan = example();
  const Layout layout = zero::layout(plan);
  const std::vector<TrafficRow> stage0 = {
      {"embedding",
       {Operation::all_reduce, Dtype::float32},
       256 * 4,
       "gradients of the tied embedding"},
      {"tp", {Operation::all_reduce, Dtype::float32}, 128 * 4, "gradients partial over tp"},
      {"dp", {Operation::all_reduce, Dtype::float32}, 2 * 2 * 256 * 4, "gradients"},
      {"tp", {Operation::all_gather, Dtype::float64}, 3 * 8, "norm"},
      {"pp", {Operation::all_gather, Dtype::float64}, 3 * 8, "norm"}};
  EXPECT_EQ(expected_traffic(0, plan, layout), stage0);
  const std::vector<TrafficRow> stage1 = {
      stage0[0],
      stage0[1],
      {"dp", {Operation::reduce_scatter, Dtype::float32}, 2 * 256 * 4, "gradients"},
      {"dp", {Operation::all_gather, Dtype::bfloat16}, 2 * 256 * 2, "values"},
      {"tp", {Operation::all_gather, Dtype::float64}, 8, "norm"},
      {"pp", {Operation::all_gather, Dtype::float64}, 8, "norm"},
      {"dp", {Operation::all_gather, Dtype::float64}, 2 * 8, "norm"}};
  EXPECT_EQ(expected_traffic(1, plan, layout), stage1);
  EXPECT_THROW(expected_traffic(4, plan, layout), std::invalid_argument);
}

}  // namespace
}  // namespace zero
