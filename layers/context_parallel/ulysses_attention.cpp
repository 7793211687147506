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
  const std::int64_t positions = a.placement.sequence;
  const bool alone = a.cp.size() == 1;
  const auto whole = [&](const Tensor& part, const HeadExchange::Route& route) {
    if (alone) return part;
    const Tensor made = exchange_.make_whole(route, kept);
    exchange_.to_heads(part, route, made);
    return made;
  };
  saved.q = whole(q, exchange_.queries());
  saved.k = whole(k, exchange_.keys());
  saved.v = whole(v, exchange_.keys());
  saved.out = alone ? out : exchange_.make_whole(exchange_.queries(), kept);
  saved.log_sum_exp =
      a.sums({a.sequences * exchange_.split().queries(a.cp.rank()).size(), positions}, kept);
  if (ring_) ring_attention(*ring_, saved);
  for (const HeadSplit::Call& call : calls())
    flash_attention(a.stream(), some_heads(a, saved.q, call.query, call.queries),
                    some_heads(a, saved.k, call.key, call.keys),
                    some_heads(a, saved.v, call.key, call.keys), {a.scale, a.causal},
                    some_heads(a, saved.out, call.query, call.queries),
                    saved.log_sum_exp.slice(a.sequences * call.query * positions,
                                            {a.sequences * call.queries * positions}));
  if (!alone) exchange_.to_sequence(saved.out, exchange_.queries(), out);
}

void UlyssesAttention::backward(const Tensor& d_out, const AttentionGradients& gradients,
                                Saved& saved) const {
  const CoreAttention& a = attention_;
  const std::int64_t positions = a.placement.sequence;
  const bool alone = a.cp.size() == 1;
  const HeadExchange::Route &of_queries = exchange_.queries(), &of_keys = exchange_.keys();
  const auto make = [&](const HeadExchange::Route& route, const Tensor& part) {
    return alone ? part : exchange_.make_whole(route, Category::buffers);
  };
  Tensor whole_d_out = make(of_queries, d_out);
  if (!alone) exchange_.to_heads(d_out, of_queries, whole_d_out);
  Tensor d_q = make(of_queries, gradients.d_q), d_k = make(of_keys, gradients.d_k),
         d_v = make(of_keys, gradients.d_v);
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
                             saved.log_sum_exp.slice(a.sequences * call.query * positions,
                                                     {a.sequences * call.queries * positions}),
                             queries(whole_d_out), queries(d_q), keys(d_k), keys(d_v));
  }
  whole_d_out = Tensor();
  saved = Saved();
  if (alone) return;
  exchange_.to_sequence(d_q, of_queries, gradients.d_q);
  d_q = Tensor();
  exchange_.sum_to_sequence(d_k, gradients.d_k);
  d_k = Tensor();
  exchange_.sum_to_sequence(d_v, gradients.d_v);
}

}  // namespace layers
