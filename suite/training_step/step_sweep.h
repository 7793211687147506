#pragma once
// The cases of the training step's units: gpt_step, llama_step, gpt_grid and training_speed. Their
// axes are the rows of the table of keys that have one (configuration/keys.h), and ranks.

#include <map>
#include <string>
#include <vector>

#include "harness/unit/sweep.h"
#include "suite/configuration/training_config.h"

namespace suite {

struct TrainingCase {
  int ranks = 1;
  TrainingConfig config;  // as the axes give it, or as a configuration file is resolved
};

// The axes; the units add their slices. usual: by axis the values of those that the unit has
// otherwise than a small step. Where the request has a TrainingConfig (configured_cases.h), all
// values make its case, which the flags name.
harness::Sweep<TrainingCase> step_sweep(const harness::PlanRequest& request,
                                        const std::map<std::string, std::string>& usual);

// What a slice gives an axis; a grid and its number of ranks, of one value or several: `only` keeps
// what fits together.
using Variations = std::vector<harness::Variation<TrainingCase>>;
harness::Variation<TrainingCase> vary(const std::string& axis,
                                      const std::vector<std::string>& values);
Variations grids(const std::vector<int>& ranks, const std::vector<int>& tp,
                 const std::vector<int>& pp, const std::vector<int>& dp);
Variations operator+(Variations all, const Variations& more);

// What a step runs with: the shape of a model that is only named, the usual values of a small step
// where no axis gives them. A resolved configuration stays as it is. Throws std::invalid_argument
// and harness::UsageError for what is unknown.
TrainingConfig completed(const TrainingConfig& config);

// Why these values make no step, or empty.
std::string why_no_step(const TrainingCase& step);

}  // namespace suite
