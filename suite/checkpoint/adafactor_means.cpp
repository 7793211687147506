#include "suite/checkpoint/adafactor_means.h"

#include <functional>
#include <vector>

#include "zero/matrices/adafactor.h"

namespace suite {
namespace {

using machine::Axis;

// whole: all ranks of tp have all elements.
using Visit =
    std::function<void(const zero::Piece& piece, const machine::Tensor& elements, bool whole)>;

// Calls visit for all means of a matrix. Stacked matrices (layers/column_parallel_linear.h) are
// two rows of the parameter's shape, and tp cuts the rows of each.
void visit_means(Trainer& trainer, const zero::AdafactorOptimizer& optimizer,
                 const zero::FactoredRow& of, const Visit& visit) {
  const collectives::Parameter& parameter = *trainer.parameters()[static_cast<std::size_t>(of.row)];
  const std::int64_t rank = trainer.grid().coordinate(Axis::tp);
  const std::int64_t stacked =
      parameter.global_shape[0] == of.all_rows ? 1 : parameter.global_shape[0];
  const auto call = [&](const char* what, std::int64_t at, std::vector<std::int64_t> global,
                        std::vector<std::int64_t> extent) {
    zero::Piece piece{.name = parameter.name + what};
    std::int64_t size = 1;
    for (std::size_t dim = 0; dim < global.size(); ++dim) {
      piece.begin.push_back(extent[dim] == global[dim] ? 0 : rank * extent[dim]);
      size *= extent[dim];
    }
    const bool whole = extent == global;
    piece.global = std::move(global);
    piece.extent = std::move(extent);
    piece.range = {0, size};
    visit(piece, optimizer.means().slice(at, {size}), whole);
  };
  if (stacked == 1)
    call("/of_rows", of.of_rows, {of.all_rows}, {of.rows});
  else
    call("/of_rows", of.of_rows, {stacked, of.all_rows / stacked}, {stacked, of.rows / stacked});
  call("/of_columns/means", of.of_columns, {of.all_columns}, {of.columns});
  call("/of_all/mean", of.of_all, {}, {});
}

}  // namespace

void add_means(Trainer& trainer, zero::PieceSink& sink) {
  const auto* const optimizer =
      dynamic_cast<const zero::AdafactorOptimizer*>(&trainer.optimizer_step().optimizer());
  if (!optimizer || trainer.communicator("dp")->rank() != 0) return;
  for (const zero::FactoredRow& of : optimizer->factors().matrices)
    if (trainer.is_first_holder(*trainer.parameters()[static_cast<std::size_t>(of.row)]))
      visit_means(trainer, *optimizer, of,
                  [&](const zero::Piece& piece, const machine::Tensor& elements, bool whole) {
                    if (!whole || trainer.grid().coordinate(Axis::tp) == 0)
                      sink.add(piece, elements);
                  });
}

void read_means(const zero::Checkpoint& checkpoint, Trainer& trainer) {
  const auto* const optimizer =
      dynamic_cast<const zero::AdafactorOptimizer*>(&trainer.optimizer_step().optimizer());
  if (!optimizer) return;
  for (const zero::FactoredRow& of : optimizer->factors().matrices)
    visit_means(trainer, *optimizer, of,
                [&](const zero::Piece& piece, const machine::Tensor& elements, bool) {
                  checkpoint.read(piece, elements);
                });
}

}  // namespace suite
