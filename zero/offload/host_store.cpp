#include "zero/offload/host_store.h"

#include <algorithm>

#include "collectives/placement.h"

namespace zero {

StoreCost host_store_cost(const Rule& rule, Dtype value, const StreamPieces& pieces) {
  StoreCost cost{.kept = kept_states(rule, value)};
  cost.kept.master = true;
  const auto elements = static_cast<std::size_t>(pieces.elements);
  cost.optimizer = elements * static_cast<std::size_t>(cost.kept.count()) *
                   size_of(collectives::gradient_dtype(value));
  cost.buffers = elements * mask_bytes_per_element(rule);
  return cost;
}

HostStore::HostStore(const Rule& rule, Dtype value, const StreamPieces& pieces,
                     const std::vector<std::uint8_t>& decay_mask, machine::Device& host)
    : pieces_(pieces) {
  const KeptStates kept = host_store_cost(rule, value, pieces).kept;
  const auto state = [&](bool is_kept) {
    const Dtype wide = collectives::gradient_dtype(value);
    return is_kept ? Tensor(host, wide, {pieces.elements}, Category::optimizer) : Tensor();
  };
  master_ = state(kept.master);
  first_moment_ = state(kept.first_moment);
  second_moment_ = state(kept.second_moment);
  if (!kept.mask) return;
  decay_mask_ = host.allocate(decay_mask.size(), Category::buffers);
  std::ranges::copy(decay_mask, static_cast<std::uint8_t*>(decay_mask_.data()));
  decay_ = decay_of(decay_mask);
}

void HostStore::pass(Access, const Use& use) {
  const auto* const mask = static_cast<const std::uint8_t*>(decay_mask_.data());
  for (std::int64_t i = 0; i < pieces_.count(); ++i) {
    const StreamPiece& piece = pieces_.at(i);
    const auto view = [&](const Tensor& state) {
      return state ? state.slice(piece.in_states, {piece.size()}) : state;
    };
    use(i, {view(master_), view(first_moment_), view(second_moment_), decay_,
            mask ? mask + piece.in_states : nullptr});
  }
}

}  // namespace zero
