// Rows that move from place to place arrive like packed rows: the same bits, bytes and memory.

#include "layers/experts/dispatch/direct_rows.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "layers/testing/sharded_case.h"
#include "machine/link/link.h"

namespace layers::testing {
namespace {

using collectives::Communicator;
using machine::Transport;
using Values = std::vector<double>;

enum class Way : unsigned char { direct, packed, late, faulty };

struct Moved {
  std::uint64_t rows, y, d_out, d_x;  // hashes
  Values d_weights;
  std::map<machine::TrafficLabel, machine::Traffic> traffic;
  std::vector<std::size_t> peaks;  // of forward, then of backward
};

struct Sizes {
  Dtype dtype;
  std::int64_t hidden;
  ExpertParallel degrees;
  bool pads;
};

MoeConfig config_of(const Sizes& sizes) {
  MoeConfig config;
  config.num_experts = 6;
  config.topk = 2;
  config.hidden = sizes.hidden;
  config.expert_capacity_factor = sizes.pads ? 0.7 : 0;
  config.pad_expert_input_to_capacity = sizes.pads;
  return config;
}

// Runs both directions on this rank, with experts that are the identity.
Moved move(machine::World& world, const Sizes& sizes, Way way) {
  constexpr std::int64_t tokens = 24;
  if (way == Way::faulty) world.faults().slow_links.push_back({0, 1, 1e12});
  const MoeConfig config = config_of(sizes);
  const machine::Group group = machine::first_ranks("ep", sizes.degrees.ranks(), world.rank());
  Communicator ranks(world, group, Transport::shared_memory),
      alone(world, {"alone", {world.rank()}, 0}, Transport::shared_memory);
  const Context context{world.device(), alone, sizes.dtype};
  if (way == Way::packed) {
    collectives::GroupAlgorithms algorithms;
    algorithms.set(machine::Operation::all_to_all_v, "pairwise");
    ranks.set_algorithms(algorithms);
  }
  EXPECT_EQ(DirectRows(context, ranks, config, sizes.degrees).available(),
            way == Way::direct || way == Way::late);
  const auto dispatcher = make_token_dispatcher(context, ranks, config, sizes.degrees);
  const auto seed = static_cast<unsigned>(world.rank());
  const auto drawn = [&](unsigned which) {
    const Tensor tensor = context.tensor({tokens, sizes.hidden}, Category::buffers);
    from_doubles(tensor, random_values(tensor.size(), 10 * which + seed, sizes.dtype));
    return tensor;
  };
  const auto wait = [&] {
    if (way == Way::late && world.rank() == 1)
      std::this_thread::sleep_for(std::chrono::milliseconds(4));
  };
  Values logits = random_values(tokens * config.num_experts, 30 + seed, Dtype::float64);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] -= 0.4 * static_cast<double>(i % 6);
  const Routing routing = route(config, logits);
  const Tensor x = drawn(1), d_y = drawn(2), y = drawn(3), d_x = drawn(4);
  TokenDispatcher::Saved saved;
  Moved moved;
  const auto note_peaks = [&] {
    machine::Ledger& ledger = world.device().ledger();
    for (const Category category : machine::all_categories)
      if (category != Category::links) moved.peaks.push_back(ledger.peak(category));
    ledger.reset_peaks();
  };
  ranks.link().reset_traffic();
  world.device().ledger().reset_peaks();
  {
    const Tensor rows = dispatcher->dispatch(routing, x, saved, Category::activations);
    moved.rows = hash(rows);
    wait();
    dispatcher->combine(rows, y, saved, Category::activations);
    note_peaks();
    wait();
    const Tensor d_out =
        dispatcher->combine_backward(d_y, moved.d_weights, saved, Category::gradients);
    moved.d_out = hash(d_out);
    wait();
    dispatcher->dispatch_backward(d_out, d_x, saved);
  }
  moved.y = hash(y);
  moved.d_x = hash(d_x);
  moved.traffic = ranks.link().traffic();
  note_peaks();
  ranks.barrier();
  return moved;
}

TEST(DirectRows, ArriveLikePackedRows) {
  // Short messages, lines that do not fill the loops, and messages that peers read in place.
  for (const Sizes& sizes : {Sizes{Dtype::float32, 3, {2, 1}, false},
                             {Dtype::bfloat16, 80, {2, 1}, true},
                             {Dtype::float32, 1100, {2, 2}, true},
                             {Dtype::bfloat16, 1100, {3, 1}, false},
                             {Dtype::float64, 70, {6, 1}, false},
                             {Dtype::float32, 9, {1, 1}, false}}) {
    SCOPED_TRACE(fmt::format("{} hidden {} ep {} etp {} pads {}", machine::name(sizes.dtype),
                             sizes.hidden, sizes.degrees.ep, sizes.degrees.etp, sizes.pads));
    machine::run_ranks(sizes.degrees.ranks(), [&](machine::World& world) {
      world.device().set_threads(1);
      const bool alone = sizes.degrees.ranks() == 1;
      const Moved want = alone ? move(world, sizes, Way::direct) : move(world, sizes, Way::packed);
      for (const Way way : {Way::direct, Way::late, Way::faulty}) {
        if (alone && way == Way::faulty) continue;
        SCOPED_TRACE(static_cast<int>(way));
        const Moved got = move(world, sizes, way);
        EXPECT_EQ(got.rows, want.rows);
        EXPECT_EQ(got.y, want.y);
        EXPECT_EQ(got.d_out, want.d_out);
        EXPECT_EQ(got.d_x, want.d_x);
        EXPECT_EQ(got.traffic, want.traffic);
        EXPECT_EQ(got.peaks, want.peaks);
        ASSERT_EQ(got.d_weights.size(), want.d_weights.size());
        for (std::size_t i = 0; i < want.d_weights.size(); ++i)  // products may be fused
          EXPECT_NEAR(got.d_weights[i], want.d_weights[i], 1e-3) << i;
      }
    });
  }
}

}  // namespace
}  // namespace layers::testing
