// Claims of a note on the communication of parallel training.

#include "suite/claims/arithmetic.h"
#include "suite/predict/collective_time.h"

namespace suite {

using namespace arithmetic;

std::vector<Claim> communication_note_claims() {
  const double gpt3 = 175e9, tokens = 300e9;
  const double rate = 6 * gpt3 * tokens / (288 * year_s);
  // One micro-batch of a stage of 12 layers, in units of b s h: two messages, and four all-reduces
  // in each layer.
  const double pp = 2, tp = 4 * 12 * ring_all_reduce(8, 1);
  const int n = 64;
  const double all_reduce = ring_all_reduce(n, 1),
               halves = predict::sent_bytes(machine::Operation::reduce_scatter, n, 1) +
                        predict::sent_bytes(machine::Operation::all_gather, n, 1);
  const double star_total = 2.0 * (n - 1), ring_total = n * all_reduce;
  return {
      {76,
       "GPT-3 175B: 700 + 700 + 1400 = 2800 GB",
       decide(rounds_to((4 + 4 + 8) * gpt3 / GB, 2800, 4)),
       {{"float32: 4 + 4 + 8 bytes", (4 + 4 + 8) * gpt3 / GB, "GB"},
        {"mixed: 2 + 2 + 12 bytes", states(gpt3) / GB, "GB"}},
       "both are 16 bytes; mixed precision splits them into 350 + 350 + 2100",
       true},
      {77,
       "GPT-3 takes 288 years on one V100",
       decide_if(rate < v100_peak),
       {{"rate for 300e9 tokens", rate / TF, "TFLOP/s"},
        {"of the peak", 100 * rate / v100_peak, "%"}},
       "if it trains 300e9 tokens at 28 % of the peak"},
      {78,
       "messages of PP are small and frequent, those of TP large and frequent",
       decide(pp / 2 < 0.5 * 1),
       {{"message of PP / buffer of an all-reduce", 1},
        {"of a micro-batch and stage: PP", pp, "b s h"},
        {"TP 8 with 12 layers", tp, "b s h"},
        {"ratio", tp / pp}},
       "both have b s h elements; PP is rare: two messages for 48 all-reduces"},
      {79,
       "the volumes of DP and DDP are equal, and DP is slower",
       decide(near(star_total, ring_total, 1e-9) && star_total > all_reduce),
       {{"star of 64, all ranks, 2 (N - 1)", star_total, "n"},
        {"ring of 64, all ranks", ring_total, "n"},
        {"root of the star / rank of the ring", star_total / all_reduce}},
       "the busiest port of a ring carries N times less"},
      {80,
       "a ring all-reduce is a reduce-scatter and an all-gather, balanced",
       decide(near(all_reduce, halves, 1e-9) && near(all_reduce, 2.0 * (n - 1) / n, 1e-9)),
       {{"each of 64 ranks sends", all_reduce, "n"}, {"both halves", halves, "n"}}},
      {81,
       "16 bytes a parameter, 75 % of them Adam's",
       decide(states(1e9) == 16e9 && 12.0 / 16 == 0.75),
       {{"2 + 2 + 12", states(1e9) / 1e9, "B"}, {"12 / 16", 100 * 12.0 / 16, "%"}},
       "",
       true},
      {82,
       "GPT-2 1.5B: 3 GB of float16 values, 24 GB of states",
       decide(2 * 1.5e9 == 3 * GB && states(1.5e9) == 24 * GB),
       {{"values", 2 * 1.5e9 / GB, "GB"}, {"states", states(1.5e9) / GB, "GB"}},
       "",
       true},
  };
}

}  // namespace suite
