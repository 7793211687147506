#include "harness/fingerprint/adapters.h"

#include <gtest/gtest.h>

#include "harness/testing/test_folder.h"

namespace harness {
namespace {

class Adapters : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    folder_.put(path, text + "\n");
  }
  const TestFolder folder_;
  const std::filesystem::path sys_ = folder_.path();
};

TEST_F(Adapters, ListsDevicesOfHardware) {
  write("class/infiniband/mlx5_0/fw_ver", "28.39.1002");
  write("class/infiniband/mlx5_0/device/numa_node", "1");
  write("class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)");
  write("class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand");
  write("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  write("class/infiniband/mlx5_1/ports/1/state", "1: DOWN");
  write("class/infiniband/mlx5_1/ports/2/state", "4: ACTIVE");
  write("class/net/eth0/speed", "25000");
  write("class/net/eth0/operstate", "up");
  write("class/net/eth0/mtu", "9000");
  write("class/net/eth0/device/numa_node", "-1");
  std::filesystem::create_symlink("../../../bus/pci/drivers/ena",
                                  sys_ / "class/net/eth0/device/driver");
  write("class/net/lo/operstate", "unknown");  // no hardware
  write("class/net/ib0/device/infiniband/mlx5_0/fw_ver", "28.39.1002");
  EXPECT_EQ(
      network_adapters(sys_),
      (std::map<std::string, std::string>{
          {"mlx5_0", "400 Gb/sec (4X NDR), InfiniBand, ACTIVE, firmware 28.39.1002, NUMA node 1"},
          {"mlx5_1 port 1", "DOWN"},
          {"mlx5_1 port 2", "ACTIVE"},
          {"eth0", "25000 Mb/s, up, MTU 9000, ena"}}));
}

TEST_F(Adapters, EmptyWithoutTheFileSystem) {
  EXPECT_TRUE(network_adapters(sys_).empty());
  EXPECT_EQ(gpus_of_driver(sys_), 0);
}

TEST_F(Adapters, CountsGpusOfTheDriver) {
  write("driver/nvidia/gpus/0000:17:00.0/information", "Model: NVIDIA H100 80GB HBM3");
  write("driver/nvidia/gpus/0000:3d:00.0/information", "Model: NVIDIA H100 80GB HBM3");
  EXPECT_EQ(gpus_of_driver(sys_), 2);
}

}  // namespace
}  // namespace harness
