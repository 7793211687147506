// The documents list the counters that the harness and all units declare.

#include <gtest/gtest.h>

#include "harness/record/counters.h"
#include "machine/testing/generated_section.h"

namespace suite {
namespace {

TEST(Counters, DocumentedTableMatchesTheRegistry) {
  machine::testing::expect_generated_section(SHARDMARK_RESULTS_README, "counters",
                                             harness::counters_table());
}

}  // namespace
}  // namespace suite
