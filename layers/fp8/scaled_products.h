#pragma once
// The products of a linear layer in 8 bits, as the library of a GPU sees them
// (machine/device/float8/scaled_gemm.h): their extents and scales, and the reason that a product is
// emulated by decoded floats instead.

#include <cstdint>
#include <string>

#include "layers/fp8/options.h"
#include "machine/device/float8/scaled_gemm.h"

namespace layers {

// weight: of the weight, not of an activation or a gradient.
machine::Scaling scaling_of(Fp8Recipe recipe, bool weight);

// A linear layer of a rank for one micro-batch: y [tokens, out] = x [tokens, in] Wᵀ.
struct Fp8LinearShape {
  std::int64_t tokens = 0, in = 0, out = 0;

  machine::ScaledProduct forward(Fp8Recipe recipe) const;
  machine::ScaledProduct input_gradient(Fp8Recipe recipe) const;
  machine::ScaledProduct weight_gradient(Fp8Recipe recipe) const;
  // Returns the reason that one of the three is emulated on a GPU of this compute capability, or an
  // empty text. 0: the host.
  std::string why_emulated(Fp8Recipe recipe, int compute_capability) const;
};

}  // namespace layers
