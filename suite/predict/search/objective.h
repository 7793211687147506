#pragma once
// The largest training on a number of GPUs, and the smallest number of GPUs for a training, by the
// grid of the search.
//
//   const Reached reached = reach(Objective::sequence, base, cluster, 64, software, 80e9);
//   reached.config.model.sequence; reached.found.best.front();
//
// sequence: the longest of 1024 times a power of two. model: the most layers of the given width, in
// steps of 8. gpus: the smallest power of two.

#include <string_view>

#include "suite/predict/search/search.h"

namespace suite::predict {

enum class Objective : unsigned char { time, sequence, model, gpus };
std::vector<std::string> objective_names();
// Throws std::invalid_argument that names the nearest.
Objective parse_objective(std::string_view text);

struct Reached {
  TrainingConfig config;  // the base with what was reached
  int gpus = 0;
  Candidates candidates;  // the grid there
  Found found;            // the fastest; empty: nothing fits
};
// base, cluster, gpus, software, gpu_memory: as in search.h. gpus is not used by Objective::gpus.
Reached reach(Objective objective, const TrainingConfig& base, const Cluster& cluster, int gpus,
              const Software& software, double gpu_memory);
// "longest sequence: 131072 tokens", or empty for the objective `time`.
std::string text(Objective objective, const Reached& reached);

}  // namespace suite::predict
