#include <gtest/gtest.h>
#include <hwloc.h>

#include "machine/device/tensor.h"
#include "machine/testing/pageable_copies.h"
#include "machine/world/binding.h"

namespace machine {
namespace {

// The kernel's policy for the pages.
TEST(NumaMemory, PagesAreOfTheNode) {
  if (const std::string why = why_not_numa_node(0); !why.empty()) GTEST_SKIP() << why;
  constexpr std::size_t bytes = 100'000;
  NumaMemory memory(0);
  void* const data = memory.allocate(bytes);
  ASSERT_TRUE(data);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 4096, 0u);

  hwloc_topology_t topology = nullptr;
  ASSERT_EQ(hwloc_topology_init(&topology), 0);
  ASSERT_EQ(hwloc_topology_load(topology), 0);
  hwloc_bitmap_t nodes = hwloc_bitmap_alloc();
  hwloc_membind_policy_t policy{};
  EXPECT_EQ(hwloc_get_area_membind(topology, data, bytes, nodes, &policy,
                                   HWLOC_MEMBIND_BYNODESET | HWLOC_MEMBIND_STRICT),
            0);
  EXPECT_EQ(policy, HWLOC_MEMBIND_BIND);
  EXPECT_TRUE(
      hwloc_bitmap_isequal(nodes, hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, 0)->nodeset));
  hwloc_bitmap_free(nodes);
  hwloc_topology_destroy(topology);
  memory.free(data, bytes);
}

TEST(NumaMemory, CanBePinned) {
  if (const std::string why = why_not_numa_node(0); !why.empty()) GTEST_SKIP() << why;
  if (!pageable_copies()) GTEST_SKIP() << "only the virtual GPU counts copies of pageable memory";
  const auto device = cuda::make_device(0);
  const Tensor there(*device, Dtype::float32, {10'000}, Category::buffers);
  const auto copies_of = [&](NumaMemory& memory) {
    const auto host = make_host_device(memory);
    const Tensor here(*host, Dtype::float32, {10'000}, Category::buffers);
    const std::uint64_t before = *pageable_copies();
    device->stream().copy(there.data(), here.data(), here.bytes());
    device->stream().synchronize();
    return *pageable_copies() - before;
  };
  NumaMemory pinned(0, device.get()), pageable(0);
  EXPECT_EQ(copies_of(pinned), 0u);
  EXPECT_EQ(copies_of(pageable), 1u);
  EXPECT_EQ(copies_of(pinned), 0u);
}

TEST(NumaMemory, NodesThatDoNotExistAreRejected) {
  EXPECT_NE(why_not_numa_node(1000).find("NUMA node 1000 of a host with "), std::string::npos);
  EXPECT_NE(why_not_numa_node(-1), "");
}

}  // namespace
}  // namespace machine
