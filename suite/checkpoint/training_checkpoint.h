#pragma once
// Checkpoints of a training (zero/checkpoint/checkpoint.h): values and optimizer states by global
// index, counters, the loss scale, and the keys that the training depends on. They are read at any
// degrees, pipeline schedule, ZeRO stage and place of the states. Data and dropout are drawn by
// seed and step, so their state is the number of the step. The degree of tp must be the same with
// 8-bit AdamW, because it cuts blocks of codes (block_scales.h).
//
//   save(trainer, "checkpoints", checkpoint_keys(config, corpus));
//   check_checkpoint(zero::Checkpoint("checkpoints"), config, corpus);  // before any rank starts
//   load_checkpoint("checkpoints", trainer);
//
// Every element is written once: a replica over tp, dp or two stages is not. ZeRO stage 0 shards
// what it writes as stage 1 does. A delayed update (delayed_update) is applied before a save.

#include <memory>
#include <string>

#include "suite/files/corpus.h"
#include "suite/trainer/trainer.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/checkpoint/saving.h"

namespace suite {

// Return whether --load and --save with this path mean a checkpoint. --load: a folder. --save: a
// name that does not end in .safetensors, and that is not a file.
bool loads_checkpoint(const std::string& path);
bool saves_checkpoint(const std::string& path);

// Returns the keys that a training must share with its checkpoint: model, dtype, optimizer, batch,
// data and seed; with 8-bit AdamW also the degree of tp. The learning rate, its schedule and
// degrees may change.
zero::Texts checkpoint_keys(const TrainingConfig& config, const Corpus& corpus);
// Returns the model of a checkpoint, with its padding. Throws FileError.
TrainingConfig::Model model_of(const zero::Checkpoint& checkpoint);

// Throw FileError, one line, if the folder has no usable checkpoint, or the training cannot
// continue it. open_checkpoint checks the index and the sizes of all files.
zero::Checkpoint open_checkpoint(const std::string& folder);
void check_checkpoint(const zero::Checkpoint& checkpoint, const TrainingConfig& config,
                      const Corpus& corpus);

// Adds the states that this rank saves. Collective over dp with delayed_update.
void add_states(Trainer& trainer, zero::PieceSink& sink);
// Returns the facts of a checkpoint that has only values: step 0 of any training of this model.
// Loading it makes the optimizer states.
zero::Facts weights_facts(const TrainingConfig::Model& model, machine::Dtype dtype);
zero::Facts checkpoint_facts(const Trainer& trainer, zero::Texts keys);

// Collective over the trainer's group; throw zero::CheckpointError.
void save_checkpoint(Trainer& trainer, const std::string& folder, const zero::Texts& keys);
void load_checkpoint(const std::string& folder, Trainer& trainer);

}  // namespace suite
