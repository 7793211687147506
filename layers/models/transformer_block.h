#pragma once
// A transformer block with its norms first (GPT-2, Llama, Megatron-LM's BERT), tensor-parallel as
// in Shoeybi et al. 2019 (arXiv:1909.08053):
//
//   r = x + dropout(attention(norm1(x)));   y = r + dropout(mlp(norm2(r)));   x, r, y [tokens,
//   hidden]
//
// Communication: two all-reduces of [tokens, hidden] in forward, two in backward_input, zero in
// backward_weights. With sequence parallelism (arXiv:2205.05198) x, r and y hold this rank's own
// rows. Then forward and backward_input each have two all-gathers and two reduce-scatters, and
// backward_weights has two all-gathers. gpt_cost.h counts them, gpt_memory.h the memory.

#include <string>

#include "layers/attention/attention.h"
#include "layers/context.h"
#include "layers/dropout.h"
#include "layers/gpt_config.h"
#include "layers/mlp.h"
#include "layers/norm.h"

namespace layers {

class TransformerBlock {
 public:
  // Kept from forward to backward_weights; backward_input frees the tensors that only it needs, and
  // adds d_norm1 and d_norm2.
  struct Saved {
    Tensor x, residual;  // x is the caller's
    Norm::Statistics statistics1, statistics2;
    Attention::Saved attention;
    Mlp::Saved mlp;
    Tensor d_norm1, d_norm2;  // of the outputs of the norms
    Draw draw;
  };

  TransformerBlock(const Context& context, const std::string& name, const GptConfig& config);

  // Keeps views of x and d_y, which must stay unchanged until backward_weights. `kept` is the
  // category of memory for a later call: activations, or buffers if that call follows at once or if
  // the caller frees `saved` and runs forward again. The same draw gives the same bits.
  // lengths: of the sequences, as for Attention.
  void forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept, const Draw& draw = {},
               const std::int32_t* lengths = nullptr);
  void backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved, Category kept);
  void backward_weights(Saved& saved);  // leaves saved empty

  Parameters parameters();

 private:
  Tensor dropped(const Dropout& dropout, const Tensor& d_y, const Draw& draw, Category kept) const;

  Context context_;
  Norm norm1_;
  Attention attention_;
  Dropout attention_dropout_;
  Norm norm2_;
  Mlp mlp_;
  Dropout mlp_dropout_;
};

}  // namespace layers
