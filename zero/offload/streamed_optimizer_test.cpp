// Properties of the streamed optimizer that both stores have.

#include "zero/offload/streamed_optimizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "machine/base/error.h"
#include "zero/testing/offload_case.h"

namespace zero {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Tensor;
using testing::Begun;
using testing::wide;

class StreamedOptimizerOf : public testing::OffloadCase,
                            public ::testing::WithParamInterface<OffloadDevice> {
 protected:
  void SetUp() override {
    const std::string why = in_files() ? IoRing::why_not() : "";
    if (!why.empty()) GTEST_SKIP() << why;
  }
  static bool in_files() { return GetParam() == OffloadDevice::nvme; }
  static StateOptions options(std::int64_t piece) {
    return in_files() ? in_file(piece) : on_host(piece);
  }
};

INSTANTIATE_TEST_SUITE_P(Stores, StreamedOptimizerOf,
                         ::testing::Values(OffloadDevice::cpu, OffloadDevice::nvme),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST_P(StreamedOptimizerOf, UpdatesGiveTheSameBits) {
  for (const Place& place : places()) {
    for (const std::string& rule : rule_names())
      for (const Dtype dtype : machine::floating_dtypes)
        expect_same_steps(find_rule(rule), dtype, {{1000}}, options(301), place);  // 301 * 3 + 97
    for (const std::int64_t elements : {0, 1, 300, 301, 302, 602, 603, 1777})
      for (const Dtype dtype : {Dtype::bfloat16, Dtype::float32})
        expect_same_steps(AdamW{}, dtype, {{elements}}, options(301), place);
  }
  for (const std::int64_t piece : {1, 17, 5000})
    for (const Dtype dtype : {Dtype::bfloat16, Dtype::float32})
      expect_same_steps(Adam{}, dtype, {{17}}, options(piece), places()[1]);
}

// No piece spans two ranges. Some ranges are empty, and some have a ValueHome.
TEST_P(StreamedOptimizerOf, UpdatesSeveralRanges) {
  for (const char* const rule : {"sgd", "adamw"})
    for (const Dtype dtype : {Dtype::bfloat16, Dtype::float16, Dtype::float32})
      for (const std::vector<bool>& away :
           {std::vector<bool>{}, {false, true, false, true, true}, {true, true, true, true, true}})
        for (const Place& place : places())
          expect_same_steps(find_rule(rule), dtype, {{70, 250, 0, 1, 333}, away}, options(100),
                            place);
}

TEST_P(StreamedOptimizerOf, WidensNarrowGradients) {
  for (const Dtype dtype : {Dtype::bfloat16, Dtype::float16})
    for (const Place& place : places())
      expect_same_steps(Adam{}, dtype, {{1000, 77}}, options(301), place, dtype);
}

// The next update starts from the loaded states and values.
TEST_P(StreamedOptimizerOf, StatesMayBeSetExternally) {
  for (const Dtype dtype : {Dtype::bfloat16, Dtype::float32}) {
    const Tensor values = waves(dtype, 250, 1), others = waves(dtype, 250, 1);
    const Tensor gradient = waves(Dtype::float32, 250, 2);
    Optimizer in_memory(AdamW{}, values, mask(250));
    StreamedOptimizer streamed(AdamW{}, others, mask(250), *host, options(100));
    in_memory.update(gradient, 1);
    streamed.update(gradient, 1);
    const auto load = [](const RangeStates& states) {
      for (const Tensor& each : {states.values, states.master}) set(each, 0.25);
      for (const Tensor& each : {states.first_moment, states.second_moment}) set(each, 0.5);
    };
    load(in_memory.states());
    streamed.visit(true, [&](Range, const RangeStates& states) { load(states); });
    streamed.visit(false, [&](Range at, const RangeStates& states) {
      expect_same(states, part(in_memory.states(), at.begin, at.size()), "loaded");
    });
    in_memory.update(gradient, 1);
    streamed.update(gradient, 1);
    EXPECT_EQ(hash(values), hash(others)) << machine::name(dtype);
  }
}

// Each of the three phases is the slowest once.
TEST_P(StreamedOptimizerOf, AStagingSlotIsUsedAgainWhenItIsFree) {
  for (const OffloadPhase slow : {OffloadPhase::down, OffloadPhase::update, OffloadPhase::up}) {
    StateOptions slowed = options(100);
    slowed.before = [slow](OffloadPhase phase, std::int64_t) {
      if (phase == slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    };
    for (const Dtype dtype : {Dtype::bfloat16, Dtype::float32})
      expect_same_steps(AdamW{}, dtype, {{777}}, slowed, places()[1]);
  }
}

// Each phase of a piece begins before an earlier phase of its neighbour has ended.
TEST_P(StreamedOptimizerOf, APieceMovesWhileItsNeighbourIsUpdated) {
  constexpr std::int64_t pieces = 5;
  for (const Dtype dtype : {Dtype::bfloat16, Dtype::float32}) {
    Begun begun;
    std::atomic<int> late = 0;
    StateOptions watched = options(100);
    watched.before = [&](OffloadPhase phase, std::int64_t piece) {
      begun.add(phase, piece);
      if (piece + 1 == pieces) return;
      const bool met = phase == OffloadPhase::update ? begun.wait(OffloadPhase::down, piece + 1)
                       : phase == OffloadPhase::up   ? begun.wait(OffloadPhase::update, piece + 1)
                                                     : true;
      late += met ? 0 : 1;
    };
    const Tensor values = waves(dtype, 100 * pieces, 1);
    StreamedOptimizer optimizer(AdamW{}, values, mask(100 * pieces), *host, watched);
    optimizer.update(waves(Dtype::float32, 100 * pieces, 2), 1);
    EXPECT_EQ(late, 0);
  }
}

TEST_P(StreamedOptimizerOf, ErrorsOfAThreadReachTheCaller) {
  const Tensor gradient = waves(Dtype::float32, 1000, 2);
  for (const OffloadPhase phase : {OffloadPhase::down, OffloadPhase::update, OffloadPhase::up}) {
    for (const bool delayed : {false, true}) {
      if (delayed && in_files()) continue;
      const Tensor values = waves(Dtype::bfloat16, 1000, 1);
      StateOptions failing = options(100);
      failing.cpu.delayed_update = delayed;
      Begun begun;
      std::atomic<int> at_work = 0;
      failing.before = [&](OffloadPhase now, std::int64_t piece) {
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
      StreamedOptimizer optimizer(AdamW{}, values, mask(1000), *host, failing);
      try {
        optimizer.update(gradient, 1);
        ASSERT_TRUE(delayed && phase != OffloadPhase::down);
        optimizer.update(gradient, 1);
        FAIL();
      } catch (const machine::MachineError& error) {
        EXPECT_STREQ(error.what(), "the bus is gone");
        EXPECT_EQ(at_work, 0);  // no thread uses the caller's data
      }
      EXPECT_THROW(optimizer.update(gradient, 1), std::logic_error);
      EXPECT_THROW(optimizer.drain(), std::logic_error);
      EXPECT_THROW(optimizer.values_changed(), std::logic_error);
      EXPECT_THROW(optimizer.visit(false, [](Range, const RangeStates&) {}), std::logic_error);
    }
  }
}

TEST_P(StreamedOptimizerOf, BytesMatchTheFormulas) {
  constexpr std::int64_t elements = 100'000;
  constexpr std::size_t n = elements, piece = 10'000;
  struct Row {
    Dtype dtype;
    Rule rule;
    std::optional<Dtype> gradient;
    bool delayed;
    std::size_t optimizer, buffers, down, up, slot;  // on the host; per element; in the file
  };
  const std::vector<Row> on_host = {
      {Dtype::bfloat16, AdamW{}, {}, false, 12 * n, 2 * piece * 6 + n, 4, 2, 0},
      // As in ZeRO-Offload: 2 bytes in each direction.
      {Dtype::float16, Adam{}, Dtype::float16, false, 12 * n, 2 * piece * 4 + n, 2, 2, 0},
      {Dtype::float32, AdamW{}, {}, false, 12 * n, 2 * piece * 4 + n, 4, 4, 0},
      {Dtype::float32, Sgd{}, {}, false, 4 * n, 2 * piece * 4, 4, 4, 0},
      {Dtype::float64, Momentum{}, {}, false, 16 * n, 2 * piece * 8 + n, 8, 8, 0},
      {Dtype::bfloat16, AdamW{}, {}, true, 12 * n, 6 * n + n, 4, 2, 0}};
  // Three buffers for a slot with its alignment, and the mask of a piece.
  const std::vector<Row> in_file = {
      {Dtype::bfloat16, AdamW{}, {}, false, 0, 3 * 126'976 + piece + 2 * piece * 6, 4, 2, 122'880},
      {Dtype::float16, Momentum{}, {}, false, 0, 3 * 86'016 + piece + 2 * piece * 6, 4, 2, 81'920},
      {Dtype::bfloat16, Sgd{}, {}, false, 0, 3 * 45'056 + 2 * piece * 6, 4, 2, 40'960},
      {Dtype::float32, AdamW{}, {}, false, 0, 3 * 86'016 + piece + 2 * piece * 8, 8, 4, 81'920},
      {Dtype::float64, RmsProp{}, {}, false, 0, 3 * 86'016 + piece + 2 * piece * 16, 16, 8, 81'920},
      // No state and no file.
      {Dtype::float32, Sgd{}, {}, false, 0, 2 * piece * 8, 8, 4, 0}};
  for (const Row& row : in_files() ? in_file : on_host) {
    const std::string where = fmt::format("{} of {}", name(row.rule), machine::name(row.dtype));
    StateOptions given = options(piece);
    given.cpu.delayed_update = row.delayed;
    const OffloadTraffic moved = {n * row.down, n * row.up, 10 * row.slot, 10 * row.slot};
    const StateCost cost = state_cost(row.rule, row.dtype, {elements}, given, {}, row.gradient);
    EXPECT_EQ(cost.pieces, 10) << where;
    EXPECT_EQ(cost.host_elements, elements) << where;
    EXPECT_EQ(cost.host_optimizer, row.optimizer) << where;
    EXPECT_EQ(cost.host_buffers, row.buffers) << where;
    EXPECT_EQ(cost.device_optimizer + cost.device_buffers, 0u) << where;
    EXPECT_EQ(cost.moved, moved) << where;

    const Tensor values = waves(row.dtype, elements, 1);
    const Tensor gradient = waves(row.gradient.value_or(wide(row.dtype)), elements, 2);
    for (machine::Device* each : {device.get(), host.get()}) each->ledger().reset_peaks();
    const std::size_t before = device->ledger().current();
    StreamedOptimizer optimizer(row.rule, values, mask(elements), *host, given, row.gradient);
    for (int step = 0; step < 2; ++step) optimizer.update(gradient, 1);
    optimizer.drain();
    EXPECT_EQ(host->ledger().peak(Category::optimizer), row.optimizer) << where;
    EXPECT_EQ(host->ledger().peak(Category::buffers), row.buffers) << where;
    EXPECT_EQ(host->ledger().peak(), row.optimizer + row.buffers) << where;
    EXPECT_EQ(device->ledger().peak(), before) << where;
    EXPECT_EQ(optimizer.moved(), moved + moved) << where;
    const IoCounts counts = optimizer.store().counts();
    EXPECT_EQ(counts.bytes_written, 3 * 10 * row.slot) << where;  // includes the first states
    EXPECT_EQ(counts.bytes_read, 2 * 10 * row.slot) << where;
    EXPECT_EQ(counts.reads, 2 * 10 * row.slot / 4096) << where;
  }
}

TEST_P(StreamedOptimizerOf, RejectsGradientsOfAnotherKind) {
  const Tensor values = waves(Dtype::bfloat16, 10, 1);
  StreamedOptimizer optimizer(AdamW{}, values, mask(10), *host, options(4));
  EXPECT_THROW(optimizer.update(waves(Dtype::bfloat16, 10, 1), 1), std::logic_error);
  EXPECT_THROW(optimizer.update(waves(Dtype::float32, 9, 1), 1), std::logic_error);
  optimizer.update(waves(Dtype::float32, 10, 1), 1);  // the rejected updates have not begun
  const auto make = [&](Dtype gradient) {
    StreamedOptimizer(AdamW{}, values, mask(10), *host, options(4), gradient);
  };
  make(Dtype::bfloat16);
  try {
    make(Dtype::float16);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "gradient_dtype half: gradients of bfloat16 values are float or bfloat16");
  }
}

}  // namespace
}  // namespace zero
