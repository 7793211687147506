#pragma once
// Token embedding cut along the vocabulary, plus learned positions where the model has such:
//
//   x [tokens, hidden] = all_reduce(table[token], or 0 where another rank has the row) + position
//
// tokens = sequences * sequence; the position of a row is its index in its sequence. The table
// [vocabulary/tp, hidden] is the caller's, for the output head shares it; positions [sequence,
// hidden] are replicated; with rotary positions (attention.h) there are none. At most one rank adds
// a non-zero row, so every degree gives the same bits.
//
// Communication: forward all-reduces x [tokens, hidden] over tp; backward none. With sequence
// parallelism x and d_x are of this rank's own rows, tokens of all: forward reduce-scatters,
// backward_weights gathers d_x, and the gradient of positions is the part that the own rows make.

#include <cstdint>
#include <optional>

#include "layers/context.h"
#include "layers/gpt_config.h"
#include "layers/parameter.h"

namespace layers {

// Matrices [vocabulary, hidden], cut along the vocabulary. The table as embedding and output head
// declare it: "embedding.token.weight".
collectives::Parameter declare_token_table(const Context& context, std::int64_t vocabulary,
                                           std::int64_t hidden, bool tied_over_pp);
// An output layer of its own: "head.output.weight".
collectives::Parameter declare_output_weight(const Context& context, std::int64_t vocabulary,
                                             std::int64_t hidden);
// The token whose row is the first of this rank's, of either.
std::int64_t first_token(const Context& context, const collectives::Parameter& table);

class Embedding {
 public:
  Embedding(const Context& context, collectives::Parameter& table, const GptConfig& config);

  // tokens are int32 in memory that the device reads, each in [0, vocabulary).
  void forward(const std::int32_t* tokens, const machine::Tensor& x);
  void backward_weights(const std::int32_t* tokens, const machine::Tensor& d_x);

  void initialize(const Initializer& initializer);  // the table too
  Parameters parameters();

 private:
  // Of x, the rows that follow one another in a sequence, with the position of the first.
  template <class Work>
  void for_positions(const machine::Tensor& x, const Work& work) const;

  Context context_;
  std::int64_t sequence_;
  collectives::Parameter& table_;
  std::optional<collectives::Parameter> positions_;
};

}  // namespace layers
