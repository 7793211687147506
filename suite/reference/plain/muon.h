#pragma once
// Muon's step of a matrix (Jordan et al. 2024) in plain loops of doubles. Newton-Schulz is written
// as X <- a X + b (X Xᵀ) X + c (X Xᵀ)² X, always from the left, and its coefficients are floats.

#include <cstdint>
#include <string>
#include <vector>

namespace suite::plain {

// Names are Megatron-LM's.
struct Muon {
  bool nesterov = false, splits_qkv = true;
  int steps = 5;
  std::string coefficients = "quintic", scale = "spectral";
  double factor = 1;
};

// The columns of a parameter, and its rows that belong to different matrices in turn.
struct MatrixRows {
  std::int64_t columns = 0;
  std::vector<std::int64_t> parts;
};

// Returns the factor of an orthogonal step.
double scale(const Muon& muon, double rows, double columns);
// Returns the largest slope of the iteration's polynomial between 0 and 1: on a fine grid, and 1 %
// more. The polynomial is odd, so the slope bounds the change of a matrix in the 2-norm.
double steepest_slope(const Muon& muon);

void muon_step(const Muon& muon, double momentum, double learning_rate, double decay,
               const MatrixRows& rows, const std::vector<double>& gradient,
               std::vector<double>& average, std::vector<double>& value);

}  // namespace suite::plain
