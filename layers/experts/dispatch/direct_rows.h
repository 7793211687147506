#pragma once
// The moves of alltoall between ranks that reach each other's host memory: a row goes from its
// place to its place, without packing. Bytes and messages are those of all_to_all_v.
//
//   to_experts   the owner of the experts offers its rows (Link::post). A token's rank writes each
//                row there, weighed if backward needs it, and announces the message.
//   to_tokens    the owner of the experts lends its rows (Link::send). A token's rank reads its
//                rows there and adds them up.
//
// With B the bytes of a rank's rows and k choices, two calls of all_to_all_v read and write 4 B.
//
//   direct   reads B/k (each token once), writes B; reads B, writes B (kept) and B/k
//            (3 + 2/k) B: 4 B for two choices, so all_to_all_v takes as long at best
//   packed   also packs, arranges by expert, arranges back, weighs, clears and adds up
//            (12 + 4/k) B: 14 B for two choices
//
// Weighing in 16 bits also takes time: a product is rounded before it is added, as if packed.
//
// Messages are packed if the peer does not offer its rows in time, or if they are so short that the
// link copies them. Values do not depend on that.

#include "layers/experts/dispatch/token_dispatcher.h"

namespace layers {

class DirectRows {
 public:
  using Saved = TokenDispatcher::Saved;
  DirectRows(const Context& context, collectives::Communicator& group, const MoeConfig& config,
             ExpertParallel degrees)
      : context_(context), group_(group), config_(config), degrees_(degrees) {}

  // Returns whether all ranks of the group can move rows in this way. They cannot if a fault is
  // injected into a link, which reads only the message itself, or if the group has another
  // algorithm.
  bool available() const;

  // rows [R, hidden], grouped by expert: weights[i] from[saved.token[i]], zeros for padding.
  // Without weights a copy. packed: memory for the sent rows, as those of a TokenRows.
  void to_experts(const Saved& saved, const Tensor& from, const Tensor& weights,
                  const Tensor& packed, const Tensor& rows);
  // sums[t] = the sum of weights[i] r_i over the sent rows i of token t, in their order, where r_i
  // is row i of the receiver's `rows`. Products round to the dtype, sums to the accumulator's type.
  // kept: takes r_i of tokens, if it is not empty. packed: [R, hidden], memory for rows to return.
  void to_tokens(const Saved& saved, const Tensor& rows, const Tensor& weights,
                 const Tensor& packed, const Tensor& kept, const Tensor& sums);
  // Returns from[saved.token[i]] · saved.out[i] in the accumulator's type, 0 for padding. It needs
  // an accumulator for each sent row in buffers.
  std::vector<double> dots_with_outputs(const Saved& saved, const Tensor& from);

 private:
  struct Part;
  template <class T>
  void write_rows(const Saved& saved, const Tensor& from, const Tensor& weights,
                  const Tensor& packed, const Tensor& rows);
  template <class T>
  void add_rows(const Saved& saved, const Tensor& rows, const Tensor& weights, const Tensor& packed,
                const Tensor& kept, const Tensor& sums);
  template <class T>
  void dot_rows(const Saved& saved, const Tensor& from, const Tensor& dots);
  std::vector<Part> parts(const Saved& saved) const;

  Context context_;
  collectives::Communicator& group_;
  MoeConfig config_;
  ExpertParallel degrees_;
};

}  // namespace layers
