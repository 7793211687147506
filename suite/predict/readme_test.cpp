// The generated tables of suite/predict/README.md.

#include <gtest/gtest.h>

#include "machine/testing/generated_section.h"
#include "suite/predict/counted_keys.h"
#include "suite/predict/published.h"

namespace suite::predict {
namespace {

TEST(PredictReadme, TablesMatchTheProgram) {
  machine::testing::expect_generated_section(SHARDMARK_PREDICT_README, "keys",
                                             cluster_keys_table());
  machine::testing::expect_generated_section(SHARDMARK_PREDICT_README, "counted",
                                             counted_keys_list());
  machine::testing::expect_generated_section(SHARDMARK_PREDICT_README, "published",
                                             text(compare_published()));
}

}  // namespace
}  // namespace suite::predict
