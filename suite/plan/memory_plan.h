#pragma once
// Bytes that a training holds on one rank, by category and place, before anything runs: by the
// papers' formulas, by Megatron-LM's and DeepSpeed's own counting, which differ, and exactly as
// this program would hold them. Each row says what it assumes.
//
// Ψ: parameters of the largest pipeline stage on one rank of tensor parallelism; d: ranks that a
// ZeRO stage cuts over (data x context parallel). Model states, in bytes:
//                paper (arXiv:1910.02054),     Megatron-LM, bfloat16     DeepSpeed's estimator
//                16-bit values, Adam           and float32 gradients
//   stage 0      16Ψ                           18Ψ
//   stage 1      4Ψ + 12Ψ/d                    6Ψ + 12Ψ/d
//   stage 2      2Ψ + 14Ψ/d                    2Ψ + 16Ψ/d                2Ψ + 18Ψ/d
//   stage 3      16Ψ/d + live parameters       18Ψ/d                     4 largest + 18Ψ/d
// float32 training has 4 + 4 + 8 in place of 2 + 2 + 12; of its 8, SGD has none, and with
// momentum, as RMSprop, 4. Offloaded (papers
// arXiv:2101.06840, arXiv:2104.07857): the optimizer's 12Ψ/d and the gradients that it reads, 2Ψ/d,
// lie in host memory, or the 12Ψ/d on NVMe; in stage 3 the values' 2Ψ/d can too.
//
// Activations: table 2 of arXiv:2205.05198, times the layers of a stage and the micro-batches in
// flight under 1F1B, min(pp, micro-batches); dropout is in it. `ours`: ours.h.

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

// One way to hold a training.
struct Holding {
  Counting counting = Counting::paper;
  int stage = 0;
  std::string optimizer = "none", parameters = "none";  // offloaded to: none, cpu, nvme
  bool operator==(const Holding&) const = default;
};
// All that the countings know, in order.
std::vector<Holding> holdings();
Holding asked_for(const TrainingConfig& training, Counting counting);
std::string text(const Holding& holding);  // "stage 3, optimizer cpu, parameters cpu"

struct Held {
  Bytes gpu, cpu, nvme;
  std::string assumption;  // "2Ψ + 2Ψ + 12Ψ/d", …
  std::string not_held;    // why there are no numbers: "not implemented", …
};
struct Machine {
  double gpu_memory = 80e9;
  std::optional<double> cpu_memory{};  // a rank's share of its host's
  std::int64_t gpus_per_node = 8;
};
Held held(const TrainingConfig& training, const Holding& holding, const Machine& machine);
bool fits(const Held& held, const Machine& machine);

// The largest model that fits: of a shape, more or fewer layers of it; else a number of parameters.
struct Largest {
  std::int64_t layers = 0;
  double parameters = 0;
  bool beyond = false;  // more than these: no more were tried
};
Largest largest(const TrainingConfig& training, const Holding& holding, const Machine& machine);

// Of the largest stage: bytes that forward keeps for backward on one rank; 0 without a shape.
double activation_bytes(const TrainingConfig& training);
std::string activation_formula(const TrainingConfig& training);

}  // namespace suite::configuration
