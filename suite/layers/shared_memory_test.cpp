// Layers with heads that do not fit into the shared memory of a GPU (ctest suite_sm_86).

#include <gtest/gtest.h>

#include "machine/device/flash_attention.h"
#include "suite/testing/on_threads.h"

namespace suite {
namespace {

TEST(SharedMemory, LayersWhoseHeadsDoNotFitAreSkipped) {
  if (machine::cuda::count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto device = machine::cuda::make_device(0);
  const std::string why =
      machine::why_not_flash_attention(device->stream(), machine::Dtype::float64, 256);
  const auto cases = harness::plan_cases({"self_attention"}, {harness::Profile::smoke,
                                                              {{"dtype", "double"},
                                                               {"hidden-size", "256"},
                                                               {"num-attention-heads", "1"},
                                                               {"use-flash-attn", "on"},
                                                               {"ranks", "1"}}});
  ASSERT_FALSE(cases.empty());
  for (const harness::Record& record : on_threads::run(cases, 1, 0.001, {}, 1)) {
    EXPECT_EQ(record.verdict, why.empty() ? harness::Ruling::pass : harness::Ruling::skipped)
        << record.name << ": " << record.reason;
    if (!why.empty()) {
      EXPECT_EQ(record.reason, "rank 0: " + why);
    }
  }
}

}  // namespace
}  // namespace suite
