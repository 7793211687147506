// Outputs in device memory are checked where they are.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "harness/measure/rates.h"
#include "suite/collectives/collective_unit.h"

namespace suite {
namespace {

// While it exists, the process can get only that much more private memory. Memory of the virtual
// GPUs is a shared file, which does not count.
class LittleMemory {
 public:
  explicit LittleMemory(std::size_t more) {
    ::getrlimit(RLIMIT_DATA, &before_);
    rlimit now = before_;
    now.rlim_cur = used() + more;
    ::setrlimit(RLIMIT_DATA, &now);
  }
  ~LittleMemory() { ::setrlimit(RLIMIT_DATA, &before_); }
  LittleMemory(const LittleMemory&) = delete;
  LittleMemory& operator=(const LittleMemory&) = delete;

 private:
  static std::size_t used() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("VmData:")) return std::stoul(line.substr(7)) << 10;
    ADD_FAILURE() << "/proc/self/status lacks VmData";
    return 0;
  }
  rlimit before_{};
};

// Calls body with an all-reduce of that many bytes on one CUDA device.
template <class Body>
void on_device(std::int64_t bytes, const Body& body) {
  machine::run_ranks(1, [&](machine::World& world) {
    world.use_device(machine::cuda::make_device(0));
    {
      const harness::Rates rates;
      harness::Context context{world, world.group(), world.device(), rates, 0, {}, {}, {}};
      const CollectiveCase the_case{.ranks = 1,
                                    .transport = machine::Transport::cuda_ipc,
                                    .algorithm = "direct",
                                    .dtype = machine::Dtype::float32,
                                    .bytes = {bytes}};
      CollectiveUnit unit(machine::Operation::all_reduce, the_case, context);
      body(unit, world.device());
    }
    world.barrier(world.group());
  });
}

TEST(DeviceCheck, FindsAWrongElementAndItsIndex) {
  if (machine::cuda::count() == 0) GTEST_SKIP() << "no CUDA device";
  on_device(40'000, [](CollectiveUnit& unit, machine::Device& device) {
    unit.rehearse(harness::Runner::unit);
    EXPECT_TRUE(unit.check(harness::Runner::unit));  // rehearse leaves a wrong output
    for (const std::int64_t index : {0, 5000, 9999}) {
      unit.run();
      EXPECT_FALSE(unit.check(harness::Runner::unit));
      const float wrong = 77;
      device.stream().copy(unit.buffers().out.slice(index, {1}).data(), &wrong, sizeof wrong);
      const auto failure = unit.check(harness::Runner::unit);
      ASSERT_TRUE(failure) << index;
      const std::string where = fmt::format(
          "1 of 10000 elements wrong, from {0} to {0}; the first is 0x429a0000 (77), not", index);
      EXPECT_EQ(failure->text.rfind(where, 0), 0u) << failure->text;
    }
  });
}

// The message has 128 MiB, and the host may use less memory than that for making and checking it.
TEST(DeviceCheck, CopiesNoBufferToTheHost) {
  if (machine::cuda::count() == 0) GTEST_SKIP() << "no CUDA device";
  on_device(4096, [](CollectiveUnit&, machine::Device&) {});  // makes stacks and caches
  const LittleMemory limit(std::size_t{112} << 20);
  on_device(128 << 20, [](CollectiveUnit& unit, machine::Device&) {
    unit.run();
    EXPECT_FALSE(unit.check(harness::Runner::unit));
  });
}

}  // namespace
}  // namespace suite
