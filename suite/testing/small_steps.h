#pragma once
// Small steps on threads, for tests of the training step's units.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "suite/testing/on_threads.h"

namespace suite::small_steps {

// Plans small steps in float on one device. `flags` override these defaults.
inline std::vector<harness::PlannedCase> steps(harness::AxisFlags flags,
                                               const std::string& unit = "gpt_step") {
  flags.insert({{"model", "tiny"},
                {"dtype", "float"},
                {"transport", "shared_memory"},
                {"schedule", "1f1b"},
                {"zero-stage", "1"},
                {"tensor-model-parallel-size", "1"},
                {"pipeline-model-parallel-size", "1"},
                {"data-parallel-size", "1"},
                {"model-args", "none"},
                {"optimizer", "adamw"},
                {"offload_optimizer", "none"},
                {"offload_param", "none"},
                {"micro-batch-size", "1"},
                {"global-batch-size", "8"},
                {"sequence-parallel", "0"},
                {"recompute-granularity", "none"},
                {"distribute-saved-activations", "0"},
                {"cpu-checkpointing", "0"},
                {"use-flash-attn", "0"},
                {"uneven-tokens", "0"},
                {"grad-accum-dtype", "default"},
                {"communication-data-type", "default"},
                {"gradient-compression", "none"},
                {"freeze", "none"}});
  return harness::plan_cases({unit}, {harness::Profile::quick, flags});
}

inline void expect_passed(const std::vector<harness::PlannedCase>& cases, int ranks) {
  for (const harness::Record& record : on_threads::run(cases, ranks, 0.001))
    EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.name << ": " << record.reason;
}

}  // namespace suite::small_steps
