#pragma once
// A transformer block with its norms first (GPT-2, Llama), tensor-parallel as in Shoeybi et al.
// 2019 (arXiv:1909.08053):
//
//   r = x + dropout(attention(norm1(x)));   y = r + dropout(mlp(norm2(r)));   x, r, y [tokens,
//   hidden]
//
// Communication: two all-reduces of [tokens, hidden] forward, two backward_input, none
// backward_weights. With sequence parallelism (arXiv:2205.05198) x, r and y hold this rank's own
// rows; two all-gathers and two reduce-scatters forward and backward_input, two all-gathers
// backward_weights. gpt_cost.h counts them, gpt_memory.h the memory.

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
  // Kept from forward to backward_weights; backward_input frees what only it needs, and adds the
  // d_.
  struct Saved {
    Tensor x, residual;  // x is the caller's
    Norm::Statistics statistics1, statistics2;
    Attention::Saved attention;
    Mlp::Saved mlp;
    Tensor d_norm1, d_norm2;  // of the outputs of the norms
    Draw draw;
  };

  TransformerBlock(const Context& context, const std::string& name, const GptConfig& config);

  // Keeps views of x and d_y: they must stay unchanged until backward_weights. `kept` is the
  // category of memory for a later call: activations, or buffers if that call follows at once or if
  // the caller frees `saved` and runs forward again. The same draw gives the same bits again.
  void forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept,
               const Draw& draw = {});
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
