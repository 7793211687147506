#pragma once
// States in host memory. Values that are their own master on the device also have a master here, so
// no values are copied to the host. The decay mask is kept as bytes.

#include <vector>

#include "zero/offload/state_store.h"

namespace zero {

StoreCost host_store_cost(const Rule& rule, Dtype value, const StreamPieces& pieces);

class HostStore final : public StateStore {
 public:
  // `pieces` must outlive the store. decay_mask: a byte for each of their elements.
  HostStore(const Rule& rule, Dtype value, const StreamPieces& pieces,
            const std::vector<std::uint8_t>& decay_mask, machine::Device& host);
  void pass(Access access, const Use& use) override;

 private:
  const StreamPieces& pieces_;
  Tensor master_, first_moment_, second_moment_;  // [elements]
  machine::Memory decay_mask_;
  Decay decay_ = Decay::everywhere;
};

}  // namespace zero
