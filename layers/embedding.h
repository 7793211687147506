#pragma once
// Token embedding, split along the vocabulary, plus learned positions and the types of an encoder's
// tokens, if the model has them:
//
//   x [tokens, hidden] = all_reduce(table[token], or 0 if another rank has the row) + position
//                        + types[type of the token]
//
// tokens = sequences * sequence; the position of a row is its index in its sequence. The caller
// owns the table [vocabulary/tp, hidden], because the output head shares it. Positions [sequence,
// hidden] are replicated; rotary positions (attention.h) need no table. Types [2, hidden] are
// replicated, and their rows are a buffer of the size of x in forward. At most one rank adds a
// non-zero row, so every degree gives the same bits.
//
// Communication: forward all-reduces x [tokens, hidden] over tp; backward sends no data. With
// sequence parallelism x and d_x hold this rank's own rows, tokens all rows: forward
// reduce-scatters, backward_weights gathers d_x, and the gradient of positions is partial. With
// context parallelism tokens are the rank's own, and rows of other positions get no gradient. With
// striped placement a buffer of [own rows of a sequence, hidden] holds every cp-th position.

#include <cstdint>
#include <optional>

#include "layers/context.h"
#include "layers/gpt_config.h"
#include "layers/parameter.h"

namespace layers {

// Matrices [vocabulary, hidden], split along the vocabulary. The table of embedding and output
// head: "embedding.token.weight".
Parameter declare_token_table(const Context& context, std::int64_t vocabulary, std::int64_t hidden,
                              bool tied_over_pp);
// Returns the weight of an untied output layer: "head.output.weight".
Parameter declare_output_weight(const Context& context, std::int64_t vocabulary,
                                std::int64_t hidden);
// Returns the token of this rank's first row, for either matrix.
std::int64_t first_token(const Context& context, const Parameter& table);

class Embedding {
 public:
  Embedding(const Context& context, Parameter& table, const GptConfig& config);

  // tokens are int32 in memory that the device reads, each in [0, vocabulary). types, of an
  // encoder: as tokens, each 0 or 1.
  void forward(const std::int32_t* tokens, const Tensor& x, const std::int32_t* types = nullptr);
  void backward_weights(const std::int32_t* tokens, const Tensor& d_x,
                        const std::int32_t* types = nullptr);

  Parameters parameters();

 private:
  // Returns memory for the rows of one run of positions that are not consecutive; else empty.
  Tensor spread_rows(const Tensor& x, Dtype dtype) const;

  Context context_;
  std::int64_t sequence_;
  Parameter& table_;
  std::optional<Parameter> positions_, types_;
};

}  // namespace layers
