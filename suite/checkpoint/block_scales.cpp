#include "suite/checkpoint/block_scales.h"

#include <functional>
#include <string>
#include <utility>

#include "machine/device/dynamic_codes/adamw_8bit.h"

namespace suite {
namespace {

using machine::Axis;
using zero::Range;
using Visit = std::function<void(const collectives::Parameter& parameter, const zero::Piece& piece,
                                 const machine::Tensor& elements)>;

void visit_scales(Trainer& trainer, bool writes, const Visit& visit) {
  if (!trainer.config().optimizer.is_8bit()) return;
  const zero::Layout& layout = trainer.states().layout();
  const machine::Grid& grid = trainer.grid();
  const auto of_range = [&](Range range, const zero::RangeStates& states) {
    if (!states.scales) return;
    for (std::size_t i = 0; i < trainer.parameters().size(); ++i) {
      const collectives::Parameter& parameter = *trainer.parameters()[i];
      const std::int64_t size = trainer.plan().rows[i].elements, begin = layout.offsets[i];
      const Range here = intersection({begin, begin + size}, range);
      if (here.size() == 0) continue;
      const std::int64_t blocks = machine::moment_blocks(size),
                         first = (here.begin - begin) / machine::moment_block,
                         count = machine::moment_blocks(here.size()),
                         at = (here.begin - range.begin) / machine::moment_block;
      zero::Piece piece{
          .global = {blocks}, .begin = {0}, .extent = {blocks}, .range = {first, first + count}};
      if (parameter.placement.tp == collectives::Spread::sharded) {
        piece.global.insert(piece.global.begin(), grid.size(Axis::tp));
        piece.begin.insert(piece.begin.begin(), grid.coordinate(Axis::tp));
        piece.extent.insert(piece.extent.begin(), 1);
      }
      for (const auto& [moment, of_moment] : {std::pair("/first_moment", std::int64_t{0}),
                                              {"/second_moment", states.scales.size() / 2}}) {
        piece.name = parameter.name + moment + "/scales";
        visit(parameter, piece, states.scales.slice(of_moment + at, {count}));
      }
    }
  };
  trainer.optimizer_step().optimizer().visit(writes, of_range);
}

}  // namespace

void add_scales(Trainer& trainer, zero::PieceSink& sink) {
  // Without shards all ranks of dp have all scales.
  if (trainer.config().zero.stage == 0 && trainer.communicator("dp")->rank() != 0) return;
  visit_scales(trainer, false,
               [&](const collectives::Parameter& parameter, const zero::Piece& piece,
                   const machine::Tensor& elements) {
                 if (trainer.is_first_holder(parameter)) sink.add(piece, elements);
               });
}

void read_scales(const zero::Checkpoint& checkpoint, Trainer& trainer) {
  visit_scales(trainer, true,
               [&](const collectives::Parameter&, const zero::Piece& piece,
                   const machine::Tensor& elements) { checkpoint.read(piece, elements); });
}

}  // namespace suite
