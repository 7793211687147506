#include "suite/plan/claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "suite/configuration/models.h"
#include "suite/plan/memory_plan.h"
#include "suite/plan/model_shape.h"

namespace suite::configuration {
namespace {

using Verdict = Claim::Verdict;

constexpr double GB = 1e9, TB = 1e12;

TrainingConfig training_of(const Model& model, const machine::Degrees& degrees) {
  TrainingConfig training;
  training.model = model;
  training.degrees = degrees;
  training.precision.dtype = machine::Dtype::bfloat16;
  training.batch = {1, degrees.dp, 1};
  return training;
}

Model of_count(double parameters) {
  Model model;
  model.parameters = std::llround(parameters);
  return model;
}

// Returns the bytes of parameters, gradients and optimizer states on the GPU of a rank.
double states(const Model& model, const machine::Degrees& degrees, const Holding& holding) {
  const Bytes gpu = held(training_of(model, degrees), holding, {}).gpu;
  return gpu.parameters + gpu.gradients + gpu.optimizer;
}
double paper_states(const Model& model, int stage = 0, int ranks = 1) {
  return states(model, {.dp = ranks}, {Counting::paper, stage});
}

// Compares the stated bytes with 16 bytes for each nominal parameter.
Claim sixteen_bytes_each(std::string statement, double nominal, double stated, const Model& exact,
                         std::string conclusion) {
  const double bytes = paper_states(of_count(nominal));
  return {std::move(statement),
          std::abs(bytes - stated) < 1 ? Verdict::holds : Verdict::fails,
          {{fmt::format("16 bytes x {:.1f}e9 parameters", nominal / 1e9), "GB", bytes / GB},
           {"parameters of its shape", "", parameters_of(exact)},
           {"16 bytes x that number", "GB", paper_states(exact) / GB}},
          std::move(conclusion)};
}

Claim llama() {
  const Model exact = named_model("llama2_7b");
  Claim claim = sixteen_bytes_each(
      "LLaMA-2 7B, bfloat16 mixed precision, Adam: 112 GB of model states", 7e9, 112 * GB, exact,
      "true for 7.0e9 parameters at 2 + 2 + 12 bytes; the model has 6.74e9");
  claim.numbers.push_back({"18 bytes x that number (Megatron-LM: float32 gradients)", "GB",
                           states(exact, {}, {Counting::megatron, 0}) / GB});
  return claim;
}

Claim gpt2() {
  return sixteen_bytes_each(
      "GPT-2 1.5B: 24 GB of model states", 1.5e9, 24 * GB, named_model("gpt2_1558m"),
      "true for 1.5e9 parameters at 2 + 2 + 12 bytes (arXiv:1910.02054); the model has 1.56e9");
}

Claim sixty_four() {
  const Model model = of_count(7.5e9);
  const auto less = [&](int stage) { return paper_states(model) / paper_states(model, stage, 64); };
  const double off =
      std::max({std::abs(less(1) / 4 - 1), std::abs(less(2) / 8 - 1), std::abs(less(3) / 64 - 1)});
  const Verdict verdict = off < 0.01   ? Verdict::holds
                          : off < 0.15 ? Verdict::roughly
                                       : Verdict::fails;
  return {
      "64 GPUs, Adam: stage 1 takes about 4x less memory, stage 2 about 8x, stage 3 64x",
      verdict,
      {{"stage 1: 16 / (4 + 12/64)", "x", less(1)},
       {"stage 2: 16 / (2 + 14/64)", "x", less(2)},
       {"stage 3: 16 / (16/64)", "x", less(3)},
       {"stage 1 on 1024 GPUs", "x", paper_states(model) / paper_states(model, 1, 1024)},
       {"stage 2 on 1024 GPUs", "x", paper_states(model) / paper_states(model, 2, 1024)}},
      "4x and 8x are the limits for many GPUs, for model states only; 64x is exact, without live "
      "parameters"};
}

// TP 8 x PP 2 x SP 2. There is no data parallelism, so the two ranks of SP hold the ZeRO shards.
constexpr machine::Degrees degrees_of_32{.tp = 8, .cp = 2, .pp = 2};

Claim trillion() {
  const Model model = of_count(1.3e12);
  const double whole = paper_states(model);
  const double rank = states(model, degrees_of_32, {Counting::paper, 3});
  const TrainingConfig training = training_of(model, degrees_of_32);
  const Bytes kept = held(training, {Counting::paper, 3}, {}).gpu;
  const Held away = held(training, {Counting::paper, 3, "cpu", "cpu"}, {});
  return {
      "1.3e12 parameters on 32 GPUs of 80 GB, TP 8 x PP 2 x SP 2 with ZeRO-3: 60 GB per GPU",
      rank <= 60 * GB ? Verdict::holds : Verdict::fails,
      {{"all model states, 16 bytes per parameter", "TB", whole / TB},
       {"model states of one GPU, sharded 32 ways", "GB", rank / GB},
       {"values of one GPU, 2 bytes per parameter", "GB", kept.parameters / GB},
       {"parameters with 60 GB of states per GPU", "", 60 * GB * 32 / 16},
       {"GPUs for 1.3e12 parameters at 60 GB each", "", std::ceil(whole / (60 * GB))},
       {"all states offloaded: buffers on the GPU", "GB", away.gpu.total() / GB},
       {"all states offloaded: on the host, per GPU", "GB", away.cpu.total() / GB},
       {"all states offloaded: on a host of 8 GPUs", "TB", 8 * away.cpu.total() / TB}},
      "impossible: 32 GPUs of 80 GB hold 2.56 TB, the states are 20.8 TB, and only the values "
      "take more than 80 GB per GPU; with everything offloaded a GPU has room, and each host of 8 "
      "needs 5.2 TB of memory (or NVMe)"};
}

Claim layers_120() {
  Model model({.layers = 120, .hidden = 12288, .heads = 96, .vocabulary = 50257, .sequence = 8192});
  model.tokens = model.vocabulary;
  const double exact = parameters_of(model), h = 12288;
  const double of_32 = states(model, degrees_of_32, {Counting::paper, 3});
  const auto of_64 = machine::Degrees{.tp = 8, .cp = 2, .dp = 2, .pp = 2};
  return {"120 layers of hidden 12288 are 1.3e12 parameters",
          exact > 1e12 ? Verdict::holds : Verdict::fails,
          {{"12 L h^2", "", 12 * 120 * h * h},
           {"exactly, with biases, norms, 50257 tokens and 8192 positions", "", exact},
           {"1.3e12 parameters / this number", "", 1.3e12 / exact},
           {"layers of that width with 1.3e12 parameters", "", 1.3e12 / (12 * h * h)},
           {"width at which 120 layers have 1.3e12 parameters", "", std::sqrt(1.3e12 / (12 * 120))},
           {"its model states on 32 GPUs (TP 8 x PP 2 x SP 2, ZeRO-3)", "GB", of_32 / GB},
           {"its model states on 64 GPUs (x DP 2)", "GB",
            states(model, of_64, {Counting::paper, 3}) / GB}},
          "the model has 218e9 parameters; its states take more than 80 GB on each of 32 GPUs, "
          "and about 55 GB on each of 64: 60 GB per GPU is nearly right there"};
}

}  // namespace

std::string_view name(Verdict verdict) {
  constexpr std::string_view names[] = {"holds", "roughly", "fails"};
  return names[static_cast<std::size_t>(verdict)];
}

std::vector<Claim> claims() { return {llama(), gpt2(), sixty_four(), trillion(), layers_120()}; }

std::string text(const std::vector<Claim>& claims) {
  std::string out;
  for (const Claim& claim : claims) {
    out += fmt::format("{:<8} {}\n", name(claim.verdict), claim.statement);
    for (const Claim::Number& number : claim.numbers) {
      const std::string value = number.unit.empty()
                                    ? fmt::format("{:.0f}", number.value)
                                    : fmt::format("{:.2f} {}", number.value, number.unit);
      out += fmt::format("{:9}{:<66} {:>16}\n", "", number.what, value);
    }
    out += fmt::format("{:9}-> {}\n\n", "", claim.conclusion);
  }
  return out;
}

}  // namespace suite::configuration
