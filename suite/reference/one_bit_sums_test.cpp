#include "suite/reference/one_bit_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "collectives/communicator/communicator.h"

namespace suite {
namespace {

using machine::Tensor;

constexpr std::int64_t size = 700;

// Takes three sums of three ranks, and returns whether the oracle passed on all. change: alters the
// momentum after the oracle has seen it, the sum before the oracle sees it, or forgets the errors.
enum class Changed : unsigned char { nothing, momentum, sum, errors };
bool passes(Changed changed) {
  bool passed = true;
  machine::run_ranks(3, [&](machine::World& world) {
    collectives::Communicator group(world, world.group(), machine::Transport::shared_memory);
    const auto sum = collectives::make_compression("one_bit", world.host_device(), group, size);
    harness::Judge judge(world.rank());
    OneBitSums sums(judge, world, world.group());
    const Tensor momenta(world.host_device(), machine::Dtype::float32, {size},
                         machine::Category::buffers);
    for (int step = 0; step < 3; ++step) {
      world.host_device().stream().kernels().fill_normal(
          momenta, static_cast<std::uint64_t>(10 * step + world.rank()), {0, 0, size}, 0, 1);
      sums.before(0, momenta);
      if (step == 2 && changed == Changed::momentum) momenta.as<float>()[600] += 1e-5f;
      if (step == 2 && changed == Changed::errors) sum->reset();
      sum->run(momenta, momenta);
      if (step == 2 && changed == Changed::sum) momenta.as<float>()[600] *= 1.000001f;
      sums.after(0, momenta, *sum);
    }
    const int right = std::ranges::all_of(
        judge.results(), [](const auto& result) { return result.ruling == harness::Ruling::pass; });
    for (const int theirs : world.all_gather(world.group(), right))
      if (world.rank() == 0) passed = passed && theirs == 1;
  });
  return passed;
}

TEST(OneBitSums, NoticesAChangedBit) {
  EXPECT_TRUE(passes(Changed::nothing));
  EXPECT_FALSE(passes(Changed::momentum));
  EXPECT_FALSE(passes(Changed::sum));
  EXPECT_FALSE(passes(Changed::errors));
}

}  // namespace
}  // namespace suite
