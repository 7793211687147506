#include "zero/offload/stream_plan.h"

#include <algorithm>
#include <cmath>

#include "collectives/placement.h"
#include "machine/base/reject.h"
#include "zero/offload/file_store.h"
#include "zero/offload/host_store.h"

namespace zero {

namespace {

// Pieces alternate between two slots of the staging. Each slot is as long as its longest piece.
// With delayed_update every piece has its own place.
StreamPieces split(const std::vector<std::int64_t>& sizes, const StateOptions& options) {
  const std::int64_t longest = options.device == OffloadDevice::nvme
                                   ? std::min(options.nvme.sub_group_size, options.nvme.buffer_size)
                                   : options.cpu.piece_size;
  const bool delayed = options.is_delayed();
  StreamPieces pieces;
  std::int64_t slot[2] = {};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    for (std::int64_t begin = streamed_part(sizes[i], options).begin; begin < sizes[i];) {
      const std::int64_t size = std::min(longest, sizes[i] - begin);
      std::int64_t& length = slot[pieces.all.size() % 2];
      length = std::max(length, size);
      pieces.all.push_back({i, {begin, begin + size}, pieces.elements, pieces.elements});
      pieces.elements += size;
      begin += size;
    }
  }
  pieces.longest = std::max(slot[0], slot[1]);
  pieces.staged = delayed ? pieces.elements : slot[0] + slot[1];
  for (std::size_t i = 0; !delayed && i < pieces.all.size(); ++i)
    pieces.all[i].in_staging = i % 2 == 0 ? 0 : slot[0];
  return pieces;
}

}  // namespace

Range streamed_part(std::int64_t size, const StateOptions& options) {
  return {size - std::llround(options.cpu.ratio * static_cast<double>(size)), size};
}

StreamPlan stream_plan(const Rule& rule, Dtype value, const std::vector<std::int64_t>& sizes,
                       const StateOptions& options, const std::vector<bool>& away,
                       std::optional<Dtype> gradient_dtype) {
  check(options);
  StreamPlan plan;
  plan.wide = collectives::gradient_dtype(value);
  plan.gradient = gradient_dtype.value_or(plan.wide);
  if (plan.gradient != plan.wide && plan.gradient != value)
    machine::reject("gradient_dtype {}: gradients of {} values are {}{}", name(plan.gradient),
                    name(value), name(plan.wide),
                    plan.wide == value ? "" : fmt::format(" or {}", name(value)));
  plan.pieces = split(sizes, options);
  plan.store = options.device == OffloadDevice::nvme
                   ? file_store_cost(rule, value, plan.pieces, options.nvme)
                   : host_store_cost(rule, value, plan.pieces);
  plan.wide_values = !kept_states(rule, value).master;
  for (const std::int64_t size : sizes) {
    const std::int64_t stays = streamed_part(size, options).begin;
    plan.on_device += stays;
  }
  for (const StreamPiece& piece : plan.pieces.all)
    if (piece.owned >= away.size() || !away[piece.owned]) plan.going_up += piece.size();
  plan.stages_values = plan.going_up > 0 && (!plan.wide_values || plan.takes_values_down());
  return plan;
}

StateCost StreamPlan::cost(const Rule& rule, Dtype value) const {
  const auto bytes = [](std::int64_t elements, Dtype dtype) {
    return static_cast<std::size_t>(elements) * size_of(dtype);
  };
  const auto device = static_cast<std::size_t>(on_device);
  StateCost cost;
  cost.host_elements = pieces.elements;
  cost.pieces = pieces.count();
  cost.host_optimizer = store.optimizer;
  cost.host_buffers = store.buffers + bytes(pieces.staged, gradient) +
                      (stages_values ? bytes(pieces.staged, value) : 0);
  cost.device_optimizer = device * optimizer_bytes_per_element(rule, value);
  cost.device_buffers = device * mask_bytes_per_element(rule);
  cost.moved.up = bytes(going_up, value);
  cost.moved.down = bytes(pieces.elements, gradient) + (takes_values_down() ? cost.moved.up : 0);
  cost.moved.nvme_read = cost.moved.nvme_written = store.pass;
  return cost;
}

}  // namespace zero
