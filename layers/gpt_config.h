#pragma once
// The shape of a GPT-2 model, and which degrees it can be cut to.

namespace layers {

struct GptConfig {
  int layers = 2;
  int hidden = 64;
  int heads = 4;
  int vocabulary = 256;  // rows of the token table, padding included
  int sequence = 64;
  double layer_norm_epsilon = 1e-5;

  int ffn() const { return 4 * hidden; }

  // Throws std::invalid_argument naming the key, its value and the nearest valid one, when an
  // extent is not positive, heads do not divide hidden, tp does not divide heads and vocabulary, or
  // pp does not divide layers.
  void validate(int tp = 1, int pp = 1) const;
};

}  // namespace layers
