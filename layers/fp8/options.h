#pragma once
// Products of linear layers in 8-bit floating point (Micikevicius et al. 2022, arXiv:2209.05433):
// the formats, and the recipes that choose the scales. Names and defaults are Megatron-LM's.
//
//   delayed     one scale a tensor, from the largest magnitudes of earlier passes
//   tensorwise  one scale a tensor, from its own largest magnitude
//   blockwise   a float scale for 1 x 128 elements of activations and gradients, and for 128 x 128
//               of weights (DeepSeek-AI 2024, arXiv:2412.19437, section 3.3)
//   mxfp8       a power of two for each 32 elements (OCP Microscaling Formats 1.0)

#include <string_view>

namespace collectives {
class Communicator;
}

namespace layers {

enum class Fp8Format : unsigned char {
  none,    // products in the dtype of the values
  hybrid,  // E4M3 for inputs and weights, E5M2 for gradients of outputs
  e4m3,    // E4M3 for all of them
};
enum class Fp8Recipe : unsigned char { delayed, tensorwise, blockwise, mxfp8 };
enum class AmaxAlgorithm : unsigned char { most_recent, max };  // of the history

std::string_view name(Fp8Format format);
std::string_view name(Fp8Recipe recipe);
std::string_view name(AmaxAlgorithm algorithm);
// Return the value of a name. Throw std::invalid_argument that names the nearest.
Fp8Format fp8_format(std::string_view text);
Fp8Recipe fp8_recipe(std::string_view text);
AmaxAlgorithm amax_algorithm(std::string_view text);

struct Fp8Options {
  Fp8Format format = Fp8Format::none;
  Fp8Recipe recipe = Fp8Recipe::delayed;
  // For delayed scaling. Scales leave 2^margin of the range free. The largest magnitudes of this
  // many passes are kept, and the most recent one or their maximum gives the scale.
  int margin = 0, amax_history_len = 1;
  AmaxAlgorithm algorithm = AmaxAlgorithm::most_recent;

  bool on() const { return format != Fp8Format::none; }
  bool per_tensor() const {
    return recipe == Fp8Recipe::delayed || recipe == Fp8Recipe::tensorwise;
  }
  // Throws std::invalid_argument that names the key, its value and a valid value.
  void validate() const;
  bool operator==(const Fp8Options&) const = default;
};

class Fp8Observer;

// The options of a rank's layers, and the ranks whose tensors share a scale under delayed scaling.
// All must run the same passes.
struct Fp8Scheme {
  Fp8Options options{};
  collectives::Communicator* amax_group = nullptr;  // null: tp
  Fp8Observer* observer = nullptr;                  // for oracles (fp8_products.h); null: none
};

}  // namespace layers
