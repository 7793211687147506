#include "harness/fingerprint/nccl_log.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace harness {
namespace {

NcclChoice choice_of(const std::string& text) {
  std::istringstream log(text);
  return read_nccl_log(log);
}

using Paths = std::set<std::string>;

TEST(NcclLog, InfiniBandWithNvls) {
  const NcclChoice choice = choice_of(R"(
node1:4211:4211 [0] NCCL INFO cudaDriverVersion 12040
node1:4211:4211 [0] NCCL INFO Bootstrap: Using eth0:10.1.2.3<0>
node1:4211:4299 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.
node1:4211:4299 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/RoCE [RO]; OOB eth0:10.1.2.3<0>
node1:4211:4299 [0] NCCL INFO Using network IB
node1:4211:4299 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)
node1:4211:4299 [0] NCCL INFO Channel 00/02 :    0   1   2   3   4   5   6   7
node1:4211:4310 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
node1:4211:4310 [0] NCCL INFO Channel 03/0 : 0[0] -> 8[0] [send] via NET/IB/3/GDRDMA
node1:4211:4310 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
node1:4211:4299 [0] NCCL INFO Connected NVLS tree
)");
  EXPECT_EQ(choice.network, "IB");
  EXPECT_EQ(choice.adapters, "mlx5_0:1/IB mlx5_3:1/RoCE");
  EXPECT_EQ(choice.paths, (Paths{"NET/IB/GDRDMA", "NVLS", "P2P/CUMEM/read"}));
}

// A library of the network does not fit, so NCCL takes sockets without an error.
TEST(NcclLog, FallbackToSockets) {
  const NcclChoice choice = choice_of(R"(
h2:77:90 [3] NCCL INFO NET/IB : No device found.
h2:77:90 [3] NCCL INFO NET/Socket : Using [0]eth0:10.1.2.4<0> [1]ib0:fe80::1%ib0<0>
h2:77:90 [3] NCCL INFO Using network Socket
h2:77:91 [3] NCCL INFO Channel 00 : 3[3] -> 4[0] [send] via NET/Socket/1
h2:77:91 [3] NCCL INFO Channel 00 : 3[3b000] -> 2[2a000] via SHM/direct/direct
)");
  EXPECT_EQ(choice.network, "Socket");
  EXPECT_EQ(choice.adapters, "eth0 ib0");
  EXPECT_EQ(choice.paths, (Paths{"NET/Socket", "SHM/direct/direct"}));
}

TEST(NcclLog, APluginIsTheNetwork) {
  const NcclChoice choice = choice_of(R"(
ip-10:5:9 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 32 nics)
ip-10:5:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.0.0.9<0>
ip-10:5:9 [0] NCCL INFO Using network AWS Libfabric
ip-10:5:9 [0] NCCL INFO Channel 02/0 : 8[0] -> 0[0] [receive] via NET/AWS Libfabric/2/GDRDMA
)");
  EXPECT_EQ(choice.network, "AWS Libfabric");
  EXPECT_EQ(choice.adapters, "") << "of a network that is not used";
  EXPECT_EQ(choice.paths, Paths{"NET/AWS Libfabric/GDRDMA"});
}

TEST(NcclLog, NothingReported) {
  EXPECT_TRUE(choice_of("").empty());
  EXPECT_TRUE(choice_of("NCCL version 2.28.9+cuda13.0\nNVLS multicast support is not available\n"
                        "h:1:1 [0] NCCL INFO NVLS multicast support is not available on dev 0\n")
                  .empty());
}

TEST(NcclLog, IsAFileOfTheProcessUntilItEnds) {
  ::unsetenv("NCCL_DEBUG");
  ::unsetenv("NCCL_DEBUG_FILE");
  std::string file;
  {
    NcclLog log(testing::TempDir());
    ASSERT_STREQ(std::getenv("NCCL_DEBUG"), "INFO");
    file = std::getenv("NCCL_DEBUG_FILE");
    std::ofstream(file) << "h:1:1 [0] NCCL INFO Using network IB\n";
    EXPECT_EQ(log.end().network, "IB");
    EXPECT_EQ(std::getenv("NCCL_DEBUG"), nullptr);
    EXPECT_EQ(std::getenv("NCCL_DEBUG_FILE"), nullptr);
  }
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(NcclLog, LeavesTheUsersVariables) {
  ::setenv("NCCL_DEBUG", "WARN", 1);
  {
    NcclLog log(testing::TempDir());
    EXPECT_STREQ(std::getenv("NCCL_DEBUG"), "WARN");
    EXPECT_EQ(std::getenv("NCCL_DEBUG_FILE"), nullptr);
    EXPECT_TRUE(log.end().empty());
  }
  EXPECT_STREQ(std::getenv("NCCL_DEBUG"), "WARN");
  ::unsetenv("NCCL_DEBUG");
}

}  // namespace
}  // namespace harness
