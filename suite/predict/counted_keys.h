#pragma once
// How `predict` takes each key of a training run (configuration/keys.h). A key is counted, or it
// cannot change a prediction, or a configuration with it is rejected. No key is ignored: a test
// gives each key other values and compares the predictions.

#include <span>
#include <string>
#include <string_view>

#include "suite/configuration/training_config.h"
#include "suite/predict/cluster.h"

namespace suite::predict {

enum class Taken : unsigned char {
  counted,
  resolved,    // resolve() sets other keys from it
  unaffected,  // of the prediction, for the reason in `about`
  rejected     // all values but the default
};

struct CountedKey {
  std::string_view names;  // Key::name(), separated by spaces
  Taken taken;
  std::string_view about;
};
std::span<const CountedKey> counted_keys();
// Returns null for a key without a row.
const CountedKey* find_counted(std::string_view name);
// Lists the keys for the documentation.
std::string counted_keys_list();

// Throws std::invalid_argument that names the key, for keys that are rejected, values of other keys
// that have no rate in the cluster, and a configuration in 8 bits that no step supports.
void check_counted(const TrainingConfig& config, const Cluster& cluster);

}  // namespace suite::predict
