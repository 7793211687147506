#pragma once

namespace suite {

// `shardmark cluster measure` and `show`. Takes main's argc and argv, and returns the exit code.
// Throws harness::UsageError for a run or a file that cannot be read.
int run_cluster(int argc, char** argv);

}  // namespace suite
