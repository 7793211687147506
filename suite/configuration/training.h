#pragma once
// A training run as DeepSpeed's ds_config.json and Megatron-LM's arguments describe one: plain
// values under their names. A Training that nothing was read into holds DeepSpeed's defaults (of
// August 2026) and, where only Megatron-LM has the word, Megatron-LM's. resolve.h fills it and sees
// to it that the numbers fit each other.
//
// Bucket sizes and thresholds are in elements, learning rates per step, batches in sequences. An
// empty text or optional means what the comment beside it says. A 0 in batch, model or degrees
// means: not known.

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "machine/device/dtype.h"

namespace suite::configuration {

// Megatron-LM's names. GPT-2's parts are the defaults.
struct Model {
  std::int64_t num_layers = 0, hidden_size = 0, num_attention_heads = 0;
  std::int64_t num_query_groups = 0;  // 0: as many as heads
  std::int64_t ffn_hidden_size = 0;   // 0: 4 hidden; with swiglu ⅔ of it, rounded down to 64s
  std::int64_t vocabulary_size = 0, make_vocab_size_divisible_by = 128;
  std::int64_t seq_length = 0;
  std::int64_t max_position_embeddings = 0;  // 0: seq_length
  bool swiglu = false, disable_bias_linear = false, untie_embeddings_and_output_weights = false;
  std::string normalization = "LayerNorm", position_embedding_type = "learned_absolute";
  double hidden_dropout = 0, attention_dropout = 0;
  std::int64_t parameters = 0;  // only a number of them is known, no shape
};

struct Degrees {
  bool tensor_parallel = true;  // DeepSpeed's tensor_parallel.enabled
  std::int64_t tensor = 1, pipeline = 1, context = 1;
  std::int64_t gpus = 0, data = 0;  // data: gpus / (tensor * pipeline * context)
  bool sequence_parallel = false;
  // Chunks of a stage, more than 1 interleaved: said, or num_layers / (pipeline *
  // layers_per_virtual_stage). 0: not said.
  std::int64_t virtual_stages = 1, layers_per_virtual_stage = 0;
  std::string partition =
      "best";  // of layers over stages: uniform, unless "parameters" or "profile"
};

struct Batch {
  std::int64_t train_batch_size = 0;  // = the three others multiplied
  std::int64_t train_micro_batch_size_per_gpu = 0, gradient_accumulation_steps = 0;
};

struct Fp16 {
  bool enabled = false;
  double loss_scale = 0;  // 0: dynamic
  // The first scale in both tools' words: initial_loss_scale counts, and is 2^initial_scale_power
  // where nobody says it.
  std::int64_t initial_scale_power = 16;
  double initial_loss_scale = 65536;
  std::int64_t loss_scale_window = 1000, hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
  std::string automaton =
      "deepspeed_zero";  // how a dynamic scale moves: zero/optimizers/loss_scale.h
};

struct Bf16 {
  bool enabled = false, check_grad_overflow = true;
};

struct Optimizer {
  std::string type = "AdamW";  // or SGD, RMSprop
  double learning_rate = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double epsilon = 1e-8, weight_decay = 0;
  bool decoupled_decay = true;            // of Adam: AdamW's; else the decay is in the gradient
  double momentum = 0, smoothing = 0.99;  // SGD's, RMSprop's
};

struct Scheduler {
  std::string type;  // empty: a constant rate
  double warmup_min_lr = 0, warmup_max_lr = 1e-3;
  std::int64_t warmup_num_steps = 1000;
  std::string warmup_type = "log";
  std::optional<std::int64_t> total_num_steps;
  double warmup_min_ratio = 0, cos_min_ratio = 1e-4;
  // Megatron-LM's
  std::optional<std::int64_t> train_iters, lr_decay_iters, lr_warmup_iters;
  double min_lr = 0;
  std::string lr_decay_style = "linear";
};

struct Gradients {
  double clipping = 1;  // of the global norm; 0: off
  bool prescale = false;
  double predivide_factor = 1;
  std::string allreduce_op = "mean";
  std::string communication_data_type;  // fp16, bf16, fp32; empty: the values'
  std::string seq_parallel_communication_data_type = "fp32";
  std::string accumulation_dtype;  // empty: the values'
};

struct OffloadParameters {
  std::string device = "none", nvme_path;
  std::int64_t buffer_count = 5, buffer_size = 100'000'000, max_in_cpu = 1'000'000'000;
  bool pin_memory = true;
};

struct OffloadOptimizer {
  std::string device = "none", nvme_path;
  std::int64_t buffer_count = 4;
  bool pin_memory = true, pipeline_read = false, pipeline_write = false;
  double ratio = 1;
};

struct Zero {
  std::int64_t stage = 0;
  bool contiguous_gradients = true, reduce_scatter = true, allgather_partitions = true;
  bool use_multi_rank_bucket_allreduce = true, round_robin_gradients = false;
  std::int64_t reduce_bucket_size = 500'000'000, allgather_bucket_size = 500'000'000;
  std::optional<bool> overlap_comm;  // empty: on in stage 3 only
  std::int64_t sub_group_size = 1'000'000'000, prefetch_bucket_size = 50'000'000;
  std::int64_t param_persistence_threshold = 100'000;
  std::int64_t model_persistence_threshold = std::numeric_limits<std::int64_t>::max();
  std::int64_t max_live_parameters = 1'000'000'000, max_reuse_distance = 1'000'000'000;
  bool gather_16bit_weights_on_model_save = false;
  OffloadParameters offload_param;
  OffloadOptimizer offload_optimizer;

  bool overlaps() const { return overlap_comm.value_or(stage == 3); }
};

struct AsynchronousIo {
  std::int64_t block_size = 1'048'576, queue_depth = 8, intra_op_parallelism = 1;
  bool single_submit = false, overlap_events = true;
};

struct Activations {
  // DeepSpeed's; partition_activations is Megatron-LM's distribute_saved_activations too.
  bool partition_activations = false, cpu_checkpointing = false;
  bool contiguous_memory_optimization = false, synchronize_checkpoint_boundary = false;
  std::optional<std::int64_t> number_checkpoints;
  // Megatron-LM's
  std::string recompute_granularity = "none", recompute_method = "uniform";
  std::int64_t recompute_num_layers = 1;
  bool use_flash_attn = false;
};

struct Reports {
  std::optional<std::int64_t> steps_per_print;  // empty: none
  std::int64_t log_interval = 100;
  bool wall_clock_breakdown = false, memory_breakdown = false;
};

struct Training {
  Model model;
  Degrees degrees;
  Batch batch;
  Fp16 fp16;
  Bf16 bf16;
  Optimizer optimizer;
  Scheduler scheduler;
  Gradients gradients;
  Zero zero;
  AsynchronousIo aio;
  Activations activations;
  Reports reports;
  std::int64_t seed = 1234;

  machine::Dtype dtype() const {
    return fp16.enabled   ? machine::Dtype::float16
           : bf16.enabled ? machine::Dtype::bfloat16
                          : machine::Dtype::float32;
  }
  // ZeRO's shards: context parallelism sums the gradients of the same parameters.
  std::int64_t shards() const { return degrees.data * degrees.context; }
};

}  // namespace suite::configuration
