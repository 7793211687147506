// A profiler that is linked into this test sees the parts of a step on a device.

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "machine/device/profile_range.h"
#include "machine/testing/queued_device.h"
#include "machine/world/step_clock.h"

// Older headers do not find a profiler that is linked into the program.
#if defined(NVTX_LOAD_SEQUENCE_VERSION) && NVTX_LOAD_SEQUENCE_VERSION >= 2

namespace machine {
namespace {

// Parts seen on this thread: "forward", and "-" for an end.
thread_local std::vector<std::string>* seen = nullptr;

int NVTX_API push(const char* name) {
  if (seen) seen->emplace_back(name);
  return 0;
}
int NVTX_API pop() {
  if (seen) seen->emplace_back("-");
  return 0;
}

int NVTX_API attach(NvtxGetExportTableFunc_t table_of) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned int size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &size))
    return 0;
  *functions[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(push);
  *functions[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}

// NVTX looks for a profiler at the first range.
const bool attached = [] {
  InitializeInjectionNvtx2_fnptr = attach;
  return true;
}();

TEST(ProfileRange, ShowsThePartsOfAStepOnADevice) {
  std::vector<std::string> names;
  seen = &names;
  {
    const ProfileRange of_case("gpt_step/ranks:2");
    QueuedDevice device;
    StepClock clock;
    clock.start(&device.stream());
    {
      const During forward(Part::forward);
      const During reduce(Part::communication, "tp");
      const DuringWait wait(1);
    }
    {
      const During backward(Part::backward_weights);
      clock.stop();  // ends what is open
    }
  }
  seen = nullptr;
  EXPECT_EQ(names, (std::vector<std::string>{"gpt_step/ranks:2", "forward", "communication tp",
                                             "wait", "-", "-", "-", "backward weights", "-", "-"}));
}

}  // namespace
}  // namespace machine

#endif
