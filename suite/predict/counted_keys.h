#pragma once
// How `predict` takes each key of a training run, by its row (configuration/keys.h). A key is
// counted, or it cannot change a prediction, or a configuration with it is rejected. No key is
// ignored: a test gives each key other values and compares the predictions.

#include <string>

#include "suite/configuration/training_config.h"
#include "suite/predict/cluster.h"

namespace suite::predict {

// Lists the keys for the documentation, those that are taken in the same way together.
std::string counted_keys_list();

// Throws std::invalid_argument that names the key, for keys that are rejected, values of other keys
// that have no rate in the cluster, and a configuration in 8 bits that no step supports.
void check_counted(const TrainingConfig& config, const Cluster& cluster);

}  // namespace suite::predict
