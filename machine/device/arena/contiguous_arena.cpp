#include "machine/device/arena/contiguous_arena.h"

#include <fmt/format.h>

#include "machine/base/error.h"

namespace machine {

Tensor ContiguousArena::take(Shape shape) {
  const std::int64_t elements = shape.size();
  if (elements > left())
    throw MachineError(
        fmt::format("contiguous arena of {} elements: {} left; cannot take {} for {}",
                    whole_.size(), left(), elements, shape.text()));
  const Tensor part = whole_.slice(taken_, shape);
  taken_ += elements;
  return part;
}

}  // namespace machine
