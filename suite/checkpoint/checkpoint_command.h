#pragma once

namespace suite {

// `shardmark checkpoint show` and `convert`. Takes main's argc and argv, and returns the exit code.
// Throws harness::UsageError for a folder without a usable checkpoint.
int run_checkpoint(int argc, char** argv);

}  // namespace suite
