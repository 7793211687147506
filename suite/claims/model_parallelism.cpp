// Claims of a guide to model parallelism: memory of TP, BERT-Large, BLOOM.

#include <algorithm>
#include <cmath>

#include "suite/claims/arithmetic.h"

namespace suite {
namespace {

using namespace arithmetic;

// Returns the bytes that a rank of TP sends for one sequence: in each layer two all-reduces forward
// and two backward.
double tp_bytes(int t, int layers, double sequence, double hidden, double element) {
  return 4 * layers * ring_all_reduce(t, sequence * hidden * element);
}

std::vector<Claim> memory() {
  const double billion = 1e9;
  return {
      {59,
       "M GPUs cut the memory from N to N/M",
       decide_if(layer_activations(8, true) == 34.0 / 8 && layer_activations(8, false) > 34.0 / 8),
       {{"activations of a layer on one GPU", layer_activations(1, true), "s b h"},
        {"on 8 with TP and sequence parallelism", layer_activations(8, true), "s b h"},
        {"on 8 with TP only", layer_activations(8, false), "s b h"}},
       "if everything is split; TP alone keeps 10 of 34 s b h on each GPU",
       true},
      {60,
       "three dimensions and ZeRO: 100e9 parameters on hundreds to thousands of GPUs",
       decide(states(100e9) <= 100 * 80 * GB),
       {{"states", states(100e9) / TB, "TB"},
        {"GPUs of 80 GB for them", std::ceil(states(100e9) / (80 * GB))}},
       "",
       true},
      {61,
       "batch 64, accumulation 4, TP 4",
       ClaimVerdict::open,
       {{"micro-batch on 4 GPUs", 64 / 4.0}},
       "a setting"},
      {62,
       "the sample trains batches of 16: 16 rows a step, accumulation 4, TP 4",
       decide(16 * 4 == 16),
       {{"rows until an update, 16 x 4", 16 * 4}, {"micro-batch for a batch of 16", 16 / 4}},
       "it trains batches of 64"},
      {63,
       "the sample's model: 4 + 1 linear layers of 512",
       ClaimVerdict::open,
       {{"parameters", 5 * (512.0 * 512 + 512)},
        {"states", states(5 * (512.0 * 512 + 512)) / 1e6, "MB"}},
       "any GPU holds it",
       true},
      {64,
       "1e9 parameters do not fit on an A100 of 40 GB with PyTorch",
       decide(states(billion) > 40 * GB),
       {{"states", states(billion) / GB, "GB"}, {"left for activations", 40 - 16, "GB"}},
       "they fit unless the activations take more than 24 GB",
       true},
      {65,
       "TP 4 with ZeRO-2 on 4 GPUs: about 12 GB each",
       decide_if(states(billion) / 4 < 12 * GB),
       {{"states, 16 bytes / 4", states(billion) / 4 / GB, "GB"},
        {"for activations", 12 - 4, "GB"}},
       "if the activations take 8 GB; ZeRO has no effect at DP 1",
       true},
      {66,
       "that saves 75 %",
       decide_if(48 * (1 - 0.75) == 12),
       {{"baseline for 12 GB", 12 / (1 - 0.75), "GB"}},
       "if the baseline is 48 GB and all of it is split in four",
       true},
      {69,
       "BLOOM 176B on 128 A100, TP 8 with PP and ZeRO-3",
       decide_if(states(176e9) / 128 <= 80 * GB),
       {{"states of a GPU", states(176e9) / 128 / GB, "GB"}},
       "if the program combines pipelines with ZeRO-3; DeepSpeed does not",
       true},
      {72,
       "below 0.1e9 DP with ZeRO-1 or 2, to 1e9 TP with ZeRO-2, above three dimensions with ZeRO-3",
       decide(states(13e9, 2, 64) > 32 * GB),
       {{"1e9 parameters on one GPU", states(billion) / GB, "GB"},
        {"13e9, stage 2 on 64 GPUs", states(13e9, 2, 64) / GB, "GB"}},
       "13e9 parameters fit with DP and ZeRO-2 (37); another guide states other bounds (108)",
       true},
      {74,
       "a GPT of 24 layers with hidden 1024 and 16 heads",
       ClaimVerdict::open,
       {{"parameters with 50257 tokens and 1024 positions", gpt(24, 1024, 16, 50257, 1024)}},
       "GPT-2's second size",
       true},
  };
}

std::vector<Claim> time() {
  const double tp = tp_bytes(8, 24, 512, 1024, 2), dp = ring_all_reduce(8, 2 * 340e6);
  const double flops = 6 * 340e6 * 512 * 50 / 8;
  const double bloom_s = 6 * 176e9 * 300e9 / (128 * 0.45 * a100_peak);
  return {
      {67,
       "BERT-Large of 340e6 parameters on 8 V100 with DP: 50 samples/s",
       ClaimVerdict::open,
       {{"of a GPU at 512 tokens", flops / TF, "TFLOP/s"},
        {"of its peak", 100 * flops / v100_peak, "%"}},
       "a measurement decides; the GPUs would be idle most of the time"},
      {68,
       "TP with ZeRO-2: 100 samples/s, twice as fast",
       decide(dp / tp > 8),
       {{"TP 8 sends for a sample of 512 tokens", tp / 1e6, "MB"},
        {"DP sends for a step", dp / GB, "GB"},
        {"samples of a step at which both send as much", dp / tp}},
       "TP sends more from 7 samples a step on, less than one for each GPU"},
      {70,
       "the training of BLOOM takes weeks and not months",
       decide(bloom_s <= 8 * 7 * day_s),
       {{"300e9 tokens at 45 % of 128 A100", bloom_s / day_s, "days"},
        {"tokens in six weeks", 300e9 * 42 * day_s / bloom_s}},
       "months, at any published speed"},
      {71, "40 % less communication", ClaimVerdict::open, {}, "no baseline is stated"},
      {73,
       "tp_size 2, 4, 8 and a number of GPUs that it divides (4, 8, 12)",
       decide(4 % 2 == 0 && 8 % 4 == 0 && 12 % 4 == 0 && 2 * 4 == 8),
       {{"2 x 4", 8}, {"rest of 4 GPUs by tp_size 8", 4 % 8}},
       "its loop up to 8 fails on 4 GPUs"},
      {75,
       "learning rate 1e-3, betas 0.9 and 0.999, epsilon 1e-8",
       decide_if(1e-8 < std::ldexp(1.0, -24)),
       {{"smallest float16", std::ldexp(1.0, -24)}, {"epsilon", 1e-8}},
       "if the states are float32, because float16 rounds epsilon to 0"},
  };
}

}  // namespace

std::vector<Claim> model_parallelism_claims() {
  std::vector<Claim> all = memory();
  const std::vector<Claim> more = time();
  all.insert(all.end(), more.begin(), more.end());
  std::ranges::sort(all, {}, &Claim::number);
  return all;
}

}  // namespace suite
