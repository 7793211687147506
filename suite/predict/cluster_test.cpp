#include "suite/predict/cluster.h"

#include <gtest/gtest.h>

#include "suite/files/mapped_file.h"
#include "suite/predict/embedded.h"

namespace suite::predict {
namespace {

std::string with(std::string toml, const std::string& from, const std::string& to) {
  const std::size_t at = toml.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return toml.replace(at, from.size(), to);
}
std::string a100() {
  for (const EmbeddedFile& file : embedded_clusters())
    if (file.name == "dgx_a100") return std::string(file.text);
  return {};
}
std::string error_of(const std::string& toml) {
  try {
    parse_cluster("my.toml", toml);
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
    EXPECT_EQ(text(parse_cluster("again.toml", cluster_file(cluster))), text(cluster));
  }
  const Cluster cluster = read_cluster("dgx_a100");
  EXPECT_EQ(cluster.gpu.half, 312e12);
  EXPECT_EQ(cluster.network.bandwidth, 25e9);
}

TEST(Cluster, AWrittenFileStatesTheMeaningOfEachKeyAndQuotesTexts) {
  Cluster cluster = read_cluster("dgx_a100");
  cluster.source = "measured by \"me\" in C:\\runs # not a comment";
  const std::string written = cluster_file(cluster);
  EXPECT_EQ(parse_cluster("again.toml", written).source, cluster.source);
  EXPECT_NE(written.find("\n[gpu]\n"), std::string::npos) << written;
  EXPECT_NE(written.find("\nmemory_gb = 80                    # memory of a GPU\n"),
            std::string::npos)
      << written;
}

TEST(Cluster, ErrorsNameFileLineAndNearestKey) {
  EXPECT_EQ(error_of(with(a100(), "memory_gb", "memroy_gb")),
            "my.toml:9: gpu.memroy_gb is unknown; did you mean 'gpu.memory_gb'?");
  EXPECT_EQ(error_of(with(a100(), "gpus_per_node = 8", "gpus_per_node = 8.5")),
            "my.toml:3: gpus_per_node is 8.5; expected a whole number from 1 to 4096");
  EXPECT_EQ(error_of(with(a100(), "fraction = 0.78", "fraction = 1.5")),
            "my.toml:23: node.fraction is 1.5; expected a number from 0.001 to 1");
  EXPECT_EQ(error_of(with(a100(), "fraction = 0.78", "fraction = nan")),
            "my.toml:23: node.fraction is nan; expected a number from 0.001 to 1");
  EXPECT_EQ(error_of(with(a100(), "kernel_us = 4\n", "")),
            "my.toml: gpu.kernel_us is missing; it is time between two kernels");
  EXPECT_EQ(error_of(with(a100(), "[nvme]", "[nvmes]")),
            "my.toml:37: nvmes is unknown; did you mean 'nvme'?");
}

TEST(Cluster, ErrorsNameValuesOfAnotherKind) {
  const auto with_watts = [](const std::string& value) {
    return error_of(with(a100(), "watts = 812", "watts = " + value));
  };
  EXPECT_EQ(with_watts("\"many\""),
            "my.toml:18: gpu.watts is 'many'; expected a number from 0 to 100000");
  EXPECT_EQ(with_watts("true"),
            "my.toml:18: gpu.watts is true; expected a number from 0 to 100000");
  EXPECT_EQ(with_watts("2026-11-27"),
            "my.toml:18: gpu.watts is '2026-11-27'; expected a number from 0 to 100000");
  EXPECT_EQ(with_watts("[8, 1, 2]"),
            "my.toml:18: gpu.watts is a list; expected a number from 0 to 100000");
  EXPECT_EQ(with_watts("{}"),
            "my.toml:18: gpu.watts is an object; expected a number from 0 to 100000");
  EXPECT_EQ(error_of(with(a100(), "name = \"dgx_a100\"", "name = 5")),
            "my.toml:1: name is 5; expected a text");
}

TEST(Cluster, ErrorsOfTomlNameLineAndColumn) {
  const std::string twice = error_of(with(a100(), "watts = 812", "watts = 812\nwatts = 4"));
  EXPECT_TRUE(twice.starts_with("my.toml:19:")) << twice;
  const std::string unfinished = error_of(with(a100(), "[host]", "[host"));
  EXPECT_TRUE(unfinished.starts_with("my.toml:32:")) << unfinished;
  EXPECT_NE(unfinished.find("not valid TOML"), std::string::npos) << unfinished;
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
