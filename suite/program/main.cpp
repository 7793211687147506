// The program. Exit codes: harness::ExitCode, and those of its commands.

#include "harness/run/run.h"
#include "machine/base/error.h"
#include "suite/options/options.h"
#include "suite/program/commands.h"

int main(int argc, char** argv) {
  try {
    return suite::run_command(argc, argv);
  } catch (const harness::UsageError& error) {
    return suite::complain(harness::usage, error.what());
  } catch (const std::exception& error) {
    return suite::complain(harness::environment, error.what());
  }
}
