#include "suite/predict/search/objective.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <utility>

#include "machine/base/names.h"
#include "suite/plan/model_shape.h"

namespace suite::predict {
namespace {

constexpr std::string_view names[] = {"time", "sequence", "model", "gpus"};  // by Objective
constexpr int layer_step = 8, most_layers = 1 << 13, most_gpus = 1 << 17;
constexpr int longest_sequence = 1 << 24, sequence_step = 1024;

class Reaching {
 public:
  Reaching(const Cluster& cluster, const Software& software, double gpu_memory)
      : cluster_(cluster), software_(software), gpu_memory_(gpu_memory) {
    cluster_.gpu.memory = gpu_memory;
  }

  bool fits(const TrainingConfig& config, int gpus) const {
    return std::ranges::any_of(grid(config, cluster_, gpus), [&](const TrainingConfig& one) {
      return predict_step(one, cluster_, software_, Pipeline::lower_bound).fits;
    });
  }
  Reached found(const TrainingConfig& config, int gpus) const {
    Candidates candidates(grid(config, cluster_, gpus), cluster_, software_, gpu_memory_);
    Found fastest = candidates.fastest();
    return {config, gpus, std::move(candidates), std::move(fastest)};
  }

 private:
  Cluster cluster_;
  const Software& software_;
  double gpu_memory_;
};

// Returns the largest of least, least + 1, …, most for which `holds`, if it holds up to a limit. 0:
// not for `least`.
int largest(int least, int most, const std::function<bool(int)>& holds) {
  if (!holds(least)) return 0;
  int below = least, above = least;
  while (above < most && holds(std::min(2 * above, most)))
    below = above = std::min(2 * above, most);
  above = std::min(2 * below, most + 1);
  while (above - below > 1) {
    const int middle = below + (above - below) / 2;
    (holds(middle) ? below : above) = middle;
  }
  return below;
}

}  // namespace

std::vector<std::string> objective_names() { return {std::begin(names), std::end(names)}; }

Objective parse_objective(std::string_view text) {
  const auto found = std::ranges::find(names, text);
  if (found == std::end(names))
    throw std::invalid_argument(machine::unknown("objective", text, objective_names()));
  return static_cast<Objective>(found - std::begin(names));
}

Reached reach(Objective objective, const TrainingConfig& base, const Cluster& cluster, int gpus,
              const Software& software, double gpu_memory) {
  const Reaching reaching(cluster, software, gpu_memory);
  TrainingConfig config = base;
  if (objective == Objective::sequence) {
    int longest = 0;
    for (int tokens = sequence_step; tokens <= longest_sequence; tokens *= 2) {
      config.model.sequence = tokens;
      if (!reaching.fits(config, gpus)) break;
      longest = tokens;
    }
    if (longest > 0) config.model.sequence = longest;
  }
  if (objective == Objective::model) {
    const int steps = largest(1, most_layers / layer_step, [&](int step) {
      config.model.layers = step * layer_step;
      return reaching.fits(config, gpus);
    });
    config.model.layers = std::max(1, steps) * layer_step;
  }
  if (objective == Objective::gpus)
    for (gpus = 1; gpus < most_gpus && !reaching.fits(config, gpus); gpus *= 2) {
    }
  return reaching.found(config, gpus);
}

std::string text(Objective objective, const Reached& reached) {
  const TrainingConfig::Model& model = reached.config.model;
  if (reached.found.best.empty()) return {};
  if (objective == Objective::sequence)
    return fmt::format("longest sequence: {} tokens on {} GPUs\n\n", model.sequence, reached.gpus);
  if (objective == Objective::model)
    return fmt::format("largest model: {} layers of hidden {}, {:.4g} parameters on {} GPUs\n\n",
                       model.layers, model.hidden, configuration::parameters_of(model),
                       reached.gpus);
  if (objective == Objective::gpus) return fmt::format("fewest GPUs: {}\n\n", reached.gpus);
  return {};
}

}  // namespace suite::predict
