#pragma once
// The end of the model: final norm, the token table as output layer (tied; or a weight of its own,
// cut along the vocabulary alike) and cross-entropy on the cut logits (Megatron-LM,
// core/tensor_parallel/ cross_entropy.py; Shoeybi et al. 2019, arXiv:1909.08053, section 3).
//
//   logits [tokens, vocabulary/tp] = norm(x) tableᵀ
//   loss = sum over tokens of log(sum exp(logit - max)) - (logit[target] - max)
//
// Logits are never gathered. Communication: forward three all-reduces of [tokens] (max, target
// logit, sum of exp; float, or double under double); backward_input one of d_x [tokens, hidden].
// With sequence parallelism x and d_x are of this rank's own rows, logits and targets of all:
// forward gathers norm(x), backward_input reduce-scatters its gradient, backward_weights gathers
// norm(x) again.

#include <cstdint>

#include "layers/context.h"
#include "layers/norm.h"
#include "layers/parameter.h"

namespace layers {

class OutputHead {
 public:
  // From forward to backward_weights. backward_input turns logits into their gradient in place,
  // frees max and sum_exp and adds d_norm.
  struct Saved {
    machine::Tensor x, norm, logits, max, sum_exp;  // x is the caller's
    Norm::Statistics statistics;
    const std::int32_t* targets = nullptr;
    machine::Tensor d_norm;
  };

  // The table is the caller's: with one stage, tied, the embedding's own.
  OutputHead(const Context& context, collectives::Parameter& table, const GptConfig& config);

  // Rows of the table from here on are padding: no token is one of them, and their logits take no
  // part. At first all rows are tokens.
  void set_vocabulary(std::int64_t vocabulary) { vocabulary_ = vocabulary; }

  // loss: one double on the device, the sum over tokens, overwritten. targets are int32 in memory
  // that the device reads, and stay unchanged until backward_input; a token whose target is
  // negative counts for nothing.
  void forward(const machine::Tensor& x, const std::int32_t* targets, const machine::Tensor& loss,
               Saved& saved);
  // d_x = factor * d loss / d x: the one place where a loss scale enters.
  void backward_input(double factor, const machine::Tensor& d_x, Saved& saved,
                      machine::Category kept);
  void backward_weights(Saved& saved);  // leaves saved empty

  void initialize(const Initializer& initializer);  // the table too
  Parameters parameters();                          // the norm's, then the table

 private:
  Context context_;
  collectives::Parameter& table_;
  std::int64_t vocabulary_;
  Norm norm_;
};

}  // namespace layers
