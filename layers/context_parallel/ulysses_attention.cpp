#include "layers/context_parallel/ulysses_attention.h"

#include "layers/context_parallel/ring_attention.h"
#include "machine/base/error.h"

namespace layers {

using machine::Category;
using machine::Tensor;

UlyssesAttention::UlyssesAttention(const CoreAttention& attention, const CoreAttention* ring)
    : attention_(attention), ring_(ring), exchange_(attention, attention.placement) {
  if (ring) {
    SHARDMARK_CHECK(exchange_.split().calls(attention.cp.rank()).size(), ==, 1U);
    SHARDMARK_CHECK(ring->rows(), ==, attention.placement.sequence);
  }
}

std::vector<HeadSplit::Call> UlyssesAttention::calls() const {
  return ring_ ? std::vector<HeadSplit::Call>() : exchange_.split().calls(attention_.cp.rank());
}

void UlyssesAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                               Saved& saved, Category kept) const {
  const CoreAttention& a = attention_;
  const bool alone = a.cp.size() == 1;
  const auto whole = [&](const Tensor& part, Heads heads) {
    if (alone) return part;
    const Tensor made = exchange_.make_whole(heads, kept);
    exchange_.to_heads(part, heads, made);
    return made;
  };
  saved.q = whole(q, Heads::queries);
  saved.k = whole(k, Heads::keys);
  saved.v = whole(v, Heads::keys);
  saved.out = alone ? out : exchange_.make_whole(Heads::queries, kept);
  saved.log_sum_exp = a.sums(
      {a.sequences * exchange_.split().queries(a.cp.rank()).size(), a.placement.sequence}, kept);
  if (ring_) ring_attention(*ring_, saved);
  for (const HeadSplit::Call& call : calls())
    flash_attention(a.stream(), some_heads(a, saved.q, call.query, call.queries),
                    some_heads(a, saved.k, call.key, call.keys),
                    some_heads(a, saved.v, call.key, call.keys), {a.scale, a.causal},
                    some_heads(a, saved.out, call.query, call.queries),
                    log_sum_exp_of(a, saved.log_sum_exp, call));
  if (!alone) exchange_.to_sequence(saved.out, Heads::queries, out);
}

void UlyssesAttention::backward(const Tensor& d_out, const AttentionGradients& gradients,
                                Saved& saved) const {
  const CoreAttention& a = attention_;
  const bool alone = a.cp.size() == 1;
  const auto make = [&](const Tensor& part, Heads heads) {
    return alone ? part : exchange_.make_whole(heads, Category::buffers);
  };
  Tensor whole_d_out = make(d_out, Heads::queries);
  if (!alone) exchange_.to_heads(d_out, Heads::queries, whole_d_out);
  Tensor d_q = make(gradients.d_q, Heads::queries), d_k = make(gradients.d_k, Heads::keys),
         d_v = make(gradients.d_v, Heads::keys);
  if (ring_) ring_attention_backward(*ring_, saved, whole_d_out, {d_q, d_k, d_v});
  for (const HeadSplit::Call& call : calls()) {
    const auto queries = [&](const Tensor& tensor) {
      return some_heads(a, tensor, call.query, call.queries);
    };
    const auto keys = [&](const Tensor& tensor) {
      return some_heads(a, tensor, call.key, call.keys);
    };
    flash_attention_backward(a.stream(), queries(saved.q), keys(saved.k), keys(saved.v),
                             {a.scale, a.causal}, queries(saved.out),
                             log_sum_exp_of(a, saved.log_sum_exp, call), queries(whole_d_out),
                             queries(d_q), keys(d_k), keys(d_v));
  }
  whole_d_out = Tensor();
  saved = Saved();
  if (alone) return;
  exchange_.to_sequence(d_q, Heads::queries, gradients.d_q);
  d_q = Tensor();
  exchange_.sum_to_sequence(d_k, gradients.d_k);
  d_k = Tensor();
  exchange_.sum_to_sequence(d_v, gradients.d_v);
}

}  // namespace layers
