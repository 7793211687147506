#pragma once
// `shardmark plan`: what a training would hold, from its configuration, before anything runs.

namespace suite::configuration {

// argv[1] is "plan". Returns the exit code. Throws harness::UsageError.
int run_plan(int argc, char** argv);

}  // namespace suite::configuration
