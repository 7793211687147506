#pragma once
// The end of the model: final norm, an encoder's transform (prediction_transform.h), output layer
// (the tied token table, or an untied weight that is split in the same way) and cross-entropy on
// the split logits (Megatron-LM, core/tensor_parallel/cross_entropy.py; Shoeybi et al. 2019,
// arXiv:1909.08053, section 3).
//
//   logits [tokens, vocabulary/tp] = transform(norm(x)) tableᵀ + bias   (bias: of an encoder)
//   loss = sum over tokens of log(sum exp(logit - max)) - (logit[target] - max)
//
// Logits are never gathered. Communication: forward three all-reduces of [tokens] (max, target
// logit, sum of exp; float, or double under double); backward_input one of d_x [tokens, hidden].
// With sequence parallelism x and d_x hold this rank's own rows, logits and targets all rows:
// forward gathers the output layer's input, backward_input reduce-scatters its gradient,
// backward_weights gathers it again.

#include <cstdint>
#include <optional>

#include "layers/context.h"
#include "layers/norm.h"
#include "layers/parameter.h"
#include "layers/prediction_transform.h"

namespace layers {

class OutputHead {
 public:
  // Kept from forward to backward_weights. backward_input replaces logits by their gradient, frees
  // max and sum_exp and adds d_norm and d_features. Features are the input of the output layer;
  // without a transform they are norm.
  struct Saved {
    Tensor x, norm, features, logits, max, sum_exp;  // x is the caller's
    Norm::Statistics statistics;
    PredictionTransform::Saved transform;
    const std::int32_t* targets = nullptr;
    Tensor d_norm, d_features;
  };

  // The caller owns the table. With one stage and tied, it is the embedding's.
  OutputHead(const Context& context, Parameter& table, const GptConfig& config);

  // Declares the rows of the table from `vocabulary` on as padding. No token is one of them, and
  // the loss ignores their logits. By default all rows are tokens.
  void set_vocabulary(std::int64_t vocabulary) { vocabulary_ = vocabulary; }

  // Overwrites loss, one double on the device, with the sum over tokens. targets are int32 in
  // memory that the device reads, and stay unchanged until backward_input. A token with a negative
  // target does not count.
  void forward(const Tensor& x, const std::int32_t* targets, const Tensor& loss, Saved& saved);
  // Computes d_x = factor * d loss / d x. Only this function applies a loss scale.
  void backward_input(double factor, const Tensor& d_x, Saved& saved, Category kept);
  void backward_weights(Saved& saved);  // leaves saved empty

  Parameters parameters();  // the table is the last

 private:
  Context context_;
  Parameter& table_;
  std::int64_t vocabulary_;
  Norm norm_;
  std::optional<PredictionTransform> transform_;
  std::optional<Parameter> bias_;  // [vocabulary/tp]
};

}  // namespace layers
