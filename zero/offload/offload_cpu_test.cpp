#include "zero/offload/offload_cpu.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>
#include <utility>

#include "machine/base/error.h"
#include "zero/testing/offload_case.h"

namespace zero {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Tensor;
using testing::Begun;
using testing::wide;

class OffloadCpu : public testing::OffloadCase {
 protected:
  static std::string text(const Rule& rule, Dtype dtype, std::int64_t elements,
                          const OffloadOptions& options) {
    return fmt::format("{} of {} {}, pieces of {}, ratio {}", name(rule), elements,
                       machine::name(dtype), options.piece_size, options.ratio);
  }
  // The optimizer's states on both sides against one in memory.
  static void expect_same_states(const OffloadOptimizer& offloaded, const Optimizer& in_memory,
                                 const std::string& where) {
    const Range range = offloaded.host_range();
    expect_same(offloaded.states(), part(in_memory.states(), range.begin, range.size()), where);
    ASSERT_EQ(offloaded.on_device() != nullptr, range.begin > 0) << where;
    if (offloaded.on_device())
      expect_same(offloaded.on_device()->states(), part(in_memory.states(), 0, range.begin), where);
  }
  // Both from the same values, by the same gradients, which are gone once update has returned.
  void expect_same_steps(const Rule& rule, Dtype dtype, std::int64_t elements,
                         const OffloadOptions& options) const {
    const std::string where = text(rule, dtype, elements, options);
    const Dtype given = options.gradient_dtype.value_or(wide(dtype));
    const Tensor values = waves(dtype, elements, 0.7), other = waves(dtype, elements, 0.7);
    Optimizer in_memory(rule, values, mask(elements));
    OffloadOptimizer offloaded(rule, other, mask(elements), *host, options);
    for (int step = 1; step <= 3; ++step) {
      const Tensor gradient = waves(given, elements, 0.3 * step);
      const Tensor widened(*device, wide(dtype), {elements}, Category::gradients);
      device->stream().kernels().cast(gradient, widened);
      if (step == 2) {  // set from outside
        for (const Tensor& each : {values, other}) set(each, 0.5);
        in_memory.values_changed();
        offloaded.values_changed();
      }
      in_memory.update(widened, 0.5);
      offloaded.update(gradient, 0.5);
      set(gradient, NAN);
    }
    EXPECT_EQ(offloaded.steps(), 3);
    EXPECT_EQ(hash(values), hash(other)) << where;
    expect_same_states(offloaded, in_memory, where);
    EXPECT_EQ(offloaded.moved(),
              (OffloadOptimizer::Moved{3 * offload_cost(rule, dtype, elements, options).down,
                                       3 * offload_cost(rule, dtype, elements, options).up}))
        << where;
  }

  std::unique_ptr<machine::Device> host = machine::make_host_device();
};

TEST_F(OffloadCpu, UpdatesToTheSameBits) {
  for (const std::string& rule : rule_names())
    for (const Dtype dtype : machine::floating_dtypes)
      expect_same_steps(find_rule(rule), dtype, 1000,
                        {.piece_size = 301});  // the last one is of 97
  for (const Dtype dtype : {Dtype::bfloat16, Dtype::float32})
    for (const std::int64_t elements : {0, 1, 300, 301, 302, 602, 603, 1777})
      for (const std::int64_t piece : {301, 302, 5000})
        expect_same_steps(AdamW{}, dtype, elements, {.piece_size = piece});
  expect_same_steps(AdamW{}, Dtype::bfloat16, 17, {.piece_size = 1});
  // Gradients in the values' 16 bits.
  for (const double ratio : {1.0, 0.5})
    for (const Dtype dtype : {Dtype::bfloat16, Dtype::float16})
      expect_same_steps(Adam{}, dtype, 1000,
                        {.piece_size = 301, .ratio = ratio, .gradient_dtype = dtype});
}

TEST_F(OffloadCpu, BetweenMemoriesOfOneDevice) {
  const Tensor values = waves(Dtype::bfloat16, 1000, 1), others = waves(Dtype::bfloat16, 1000, 1);
  const Tensor gradient = waves(Dtype::float32, 1000, 2);
  Optimizer in_memory(AdamW{}, values, mask(1000));
  OffloadOptimizer offloaded(AdamW{}, others, mask(1000), *device, {.piece_size = 300});
  in_memory.update(gradient, 1);
  offloaded.update(gradient, 1);
  EXPECT_EQ(hash(values), hash(others));
}

// Whichever of the three is the slowest.
TEST_F(OffloadCpu, ABufferIsUsedAgainWhenItIsFree) {
  for (const OffloadPhase slow : {OffloadPhase::down, OffloadPhase::update, OffloadPhase::up}) {
    OffloadOptions options{.piece_size = 100};
    options.before = [slow](OffloadPhase phase, std::int64_t) {
      if (phase == slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    };
    expect_same_steps(AdamW{}, Dtype::bfloat16, 777, options);
  }
}

// Each phase of a piece begins before an earlier one of its neighbour has ended.
TEST_F(OffloadCpu, APieceMovesWhileItsNeighbourIsUpdated) {
  constexpr std::int64_t pieces = 5;
  Begun begun;
  std::atomic<int> late = 0;
  OffloadOptions options{.piece_size = 100};
  options.before = [&](OffloadPhase phase, std::int64_t piece) {
    begun.add(phase, piece);
    if (piece + 1 == pieces) return;
    const bool met = phase == OffloadPhase::update ? begun.wait(OffloadPhase::down, piece + 1)
                     : phase == OffloadPhase::up   ? begun.wait(OffloadPhase::update, piece + 1)
                                                   : true;
    late += met ? 0 : 1;
  };
  const Tensor values = waves(Dtype::bfloat16, 100 * pieces, 1);
  OffloadOptimizer optimizer(AdamW{}, values, mask(100 * pieces), *host, options);
  optimizer.update(waves(Dtype::float32, 100 * pieces, 2), 1);
  EXPECT_EQ(late, 0);
}

TEST_F(OffloadCpu, TheFirstPartStaysOnTheDevice) {
  const auto host_elements = [](std::int64_t elements, double ratio) {
    return offload_cost(AdamW{}, Dtype::bfloat16, elements, {.ratio = ratio}).host_elements;
  };
  EXPECT_EQ(host_elements(1000, 0.25), 250);
  EXPECT_EQ(host_elements(1000, 0), 0);
  EXPECT_EQ(host_elements(1000, 1), 1000);
  EXPECT_EQ(host_elements(7, 0.5), 4);
  EXPECT_EQ(host_elements(1, 0.4), 0);
  EXPECT_EQ(host_elements(0, 0.4), 0);
  for (const std::string& rule : rule_names())
    for (const Dtype dtype : {Dtype::bfloat16, Dtype::float32, Dtype::float64})
      for (const double ratio : {0.0, 0.3, 0.5, 1.0})
        for (const std::int64_t elements : {0, 1, 7, 1000})
          expect_same_steps(find_rule(rule), dtype, elements, {.piece_size = 200, .ratio = ratio});
  // What the device has is not moved, and has its states there.
  const Tensor values = waves(Dtype::bfloat16, 1000, 1);
  OffloadOptimizer optimizer(AdamW{}, values, mask(1000), *host,
                             {.piece_size = 100, .ratio = 0.25});
  EXPECT_EQ(optimizer.host_range(), (Range{750, 1000}));
  EXPECT_EQ(device->ledger().current(Category::optimizer), 12u * 750);
  EXPECT_EQ(device->ledger().current(Category::buffers), 750u);
  EXPECT_EQ(host->ledger().current(Category::optimizer), 12u * 250);
  EXPECT_EQ(host->ledger().current(Category::buffers), 200u * (4 + 2) + 250);
  optimizer.update(waves(Dtype::float32, 1000, 2), 1);
  EXPECT_EQ(optimizer.moved(), (OffloadOptimizer::Moved{4 * 250, 2 * 250}));
}

TEST_F(OffloadCpu, HoldsAndMovesWhatTheFormulasSay) {
  constexpr std::size_t n = 100'000, piece = 10'000;
  constexpr auto elements = static_cast<std::int64_t>(n);
  struct Row {
    Dtype dtype;
    Rule rule;
    OffloadOptions options;
    std::size_t optimizer, buffers, down, up;
  };
  for (const Row& row : std::vector<Row>{
           {Dtype::bfloat16, AdamW{}, {.piece_size = piece}, 12 * n, 2 * piece * 6 + n, 4, 2},
           // The paper's: 2 bytes each way.
           {Dtype::float16,
            Adam{},
            {.piece_size = piece, .gradient_dtype = Dtype::float16},
            12 * n,
            2 * piece * 4 + 4 * piece + n,
            2,
            2},
           {Dtype::float32, AdamW{}, {.piece_size = piece}, 12 * n, 2 * piece * 4 + n, 4, 4},
           {Dtype::float32, Sgd{}, {.piece_size = 2 * n}, 4 * n, 4 * n, 4, 4},
           {Dtype::float64, Momentum{}, {.piece_size = piece}, 16 * n, 2 * piece * 8 + n, 8, 8},
           {Dtype::bfloat16,
            AdamW{},
            {.piece_size = piece, .delayed_update = true},
            12 * n,
            6 * n + n,
            4,
            2}}) {
    const std::string where = text(row.rule, row.dtype, elements, row.options);
    const Tensor values = waves(row.dtype, elements, 1);
    const Tensor gradient =
        waves(row.options.gradient_dtype.value_or(wide(row.dtype)), elements, 2);
    device->ledger().reset_peaks();
    host->ledger().reset_peaks();
    OffloadOptimizer optimizer(row.rule, values, mask(elements), *host, row.options);
    for (int step = 0; step < 2; ++step) optimizer.update(gradient, 1);
    optimizer.drain();
    EXPECT_EQ(host->ledger().peak(Category::optimizer), row.optimizer) << where;
    EXPECT_EQ(host->ledger().peak(Category::buffers), row.buffers) << where;
    EXPECT_EQ(device->ledger().peak(Category::optimizer), 0u) << where;
    EXPECT_EQ(device->ledger().peak(Category::buffers), 0u) << where;
    EXPECT_EQ(optimizer.moved(), (OffloadOptimizer::Moved{2 * n * row.down, 2 * n * row.up}))
        << where;
    const OffloadCost cost = offload_cost(row.rule, row.dtype, elements, row.options);
    EXPECT_EQ(cost.host_optimizer, row.optimizer) << where;
    EXPECT_EQ(cost.host_buffers, row.buffers) << where;
    EXPECT_EQ(cost.down, n * row.down) << where;
    EXPECT_EQ(cost.up, n * row.up) << where;
  }
}

// Of training: each gradient is that of the values as they are then. The reference applies at every
// step the gradient of the step before; what stays on the device is not delayed.
TEST_F(OffloadCpu, ADelayedUpdateIsOneStepStale) {
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
      for (const int warmup : {0, 2})
        for (const double ratio : {1.0, 0.5}) {
          const OffloadOptions options{
              .piece_size = 77, .ratio = ratio, .delayed_update = true, .warmup_steps = warmup};
          const std::string where = text(find_rule(rule), dtype, elements, options);
          const Tensor other = waves(dtype, elements, 0.7);
          OffloadOptimizer offloaded(find_rule(rule), other, mask(elements), *host, options);

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
            if (step <= warmup) std::exchange(last, [] {})();

            const std::uint64_t before = hash(other);
            learning_rate(offloaded.rule(), step);
            offloaded.update(mine, 1.0 / step);
            set(mine, NAN);
            EXPECT_EQ(hash(values), hash(other)) << where << ", step " << step;
            if (ratio < 1) continue;
            EXPECT_EQ(hash(other) == before, step == warmup + 1) << where << ", step " << step;
          }
          EXPECT_THROW(offloaded.values_changed(), std::logic_error) << where;
          EXPECT_THROW(offloaded.states(), std::logic_error) << where;
          last();
          offloaded.drain();
          EXPECT_EQ(hash(values), hash(other)) << where;
          EXPECT_EQ(offloaded.steps(), steps);
          const RangeStates mine = offloaded.states(), theirs = stale.states();
          EXPECT_EQ(hash(mine.master), hash(theirs.master)) << where;
          EXPECT_EQ(hash(mine.first_moment), hash(theirs.first_moment)) << where;
          EXPECT_EQ(hash(mine.second_moment), hash(theirs.second_moment)) << where;
          offloaded.drain();
          offloaded.values_changed();
        }
}

TEST_F(OffloadCpu, ADelayedUpdateReturnsBeforeTheHostIsDone) {
  Begun begun;
  std::atomic<bool> met = true;
  OffloadOptions options{.piece_size = 100, .delayed_update = true};
  options.before = [&](OffloadPhase phase, std::int64_t piece) {
    // Begun by the test, below.
    if (phase == OffloadPhase::update && piece == 0 && !begun.wait(OffloadPhase::up, -1))
      met = false;
  };
  const Tensor values = waves(Dtype::bfloat16, 300, 1);
  const std::uint64_t before = hash(values);
  OffloadOptimizer optimizer(AdamW{}, values, mask(300), *host, options);
  optimizer.update(waves(Dtype::float32, 300, 2), 1);
  EXPECT_EQ(hash(values), before);
  begun.add(OffloadPhase::up, -1);
  optimizer.drain();
  EXPECT_TRUE(met);
  EXPECT_NE(hash(values), before);
}

TEST_F(OffloadCpu, ErrorsOfAThreadReachTheCaller) {
  const Tensor gradient = waves(Dtype::float32, 1000, 2);
  for (const OffloadPhase phase : {OffloadPhase::down, OffloadPhase::update, OffloadPhase::up}) {
    for (const bool delayed : {false, true}) {
      const Tensor values = waves(Dtype::bfloat16, 1000, 1);
      OffloadOptions options{.piece_size = 100, .delayed_update = delayed};
      Begun begun;
      std::atomic<int> at_work = 0;
      options.before = [&](OffloadPhase now, std::int64_t piece) {
        begun.add(now, piece);
        if (now == phase && piece == 3) {
          if (now == OffloadPhase::update) begun.wait(OffloadPhase::down, 4);
          throw machine::MachineError("the bus is gone");
        }
        if (now != OffloadPhase::down || piece != 4) return;
        ++at_work;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        --at_work;
      };
      OffloadOptimizer optimizer(AdamW{}, values, mask(1000), *host, options);
      try {
        optimizer.update(gradient, 1);
        ASSERT_TRUE(delayed && phase != OffloadPhase::down);
        optimizer.update(gradient, 1);
        FAIL();
      } catch (const machine::MachineError& error) {
        EXPECT_STREQ(error.what(), "the bus is gone");
        EXPECT_EQ(at_work, 0);  // on what is the caller's
      }
      EXPECT_THROW(optimizer.update(gradient, 1), std::logic_error);
      EXPECT_THROW(optimizer.drain(), std::logic_error);
    }
  }
}

TEST_F(OffloadCpu, RefusesWhatItCannotDo) {
  const auto refusal = [](const OffloadOptions& options) -> std::string {
    try {
      offload_cost(AdamW{}, Dtype::bfloat16, 10, options);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal({.piece_size = 0}), "piece_size 0: must be positive");
  EXPECT_EQ(refusal({.ratio = 1.5}), "ratio 1.5: must be 0 to 1");
  EXPECT_EQ(refusal({.ratio = NAN}), "ratio nan: must be 0 to 1");
  EXPECT_EQ(refusal({.warmup_steps = -1}), "warmup_steps -1: must not be negative");
  EXPECT_EQ(refusal({.gradient_dtype = Dtype::float16}),
            "gradient_dtype half: gradients of bfloat16 values are float or bfloat16");
  EXPECT_EQ(refusal({.gradient_dtype = Dtype::bfloat16}), "");
  const Tensor values = waves(Dtype::bfloat16, 10, 1);
  OffloadOptimizer optimizer(AdamW{}, values, mask(10), *host);
  EXPECT_THROW(optimizer.update(waves(Dtype::bfloat16, 10, 1), 1), std::logic_error);
  EXPECT_THROW(optimizer.update(waves(Dtype::float32, 9, 1), 1), std::logic_error);
  optimizer.update(waves(Dtype::float32, 10, 1), 1);  // neither has begun
}

}  // namespace
}  // namespace zero
