#pragma once
// The parts of Megatron-LM's --tp-comm-overlap: communication over tp during matrix
// products (Communicator::all_gather_while, reduce_scatter_while, run_beside). Sums add the same
// terms. Two halves of a product of rows and a ring may round them in another order.
//
//   split_ag    forward of a column-parallel layer multiplies the shares of its input as they
//               arrive; backward_input of a row-parallel layer those of d_y
//   split_rs    forward of a row-parallel layer sends each share of its product as it is made
//   bulk_dgrad  backward of a column-parallel layer gathers its input during the product of d_x
//   bulk_wgrad  and reduces d_x during the product of the weights' gradient
//   rs_dgrad    backward_input of a column-parallel layer sends d_x as forward with split_rs does;
//               it replaces the bulk forms
//
// Without sequence parallelism only bulk_wgrad has an effect, on the all-reduce of d_x (DeepSpeed's
// tp_overlap_comm). The bulk forms compute both halves of backward, so they do not apply if the
// halves are apart, or in cross attention.

namespace layers {

struct TpCommOverlap {
  bool enabled = false;
  bool split_ag = true, split_rs = true, bulk_dgrad = true, bulk_wgrad = true, rs_dgrad = false;

  bool gathers_by_share() const { return enabled && split_ag; }
  bool scatters_by_share() const { return enabled && split_rs; }
  bool scatters_gradients_by_share() const { return enabled && rs_dgrad; }
  bool gathers_beside() const { return enabled && bulk_dgrad && !rs_dgrad; }
  bool reduces_beside() const { return enabled && bulk_wgrad && !rs_dgrad; }
  // Returns whether a column-parallel layer computes both halves of its backward together.
  bool joins_halves(bool sequence_parallel) const {
    return reduces_beside() || (sequence_parallel && gathers_beside());
  }
  bool operator==(const TpCommOverlap&) const = default;
};

}  // namespace layers
