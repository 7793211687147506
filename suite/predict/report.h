#pragma once
// A prediction as text and as JSON.

#include <string>

#include "suite/configuration/resolve.h"
#include "suite/predict/step.h"

namespace suite::predict {

struct Report {
  TrainingConfig config;
  Cluster cluster;
  Software software;
  Prediction prediction;
};

std::string text(const Report& report);
// Adds the formulas, the numbers of the cluster and the keys of the configuration.
std::string explanation(const Report& report, const configuration::Resolved& resolved);
std::string json(const Report& report);

}  // namespace suite::predict
