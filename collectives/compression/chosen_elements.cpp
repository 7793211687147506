#include "collectives/compression/chosen_elements.h"

#include <algorithm>
#include <limits>

#include "machine/base/reject.h"

namespace collectives {

using machine::Dtype;
using machine::Selection;
using machine::Tensor;

ChosenElements::ChosenElements(const CompressionSetup& setup, int words)
    : CompressedAllReduce(setup), words_(words) {
  reject_long_index(setup.count);
  selection_ = machine::make_selection(setup.device, setup.count, machine::Choice::above,
                                       machine::Category::compression);
  counts_ = buffer(Dtype::int32, ranks());
  if (!setup.device.readable_by_host()) {
    pinned_ = machine::make_host_device_beside(setup.device);
    read_counts_ = Tensor(*pinned_, Dtype::int32, {ranks()}, machine::Category::compression);
  }
  mine_ = all_ = buffer(Dtype::uint32, 0);
}

const std::int32_t* ChosenElements::gathered_counts() {
  communicator().all_gather(selection_->chosen(), counts_);
  if (!pinned_) return counts_.as<std::int32_t>();
  stream().copy(read_counts_.data(), counts_.data(), counts_.bytes());
  stream().synchronize();
  return read_counts_.as<std::int32_t>();
}

void ChosenElements::exchange(const Tensor& held, const Tensor& sum) {
  choose(held);
  lap(&Seconds::compress);
  const std::int32_t* const counts = gathered_counts();
  lap(&Seconds::exchange);
  if (std::find(counts, counts + ranks(), Selection::not_finite) != counts + ranks()) {
    selection_->drop_not_finite(held);
    stream().kernels().fill(sum, std::numeric_limits<double>::quiet_NaN());
    return lap(&Seconds::compress);
  }

  const std::int64_t most = *std::max_element(counts, counts + ranks()), length = words_ * most;
  selected_ = {most, std::max(most, selected_.largest)};
  if (length > mine_.size()) {
    mine_ = all_ = Tensor();  // frees the shorter ones first
    mine_ = buffer(Dtype::uint32, length);
    all_ = buffer(Dtype::uint32, length * ranks());
  }
  if (most > 0) {
    const Tensor list = mine_.slice(0, {length});
    stream().kernels().fill(list, 0);
    take(held, list);
    lap(&Seconds::compress);
    communicator().all_gather(list, all_.slice(0, {length * ranks()}));
    lap(&Seconds::exchange);
  }
  stream().kernels().fill(sum, 0);
  for (int peer = 0; peer < ranks(); ++peer)
    add(all_.slice(length * peer, {length}), counts[peer], sum);
  lap(&Seconds::decompress);
}

}  // namespace collectives
