#pragma once
// The conjugate operators at the borders of a tensor-parallel region (f and g of Shoeybi et al.
// 2019, arXiv:1909.08053, figure 3). Entering the region costs an all-reduce backward, leaving it
// one forward:
//
//              forward       backward
//   CopyTo     identity      all-reduce     input of a column-parallel layer
//   ReduceFrom all-reduce    identity       output of a row-parallel layer
//
// In place, over every element of the tensor; nothing at all on a group of one rank.

#include "collectives/communicator.h"
#include "machine/device/tensor.h"

namespace layers {

struct CopyTo {
  static void forward(collectives::Communicator&, const machine::Tensor&) {}
  static void backward(collectives::Communicator& tp, const machine::Tensor& d_x) {
    if (tp.size() > 1) tp.all_reduce(d_x);
  }
};

struct ReduceFrom {
  static void forward(collectives::Communicator& tp, const machine::Tensor& y) {
    if (tp.size() > 1) tp.all_reduce(y);
  }
  static void backward(collectives::Communicator&, const machine::Tensor&) {}
};

}  // namespace layers
