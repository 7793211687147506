#include "machine/world/places.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "machine/base/bytes.h"
#include "machine/testing/host_xml.h"
#include "machine/world/binding.h"

namespace machine {
namespace {

std::vector<int> range(int from, int to) {
  std::vector<int> numbers(static_cast<std::size_t>(to - from));
  std::iota(numbers.begin(), numbers.end(), from);
  return numbers;
}

std::string bus(int device) { return fmt::format("0000:{:02x}:00.0", 16 + device); }

std::vector<cuda::Gpu> gpus_with(const std::vector<int>& numbers) {
  std::vector<cuda::Gpu> gpus;
  for (const int number : numbers)
    gpus.push_back({static_cast<std::uint64_t>(100 + number), bus(number)});
  return gpus;
}

// As a DGX A100: 2 packages, 8 NUMA nodes, 8 GPUs and 8 adapters. Each pair of GPUs shares a switch
// with two adapters. CUDA's order does not follow the nodes, and four nodes have no GPU.
constexpr int node_of_gpu[] = {3, 3, 1, 1, 7, 7, 5, 5};
HostXml dgx(int cores_of_node = 4) {
  HostXml host(2, 4, cores_of_node);
  for (int i = 0; i < 8; ++i)
    host.add(node_of_gpu[i], i / 2, gpu(bus(i)))
        .add(node_of_gpu[i], i / 2, adapter(bus(64 + i), fmt::format("mlx5_{}", i)));
  return host;
}

std::vector<RankOfHost> alike(int ranks, int gpus, const std::vector<int>& cores) {
  return {static_cast<std::size_t>(ranks), RankOfHost{cores, gpus_with(range(0, gpus))}};
}

TEST(HostTopology, DevicesHaveTheNodeOfTheirBridge) {
  const HostTopology host = dgx().read();
  ASSERT_EQ(host.cores.size(), 32u);
  EXPECT_EQ(host.cores[15].package, 0);
  EXPECT_EQ(host.cores[16].package, 1);
  EXPECT_EQ(host.adapters.size(), 8u);
  for (int i = 0; i < 8; ++i) {
    const HostTopology::Device* const device = host.find(bus(i));
    ASSERT_TRUE(device) << bus(i);
    EXPECT_EQ(device->numa_node, node_of_gpu[i]);
    EXPECT_EQ(device->cores, range(4 * node_of_gpu[i], 4 * node_of_gpu[i] + 4));
  }
  EXPECT_FALSE(host.find("0000:99:00.0"));
}

TEST(Places, CoresAreBesideTheGpu) {
  const std::vector<Place> all = places(dgx().read(), alike(8, 8, range(0, 32)));
  ASSERT_EQ(all.size(), 8u);
  for (int rank = 0; rank < 8; ++rank) {
    const Place& place = all[static_cast<std::size_t>(rank)];
    EXPECT_EQ(place.gpu, rank);
    EXPECT_EQ(place.bus_id, bus(rank));
    EXPECT_EQ(place.numa_node, node_of_gpu[rank]);
    const int first = 4 * node_of_gpu[rank] + 2 * (rank % 2);
    EXPECT_EQ(place.cores, range(first, first + 2)) << rank;
  }
}

// Each rank has the adapter of its own switch, and two GPUs of a switch have different ones.
TEST(Places, AdaptersAreNearestAndTakenInTurn) {
  const std::vector<Place> all = places(dgx().read(), alike(8, 8, range(0, 32)));
  for (int rank = 0; rank < 8; ++rank)
    EXPECT_EQ(all[static_cast<std::size_t>(rank)].adapter, fmt::format("mlx5_{}", rank));
  const std::vector<Place> shared = places(dgx().read(), alike(16, 8, range(0, 32)));
  EXPECT_EQ(shared[9].bus_id, bus(1));
  EXPECT_EQ(shared[9].adapter, "mlx5_1") << "ranks of one GPU have one adapter";
}

// Blocks of cores would bind rank 1 to the other package.
TEST(Places, FewRanksOfManyGpusFollowTheirGpus) {
  const HostTopology host = dgx().read();
  const std::vector<Place> two = places(host, alike(2, 8, range(0, 32)));
  EXPECT_EQ(two[0].cores, (std::vector{12, 13}));
  EXPECT_EQ(two[1].cores, (std::vector{14, 15}));
  EXPECT_EQ(two[1].gpu, 1);
  EXPECT_EQ(places(host, alike(1, 8, range(0, 32)))[0].cores, range(12, 16));
}

TEST(Places, SeveralRanksShareAGpuAndItsCores) {
  const HostTopology host = dgx().read();
  const std::vector<Place> twice = places(host, alike(16, 8, range(0, 32)));
  for (int rank = 0; rank < 16; ++rank)
    EXPECT_EQ(twice[static_cast<std::size_t>(rank)].gpu, rank % 8);
  EXPECT_EQ(twice[0].cores, std::vector{12});
  EXPECT_EQ(twice[1].cores, std::vector{13});
  EXPECT_EQ(twice[8].cores, std::vector{14});
  EXPECT_EQ(twice[9].cores, std::vector{15});
  // With more ranks than cores next to the GPUs, no core of the host is left out.
  std::map<int, int> ranks_of_core;
  for (const Place& place : places(host, alike(64, 8, range(0, 32)))) {
    ASSERT_EQ(place.cores.size(), 1u);
    ++ranks_of_core[place.cores.front()];
  }
  EXPECT_EQ(ranks_of_core.size(), 32u);
  for (const auto& [core, ranks] : ranks_of_core) EXPECT_EQ(ranks, 2) << core;
}

// As with srun --gpus-per-task=1. The launcher's order of GPUs is not that of the ranks.
TEST(Places, OneVisibleGpuARankIsTaken) {
  std::vector<RankOfHost> ranks;
  for (int rank = 0; rank < 8; ++rank) ranks.push_back({range(0, 32), gpus_with({7 - rank})});
  const std::vector<Place> all = places(dgx().read(), ranks);
  for (int rank = 0; rank < 8; ++rank) {
    const Place& place = all[static_cast<std::size_t>(rank)];
    EXPECT_EQ(place.gpu, 0);
    EXPECT_EQ(place.bus_id, bus(7 - rank));
    EXPECT_EQ(place.cores.front() / 4, node_of_gpu[7 - rank]);
  }
}

TEST(Places, ARankThatSeesOneGpuLeavesNoOtherRankWithoutOne) {
  const std::vector<Place> all =
      places(dgx().read(), {{range(0, 32), gpus_with({0, 1})}, {range(0, 32), gpus_with({0})}});
  EXPECT_EQ(all[0].bus_id, bus(1));
  EXPECT_EQ(all[1].bus_id, bus(0));
}

// CUDA shows one instance of a partitioned GPU to a process. Instances have one bus id.
TEST(Places, InstancesOfOneGpuAreDifferentDevices) {
  const std::vector<Place> all = places(dgx().read(), {{range(0, 32), {{1, bus(4)}, {2, bus(4)}}},
                                                       {range(0, 32), {{1, bus(4)}, {2, bus(4)}}}});
  EXPECT_EQ(all[0].gpu, 0);
  EXPECT_EQ(all[1].gpu, 1);
  EXPECT_EQ(all[0].cores, (std::vector{28, 29}));
  EXPECT_EQ(all[1].cores, (std::vector{30, 31}));
}

TEST(Places, RanksThatTheLauncherBoundTakeTheNearestGpu) {
  const std::vector<Place> all = places(dgx().read(), {{range(28, 32), gpus_with(range(0, 8))},
                                                       {range(12, 16), gpus_with(range(0, 8))},
                                                       {range(24, 28), gpus_with(range(0, 8))}});
  EXPECT_EQ(all[0].gpu, 4);
  EXPECT_EQ(all[0].cores, range(28, 32)) << "the launcher's";
  EXPECT_EQ(all[1].gpu, 0);
  EXPECT_EQ(all[2].gpu, 5) << "no GPU is next to node 6, and GPU 4 has a rank";
}

TEST(Places, WithoutCoresBesideTheGpuThePackageIsNext) {
  const HostTopology host = dgx().read();
  std::vector<int> some = range(0, 4);  // node 0 has no GPU
  const std::vector<Place> near = places(host, alike(2, 8, some));
  EXPECT_EQ(near[0].cores, (std::vector{0, 1}));
  EXPECT_EQ(near[1].cores, (std::vector{2, 3}));
  some.push_back(16);  // of package 1, on a node without GPU
  const std::vector<Place> five = places(host, alike(5, 8, some));
  EXPECT_EQ(five[3].cores, std::vector{3});
  EXPECT_EQ(five[4].cores, std::vector{16});
}

TEST(Places, CoresOfOneNodeSelectItsGpus) {
  const std::vector<Place> all = places(dgx().read(), alike(2, 8, range(20, 24)));
  EXPECT_EQ(all[0].gpu, 6);
  EXPECT_EQ(all[1].gpu, 7);
}

TEST(Places, NestedPartsAreSharedFairly) {
  HostXml host(1, 2, 4);
  host.add(0, 0, gpu(bus(0))).add(-1, 0, gpu(bus(1))).add(-1, 0, gpu(bus(2)));
  const std::vector<Place> all = places(host.read(), alike(3, 3, range(0, 8)));
  EXPECT_EQ(all[0].cores, (std::vector{0, 1}));
  EXPECT_EQ(all[1].cores, (std::vector{2, 3, 4}));
  EXPECT_EQ(all[2].cores, (std::vector{5, 6, 7}));
  EXPECT_EQ(all[1].numa_node, -1) << "a package with two nodes";
}

// As a node of four GH200: the GPUs' memory is a NUMA node of the same cores.
TEST(Places, AGpuWithItsOwnNumaNodeIsOfThatOfTheCores) {
  HostXml host(4, 1, 8);
  host.with_gpu_memory();
  for (int i = 0; i < 4; ++i)
    host.add(i, 0, gpu(bus(i))).add(i, 1, adapter(bus(64 + i), fmt::format("mlx5_{}", i)));
  const HostTopology topology = host.read();
  const std::vector<Place> all = places(topology, alike(4, 4, range(0, 32)));
  for (int rank = 0; rank < 4; ++rank) {
    const Place& place = all[static_cast<std::size_t>(rank)];
    EXPECT_EQ(place.cores, range(8 * rank, 8 * rank + 8));
    EXPECT_EQ(place.adapter, fmt::format("mlx5_{}", rank));
    EXPECT_GE(place.numa_node, 0);
  }
}

TEST(Places, OnOnePackageRanksHaveBlocks) {
  HostXml host(1, 1, 7);
  host.add(0, 0, gpu(bus(0))).add(0, 1, gpu(bus(1))).add(0, 1, adapter(bus(64), "mlx5_0"));
  const std::vector<Place> all = places(host.read(), alike(2, 2, range(0, 7)));
  EXPECT_EQ(all[0].cores, cores_of(0, 2, range(0, 7)));
  EXPECT_EQ(all[1].cores, cores_of(1, 2, range(0, 7)));
  EXPECT_EQ(all[0].adapter, "mlx5_0");
  EXPECT_EQ(all[1].adapter, "mlx5_0");
  EXPECT_EQ(all[0].numa_node, 0);
}

// In some containers, the host does not list its PCI devices.
TEST(Places, UnknownGpusLeaveRanksInBlocks) {
  const std::vector<Place> all = places(HostXml(2, 1, 4).read(), alike(2, 2, range(0, 8)));
  EXPECT_EQ(all[0].cores, range(0, 4));
  EXPECT_EQ(all[1].cores, range(4, 8));
  EXPECT_EQ(all[1].gpu, 1);
  EXPECT_EQ(all[1].bus_id, bus(1));
  EXPECT_EQ(all[1].numa_node, -1);
  EXPECT_EQ(all[1].adapter, "");
}

TEST(Places, ARankWithoutGpusHasNoGpu) {
  EXPECT_EQ(places(dgx().read(), alike(1, 0, range(0, 32)))[0].gpu, -1);
}

TEST(Places, AHostMayHaveHundredsOfCores) {
  const std::vector<Place> all = places(dgx(32).read(), alike(8, 8, range(0, 256)));
  EXPECT_EQ(all[4].cores, range(7 * 32, 7 * 32 + 16));
  EXPECT_NE(core_set(range(0, 200)), core_set(range(0, 201)));
  EXPECT_EQ(core_set(range(0, 256)).count(), 256u);
}

TEST(Places, RanksExchangeWhatTheySee) {
  const RankOfHost sent{range(0, 3), gpus_with({2, 5})};
  const auto got = decode<RankOfHost>(encode(sent));
  EXPECT_EQ(got.cores, sent.cores);
  ASSERT_EQ(got.visible.size(), 2u);
  EXPECT_EQ(got.visible[1].identity, 105u);
  EXPECT_EQ(got.visible[1].bus_id, bus(5));
}

}  // namespace
}  // namespace machine
