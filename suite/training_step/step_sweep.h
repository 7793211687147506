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
  TrainingConfig config;  // from the axes or from a resolved configuration file
};

// Returns the axes, to which units add their slices. usual: a unit's own default values, by axis.
// If the request has a TrainingConfig (configured_cases.h), the only case is that configuration,
// named by the flags.
harness::Sweep<TrainingCase> step_sweep(const harness::PlanRequest& request,
                                        const std::map<std::string, std::string>& usual);

// The values of an axis in a slice, and those of a grid with its number of ranks. `only` removes
// invalid combinations.
using Variations = std::vector<harness::Variation>;
harness::Variation vary(const std::string& axis, const std::vector<std::string>& values);
Variations grids(const std::vector<int>& ranks, const std::vector<int>& tp,
                 const std::vector<int>& pp, const std::vector<int>& dp,
                 const std::vector<int>& cp = {1});
// Values of a case with context parallelism.
Variations over_cp(const std::string& comm_type, const std::string& order);
// Values of a case with FPDT.
Variations in_chunks(const std::string& offloading);
Variations operator+(Variations all, const Variations& more);
// Add the cases of gpt_step with experts, frozen parameters, products in 8 bits, sparse attention,
// and tensor parallelism over a grid.
void add_expert_slices(harness::Sweep<TrainingCase>& sweep);
void add_frozen_slices(harness::Sweep<TrainingCase>& sweep);
void add_8_bit_slices(harness::Sweep<TrainingCase>& sweep);
void add_sparse_slices(harness::Sweep<TrainingCase>& sweep);
void add_tensor_grid_slices(harness::Sweep<TrainingCase>& sweep);

// Returns the configuration of a case with these axes: base with their values.
TrainingConfig with_axes(TrainingConfig base, const harness::AxisValues& axes);

// Completes a configuration: sets the shape of a model that has only a name, and the usual values
// of a small step for keys without an axis. A resolved configuration stays unchanged. Throws
// std::invalid_argument and harness::UsageError for unknown names.
TrainingConfig completed(const TrainingConfig& given);

// Returns the reason why no step can run with these values; else empty.
std::string why_no_step(const TrainingCase& step);

}  // namespace suite
