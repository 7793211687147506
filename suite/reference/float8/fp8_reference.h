#pragma once
// 8-bit codes and their scales in double by plain loops, from the papers: E4M3 and E5M2 of
// Micikevicius et al. 2022 (arXiv:2209.05433, table 1), E8M0 of OCP Microscaling Formats 1.0. It
// shares no code with machine/device/float8 or layers/fp8. Codes and scales have the same bits,
// because a float product or quotient is that of double, rounded once more.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace suite {

struct Fp8Coding {
  bool e5m2 = false;
  // Extents of the blocks that share a scale; 0: the whole matrix.
  std::int64_t block_rows = 0, block_cols = 0;
  bool powers = false;  // scales are powers of two
  double scale = 0;     // 0: from the largest magnitude of each block
};

// A matrix in codes. inverse: the factor of each block, or the E8M0 exponent.
struct Fp8Matrix {
  std::vector<double> codes, inverse, values;  // codes: 0 to 255; values: decoded, not rounded
};

// Returns the value of a code; NaN for NaN, and for the infinities of E5M2.
double fp8_value(bool e5m2, int code);
// Returns the code of the nearest number: of two the even one, and the largest for larger ones.
int fp8_nearest(bool e5m2, double value);
Fp8Matrix fp8_matrix(const std::vector<double>& values, std::int64_t cols, const Fp8Coding& coding);

// The scale of one tensor under delayed scaling, pass by pass.
class Fp8DelayedScale {
 public:
  Fp8DelayedScale(bool e5m2, int margin, int history, bool of_largest);
  double scale() const { return scale_; }
  void end_pass(const std::vector<double>& whole);

 private:
  double largest_, divisor_, scale_ = 1;
  std::size_t history_;
  bool of_largest_;
  std::vector<double> amaxes_;  // of all passes
};

}  // namespace suite
