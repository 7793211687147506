#pragma once
// The reason that no training step supports a configuration, for tests of refusals.

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include "suite/trainer/validation.h"

namespace suite {

// Expects one line. Returns "accepted" without a reason.
inline std::string why_no_step(const TrainingConfig& config) {
  try {
    validate(config);
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << error.what();
    return error.what();
  }
  return "accepted";
}

}  // namespace suite
