#pragma once
// The keys by which a stored loss curve (stored_curve.h) belongs to a training run: model, data,
// batch, optimizer and seed. Degrees, a schedule, a ZeRO stage and a dtype change a loss only by
// rounding, for which the curve has a tolerance.

#include <cstddef>
#include <vector>

#include "harness/unit/unit.h"
#include "suite/configuration/training_config.h"
#include "suite/files/corpus.h"
#include "suite/files/stored_curve.h"

namespace suite {

// Returns the keys that change a loss by more than rounding, the seed included.
CurveKeys curve_keys(const TrainingConfig& given, const Corpus& corpus);

// Returns the curve of a run of this configuration, with tolerances of rounding for each dtype.
StoredCurve curve_of(const TrainingConfig& config, const Corpus& corpus, Against judged,
                     const std::vector<double>& losses, const std::vector<int>& skipped);

// Rejects options that do not fit together. steps: selected cases of a training step.
void check_reference(const harness::LossReference& reference, std::ptrdiff_t steps);

}  // namespace suite
