#include "suite/predict/cluster.h"

#include <gtest/gtest.h>

#include "suite/files/mapped_file.h"
#include "suite/predict/embedded.h"

namespace suite::predict {
namespace {

std::string with(std::string json, const std::string& from, const std::string& to) {
  const std::size_t at = json.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return json.replace(at, from.size(), to);
}
std::string a100() {
  for (const EmbeddedFile& file : embedded_clusters())
    if (file.name == "dgx_a100") return std::string(file.text);
  return {};
}
std::string error_of(const std::string& json) {
  try {
    parse_cluster("my.json", json);
    return "accepted";
  } catch (const FileError& error) {
    return error.what();
  }
}

TEST(Cluster, EveryBuiltInFileIsReadAndWrittenBack) {
  EXPECT_GE(cluster_names().size(), 6U);
  for (const std::string& name : cluster_names()) {
    const Cluster cluster = read_cluster(name);
    EXPECT_EQ(cluster.name, name);
    EXPECT_EQ(text(parse_cluster("again.json", json(cluster))), text(cluster));
  }
  const Cluster cluster = read_cluster("dgx_a100");
  EXPECT_EQ(cluster.gpu.half, 312e12);
  EXPECT_EQ(cluster.network.bandwidth, 25e9);
}

TEST(Cluster, ErrorsNameFileLineAndNearestKey) {
  EXPECT_EQ(error_of(with(a100(), "\"memory_gb\"", "\"memroy_gb\"")),
            "my.json:7: gpu.memroy_gb is unknown; did you mean 'gpu.memory_gb'?");
  EXPECT_EQ(error_of(with(a100(), "\"gpus_per_node\": 8", "\"gpus_per_node\": 8.5")),
            "my.json:4: gpus_per_node is 8.5; expected a whole number from 1 to 4096");
  EXPECT_EQ(error_of(with(a100(), "\"fraction\": 0.78", "\"fraction\": 1.5")),
            "my.json:11: node.fraction is 1.5; expected a number from 0.001 to 1");
  EXPECT_EQ(error_of(with(a100(), "\"kernel_us\": 4, ", "")),
            "my.json: gpu.kernel_us is missing; it is time between two kernels");
  EXPECT_NE(error_of(with(a100(), "\"nvme\"", "\"nvmes\"")).find("nvmes is unknown"),
            std::string::npos);
}

TEST(Cluster, UnknownNamesGetTheNearest) {
  try {
    read_cluster("dgx_a10");
    FAIL();
  } catch (const harness::UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'dgx_a100'"), std::string::npos);
  }
}

}  // namespace
}  // namespace suite::predict
