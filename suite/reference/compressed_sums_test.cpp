#include "suite/reference/compressed_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "collectives/communicator/communicator.h"

namespace suite {
namespace {

using machine::Tensor;

constexpr std::int64_t size = 700;

// Takes three steps of two ranks, and returns whether numerics passed on both. change: alters the
// gradient after the oracle has seen it (before the sum), or the sum before the oracle sees it.
enum class Changed : unsigned char { nothing, gradient, sum };
bool passes(const std::string& algorithm, Changed changed) {
  bool passed = true;
  machine::run_ranks(2, [&](machine::World& world) {
    collectives::Communicator group(world, world.group(), machine::Transport::shared_memory);
    const zero::GradientCompression compression{algorithm, 0.02, 1.5};
    const auto call = zero::compressed_call(compression, 2, size, 0);
    const auto sum =
        collectives::make_compression(algorithm, world.host_device(), group, size,
                                      {.k = call.k, .deviations = compression.deviations});
    harness::Judge judge(world.rank());
    CompressedSums sums(judge, world, world.group(), compression);
    const Tensor gradient(world.host_device(), machine::Dtype::float32, {size},
                          machine::Category::buffers);
    for (int step = 0; step < 3; ++step) {
      world.host_device().stream().kernels().fill_normal(
          gradient, static_cast<std::uint64_t>(10 * step + world.rank()), {0, 0, size}, 0, 1);
      sums.before(0, gradient);
      if (step == 2 && changed == Changed::gradient) gradient.as<float>()[600] += 0.01f;
      sum->run(gradient, gradient);
      if (step == 2 && changed == Changed::sum) gradient.as<float>()[600] += 0.01f;
      sums.after(0, gradient, *sum);
    }
    const int right = std::ranges::all_of(
        judge.results(), [](const auto& result) { return result.ruling == harness::Ruling::pass; });
    for (const int theirs : world.all_gather(world.group(), right))
      if (world.rank() == 0) passed = passed && theirs == 1;
  });
  return passed;
}

TEST(CompressedSums, NoticesAChangedElement) {
  for (const std::string& algorithm : zero::gradient_compressions()) {
    EXPECT_TRUE(passes(algorithm, Changed::nothing)) << algorithm;
    EXPECT_FALSE(passes(algorithm, Changed::gradient)) << algorithm;
    EXPECT_FALSE(passes(algorithm, Changed::sum)) << algorithm;
  }
}

}  // namespace
}  // namespace suite
