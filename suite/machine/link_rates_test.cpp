#include <gtest/gtest.h>

#include "harness/measure/rates.h"
#include "machine/device/device.h"
#include "machine/link/connect.h"
#include "machine/world/world.h"

namespace suite {
namespace {

using machine::Transport;

// Messages between GPUs start and end in their memory.
TEST(LinkRates, AreMeasuredBetweenDevices) {
  if (machine::cuda::count() < 2) GTEST_SKIP() << "needs 2 CUDA devices";
  machine::run_ranks(2, [](machine::World& world) {
    world.use_device(machine::cuda::make_device(world.rank()));
    harness::Rates rates;
    for (const Transport transport : {Transport::cuda_ipc, Transport::nccl}) {
      if (!machine::why_not(world, world.group(), transport).empty()) continue;
      rates.measure_link(world, 2, transport);
      EXPECT_GT(rates.link_bytes_per_second(1 << 20, {2, transport, false}), 0)
          << machine::name(transport);
    }
    EXPECT_GT(rates.link_bytes_per_second(1 << 20, {2, Transport::cuda_ipc, false}), 0);
  });
}

}  // namespace
}  // namespace suite
