#pragma once
// A matrix in 8-bit codes, with the factors that decode them.

#include "machine/device/float8/scaled_codes.h"
#include "machine/device/tensor.h"

namespace layers {

struct Quantized {
  machine::Tensor codes;    // [rows, cols] in f8e4m3 or f8e5m2
  machine::Tensor inverse;  // for each block: float factors, or E8M0 exponents (uint8)
  machine::Blocks blocks;

  std::size_t bytes() const { return codes.bytes() + inverse.bytes(); }
};

// The direction of the sum in the product that reads the codes: over the columns of the matrix, or
// over its rows. Blocks of activations and gradients extend along the sum.
enum class Along : unsigned char { cols, rows };

}  // namespace layers
