#include "layers/models/checkpoints.h"

#include <algorithm>
#include <utility>

#include "machine/base/reject.h"
#include "machine/world/step_clock.h"

namespace layers {

Checkpoints::Checkpoints(const Context& context, const ActivationOptions& options,
                         machine::Device* host)
    : context_(context),
      distributed_(options.distribute_saved_activations),
      contiguous_(options.contiguous_memory_optimization),
      least_room_(static_cast<std::size_t>(options.number_checkpoints)),
      host_(options.cpu_checkpointing ? host : nullptr) {
  if (options.cpu_checkpointing && !host)
    machine::reject("cpu-checkpointing requires a host device");
}

std::optional<machine::ContiguousArena> Checkpoints::make_room(std::size_t count,
                                                               std::int64_t elements) const {
  if (!contiguous_ || count == 0) return {};
  const auto room = static_cast<std::int64_t>(std::max(count, least_room_));
  return std::make_optional<machine::ContiguousArena>(
      place(), context_.dtype, room * kept_of(elements), Category::activations);
}

Tensor Checkpoints::keep(const Tensor& x, std::optional<machine::ContiguousArena>& room) {
  if (!apart()) return x;
  const machine::During moved(host_ ? machine::Part::offload : machine::Part::recompute);
  const std::int64_t size = kept_of(x.size());
  const std::int64_t begin = distributed_ ? context_.tp.rank() * size : 0;
  const Tensor kept =
      room ? room->take({size}) : Tensor(place(), x.dtype(), {size}, Category::activations);
  context_.stream().copy(kept.data(), x.slice(begin, {size}).data(), kept.bytes());
  if (host_) moved_.down += kept.bytes();
  return kept;
}

Tensor Checkpoints::restore(Tensor kept, Shape shape, Category category) {
  if (!apart()) return kept;
  if (host_) {
    const machine::During moved(machine::Part::offload);
    Tensor up = distributed_ ? context_.tensor(kept.shape(), Category::buffers)
                             : context_.tensor(shape, category);
    context_.stream().copy(up.data(), kept.data(), kept.bytes());
    context_.stream().synchronize();  // the caller may reuse the host's memory from here on
    moved_.up += kept.bytes();
    if (!distributed_) return up;
    kept = std::move(up);
  }
  Tensor whole = context_.tensor(shape, category);
  context_.tp.all_gather(kept, whole);
  return whole;
}

}  // namespace layers
