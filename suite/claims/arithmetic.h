#pragma once
// The arithmetic that claims share. Bytes, FLOPs and seconds.

#include <cmath>

#include "suite/claims/claims.h"
#include "suite/configuration/training_config.h"

namespace suite::arithmetic {

inline constexpr double GB = 1e9, TB = 1e12, GiB = 0x1p30, TF = 1e12;
inline constexpr double day_s = 86400, year_s = 365.25 * day_s;
inline constexpr double a100_peak = 312 * TF, v100_peak = 125 * TF;

constexpr ClaimVerdict decide(bool holds) {
  return holds ? ClaimVerdict::holds : ClaimVerdict::fails;
}
// holds: under the assumption that the claim does not state.
constexpr ClaimVerdict decide_if(bool holds) {
  return holds ? ClaimVerdict::assumed : ClaimVerdict::fails;
}
inline bool near(double value, double stated, double part = 0.01) {
  return std::abs(value / stated - 1) <= part;
}
// Returns whether the value rounds to the stated value in the stated digits: 119.6 rounds to 120 in
// 2 digits.
bool rounds_to(double value, double stated, int digits);

// Returns the bytes of parameters, gradients and optimizer states of a rank by the paper's count
// (planner).
double states(double parameters, int stage = 0, int ranks = 1);
double states_of(const TrainingConfig::Model& model, int stage = 0, int ranks = 1);
// Returns these bytes for TP x PP x CP x DP ranks, with the values and the optimizer on the host if
// `offloaded`.
double states_of_rank(double parameters, const machine::Degrees& degrees, int stage);
double values_of_rank(double parameters, const machine::Degrees& degrees, int stage);

// Parameters of a GPT with biases, norms and learned positions (planner).
double gpt(int layers, int hidden, int heads, int vocabulary, int sequence);

// Returns the bytes that each rank of a ring sends, by the volume of the plan.
double ring_all_reduce(int ranks, double bytes);
double ring_reduce_scatter(int ranks, double bytes);

// Activations of a layer with dropout, in units of s b h bytes (arXiv:2205.05198, table 2), without
// the scores of attention: 34 / t with sequence parallelism, 10 + 24 / t without.
inline double layer_activations(int t, bool sequence_parallel) {
  return sequence_parallel ? 34.0 / t : 10 + 24.0 / t;
}

}  // namespace suite::arithmetic
