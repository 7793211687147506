#include "machine/world/worker.h"

#include <gtest/gtest.h>

#include <vector>

#include "machine/base/error.h"

namespace machine {
namespace {

TEST(WorkerThread, RunsInOrderAndRethrowsErrors) {
  for (const bool own_thread : {false, true}) {
    Worker progress(own_thread);
    std::vector<int> order;
    for (int i = 0; i < 100; ++i) progress.submit([&order, i] { order.push_back(i); });
    progress.wait_all();
    for (int i = 0; i < 100; ++i) ASSERT_EQ(order[static_cast<std::size_t>(i)], i);
    const auto fails = [&] {
      progress.submit([] { throw Timeout("rank 3"); });
      progress.wait_all();
    };
    EXPECT_THROW(fails(), Timeout);
    if (!own_thread) continue;
    EXPECT_THROW(progress.wait_all(), Timeout);
    EXPECT_THROW(progress.submit([&order] { order.clear(); }), Timeout);
    EXPECT_EQ(order.size(), 100u);
  }
}

}  // namespace
}  // namespace machine
