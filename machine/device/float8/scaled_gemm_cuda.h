#pragma once
// scaled_gemm (scaled_gemm.h) on cuBLASLt, and the copies of its operands.

#include <memory>

#include "machine/device/float8/scaled_gemm.h"

namespace machine::cuda {

class Multiplier;

// A stream's products of codes, by the handle and the workspace of its multiplier. Keeps the
// algorithm chosen for each shape.
class ScaledMultiplier {
 public:
  explicit ScaledMultiplier(Multiplier& multiplier);
  ~ScaledMultiplier();
  // codes: [outer, inner], with the sum along the columns. scales: in cuBLASLt's layout.
  struct Operand {
    Dtype dtype;
    Scaling scaling;
    const void *codes, *scales;
  };
  void multiply(const ScaledProduct& product, const Operand& a, const Operand& b, const Tensor& c,
                bool adds);

 private:
  struct State;
  std::unique_ptr<State> state_;
};
ScaledMultiplier& scaled_multiplier_of(Stream& stream);

// The caller of the following functions checks the arguments.
void scaled_gemm(Stream& stream, const ScaledProduct& product, const ScaledMatrix& a,
                 const ScaledMatrix& b, const Tensor& c, bool adds);

// to = fromᵀ. Elements of one byte. Requires extents that 16 divides.
void transpose_codes(Stream& stream, const Tensor& from, const Tensor& to);

// Factors of `outer` x `parts` blocks, and their layout in memory.
struct ScaleLayout {
  Scaling scaling = Scaling::tensor;
  std::int64_t outer = 0, parts = 0;
  bool parts_first = false;  // the stored matrix is [parts, outer], not [outer, parts]
};
// Returns the elements of cuBLASLt's layout.
std::int64_t arranged_size(const ScaleLayout& layout);
// Writes the factors in cuBLASLt's layout, with zeros in its padding.
void arrange_scales(Stream& stream, const ScaleLayout& layout, const Tensor& from,
                    const Tensor& to);

}  // namespace machine::cuda
