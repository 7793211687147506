// Claims of an article about the communication of data, tensor and pipeline parallelism. Its models
// of volume and time are functions of the code that it lists.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "layers/models/gpt_cost.h"
#include "pipeline/schedule.h"
#include "pipeline/simulate.h"
#include "suite/claims/arithmetic.h"

namespace suite {
namespace {

using namespace arithmetic;

// Idle time of a stage over its work, by simulation of 1F1B with equal stages.
double bubble(int stages, int micro_batches) {
  const pipeline::Simulation run =
      simulate(pipeline::find_schedule("1f1b"), {.stages = stages, .micro_batches = micro_batches},
               {.forward = 1, .backward_input = 1, .backward_weights = 1});
  return run.makespan_s / run.busy_s[0] - 1;
}

// Returns the article's throughput of g GPUs: its own terms for communication and bubble.
double throughput(int g) {
  const int p = static_cast<int>(std::sqrt(g));
  return g / (0.1 + 0.01 * (g - 1)) / (1 + 0.1 * p);
}
double ring_throughput(int g) {  // its communication of 0.01 s as a ring, no bubble
  return g / (0.1 + 0.01 * ring_all_reduce(g, 1));
}

std::vector<Claim> data_parallelism() {
  const double n = 10;  // GB
  const auto article = [&](int g) { return n * (g - 1) / g; };
  const auto hybrid = [](int g) {
    const int p = static_cast<int>(std::sqrt(g));
    return std::min(1.0, 300.0 / (p + p + std::max(1, g / (p * p))));
  };
  std::vector<Claim::Number> each;
  for (const int g : {1, 2, 4, 8, 16, 32, 64})
    each.push_back({fmt::format("{} GPUs: {:.1f} % of {} times one", g,
                                100 * throughput(g) / throughput(1) / g, g),
                    throughput(g), "1/s"});
  return {
      {83,
       "TP 2, PP 4, DP 8, EP 1: GPUs = TP x PP x DP",
       decide(2 * 4 * 8 == 64),
       {{"2 x 4 x 8", 64}}},
      {84,
       "volume of DP: n (g - 1) / g with n = 10 GB, for 1 to 256 GPUs",
       decide_if(near(ring_reduce_scatter(256, n), article(256), 1e-9)),
       {{"formula at 256", article(256), "GB"},
        {"each rank of a ring all-reduce sends", ring_all_reduce(256, n), "GB"}},
       "if it counts one half of an all-reduce"},
      {85,
       "it grows in proportion to the GPUs",
       decide(near(article(256) / article(2), 128, 0.1)),
       {{"volume at 256 / at 2", article(256) / article(2)}, {"GPUs", 256.0 / 2}},
       "it approaches n"},
      {86,
       "the efficiency min(1, 100 / sqrt g) of DP falls with the GPUs, for 1 to 256",
       decide(std::min(1.0, 100 / std::sqrt(256.0)) < 1),
       {{"at 256", std::min(1.0, 100 / std::sqrt(256.0))}, {"below 1 from", 100.0 * 100, "GPUs"}},
       "it is 1 everywhere"},
      {87,
       "the hybrid's min(1, 300 / (tp + pp + dp)) with tp = pp = int sqrt g is better",
       decide(hybrid(256) > std::min(1.0, 100 / std::sqrt(256.0))),
       {{"at 256", hybrid(256)}, {"GPUs used of 32: 5 x 5 x 1", 25}},
       "both are 1, and the degrees do not use all GPUs"},
      {88, "throughput g / (0.1 + 0.01 (g - 1)) / (1 + 0.1 int sqrt g) for 1 to 64 GPUs",
       ClaimVerdict::open, each, "these are the model's values; 89 and 90 judge its terms"},
      {89,
       "the time of communication is linear in the GPUs",
       decide(near(ring_all_reduce(64, 1) / ring_all_reduce(2, 1), 63, 0.1)),
       {{"ring at 64 / at 2", ring_all_reduce(64, 1) / ring_all_reduce(2, 1)},
        {"scaling at 64 with a ring, no bubble",
         100 * ring_throughput(64) / ring_throughput(1) / 64, "%"}},
       "a ring's time approaches twice the buffer's"},
      {90,
       "the bubble is 0.1 p",
       decide(near(bubble(8, 8), 0.8, 0.01) && near(bubble(4, 8), 0.4, 0.01)),
       {{"simulated 1F1B, p = 8, m = 8", bubble(8, 8)},
        {"p = 4, m = 8", bubble(4, 8)},
        {"equal for p = 8 at m = 10 (p - 1) / p", 10 * 7.0 / 8}},
       "it is (p - 1) / m (97)"},
      {91,
       "1 GB is 268,435,456 float32 parameters",
       decide(GiB / 4 == 268435456),
       {{"2^30 / 4", GiB / 4}},
       "of GiB"},
  };
}

std::vector<Claim> model_parallelism() {
  const double s = 2048, b = 32, h = 8192, layers = 24, buffer = b * s * h * 4;
  const auto article = [&](int t) { return 16 * b * s * h * layers / t; };
  // Forward: two all-reduces of b s h float32 in each layer.
  const auto forward = [&](int t) { return 2 * layers * ring_all_reduce(t, buffer); };
  const double parameters = 12 * layers * h * h;
  // Collectives of the attention's first product: none without sequence parallelism.
  const layers::GptConfig block{
      .layers = 1, .hidden = 64, .heads = 4, .vocabulary = 128, .sequence = 16};
  const layers::StageCase middle{.tp = 4, .stage = {.index = 1, .count = 3}};
  layers::GptConfig three = block;
  three.layers = 3;
  double gathers = 0, reduces = 0;
  for (const collectives::CollectiveCalls& calls : forward_calls(three, middle))
    (calls.operation == machine::Operation::all_gather ? gathers : reduces) += 1;
  const double act = 4 * s * h * 4;  // a micro-batch of 4, float32
  const auto pp = [&](int p) { return 2 * (p - 1) * 8 * act; };
  const double link_s = 2 * 8 * act / 100e9;  // of one boundary, both directions
  return {
      {92,
       "volume of TP 16 b s h L / t: 192, 96, 48, 24 GiB for t = 1, 2, 4, 8",
       decide(near(forward(8), article(8), 0.01)),
       {{"formula, t = 1", article(1) / GiB, "GiB"},
        {"formula, t = 8", article(8) / GiB, "GiB"},
        {"all-reduces of forward, t = 1", forward(1) / GiB, "GiB"},
        {"t = 2", forward(2) / GiB, "GiB"},
        {"t = 4", forward(4) / GiB, "GiB"},
        {"t = 8", forward(8) / GiB, "GiB"}},
       "the volume grows with t"},
      {93,
       "its time at 100 GB/s falls from 1920 to 240 ms",
       decide(forward(8) < forward(2)),
       {{"formula in GiB at 100 GiB/s, t = 1", 1000 * article(1) / GiB / 100, "ms"},
        {"forward, t = 2", 1000 * forward(2) / GiB / 100, "ms"},
        {"forward, t = 8", 1000 * forward(8) / GiB / 100, "ms"}},
       "the trend is reversed"},
      {94,
       "query, key and value require an all-gather",
       decide(gathers > 0),
       {{"kinds of all-gathers of a layer's forward", gathers},
        {"kinds of other collectives", reduces}},
       "its attention sets gather_output=False: heads stay on their ranks"},
      {95,
       "this model has 10 GB",
       decide(near(4 * parameters, 10 * GiB, 0.1)),
       {{"12 L h^2", parameters}, {"in float32", 4 * parameters / GiB, "GiB"}},
       "seven times more",
       true},
      {96,
       "PP moves 2 (p - 1) m activations, 0 to 28 GiB, in 0 to 280 ms at 100 GB/s",
       decide(pp(8) / 100e9 <= 1.1 * link_s),
       {{"p = 2", pp(2) / GiB, "GiB"},
        {"p = 4", pp(4) / GiB, "GiB"},
        {"p = 8", pp(8) / GiB, "GiB"},
        {"over one boundary at 100 GB/s", 1000 * link_s, "ms"}},
       "the bytes are right; the boundaries work in parallel, so the time is that of one"},
      {97,
       "bubble (p - 1) / m: 0, 12.5, 37.5 and 87.5 % for p = 1, 2, 4, 8 and m = 8",
       decide(near(1 + bubble(2, 8), 1.125, 1e-9) && near(1 + bubble(4, 8), 1.375, 1e-9) &&
              near(1 + bubble(8, 8), 1.875, 1e-9)),
       {{"simulated 1F1B, p = 2", 100 * bubble(2, 8), "%"},
        {"p = 4", 100 * bubble(4, 8), "%"},
        {"p = 8", 100 * bubble(8, 8), "%"},
        {"p = 8, of the whole step", 100 * bubble(8, 8) / (1 + bubble(8, 8)), "%"}},
       "of the ideal step"},
  };
}

std::vector<Claim> savings() {
  const double kept = std::erfc(0.1 / std::sqrt(2.0));
  const double wide = 0.1 * (4 + 2 * 8) / 4, narrow = 0.1 * (4 + 4) / 4;
  return {
      {98,
       "four collectives of 2^10 to 2^20 float32, 10 repeats",
       ClaimVerdict::open,
       {{"smallest", 4 * 1024 / 1024.0, "KiB"}, {"largest", 4 * 0x1p20 / 0x1p20, "MiB"}},
       "a measurement decides; without a warm-up the first repeat counts"},
      {99,
       "accumulation over 4 micro-batches overlaps with communication",
       decide(std::min(1.0, 0.0) > 0),
       {{"computing between the launch and the wait", 0, "s"}},
       "it waits right after each launch"},
      {100,
       "top-k with ratio 0.1 sends less than an all-reduce",
       decide_if(wide < 1 && narrow < 1),
       {{"int64 indices of two dimensions", 100 * (wide - 1), "%"},
        {"int32 indices", 100 * (narrow - 1), "%"},
        {"an all-gather sends as much as a ring from N =, int64", 2 / wide},
        {"int32", 2 / narrow}},
       "if the group has fewer than 4 (int64) or 10 (int32) ranks; it keeps k - 1 values"},
      {101,
       "quantization to 8 bits: 75 % less",
       decide(1 - 1.0 / 4 == 0.75),
       {{"1 of 4 bytes", 100 * (1.0 / 4 - 1), "%"},
        {"largest error, of the range, 1 / 510", 1.0 / 510}},
       "its codes are 0 to 255"},
      {102,
       "sparse sending with a threshold of 0.1 standard deviations sends less",
       decide(kept * (4 + 8) < 4),
       {{"values of a normal distribution above it", 100 * kept, "%"},
        {"bytes of an element with its index", kept * (4 + 8), "B"},
        {"dense", 4, "B"}},
       "it sends nearly three times as much"},
      {103,
       "a ring all-reduce cuts 30 to 50 %",
       ClaimVerdict::open,
       {{"all ranks, ring of 8 / star of 8", 8 * ring_all_reduce(8, 1) / 14},
        {"busiest port, 1 - 1/N", 100 * (1 - 1 / 8.0), "%"}},
       "no baseline is stated; the total is the same"},
      {104,
       "its code is a ring all-reduce",
       decide(near(2.0 * 7 * 1, ring_all_reduce(8, 1), 0.01)),
       {{"it sends the whole buffer 2 (N - 1) times, N = 8", 2.0 * 7, "n"},
        {"a ring", ring_all_reduce(8, 1), "n"}},
       "N times a ring's bytes"},
      {105,
       "compression cuts 50 to 80 %",
       decide_if(near(1 - wide, 0.5, 1e-9) && near(1 - narrow, 0.8, 1e-9)),
       {{"top-k, int64 indices", 100 * (1 - wide), "%"},
        {"int32 indices", 100 * (1 - narrow), "%"}},
       "if it is 100's top-k in a small group"},
      {106,
       "grouping by topology cuts 15 to 25 %",
       ClaimVerdict::open,
       {},
       "the ratio of the links decides; `cluster show` prints both"},
      {107,
       "overlap cuts 20 to 35 %",
       ClaimVerdict::open,
       {},
       "of the exposed time and not of the bytes; the unit overlap measures it"},
      {108,
       "up to 1e9 DP, to 10e9 DP and MP, above all three",
       decide(states(13e9, 2, 64) > 32 * GB),
       {{"13e9, stage 2 on 64 GPUs", states(13e9, 2, 64) / GB, "GB"}},
       "13e9 parameters fit with DP (37); another guide states other bounds (72)",
       true},
      {109,
       "volumes of 4 bytes for layers in float16",
       decide(size_of(machine::Dtype::float16) == 4),
       {{"bytes of an element", static_cast<double>(size_of(machine::Dtype::float16)), "B"}},
       "half of it"},
      {110,
       "models of 100e9 to 1e12 parameters exceed one GPU",
       decide(states(100e9) > 80 * GB),
       {{"states of 100e9", states(100e9) / TB, "TB"}},
       "",
       true},
  };
}

}  // namespace

std::vector<Claim> parallel_communication_claims() {
  std::vector<Claim> all = data_parallelism();
  for (const auto& more : {model_parallelism(), savings()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace suite
