#pragma once
// A transformer block with its norms first (GPT-2, Llama, Megatron-LM's BERT, T5), tensor-parallel
// as in Shoeybi et al. 2019 (arXiv:1909.08053):
//
//   r = x + dropout(attention(norm1(x)));   y = r + dropout(mlp(norm2(r)));   x, r, y [tokens,
//   hidden]
//
// A block of an encoder-decoder's decoder attends to the encoder between the two:
//
//   y = s + dropout(mlp(norm2(s))),   s = r + dropout(cross(cross_norm(r), encoded))
//
// With experts (config.has_experts()) a mixture of experts is in place of mlp
// (experts/moe_layer.h).
//
// Communication: two all-reduces of [tokens, hidden] in forward, two in backward_input, zero in
// backward_weights; cross attention adds one and two. With sequence parallelism (arXiv:2205.05198)
// x, r and y hold this rank's own rows. Then forward and backward_input each have two all-gathers
// and two reduce-scatters, and backward_weights has two all-gathers. gpt_cost.h counts them,
// gpt_memory.h the memory.

#include <optional>
#include <string>

#include "layers/attention/attention.h"
#include "layers/attention/cross_attention.h"
#include "layers/context.h"
#include "layers/dropout.h"
#include "layers/experts/moe_layer.h"
#include "layers/gpt_config.h"
#include "layers/mlp.h"
#include "layers/norm.h"

namespace layers {

// The inputs of a block besides x.
struct BlockInputs {
  Draw draw{};
  const std::int32_t* lengths = nullptr;  // of the sequences, as for Attention
  RelativeBias bias{};
  Tensor encoded{};  // the encoder's output, for a decoder's block, and its lengths
  const std::int32_t* encoded_lengths = nullptr;
  RoutingRecord* routing = nullptr;  // of a block with experts; null: no record
};
// Gradients to which backward_input adds: of the table of the bias and of the encoder's output.
struct BlockGradients {
  Tensor bias{}, encoded{};
};

class TransformerBlock {
 public:
  // Kept from forward to backward_weights; backward_input frees the tensors that only it needs, and
  // adds the gradients of the outputs of the norms.
  struct Saved {
    Tensor x, residual, crossed;  // x is the caller's; crossed: after cross attention
    Norm::Statistics statistics1, cross_statistics, statistics2;
    Attention::Saved attention;
    CrossAttention::Saved cross;
    Mlp::Saved mlp;
    MoeLayer::Saved moe;
    Tensor d_norm1, d_cross_norm, d_norm2;
    Draw draw;
  };

  // With config.encoder_decoder() it is a block of the decoder. experts: of a block with experts;
  // by default this rank has all of them.
  TransformerBlock(const Context& context, const std::string& name, const GptConfig& config,
                   const std::optional<MoeCommunicators>& experts = {});

  // Keeps views of x and d_y, which must stay unchanged until backward_weights. `kept` is the
  // category of memory for a later call: activations, or buffers if that call follows at once or if
  // the caller frees `saved` and runs forward again. The same draw gives the same bits.
  // loss_scale: of the sum over tokens of the experts' auxiliary losses, which are means.
  void forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept,
               const BlockInputs& inputs = {});
  void backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved, Category kept,
                      const BlockGradients& also = {}, double loss_scale = 1);
  void backward_weights(Saved& saved);  // leaves saved empty

  Parameters parameters();

 private:
  Tensor dropped(const Dropout& dropout, const Tensor& d_y, const Draw& draw, Category kept) const;

  struct Cross {
    Norm norm;
    CrossAttention attention;
    Dropout dropout;
  };

  Context context_;
  Norm norm1_;
  Attention attention_;
  Dropout attention_dropout_;
  std::optional<Cross> cross_;
  Norm norm2_;
  std::optional<Mlp> mlp_;  // or
  std::optional<MoeLayer> moe_;
  Dropout mlp_dropout_;
};

}  // namespace layers
