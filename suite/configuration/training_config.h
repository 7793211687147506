#pragma once
// A training run: the one struct that configuration files, axes of the step units, the planner and
// the Trainer share. keys.h has a row for each of its members that a user can set.
//
//   TrainingConfig config;
//   config.degrees = {.tp = 2, .dp = 2};
//   set_model(config, "small");                  // models.h
//   config.zero.stage = 1;
//   Trainer trainer(world, group, device, config, corpus);
//
// Bucket sizes and thresholds are in elements, batches in sequences, learning rates per step. A
// fresh TrainingConfig has DeepSpeed's defaults of August 2026. If only Megatron-LM has a setting,
// it has Megatron-LM's default.

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "layers/context_parallel/context_parallel.h"
#include "layers/fp8/options.h"
#include "layers/gpt_config.h"
#include "layers/models/activation_options.h"
#include "layers/tensor_grids/plans/grid_plan.h"
#include "machine/device/dtype.h"
#include "machine/link/link.h"
#include "machine/world/grid.h"
#include "suite/configuration/learning_rate.h"
#include "zero/optimizers/loss_scale.h"
#include "zero/stages/step_options.h"

namespace suite {

struct TrainingConfig {
  struct Model : layers::GptConfig {  // an extent of 0: not known
    Model() : GptConfig{.layers = 0, .hidden = 0, .heads = 0, .vocabulary = 0, .sequence = 0} {}
    Model(const GptConfig& shape) : GptConfig(shape) {}  // NOLINT: a shape is a model

    int tokens = 0;  // further rows of the vocabulary are padding; 0: all rows are tokens
    // Empty: 128, and a vocabulary that 128 and tp divide is not padded.
    std::optional<int> make_vocab_size_divisible_by;
    int max_position_embeddings = 0;  // 0: sequence
    std::int64_t parameters = 0;      // if only their number is known, not the shape
    // "unidirectional" or "bidirectional", which the architecture must be; empty: the
    // architecture's.
    std::string sparse_direction;

    // The name and arguments of the model on a command line (models.h). An empty name: the shape is
    // complete.
    std::string name, arguments;
    std::optional<int> seq_length;  // empty: the model's own

    bool has_shape() const { return layers > 0 && hidden > 0 && heads > 0 && sequence > 0; }
  };

  struct Precision {
    machine::Dtype dtype = machine::Dtype::float32;
    // The options in use. resolve() derives them from the next two members, the dtype and the tool.
    zero::LossScaleOptions loss_scale = zero::usual_options(zero::LossScaling::constant);
    double constant_loss_scale = 0;  // 0: dynamic
    int initial_scale_power = 16;    // of DeepSpeed's first scale
  };

  struct Batch {
    int micro_batch_size = 1;             // sequences per forward pass
    int global_batch_size = 8;            // sequences per step, over all of dp
    int gradient_accumulation_steps = 0;  // 0: derived from the two sizes above
  };

  // The algorithms of a group's collectives: a name, or OPERATION=NAME separated by commas
  // (collectives/communicator/group_algorithms.h). Empty: the default (group_algorithms.h).
  struct Algorithms {
    std::string tp, dp, embedding;
  };

  // The ranks of tp as a grid (layers/tensor_grids). depth: of 2.5d.
  struct TensorGrid {
    layers::TensorParallelMode mode = layers::TensorParallelMode::one_d;
    int depth = 1;
    layers::GridMethod product = layers::GridMethod::summa;  // of 2d
  };

  struct Pipeline {
    std::string schedule = "1f1b";
    std::optional<int> virtual_stages;  // chunks per stage; empty: the schedule's default
    int layers_per_virtual_stage = 0;   // layers per chunk, Megatron-LM's older key; 0: not given
    bool p2p_overlap = false;           // messages are received ahead (pipeline/execute.h)
    std::string partition_method = "uniform";    // of layers over parts (trainer/model_chunks.h)
    std::vector<std::int64_t> layer_costs = {};  // measured, for "profile" (trainer/layer_costs.h)
  };

  struct Optimizer {
    struct Muon {  // Megatron-LM's defaults
      bool nesterov = false, split_qkv = true;
      int num_ns_steps = 5;
      std::string coefficient_type = "quintic", scale_mode = "spectral";
      double extra_scale_factor = 1;
    };

    std::string type = "adamw";  // or adafactor, adamw_8bit, lamb, lion, muon, one_bit_adam,
                                 // one_bit_lamb, sgd, rmsprop
    double learning_rate = 1e-3;
    std::array<double, 2> betas{0.9, 0.999};
    double epsilon = 1e-8, weight_decay = 0;
    bool decoupled_decay = true;              // AdamW; false: Adam adds the decay to the gradient
    double momentum = 0;                      // of SGD and Muon
    double smoothing = 0.99;                  // of RMSprop
    double max_coeff = 10, min_coeff = 0.01;  // limits of LAMB's ratio
    double clipping = 1;                      // of the gradient's global norm; 0: off
    double decay_rate = 0.8, clip_threshold = 1;  // of Adafactor
    std::int64_t freeze_step = 100'000;           // of 1-bit Adam and 1-bit LAMB
    double coeff_beta = 0.9;                      // of 1-bit LAMB, as the next
    double factor_max = 4, factor_min = 0.5, factor_threshold = 0.1;
    std::int64_t min_8bit_size = 4096;  // elements on a rank; AdamW updates smaller parameters
    Muon muon = {};

    zero::Rule rule() const;
    bool is_8bit() const { return type == "adamw_8bit"; }
    bool is_one_bit() const { return type == "one_bit_adam" || type == "one_bit_lamb"; }
  };

  struct Schedule {    // of the learning rate
    std::string type;  // DeepSpeed's; empty: Megatron-LM's, or a constant rate
    double warmup_min_lr = 0, warmup_max_lr = 1e-3;
    std::int64_t warmup_num_steps = 1000;
    std::string warmup_type = "log";
    std::optional<std::int64_t> total_num_steps;
    LearningRateOptions options{};
    // Megatron-LM's keys. The rate decays over lr_decay_iters or, if that is empty, train_iters.
    std::optional<std::int64_t> train_iters, lr_decay_iters, lr_warmup_iters;
    double min_lr = 0;
    std::string lr_decay_style = "linear";

    bool is_megatrons() const;
  };

  struct Zero {
    int stage = 0;
    std::optional<bool> overlap_comm;  // empty: on in stage 3 only
    std::int64_t reduce_bucket_size = 500'000'000;
    std::int64_t param_persistence_threshold = 100'000;  // stage 3 (zero/states/layout.h)
    std::int64_t model_persistence_threshold = std::numeric_limits<std::int64_t>::max();
    zero::IoOptions aio;
    std::string optimizer_path = ".", parameter_path = ".";  // nvme_path of the two offloads
    // fp16, bf16 or fp32: the dtypes in which gradients are added up and sent over dp. Empty: float
    // (double for double), and the dtype in which they are added up.
    std::string grad_accum_dtype, communication_data_type;
    zero::StepOptions options{};  // step_options() derives the rest

    bool overlaps() const { return overlap_comm.value_or(stage == 3); }
  };

  Model model;
  Precision precision;
  machine::Transport transport = machine::Transport::shared_memory;
  Algorithms algorithms;
  Pipeline pipeline;
  machine::Degrees degrees;
  TensorGrid tensor_grid{};
  layers::ContextOptions context{};  // with degrees.cp above 1
  int expert_parallel = 1;           // groups of ranks that hold different experts; neighbours
  std::optional<int> expert_tensor_parallel;  // ranks of such a group; empty: as many as tp has
  std::optional<int> sequence_parallel_size;  // DeepSpeed's degree of Ulysses; sets cp and context
  bool tensor_parallel = true;                // DeepSpeed's tensor_parallel.enabled
  Batch batch;
  Optimizer optimizer;
  Schedule schedule;
  Zero zero;
  layers::ActivationOptions activations{};
  bool graph = false;        // forward, backward and the sums of gradients are a graph (trainer.h)
  layers::Fp8Options fp8{};  // products of the blocks' linear layers in 8 bits
  // Only a part of each sequence counts for the loss (counted_tokens). It differs between steps,
  // and is empty for some micro-batches and ranks.
  bool uneven_tokens = false;
  // Names of parameters that are not trained, with * for any characters, separated by +.
  std::string frozen;
  std::uint64_t seed = 1234;
  std::string weights;  // a file of initial values (trainer/gpt2_weights.h); empty: random ones

  int micro_batches() const {
    return static_cast<int>(batch.global_batch_size /
                            (std::int64_t{degrees.dp} * batch.micro_batch_size));
  }
  std::int64_t tokens() const { return std::int64_t{batch.global_batch_size} * model.sequence; }
  // Ranks that hold the same parameters, over which gradients are reduced and ZeRO shards.
  int shards() const { return degrees.dp * degrees.cp; }
  int expert_tensor() const { return expert_tensor_parallel.value_or(degrees.tp); }
  // Ranks that hold the same part of an expert, and whether they are not those of shards()
  // (layers/experts/expert_groups.h).
  int expert_shards() const { return degrees.tp * shards() / (expert_parallel * expert_tensor()); }
  bool experts_apart() const {
    return model.has_experts() && (expert_parallel > 1 || expert_tensor() != degrees.tp);
  }
  // Ranks of the largest group over which gradients are reduced.
  int most_shards() const {
    return experts_apart() ? std::max(shards(), expert_shards()) : shards();
  }
  // Returns whether the number of tokens that count differs between ranks and steps.
  bool counts_tokens() const { return uneven_tokens || model.encoder(); }
  // Tokens of a sequence that the data has: of an encoder-decoder the decoder's follow the
  // encoder's.
  int drawn_sequence() const { return (model.encoder_decoder() ? 2 : 1) * model.sequence; }
  bool over_grid() const { return tensor_grid.mode != layers::TensorParallelMode::one_d; }
  // Throws std::invalid_argument if the ranks of tp do not form the grid.
  layers::TensorGrid grid() const {
    return layers::tensor_grid(tensor_grid.mode, degrees.tp, tensor_grid.depth);
  }
  int own_sequence() const { return model.sequence / degrees.cp; }  // positions on a rank of cp
  machine::Dtype gradient_dtype() const;  // in which gradients are added up
  // Throws std::invalid_argument if the values do not support the dtypes of gradients.
  void check_gradient_dtypes() const;
  zero::StepOptions step_options() const;
  // Return the patterns of `frozen`, and the names that one of them matches.
  std::vector<std::string> frozen_patterns() const;
  std::vector<std::string> frozen_names(const std::vector<std::string>& names) const;
  // Throws std::invalid_argument if the decay ends before the warm-up.
  LearningRate learning_rate() const;
};

}  // namespace suite
