// Features that only states in host memory support: a part that stays on the device, and delayed
// updates.

#include "zero/offload/host_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "zero/testing/offload_case.h"

namespace zero {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Tensor;
using testing::Begun;
using testing::wide;

class HostStoreOf : public testing::OffloadCase {};

TEST_F(HostStoreOf, TheFirstPartStaysOnTheDevice) {
  const auto host_elements = [](std::int64_t elements, double ratio) {
    return state_cost(AdamW{}, Dtype::bfloat16, {elements}, on_host(100, ratio)).host_elements;
  };
  EXPECT_EQ(host_elements(1000, 0.25), 250);
  EXPECT_EQ(host_elements(1000, 0), 0);
  EXPECT_EQ(host_elements(1000, 1), 1000);
  EXPECT_EQ(host_elements(7, 0.5), 4);
  EXPECT_EQ(host_elements(1, 0.4), 0);
  EXPECT_EQ(host_elements(0, 0.4), 0);
  for (const std::string& rule : rule_names())
    for (const Dtype dtype : {Dtype::bfloat16, Dtype::float32, Dtype::float64})
      for (const double ratio : {0.0, 0.3, 0.5})
        for (const std::int64_t elements : {0, 1, 7, 1000})
          expect_same_steps(find_rule(rule), dtype, {{elements}}, on_host(200, ratio), places()[1]);
  expect_same_steps(AdamW{}, Dtype::float32, {{70, 250, 0, 1, 333}}, on_host(50, 0.4), places()[1]);
  expect_same_steps(Adam{}, Dtype::float16, {{1000}}, on_host(301, 0.5), places()[1],
                    Dtype::float16);
  // Values on the device are not moved. Their states are also on the device.
  const Tensor values = waves(Dtype::bfloat16, 1000, 1);
  StreamedOptimizer optimizer(AdamW{}, values, mask(1000), *host, on_host(100, 0.25));
  EXPECT_EQ(optimizer.host_range(), (Range{750, 1000}));
  ASSERT_NE(optimizer.on_device(), nullptr);
  EXPECT_EQ(optimizer.on_device()->states().values.size(), 750);
  EXPECT_EQ(device->ledger().current(Category::optimizer), 12u * 750);
  EXPECT_EQ(device->ledger().current(Category::buffers), 750u);
  EXPECT_EQ(host->ledger().current(Category::optimizer), 12u * 250);
  EXPECT_EQ(host->ledger().current(Category::buffers), 200u * (4 + 2) + 250);
  optimizer.update(waves(Dtype::float32, 1000, 2), 1);
  EXPECT_EQ(optimizer.moved(), (OffloadTraffic{4 * 250, 2 * 250}));
}

// As in training, each gradient depends on the current values. The reference applies the gradient
// of the previous step at every step. The part on the device is not delayed.
TEST_F(HostStoreOf, ADelayedUpdateIsOneStepStale) {
  constexpr std::int64_t elements = 500;
  constexpr int steps = 6;
  const auto learning_rate = [](Rule& rule, int step) {
    std::visit([&](auto& options) { options.learning_rate = 0.1 / step; }, rule);
  };
  const auto gradient_of = [&](const Tensor& values, int step) {
    std::vector<double> slopes = to_doubles(values);
    for (std::size_t i = 0; i < slopes.size(); ++i)
      slopes[i] += std::cos(static_cast<double>(step) * static_cast<double>(i));
    const Tensor gradient(*device, wide(values.dtype()), {values.size()}, Category::gradients);
    from_doubles(gradient, slopes);
    return gradient;
  };
  for (const std::string& rule : rule_names())
    for (const Dtype dtype : {Dtype::bfloat16, Dtype::float32})
      for (const double ratio : {1.0, 0.5}) {
        StateOptions options = on_host(77, ratio, true);
        const std::string where =
            fmt::format("{} of {}, ratio {}", rule, machine::name(dtype), ratio);
        const Tensor other = waves(dtype, elements, 0.7);
        StreamedOptimizer offloaded(find_rule(rule), other, mask(elements), *host, options);

        const Tensor values = waves(dtype, elements, 0.7);
        const std::int64_t first = elements - offloaded.host_range().size();
        const std::vector<std::uint8_t> bytes = mask(elements);
        Optimizer now(find_rule(rule), values.slice(0, {first}),
                      {bytes.begin(), bytes.begin() + first});
        Optimizer stale(find_rule(rule), values.slice(first, {elements - first}),
                        {bytes.begin() + first, bytes.end()});
        std::function<void()> last = [] {};
        for (int step = 1; step <= steps; ++step) {
          const Tensor gradient = gradient_of(values, step), mine = gradient_of(other, step);
          last();
          learning_rate(now.rule(), step);
          now.update(gradient.slice(0, {first}), 1.0 / step);
          last = [&, gradient, step] {
            learning_rate(stale.rule(), step);
            stale.update(gradient.slice(first, {elements - first}), 1.0 / step);
          };

          const std::uint64_t before = hash(other);
          learning_rate(offloaded.rule(), step);
          offloaded.update(mine, 1.0 / step);
          set(mine, NAN);
          EXPECT_EQ(hash(values), hash(other)) << where << ", step " << step;
          if (ratio < 1) continue;
          EXPECT_EQ(hash(other) == before, step == 1) << where << ", step " << step;
        }
        EXPECT_THROW(offloaded.values_changed(), std::logic_error) << where;
        const auto expect_stale = [&](Range at, const RangeStates& states) {
          if (at.begin < first) return;
          expect_same(states, part(stale.states(), at.begin - first, at.size()), where);
        };
        EXPECT_THROW(offloaded.visit(false, expect_stale), std::logic_error) << where;
        last();
        offloaded.drain();
        EXPECT_EQ(hash(values), hash(other)) << where;
        EXPECT_EQ(offloaded.steps(), steps);
        offloaded.visit(false, expect_stale);
        offloaded.drain();
        offloaded.values_changed();
      }
}

TEST_F(HostStoreOf, ADelayedUpdateReturnsBeforeTheHostIsDone) {
  Begun begun;
  std::atomic<bool> met = true;
  StateOptions options = on_host(100, 1, true);
  options.before = [&](OffloadPhase phase, std::int64_t piece) {
    // The test starts this phase below.
    if (phase == OffloadPhase::update && piece == 0 && !begun.wait(OffloadPhase::up, -1))
      met = false;
  };
  const Tensor values = waves(Dtype::bfloat16, 300, 1);
  const std::uint64_t before = hash(values);
  StreamedOptimizer optimizer(AdamW{}, values, mask(300), *host, options);
  optimizer.update(waves(Dtype::float32, 300, 2), 1);
  EXPECT_EQ(hash(values), before);
  begun.add(OffloadPhase::up, -1);
  optimizer.drain();
  EXPECT_TRUE(met);
  EXPECT_NE(hash(values), before);
}

}  // namespace
}  // namespace zero
