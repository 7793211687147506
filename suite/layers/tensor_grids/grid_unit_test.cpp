// Grids of more ranks than the smoke cases have, and the errors of grids that do not exist.

#include "suite/layers/tensor_grids/grid_unit.h"

#include <gtest/gtest.h>

#include <string>

#include "suite/testing/on_threads.h"

namespace suite {
namespace {

using harness::AxisFlags;

void expect_accepted(const std::string& unit, AxisFlags flags, int ranks) {
  flags.insert(
      {{"ranks", std::to_string(ranks)}, {"dtype", "float"}, {"transport", "shared_memory"}});
  const auto cases = harness::plan_cases({unit}, {harness::Profile::quick, flags});
  ASSERT_EQ(cases.size(), 1U) << unit;
  const auto records = on_threads::run(cases, ranks, 0.001);
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].verdict, harness::Ruling::pass)
      << records[0].name << ": " << records[0].reason;
}

TEST(GridUnits, RunOnGridsOfManyRanks) {
  const AxisFlags sizes{{"tokens", "36"}, {"input_size", "36"}, {"output_size", "36"}};
  const auto with = [&](AxisFlags flags) {
    flags.insert(sizes.begin(), sizes.end());
    return flags;
  };
  AxisFlags cannon = {{"tokens", "16"},
                      {"input_size", "16"},
                      {"output_size", "16"},
                      {"tensor-parallel-mode", "2d"},
                      {"tensor-parallel-product", "cannon"}};
  expect_accepted("grid_linear", cannon, 16);
  if (on_threads::sanitized) return;
  expect_accepted("grid_linear",
                  with({{"tensor-parallel-mode", "2.5d"},
                        {"tensor-parallel-depth", "2"},
                        {"tensor-parallel-product", "summa"}}),
                  18);
  expect_accepted("grid_linear",
                  {{"tokens", "16"},
                   {"input_size", "16"},
                   {"output_size", "16"},
                   {"tensor-parallel-mode", "3d"},
                   {"tensor-parallel-product", "summa"}},
                  64);
  expect_accepted("grid_mlp",
                  {{"tokens", "36"},
                   {"hidden-size", "36"},
                   {"ffn-hidden-size", "36"},
                   {"tensor-parallel-mode", "3d"},
                   {"tensor-parallel-product", "summa"}},
                  27);
}

TEST(GridUnits, RejectGridsThatDoNotExist) {
  const auto refusal = [](const std::string& unit, const AxisFlags& flags) {
    const std::string text = on_threads::refusal(unit, flags), end = " (unit " + unit + ")";
    return text.ends_with(end) ? text.substr(0, text.size() - end.size()) : text;
  };
  EXPECT_EQ(refusal("grid_linear", {{"ranks", "8"}, {"tensor-parallel-mode", "2d"}}),
            "tensor-parallel-mode 2d requires a square number of ranks (got 8)");
  EXPECT_EQ(refusal("grid_norm", {{"ranks", "4"}, {"tensor-parallel-mode", "3d"}}),
            "tensor-parallel-mode 3d requires a cubic number of ranks (got 4)");
  EXPECT_EQ(refusal("grid_mlp", {{"ranks", "8"},
                                 {"tensor-parallel-mode", "3d"},
                                 {"tensor-parallel-product", "cannon"}}),
            "tensor-parallel-product cannon requires tensor-parallel-mode 2d (got 3d)");
  EXPECT_EQ(
      refusal("grid_mlp", {{"ranks", "4"}, {"tensor-parallel-mode", "2d"}, {"hidden-size", "143"}}),
      "hidden-size is 143; expected a multiple of 2 in the grid 2 x 2 x 1 (example: 144)");
  EXPECT_EQ(refusal("grid_attention", {{"ranks", "9"},
                                       {"tensor-parallel-mode", "2d"},
                                       {"micro-batch-size", "4"},
                                       {"seq-length", "9"}}),
            "micro-batch-size is 4; expected a multiple of 3, so that a rank has whole sequences");
  EXPECT_EQ(refusal("grid_norm", {{"tokens", "0"}}), "--tokens is 0; expected at least 1");
}

}  // namespace
}  // namespace suite
