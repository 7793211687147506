// `shardmark version` and `shardmark --version`: the build of the program and the libraries that it
// loads.

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "harness/fingerprint/build_info.h"
#include "harness/fingerprint/libraries.h"
#include "harness/run/run.h"
#include "machine/device/device.h"
#include "suite/options/options.h"
#include "suite/program/commands.h"

namespace suite {

int run_version(int argc, char** argv) {
  Options options("version", "", "Prints version, commit, compiler and libraries.");
  if (!options.parse({argv + 2, argv + argc})) return harness::accepted;
  std::string mpi = harness::mpi_library().version;
  std::ranges::replace(mpi, '\t', ' ');
  const harness::BuildInfo& build = harness::build_info();
  const std::string cuda =
      machine::cuda::is_virtual()
          ? "virtual GPUs, no hardware"
          : fmt::format("runtime {}, driver supports {}", harness::cuda_library().version,
                        harness::cuda_of_driver());
  fmt::print("shardmark {} (commit {}, {} build)\n", build.version, build.commit, build.build_type);
  fmt::print("{}", two_columns({{"compiler", std::string(build.compiler)},
                                {"MPI", mpi},
                                {"CUDA", build.cuda ? cuda : "not built"},
                                {"NCCL", fmt::format("header {}, loaded {}", build.nccl_header,
                                                     harness::nccl_library().version)},
                                {"oneDNN", harness::onednn_library().version}}));
  return harness::accepted;
}

}  // namespace suite
