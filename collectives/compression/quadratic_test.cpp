#include "collectives/compression/quadratic.h"

#include <gtest/gtest.h>

#include <string>

namespace collectives {
namespace {

using machine::World;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
const int rank_counts[] = {1, 3};
#else
const int rank_counts[] = {1, 2, 3};
#endif

template <class Check>
void with_descent(int ranks, std::string_view name, bool feedback, const Check& check) {
  machine::run_ranks(ranks, [&](World& world) {
    Communicator group(world, world.group(), machine::Transport::shared_memory);
    const auto compressed = make_compression(name, world.host_device(), group, quadratic::size,
                                             quadratic::options(ranks, feedback));
    const Descent descent = descend(world.host_device(), group, *compressed);
    if (world.rank() != 0) return;
    SCOPED_TRACE(std::string(name) + " among " + std::to_string(ranks) + ", start " +
                 std::to_string(descent.start) + ", error " + std::to_string(descent.error) +
                 ", bound " + std::to_string(descent.bound));
    check(descent);
  });
}

TEST(Quadratic, FeedbackReachesTheUncompressedOptimum) {
  for (const int ranks : rank_counts)
    for (const Compression& compression : compressions())
      with_descent(ranks, compression.name, true, [](const Descent& descent) {
        EXPECT_LE(descent.error, descent.bound);
        EXPECT_LE(descent.bound, 0.05 * descent.start);
      });
}

// For every code, the losses of the steps add up.
TEST(Quadratic, WithoutFeedbackTheBoundDoesNotHold) {
  for (const int ranks : rank_counts)
    for (const Compression& compression : compressions())
      if (ranks > 1)
        with_descent(ranks, compression.name, false,
                     [](const Descent& descent) { EXPECT_GT(descent.error, descent.bound); });
}

// Every rank sends its disputed elements, which cancel. The other elements are never sent.
TEST(Quadratic, TopKWithoutFeedbackDoesNotMove) {
  for (const int ranks : rank_counts)
    if (ranks > 1)
      with_descent(ranks, "top_k", false, [](const Descent& descent) {
        EXPECT_GE(descent.error, descent.unmoved);
        EXPECT_GE(descent.unmoved, 0.9 * descent.start);
      });
}

}  // namespace
}  // namespace collectives
