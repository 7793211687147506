#include "layers/context_parallel/context_attention.h"

#include "layers/context_parallel/all_gather_attention.h"
#include "layers/context_parallel/ring_attention.h"

namespace layers {

using machine::Category, machine::Tensor;

ContextAttention::ContextAttention(const ContextParallel& cp, machine::Device& device,
                                   machine::Dtype dtype, const HeadShape& shape, double scale,
                                   bool causal)
    : core_{device,      *cp.group,      cp.placement, dtype, shape.sequences,
            shape.heads, shape.kv_heads, shape.head,   scale, causal},
      gathers_(cp.comm_type == CpCommType::all_gather) {
  if (cp.fpdt_chunk_size > 0)
    fpdt_.emplace(core_, cp.fpdt_chunk_size, *cp.chunks);
  else if (cp.comm_type == CpCommType::a2a)
    ulysses_.emplace(core_);
  if (cp.comm_type == CpCommType::a2a_p2p) hybrid_.emplace(core_, *cp.a2a, *cp.p2p);
}

void ContextAttention::forward(const Attended& parts, Saved& saved, Category kept) const {
  if (ulysses_) return ulysses_->forward(parts.q, parts.k, parts.v, parts.out, saved.whole, kept);
  if (hybrid_) return hybrid_->forward(parts.q, parts.k, parts.v, parts.out, saved.whole, kept);
  if (fpdt_) return fpdt_->forward(parts.q, parts.k, parts.v, parts.out, saved.whole, kept);
  saved.parts = parts;
  saved.parts.log_sum_exp = core_.sums({core_.sequences * core_.heads, core_.rows()}, kept);
  if (gathers_)
    all_gather_attention(core_, saved.parts);
  else
    ring_attention(core_, saved.parts);
}

void ContextAttention::backward(const Tensor& d_out, const AttentionGradients& gradients,
                                Saved& saved) const {
  if (ulysses_)
    ulysses_->backward(d_out, gradients, saved.whole);
  else if (hybrid_)
    hybrid_->backward(d_out, gradients, saved.whole);
  else if (fpdt_)
    fpdt_->backward(d_out, gradients, saved.whole);
  else if (gathers_)
    all_gather_attention_backward(core_, saved.parts, d_out, gradients);
  else
    ring_attention_backward(core_, saved.parts, d_out, gradients);
  saved = Saved();
}

}  // namespace layers
