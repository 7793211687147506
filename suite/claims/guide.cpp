// Claims of a guide to training with Megatron-DeepSpeed: models of 1.3e12 and 5e12 parameters.

#include <algorithm>

#include "suite/claims/arithmetic.h"
#include "suite/predict/cluster.h"

namespace suite {
namespace {

using namespace arithmetic;

constexpr double stated = 1.3e12, memory_of_32 = 32 * 80 * GB;
constexpr machine::Degrees of_32{.tp = 8, .cp = 2, .pp = 2};

// Returns the model that the guide's own extents describe.
double described() { return gpt(120, 12288, 96, 50257, 8192); }

double step_s(double parameters) {  // a batch of 1024 sequences of 8192 on 32 GPUs at 52 %
  return 6 * parameters * 1024 * 8192 / (32 * 0.52 * a100_peak);
}

std::vector<Claim> memory() {
  const double scores = 5 * 96 * 8192.0 * 8192;
  const double of_rank = states_of_rank(stated, of_32, 3);
  const double small = states(described(), 3, 32);
  return {
      {1,
       "sequence parallelism over N ranks cuts the activations of attention from s^2 to s^2/N",
       decide_if(scores / 2 == 5 * 96 / 2 * 8192.0 * 8192),
       {{"scores 5 a b s^2 of a layer, a = 96, s = 8192, b = 1", scores / GB, "GB"},
        {"on one of 2 ranks, each with half of the heads", scores / 2 / GB, "GB"}},
       "if the scores are stored (no flash attention) and heads or keys are split (Ulysses, "
       "context "
       "parallelism); Megatron's sequence parallelism only splits what lies between",
       true},
      {2,
       "ZeRO-3 keeps 1/N of the states, N = DP",
       decide(near(states(stated, 3, 64), states(stated) / 64, 1e-9)),
       {{"states, 16 bytes for each of 1.3e12 parameters", states(stated) / TB, "TB"},
        {"on one of 64 ranks", states(stated, 3, 64) / GB, "GB"}},
       "the guide's own layouts have DP 1 and 2: all, and one half",
       true},
      {3,
       "1.3e12 parameters train on 32 A100 of 80 GB with sequences of 2048",
       decide(2 * stated <= memory_of_32),
       {{"float16 weights, 2 bytes each", 2 * stated / TB, "TB"},
        {"memory of 32 GPUs", memory_of_32 / TB, "TB"},
        {"all states", states(stated) / TB, "TB"},
        {"GPUs for the states at 60 GB each", std::ceil(states(stated) / (60 * GB))}},
       "only the weights exceed the memory of all GPUs",
       true},
      {4,
       "1.3e12 parameters on 32 GPUs, Megatron-LM alone: 120 GB a GPU",
       decide(near(16 * stated / 32, 120 * GB, 0.1)),
       {{"16 bytes each over 32 GPUs", 16 * stated / 32 / GB, "GB"},
        {"18 bytes each (float32 gradients)", 18 * stated / 32 / GB, "GB"},
        {"18 bytes for each parameter of the described model (13)", 18 * described() / 32 / GB,
         "GB"}},
       "five times more; about 120 GB is right for the model that the guide describes",
       true},
      {5,
       "1.3e12 parameters on 32 GPUs, ZeRO-3 alone: 90 GB a GPU",
       decide(near(states(stated, 3, 32), 90 * GB, 0.1)),
       {{"states over 32 ranks", states(stated, 3, 32) / GB, "GB"},
        {"of the described model", small / GB, "GB"}},
       "seven times more",
       true},
      {6,
       "1.3e12 parameters on 32 GPUs of 80 GB, TP 8 x PP 2 x SP 2 with ZeRO-3: 60 GB a GPU",
       decide(of_rank <= 60 * GB),
       {{"states of one GPU, sharded 32 ways", of_rank / GB, "GB"},
        {"values of one GPU, 2 bytes each", values_of_rank(stated, of_32, 3) / GB, "GB"},
        {"32 GPUs at 60 GB", 32 * 60 * GB / TB, "TB"},
        {"parameters with 60 GB of states a GPU", 32 * 60 * GB / 16},
        {"values of the described model, all other states on the host", 2 * described() / 32 / GB,
         "GB"}},
       "the values alone take more; the described model fits with its optimizer on the host",
       true},
      {7,
       "longest sequences on 32 GPUs: 8K, 4K and 16K (Megatron-LM, ZeRO-3, both)",
       ClaimVerdict::open,
       {{"kept inputs 2 s b h L / t of the described model, s = 8192, t = 8",
         2 * 8192.0 * 12288 * 120 / 8 / GB, "GB"},
        {"the same, s = 16384", 2 * 16384.0 * 12288 * 120 / 8 / GB, "GB"}},
       "recomputation and the size of the model decide; `plan` computes both for a configuration",
       true},
      {9,
       "256 GB of memory a node suffice for offload and checkpoints",
       decide(12 * stated / 4 <= 256 * GB),
       {{"optimizer states, 12 bytes each, on each of 4 nodes", 12 * stated / 4 / TB, "TB"}},
       "15 times more for 1.3e12 parameters",
       true},
      {10,
       "1 TB of NVMe caches optimizer and activations",
       decide(memory_of_32 + 4 * (256 * GB + TB) >= states(stated)),
       {{"GPU, host and NVMe of 4 nodes", (memory_of_32 + 4 * (256 * GB + TB)) / TB, "TB"},
        {"states", states(stated) / TB, "TB"}},
       "less than half of the states have room",
       true},
  };
}

std::vector<Claim> layouts() {
  const double five = 5e12;
  const machine::Degrees of_128{.tp = 8, .cp = 2, .dp = 2, .pp = 4};
  return {
      {11,
       "TP 8 x PP 2 x SP 2 x DP 1 = 32 GPUs, each with 1/32 of the states",
       decide_if(of_32.ranks() == 32 &&
                 near(states_of_rank(stated, of_32, 3), states(stated) / 32, 1e-6)),
       {{"ranks", static_cast<double>(of_32.ranks())},
        {"share of TP x PP only, 1 /", 16},
        {"share if ZeRO also shards over SP, 1 /",
         std::round(states(stated) / states_of_rank(stated, of_32, 3))}},
       "if ZeRO shards over the ranks of SP; DeepSpeed rejects ZeRO-2 and 3 with pipelines",
       true},
      {12,
       "5e12 parameters on 128 GPUs of 80 GB, TP 8 x PP 4 x SP 2 x DP 2, 1/128 each",
       decide(of_128.ranks() == 128 && states_of_rank(five, of_128, 3) <= 80 * GB),
       {{"ranks", static_cast<double>(of_128.ranks())},
        {"values of a GPU", values_of_rank(five, of_128, 3) / GB, "GB"},
        {"states of a GPU", states_of_rank(five, of_128, 3) / GB, "GB"}},
       "the product is right; the states take eight times the memory",
       true},
      {13,
       "120 layers of hidden 12288 with 96 heads are 1.3e12 parameters",
       decide(rounds_to(described(), stated, 2)),
       {{"12 L h^2", 12 * 120 * 12288.0 * 12288},
        {"with biases, norms, 50257 tokens and 8192 positions", described()},
        {"stated / this number", stated / described()},
        {"width at which 120 layers have 1.3e12", std::sqrt(stated / (12 * 120))}},
       "six times fewer",
       true},
      {14, "PP 2 gives 60 layers a GPU", decide(120 / of_32.pp == 60), {{"120 / PP", 120.0 / 2}}},
      {15,
       "a global batch of 1024 is 32 accumulations of micro-batch 1 at DP 1",
       decide(32 * 1 * 1 == 1024),
       {{"32 x 1 x 1", 32}, {"accumulations for 1024", 1024}, {"or DP", 1024 / 32}},
       "it trains batches of 32"},
      {16,
       "32 ranks on nodes of 8 GPUs, with the master at localhost",
       decide(32 / 8 == 1),
       {{"nodes", 32 / 8}},
       "localhost is another machine on each of 4 nodes"},
      {17,
       "use TP 8, PP up to 8, SP 2 or 4",
       ClaimVerdict::open,
       {},
       "`predict --search` compares the degrees for a model and a cluster"},
      {18,
       "sequences of 8192 are set, 16K and more are possible with sequence parallelism",
       ClaimVerdict::open,
       {{"scores of a layer at 16384, all heads", 5 * 96 * 16384.0 * 16384 / GB, "GB"}},
       "the kernel of attention decides",
       true},
      {19,
       "sub_group_size 1e9 turns sub-groups off",
       decide(std::ceil(stated / 32 / 1e9) == 1),
       {{"sub-groups of a rank, 1.3e12 parameters", std::ceil(stated / 32 / 1e9)},
        {"of the described model", std::ceil(described() / 32 / 1e9)}},
       "a rank has more than 1e9 parameters"},
      {29,
       "1.75e12 parameters ran on 4608 GPUs",
       decide(states(1.75e12, 3, 4608) <= 80 * GB),
       {{"states of a GPU", states(1.75e12, 3, 4608) / GB, "GB"}},
       "",
       true},
  };
}

std::vector<Claim> time() {
  const double fraction = predict::read_cluster("dgx_a100").gpu.gemm_fraction;
  const double step = step_s(stated), steps = 1e6;
  return {
      {8,
       "MFU 45, 38 and 52 % (Megatron-LM, ZeRO-3, both)",
       ClaimVerdict::open,
       {{"52 % of an A100", 0.52 * a100_peak / TF, "TFLOP/s"},
        {"a step of 1024 sequences of 8192 on 32 GPUs", step, "s"}},
       "a measurement decides (training_speed); the step does not fit (3)"},
      {20,
       "1e6 steps, decay over 8e5, warm-up of 2000",
       ClaimVerdict::open,
       {{"tokens", steps * 1024 * 8192},
        {"at the speed of 8", steps * step / year_s, "years"},
        {"of the described model", steps * step_s(described()) / year_s, "years"}},
       "no run ends these settings"},
      {21,
       "save and evaluate every 1000 steps",
       ClaimVerdict::open,
       {{"time between two, at the speed of 8", 1000 * step / day_s, "days"},
        {"bytes of a checkpoint, 14 a parameter", 14 * stated / TB, "TB"}},
       "a lost node would cost months"},
      {22,
       "60 to 70 of 80 GB are normal",
       ClaimVerdict::open,
       {{"stated for the combination (6)", 60, "GB"}},
       "a measurement decides; it is more than 6 states"},
      {23,
       "MFU of 50 % and more with at most 30 % of a step for communication",
       decide_if(0.5 / 0.7 <= fraction),
       {{"speed of the other 70 %, of the peak", 100 * 0.5 / 0.7, "%"},
        {"of the peak that large products of an A100 sustain (dgx_a100)", 100 * fraction, "%"}},
       "if the communication is not hidden, all computing runs at the speed of the best products"},
      {24,
       "selective recomputation uses 30 % less memory than full",
       decide(layer_activations(8, true) < 2),
       {{"selective, 34 s b h / t at t = 8", layer_activations(8, true), "s b h"},
        {"full, 2 s b h", 2, "s b h"}},
       "it uses more; with flash attention it saves nearly nothing",
       true},
      {25,
       "hybrid FP8 halves the memory once more",
       decide(2.0 / 16 >= 0.5),
       {{"weights and gradients, 2 + 2 to 1 + 1 of 16 bytes", 100 * 2.0 / 16, "%"}},
       "an eighth of the states",
       true},
      {26,
       "sequences of 32K run as chunks of 64K",
       decide(65536 <= 32768),
       {{"chunk / sequence", 65536.0 / 32768}},
       "a chunk is longer than the sequence"},
      {27,
       "a constant loss scale of 1024; offload to the CPU loses precision",
       ClaimVerdict::open,
       {},
       "a measurement decides: offloaded states have the bits of those on the GPU here"},
      {28,
       "8 workers and 8 OpenMP threads for each of 8 ranks",
       ClaimVerdict::open,
       {{"threads of a node", 8 * 8 + 8 * 8}},
       "the number of cores decides"},
  };
}

}  // namespace

std::vector<Claim> guide_claims() {
  std::vector<Claim> all = memory();
  for (const auto& more : {layouts(), time()}) all.insert(all.end(), more.begin(), more.end());
  std::ranges::sort(all, {}, &Claim::number);
  return all;
}

}  // namespace suite
