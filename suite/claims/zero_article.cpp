// Claims of an article about ZeRO: memory of its stages, offload, T5.

#include <algorithm>
#include <cmath>

#include "suite/claims/arithmetic.h"
#include "suite/configuration/models.h"
#include "suite/plan/model_shape.h"

namespace suite {
namespace {

using namespace arithmetic;

constexpr double v100_memory = 32 * GB, seven = 7.5e9;

TrainingConfig::Model llama2_7b() {
  TrainingConfig config;
  set_model(config, "llama2_7b");
  complete_shape(config);
  return config.model;
}

double less(int stage) { return states(seven) / states(seven, stage, 64); }

// T5 1.1 as published (arXiv:1910.10683): tables of 32128 tokens, 32 buckets of relative positions
// in each half, no biases.
double t5(double width, double inner, double ffn, double layers, double heads) {
  const double attention = 4 * width * inner, mlp = 2 * width * ffn;
  const double encoder = layers * (attention + mlp + 2 * width);
  const double decoder = layers * (2 * attention + mlp + 3 * width);
  return 32128 * width + encoder + decoder + 2 * 32 * heads + 2 * width;
}
double t5_large() { return t5(1024, 1024, 4096, 24, 16); }
double t5_3b() { return t5(1024, 4096, 16384, 24, 32); }

std::vector<Claim> first_models() {
  const double nominal = 7e9, activations = 34.0 * 4096 * 4096 * 32,
               recomputed = 2.0 * 4096 * 4096 * 32;
  const double of_shape = configuration::parameters_of(llama2_7b());
  return {
      {30,
       "LLaMA-2 7B in bfloat16 with AdamW needs about 120 GB, more than a GPU of 80 GB",
       decide_if(states(nominal) + recomputed > 80 * GB &&
                 states(nominal) + recomputed <= 120 * GB),
       {{"states, 16 bytes for each of 7.0e9", states(nominal) / GB, "GB"},
        {"activations 34 s b h L, s = 4096, b = 1", activations / GB, "GB"},
        {"with full recomputation, 2 s b h L", recomputed / GB, "GB"}},
       "if the activations take at most 8 GB, as with full recomputation",
       true},
      {31,
       "of it 14 + 14 + 28 + 56 = 112 GB",
       decide(near(states(nominal), 112 * GB, 1e-9)),
       {{"7.0e9 x (2 + 2 + 12)", states(nominal) / GB, "GB"},
        {"parameters of its shape", of_shape},
        {"16 bytes for each of them", states_of(llama2_7b()) / GB, "GB"}},
       "for 7.0e9 parameters; the model has 6.74e9",
       true},
      {32,
       "100 GB more than QLoRA",
       decide_if(3.5 * GB < 20 * GB),
       {{"4-bit weights of 7.0e9 parameters", nominal / 2 / GB, "GB"},
        {"QLoRA's memory for 100 GB less than 120", 20, "GB"}},
       "if QLoRA takes 20 GB, of which the weights are 3.5",
       true},
      {33,
       "optimizer elements for each weight: SGD 1, RMSProp 2, Adam 3",
       decide_if(1 + 0 == 1 && 1 + 1 == 2 && 1 + 2 == 3),
       {{"Adam: float32 values, momentum, variance", 3},
        {"RMSProp: float32 values, squares", 2},
        {"SGD: float32 values", 1}},
       "if the float32 values count and SGD has no momentum",
       true},
      {34,
       "the same in bytes, 32-bit states and 16-bit weights: 2, 4, 6",
       decide(3 * 4.0 / 2 == 6 && 2 * 4.0 / 2 == 4 && 1 * 4.0 / 2 == 2),
       {{"Adam, 12 bytes / 2", 12.0 / 2}, {"RMSProp", 8.0 / 2}, {"SGD", 4.0 / 2}},
       "",
       true},
      {35,
       "more than 100e9 parameters on 400 GPUs, super-linear, 15 PFLOP/s",
       ClaimVerdict::open,
       {{"of one GPU", 15e15 / 400 / TF, "TFLOP/s"},
        {"of a V100's peak", 100 * 15e15 / 400 / v100_peak, "%"}},
       "a measurement decides"},
      {36,
       "models 8 times as large, 10 times as fast",
       ClaimVerdict::open,
       {},
       "no baseline is stated"},
      {37,
       "13e9 parameters without model parallelism",
       decide(states(13e9, 2, 64) <= v100_memory),
       {{"stage 2 on 64 GPUs", states(13e9, 2, 64) / GB, "GB"},
        {"stage 1 on 64 GPUs", states(13e9, 1, 64) / GB, "GB"}},
       "on GPUs of 32 GB with stage 2; not with stage 1",
       true},
      {38,
       "the largest language model had 17e9 parameters",
       ClaimVerdict::open,
       {},
       "a fact of its time"},
  };
}

std::vector<Claim> stages() {
  const double of_seven[] = {states(seven), states(seven, 1, 64), states(seven, 2, 64),
                             states(seven, 3, 64)};
  return {
      {39,
       "64 GPUs, Adam: stage 1 takes 4 times less memory",
       decide(less(1) >= 4 * 0.99),
       {{"16 / (4 + 12/64)", less(1)}, {"on 1024 GPUs", states(seven) / states(seven, 1, 1024)}},
       "4 is the limit for many GPUs",
       true},
      {40,
       "64 GPUs, Adam: stage 2 takes 8 times less memory, with the volume of data parallelism",
       decide(less(2) >= 8 * 0.99),
       {{"16 / (2 + 14/64)", less(2)}, {"on 1024 GPUs", states(seven) / states(seven, 2, 1024)}},
       "8 is the limit; the volume is the same without gradient accumulation",
       true},
      {41,
       "64 GPUs, Adam: stage 3 takes 64 times less memory, with 50 % more volume",
       decide(near(less(3), 64, 1e-9) && 3.0 / 2 == 1.5),
       {{"16 / (16/64)", less(3)}, {"volume, 3 / 2", 3.0 / 2}},
       "without live parameters",
       true},
      {42,
       "7.5e9 parameters on 64 GPUs: 120, 31.4, 16.6 and 1.9 GB",
       decide(rounds_to(of_seven[0] / GB, 120, 3) && rounds_to(of_seven[1] / GB, 31.4, 3) &&
              rounds_to(of_seven[2] / GB, 16.6, 3) && rounds_to(of_seven[3] / GB, 1.9, 2)),
       {{"without ZeRO", of_seven[0] / GB, "GB"},
        {"stage 1", of_seven[1] / GB, "GB"},
        {"stage 2", of_seven[2] / GB, "GB"},
        {"stage 3", of_seven[3] / GB, "GB"},
        {"1e12 parameters, stage 3 on 64", states(1e12, 3, 64) / GB, "GB"},
        {"on 1024", states(1e12, 3, 1024) / GB, "GB"}},
       "`predict --figures` draws all sizes",
       true},
      {43,
       "partitioned activations on the host: almost none on the GPU",
       decide_if(layer_activations(8, true) < 48 * 2.0 / 8),
       {{"kept inputs of 48 layers at t = 8, 2 L / t", 48 * 2.0 / 8, "s b h"},
        {"the layer that works, 34 / t", layer_activations(8, true), "s b h"}},
       "if the activations of one working layer count as none",
       true},
  };
}

std::vector<Claim> offload() {
  const double ten = 10e9, trillion = 1e12, dgx2 = 16 * 32 * GB + 1.5 * TB;
  return {
      {44,
       "ZeRO-Offload: more than 10e9 parameters on one V100, 40 TFLOP/s",
       decide(2 * ten <= v100_memory && 40 * TF <= v100_peak),
       {{"float16 values on the GPU", 2 * ten / GB, "GB"},
        {"on the host, 14 bytes each", 14 * ten / GB, "GB"},
        {"16 bytes each", 16 * ten / GB, "GB"},
        {"of the V100's peak", 100 * 40 * TF / v100_peak, "%"}},
       "on 32 GB",
       true},
      {45,
       "10 times the size of PyTorch",
       decide(16.0 / 2 >= 10),
       {{"bytes of a parameter on the GPU, 16 / 2", 16.0 / 2},
        {"with a baseline of 20 bytes", 20.0 / 2}},
       "8 times; 10 against a baseline of 20 bytes a parameter",
       true},
      {46, "nearly linear up to 128 GPUs", ClaimVerdict::open, {}, "a measurement decides"},
      {47,
       "ZeRO-Infinity: 512 V100, more than 25 PFLOP/s, 40 %",
       decide(near(25e15 / 512 / v100_peak, 0.40, 0.025)),
       {{"of one GPU", 25e15 / 512 / TF, "TFLOP/s"},
        {"of its peak", 100 * 25e15 / 512 / v100_peak, "%"}}},
      {48,
       "1e12 parameters are fine-tuned on one DGX-2",
       decide_if(dgx2 < states(trillion)),
       {{"states", states(trillion) / TB, "TB"},
        {"GPUs and host of a DGX-2", dgx2 / TB, "TB"},
        {"for NVMe", (states(trillion) - dgx2) / TB, "TB"}},
       "if it has 14 TB of NVMe",
       true},
      {49,
       "tens to hundreds of trillions of parameters fit",
       decide_if(std::ceil(states(1e14) / (30 * TB)) == 54),
       {{"states of 1e14", states(1e14) / TB, "TB"},
        {"nodes of 30 TB NVMe", std::ceil(states(1e14) / (30 * TB))}},
       "if there are 54 nodes with 30 TB of NVMe for 1e14",
       true},
  };
}

std::vector<Claim> examples() {
  const double small = t5(512, 512, 2048, 6, 8), base = t5(768, 768, 3072, 12, 12),
               eleven = t5(1024, 16384, 65536, 24, 128), nominal = 0.77e9;
  return {
      {50,
       "T5 has 60M, 220M, 770M, 3B and 11B parameters",
       decide(rounds_to(small, 60e6, 1) && rounds_to(base, 220e6, 2) &&
              rounds_to(t5_large(), 770e6, 2) && rounds_to(t5_3b(), 3e9, 1) &&
              rounds_to(eleven, 11e9, 2)),
       {{"Small", small}, {"Base", base}, {"Large", t5_large()}, {"3B", t5_3b()}, {"11B", eleven}},
       "Large has 4 % less; the others round to their names"},
      {51,
       "ZeRO-2, T5-Large, one GPU, batch 4, 500 samples, buckets of 2e8",
       ClaimVerdict::open,
       {{"steps", 500.0 / 4}, {"a bucket in float16", 2 * 2e8 / GB, "GB"}},
       "settings of an example",
       true},
      {52,
       "ZeRO-3 with offload, T5-Large: about 26 GB of host memory",
       decide_if(27 * nominal + 5 * GB > 25 * GB && 27 * nominal + 5 * GB < 27 * GB),
       {{"16 bytes for each of 0.77e9", 16 * nominal / GB, "GB"},
        {"DeepSpeed's estimator, 18 x 1.5 bytes", 27 * nominal / GB, "GB"}},
       "if the process itself takes 5 GB",
       true},
      {53,
       "the ZeRO-3 script of T5-Large loads t5-3b within that memory",
       decide(states(t5_3b()) <= 26 * GB),
       {{"states of 3B", states(t5_3b()) / GB, "GB"}},
       "more than 26 GB",
       true},
      {54,
       "max_live_parameters, max_reuse_distance and sub_group_size of 1e9",
       ClaimVerdict::open,
       {{"parameters of T5-Large", nominal}},
       "the limits exceed the model, so they have no effect",
       true},
      {55,
       "T5-3B, ZeRO-2, 4 GPUs, batch 4 each, 500 samples",
       ClaimVerdict::open,
       {{"steps", std::ceil(500.0 / 16)}, {"float16 values of a GPU", 2 * t5_3b() / GB, "GB"}},
       "settings of an example",
       true},
      {56,
       "loss scale 2^16, window 1000, hysteresis 2, minimum 1",
       decide_if(65536 > 65504),
       {{"2^16", 65536}, {"largest float16", 65504}},
       "if the scaled loss is float32, because float16 does not hold the scale"},
      {57,
       "2 nodes of 8 GPUs with 10 cores each",
       ClaimVerdict::open,
       {{"cores for a GPU", 10.0 / 8}},
       "few for an update on the CPU"},
      {58,
       "a T4 has compute capability 7.5, and C++17 requires GCC 7",
       decide(75 >= 70),
       {{"compute capability with tensor cores, at least", 7.0}},
       "facts of the vendors"},
  };
}

}  // namespace

std::vector<Claim> zero_claims() {
  std::vector<Claim> all = first_models();
  for (const auto& more : {stages(), offload(), examples()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace suite
