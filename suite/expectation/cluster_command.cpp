#include "suite/expectation/cluster_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "harness/run/run.h"
#include "machine/base/names.h"
#include "suite/expectation/cluster_drawing.h"
#include "suite/expectation/measured_cluster.h"
#include "suite/files/new_file.h"
#include "suite/options/options.h"

namespace suite {
namespace {

const std::vector<std::string> known{"measure", "show"};

std::string directory_of(const std::string& run) {
  return run.ends_with(".json") ? std::filesystem::path(run).parent_path().string() : run;
}

void measure(const std::vector<std::string>& directories, const std::string& like,
             const std::string& output) {
  if (!output.ends_with(".toml")) reject("--output is '{}'; expected NAME.toml", output);
  check_writable(output);
  std::vector<harness::RunFile> runs;
  for (const std::string& directory : directories) runs.push_back(harness::read_run(directory));
  const MeasuredMachine machine = machine_of(directory_of(directories[0]));
  for (const std::string& directory : directories)
    if (const std::string other = machine_of(directory_of(directory)).device;
        other.substr(0, other.find(':')) != machine.device.substr(0, machine.device.find(':')))
      reject("{} ran on {}, and {} on {}; give runs of one kind of device", directories[0],
             machine.device, directory, other);
  const std::string base = like.empty() ? nearest_cluster(machine.device) : like;
  if (base.empty())
    reject(
        "no built-in cluster has the GPU of {}; give --like CLUSTER for the values that no "
        "record has",
        machine.device);
  MeasuredCluster measured = measure_cluster(runs, machine, predict::read_cluster(base));
  if (std::ranges::none_of(measured.values, &MeasuredCluster::Value::measured))
    reject(
        "{} has no record of gemm, memory_bandwidth, link_matrix or a collective that shows a "
        "speed",
        directories[0]);
  measured.cluster.name = std::filesystem::path(output).stem().string();
  measured.cluster.source = fmt::format("measured on {} on {}; other values: {}", runs[0].host_name,
                                        runs[0].date.substr(0, 10), base);
  const std::string written = predict::cluster_file(measured.cluster);
  NewFile file(output);
  file.write(written.data(), written.size());
  file.commit();
  fmt::print("{}{} is written\n", text(measured), output);
}

}  // namespace

int run_cluster(int argc, char** argv) {
  std::vector<std::string> words;
  std::string output = "cluster.toml", like;
  Options options("cluster", "measure RUN... | show CLUSTER",
                  "measure: writes a cluster file for predict from the records of runs: matrix "
                  "products, memory, link matrix, collectives. show: draws a cluster.");
  options.arguments("WORD", words, "measure or show, and run directories or a cluster", 2);
  options.argument_choices([] { return known; });
  options.text("--output", "FILE", output,
               fmt::format("the file to write, NAME.toml (default: {})", output));
  options.text("--like", "NAME", like,
               "source of values without a record (default: the built-in cluster of this GPU)");
  options.choices(predict::cluster_names);
  if (!options.parse({argv + 2, argv + argc})) return harness::accepted;
  if (std::ranges::find(known, words[0]) == known.end())
    throw harness::UsageError(machine::unknown("cluster command", words[0], known));
  if (words[0] == "measure") {
    measure({words.begin() + 1, words.end()}, like, output);
    return harness::accepted;
  }
  if (words.size() != 2) reject("cluster show requires one cluster (got {})", words.size() - 1);
  fmt::print("{}", drawing(predict::read_cluster(words[1])));
  return harness::accepted;
}

}  // namespace suite
