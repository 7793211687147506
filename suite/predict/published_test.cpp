#include "suite/predict/published.h"

#include <gtest/gtest.h>

#include <cmath>

namespace suite::predict {
namespace {

TEST(Published, RowsThatWereNotFittedArePredicted) {
  const std::vector<Comparison> all = compare_published();
  const Accuracy predicted = accuracy(all, Use::predict), chosen = accuracy(all, Use::chosen);
  EXPECT_EQ(accuracy(all, Use::fit).rows, 5);
  EXPECT_EQ(chosen.rows, 12);
  EXPECT_EQ(predicted.rows, 25);
  EXPECT_LE(chosen.worst, 0.20);
  EXPECT_LE(predicted.mean, 0.08);
  EXPECT_LE(predicted.worst, 0.20);
}

// A number of a row and its FLOP/s must be of one formula. Their rounding is half a TFLOP/s.
TEST(Published, StatedTimesAgreeWithStatedFlops) {
  for (const PublishedRun& run : published_runs()) {
    if (run.stated_step_s == 0 || run.stated_tflops == 0) continue;
    const double tflops = run.stated_flops / run.config.degrees.ranks() / run.stated_step_s / 1e12;
    EXPECT_NEAR(tflops / run.stated_tflops, 1, 0.02) << run.model << " " << run.source;
  }
}

double squares(const std::string& name, double change) {
  Cluster cluster = read_cluster(name);
  cluster.gpu.gemm_fraction += change;
  double sum = 0;
  for (const Comparison& one : compare_published({cluster}))
    if (one.run.use == Use::fit && one.run.cluster == name) sum += one.error() * one.error();
  return sum;
}

TEST(Published, GemmFractionIsTheBestForTheFittedRows) {
  for (const std::string name : {"dgx_a100", "dgx_h100"}) {
    EXPECT_LT(squares(name, 0), squares(name, 0.01)) << name;
    EXPECT_LT(squares(name, 0), squares(name, -0.01)) << name;
  }
}

}  // namespace
}  // namespace suite::predict
