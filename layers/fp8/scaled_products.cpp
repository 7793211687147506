#include "layers/fp8/scaled_products.h"

namespace layers {

using machine::ScaledProduct, machine::Scaling;

Scaling scaling_of(Fp8Recipe recipe, bool weight) {
  switch (recipe) {
    case Fp8Recipe::delayed:
    case Fp8Recipe::tensorwise:
      return Scaling::tensor;
    case Fp8Recipe::blockwise:
      return weight ? Scaling::square_128 : Scaling::vector_128;
    case Fp8Recipe::mxfp8:
      return Scaling::vector_32;
  }
  return Scaling::tensor;
}

ScaledProduct Fp8LinearShape::forward(Fp8Recipe recipe) const {
  return {tokens, out, in, scaling_of(recipe, false), scaling_of(recipe, true)};
}
ScaledProduct Fp8LinearShape::input_gradient(Fp8Recipe recipe) const {
  return {tokens, in, out, scaling_of(recipe, false), scaling_of(recipe, true)};
}
ScaledProduct Fp8LinearShape::weight_gradient(Fp8Recipe recipe) const {
  return {out, in, tokens, scaling_of(recipe, false), scaling_of(recipe, false)};
}

std::string Fp8LinearShape::why_emulated(Fp8Recipe recipe, int compute_capability) const {
  for (const ScaledProduct& product :
       {forward(recipe), input_gradient(recipe), weight_gradient(recipe)})
    if (std::string why = machine::why_not_scaled_gemm(compute_capability, product); !why.empty())
      return why;
  return "";
}

}  // namespace layers
