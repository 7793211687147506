#pragma once
// The bytes that a training run holds on one rank, by category and place, before it runs. They are
// computed by the papers' formulas, by Megatron-LM's and DeepSpeed's own, which differ, and exactly
// as this program would allocate them. Each row has its assumption.
//
// Ψ: parameters of the largest pipeline stage on one rank of tensor parallelism; d: ranks that a
// ZeRO stage shards over (data x context parallel). Model states, in bytes:
//                paper (arXiv:1910.02054),     Megatron-LM, bfloat16     DeepSpeed's estimator
//                16-bit values, Adam           and float32 gradients
//   stage 0      16Ψ                           18Ψ
//   stage 1      4Ψ + 12Ψ/d                    6Ψ + 12Ψ/d
//   stage 2      2Ψ + 14Ψ/d                    2Ψ + 16Ψ/d                2Ψ + 18Ψ/d
//   stage 3      16Ψ/d + live parameters       18Ψ/d                     4 largest + 18Ψ/d
//     with hpZ   + 2Ψ/zero_hpz_partition_size (arXiv:2306.10209)
// float32 training has 4 + 4 + 8 instead of 2 + 2 + 12. SGD and Adafactor have 0 instead of the 8;
// with momentum, RMSprop, Lion and Muon have 4; 8-bit AdamW has 2 + 8/256, as if no parameter were
// smaller than min_8bit_size. Only `ours` counts the means of Adafactor and the
// moments of what Muon leaves to AdamW. Offload (arXiv:2101.06840, arXiv:2104.07857) stores the
// optimizer's 12Ψ/d and the gradients that it reads, 2Ψ/d, in host memory, or the 12Ψ/d on NVMe. In
// stage 3 the values' 2Ψ/d can be stored there too.
//
// Activations: table 2 of arXiv:2205.05198, times the layers of a stage and the micro-batches in
// flight under 1F1B, min(pp, micro-batches), with dropout. Of a sparse layout only the scores of
// present blocks are counted. `ours`: ours.cpp, which keeps no scores.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "suite/configuration/training_config.h"

namespace suite::configuration {

struct Bytes {
  double parameters = 0, gradients = 0, optimizer = 0, activations = 0, buffers = 0;
  double total() const { return parameters + gradients + optimizer + activations + buffers; }
};

enum class Counting : unsigned char { paper, megatron, deepspeed, ours };
std::string_view name(Counting counting);

// One way to count and place the bytes of a training run.
struct Holding {
  Counting counting = Counting::paper;
  int stage = 0;
  std::string optimizer = "none", parameters = "none";  // offloaded to: none, cpu, nvme
  bool operator==(const Holding&) const = default;
};
// Returns all variants that the countings support, in order.
std::vector<Holding> holdings();
Holding asked_for(const TrainingConfig& training, Counting counting);
std::string text(const Holding& holding);  // "stage 3, optimizer cpu, parameters cpu"

struct Held {
  Bytes gpu, cpu, nvme;
  // `ours`: whole values and gradients, which every ZeRO stage holds until its first step is made.
  double gpu_at_start = 0;
  std::string assumption;  // "2Ψ + 2Ψ + 12Ψ/d", …
  std::string not_held;    // reason for missing numbers: "not implemented", …
};
struct Machine {
  double gpu_memory = 80e9;
  std::optional<double> cpu_memory{};  // a rank's part of its host's memory
  std::int64_t gpus_per_node = 8;
};
Held held(const TrainingConfig& training, const Holding& holding, const Machine& machine);
bool fits(const Held& held, const Machine& machine);

// Returns the bytes that this program would allocate on the first pipeline stage, which is the
// largest (ours.cpp), or why there are no numbers.
Held ours(const TrainingConfig& training, const Holding& holding);
// Returns those of a valid configuration on a rank of one stage. Allocates no tensor.
Held held_by_stage(const TrainingConfig& config, int stage);

// The largest model that fits: more or fewer layers of a known shape, else a number of parameters.
struct Largest {
  std::int64_t layers = 0;
  double parameters = 0;
  bool beyond = false;  // a larger model may fit, but was not tried
};
Largest largest(const TrainingConfig& training, const Holding& holding, const Machine& machine);

// Returns the bytes that forward keeps on a rank of the largest stage; 0 without a shape.
double activation_bytes(const TrainingConfig& training);
std::string activation_formula(const TrainingConfig& training);

}  // namespace suite::configuration
