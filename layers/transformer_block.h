#pragma once
// A pre-LayerNorm transformer block (GPT-2), tensor-parallel as in Shoeybi et al. 2019
// (arXiv:1909.08053):
//
//   r = x + attention(norm1(x));   y = r + mlp(norm2(r));   x, r, y [tokens, hidden]
//
// Communication: two all-reduces of [tokens, hidden] forward, two backward_input, none
// backward_weights. With sequence parallelism (arXiv:2205.05198) x, r and y are of this rank's own
// rows; two all-gathers and two reduce-scatters forward and backward_input, two all-gathers
// backward_weights. gpt_cost.h counts them, gpt_memory.h what is saved and held meanwhile.

#include <cstdint>
#include <string>

#include "layers/attention.h"
#include "layers/context.h"
#include "layers/layer_norm.h"
#include "layers/mlp.h"

namespace layers {

class TransformerBlock {
 public:
  // From forward to backward_weights; backward_input frees what only it needs, and adds the d_.
  struct Saved {
    machine::Tensor x, residual;  // x is the caller's
    LayerNorm::Statistics statistics1, statistics2;
    Attention::Saved attention;
    Mlp::Saved mlp;
    machine::Tensor d_norm1, d_norm2;  // of the outputs of the norms
  };

  TransformerBlock(const Context& context, const std::string& name, std::int64_t hidden,
                   std::int64_t heads, std::int64_t ffn, std::int64_t sequence, double epsilon);

  // Keeps views of x and d_y: they must stay unchanged until backward_weights. What a later call
  // will need is allocated under `kept`: activations when that comes later, buffers when it follows
  // at once, or when what is saved is dropped, to be made again by another forward.
  void forward(const machine::Tensor& x, const machine::Tensor& y, Saved& saved,
               machine::Category kept);
  void backward_input(const machine::Tensor& d_y, const machine::Tensor& d_x, Saved& saved,
                      machine::Category kept);
  void backward_weights(Saved& saved);  // leaves saved empty

  void initialize(const Initializer& initializer);
  Parameters parameters();

 private:
  Context context_;
  LayerNorm norm1_;
  Attention attention_;
  LayerNorm norm2_;
  Mlp mlp_;
};

}  // namespace layers
