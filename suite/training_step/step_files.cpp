#include "suite/training_step/step_files.h"

#include "suite/files/corpus.h"
#include "suite/trainer/gpt2_weights.h"

namespace suite {

void check_step_files(const TrainingConfig& config, const harness::Files& files) {
  if (!files.data.empty()) Corpus::check(files.data, config.model.sequence);
  if (!files.load.empty()) check_gpt2(files.load, config.model, config.degrees.tp);
  if (!files.save.empty()) refuse_unlike_gpt2(config.model);
}

}  // namespace suite
