#pragma once
// The measured times of runs compared with those that predict expects on a cluster.
//
//   const Expectation expectation(cluster, on_gpu, {});
//   text(compare_runs(run.records, expectation));

#include <string>
#include <vector>

#include "harness/record/record.h"
#include "suite/expectation/expectation.h"
#include "suite/predict/scaling_figures.h"

namespace suite {

struct ComparedCase {
  std::string name, kind;  // kind_of_case
  double measured_s = 0, predicted_s = 0;
  double error() const { return predicted_s / measured_s - 1; }
};

// Returns the passed cases that have an expectation. Ranks that share a core or a GPU have none.
std::vector<ComparedCase> compare_runs(const std::vector<harness::Record>& records,
                                       const Expectation& expectation);
// Returns a text with each step, and the mean and worst error of each kind.
std::string text(const std::vector<ComparedCase>& cases);
// Returns the figures of the times of all steps; empty if there are fewer than two steps.
std::vector<predict::ScalingFigure> figures(const std::vector<ComparedCase>& cases);

}  // namespace suite
