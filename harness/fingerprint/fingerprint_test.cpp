#include "harness/fingerprint/fingerprint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "harness/fingerprint/build_info.h"
#include "harness/json/json.h"

namespace harness {
namespace {
TEST(Redaction, KeepsOnlyVariablesThatConfigureTheSoftware) {
  const char* const environment[] = {"NCCL_ALGO=Ring",
                                     "HOME=/home/me",
                                     "LD_PRELOAD=libx.so",
                                     "SLURM_JOB_ID=77",
                                     "AWS_SECRET_ACCESS_KEY=k",
                                     "OMP_NUM_THREADS=4",
                                     "MY_NCCL_ALGO=Tree",
                                     "LD_PRELOAD_TOO=1",
                                     "no equals sign",
                                     "SHARDMARK_FIGURES=f",
                                     "UCX_TLS=",
                                     "OMPI_MCA_btl=self,vader",
                                     "OMPI_MCA_orte_precondition_transports=1-2",
                                     "OMPI_COMM_WORLD_RANK=0",
                                     nullptr};
  const std::map<std::string, std::string> expected{
      {"NCCL_ALGO", "Ring"},         {"LD_PRELOAD", "libx.so"},  {"SLURM_JOB_ID", "77"},
      {"OMP_NUM_THREADS", "4"},      {"SHARDMARK_FIGURES", "f"}, {"UCX_TLS", ""},
      {"OMPI_MCA_btl", "self,vader"}};
  EXPECT_EQ(kept_environment(environment), expected);
  EXPECT_TRUE(kept_environment(nullptr).empty());
}

TEST(Redaction, HidesVariablesWithSecretNames) {
  for (const char* name : {"SLURM_JWT", "NCCL_AUTH_FILE", "OMPI_MCA_token", "UCX_secret", "FI_KEY",
                           "SLURM_Password", "CUDA_CREDENTIALS", "SHARDMARK_COOKIE"})
    EXPECT_EQ(redacted(name, "hunter2"), "[redacted]") << name;
  EXPECT_EQ(redacted("NCCL_ALGO", "Ring"), "Ring");
}

TEST(Redaction, HidesPasswordsInsideValues) {
  EXPECT_EQ(redacted("SHARDMARK_PROXY", "http://me:hunter2@proxy:80/x"),
            "http://[redacted]@proxy:80/x");
  EXPECT_EQ(redacted("NCCL_X", "a=1 https://ghp_abc@host/p, ftp://u:p@h"),
            "a=1 https://[redacted]@host/p, ftp://[redacted]@h");
  EXPECT_EQ(redacted("OMPI_MCA_x", "user=me;password=hunter2;port=8"),
            "user=me;password=[redacted];port=8");
  EXPECT_EQ(redacted("UCX_X", "Authorization: Bearer abc.def"), "Authorization: Bearer [redacted]");
  EXPECT_EQ(redacted("NCCL_SOCKET_IFNAME", "=eth0,^docker@x"), "=eth0,^docker@x");
  EXPECT_EQ(redacted("NCCL_DEBUG_FILE", "http://host/a@b"), "http://host/a@b");
}

TEST(Environment, NamesMpiInTwoWords) {
  EXPECT_EQ(mpi_name("MPICH Version:\t4.0.2"), "MPICH 4.0.2");
  EXPECT_EQ(mpi_name("Open MPI v4.1.4"), "Open MPI v4.1.4");
  EXPECT_EQ(mpi_name("differs between ranks"), "differs between ranks");
}

TEST(Environment, FactorsOutCommonFieldsAndNamesDifferences) {
  const auto json = Json::parse(environment_json(
      {R"({"rank":0,"host":"a","hardware":{"cpu":"x","cores":4},"environment":{"NCCL_ALGO":"Ring","OMP_NUM_THREADS":"2"}})",
       R"({"rank":1,"host":"b","hardware":{"cpu":"x","cores":4},"environment":{"NCCL_ALGO":"Tree","OMP_NUM_THREADS":"2"}})",
       R"({"rank":2,"host":"b","hardware":{"cpu":"x","cores":4},"environment":{"OMP_NUM_THREADS":"2"}})"}));
  EXPECT_EQ(
      json["same_on_all_ranks"],
      Json::parse(R"({"hardware":{"cpu":"x","cores":4},"environment":{"OMP_NUM_THREADS":"2"}})"));
  EXPECT_EQ(json["differences"], Json::parse(R"(["host","environment.NCCL_ALGO"])"));
  ASSERT_EQ(json["ranks"].size(), 3u);
  EXPECT_EQ(json["ranks"][1],
            Json::parse(R"({"rank":1,"host":"b","environment":{"NCCL_ALGO":"Tree"}})"));
  EXPECT_EQ(json["ranks"][2], Json::parse(R"({"rank":2,"host":"b","environment":{}})"));
}

TEST(Fingerprint, CoversRanksInThisProcess) {
  ::setenv("SHARDMARK_TOKEN", "hunter2", 1);
  ::setenv("NCCL_ALGO", "Ring", 1);
  std::string text;
  machine::run_ranks(2, [&](machine::World& world) {
    const std::string mine = gather_environment(world);
    if (world.rank() == 0) text = mine;
  });
  const Json json = Json::parse(text);

  ASSERT_EQ(json["ranks"].size(), 2u);
  EXPECT_EQ(json["ranks"][1]["rank"], 1);
  const Json& same = json["same_on_all_ranks"];
  EXPECT_FALSE(same["host"].get<std::string>().empty());
  EXPECT_GE(same["hardware"]["hardware_threads"].get<int>(), same["hardware"]["cores"].get<int>());
  EXPECT_GT(same["hardware"]["memory_bytes"].get<double>(), 0);
  EXPECT_FALSE(same["hardware"]["device"].get<std::string>().empty());
  EXPECT_TRUE(std::filesystem::exists(same["software"]["mpi"]["library"].get<std::string>()));
  EXPECT_FALSE(same["software"]["mpi"]["version"].get<std::string>().empty());
  EXPECT_TRUE(std::filesystem::exists(same["software"]["onednn"]["library"].get<std::string>()));
  EXPECT_EQ(same["software"]["shardmark"]["commit"], build_info().commit);
  EXPECT_EQ(same["environment"]["NCCL_ALGO"], "Ring");
  EXPECT_EQ(same["environment"]["SHARDMARK_TOKEN"], "[redacted]");
  EXPECT_EQ(json.dump().find("hunter2"), std::string::npos);
}

TEST(Fingerprint, HasThePlaceOfARankAndTheChoiceOfNccl) {
  std::string before, after;
  machine::run_ranks(2, [&](machine::World& world) {
    const std::string without = gather_environment(world);
    world.set_places({{0, "0000:1b:00.0", 0, {0, 1}, "mlx5_0"}, {1, "0000:3d:00.0", -1, {2}, ""}});
    NcclChoice nccl{"IB", "mlx5_0:1/IB", {"NVLS"}};
    if (world.rank() == 1) nccl.paths.insert("NET/IB");
    const std::string with = gather_environment(world, {}, {}, nccl);
    if (world.rank() == 0) before = without, after = with;
  });
  EXPECT_FALSE(Json::parse(before)["same_on_all_ranks"].contains("place"));
  const Json json = Json::parse(after);
  const Json& same = json["same_on_all_ranks"];
  EXPECT_EQ(same["software"]["nccl"]["network"], "IB");
  EXPECT_EQ(same["nccl"]["adapters"], "mlx5_0:1/IB");
  EXPECT_EQ(json["ranks"][0]["nccl"], Json::parse(R"({"paths": "NVLS"})"));
  EXPECT_EQ(json["ranks"][1]["nccl"], Json::parse(R"({"paths": "NET/IB, NVLS"})"));
  EXPECT_EQ(
      json["ranks"][0]["place"],
      Json::parse(
          R"({"gpu":0,"bus_id":"0000:1b:00.0","numa_node":0,"cores":"0-1","adapter":"mlx5_0"})"));
  EXPECT_EQ(json["ranks"][1]["place"],
            Json::parse(R"({"gpu":1,"bus_id":"0000:3d:00.0","cores":"2"})"));
}

}  // namespace
}  // namespace harness
