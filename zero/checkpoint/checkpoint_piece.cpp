#include "zero/checkpoint/checkpoint_piece.h"

#include <fmt/format.h>

#include <algorithm>

#include "machine/base/error.h"

namespace zero {
namespace {

// Returns false if the product exceeds 2^60.
bool product(const std::vector<std::int64_t>& extents, std::int64_t& size) {
  size = 1;
  for (const std::int64_t extent : extents)
    if (__builtin_mul_overflow(size, extent, &size) || size > std::int64_t{1} << 60) return false;
  return true;
}

}  // namespace

std::string why_no_piece(const Piece& piece) {
  const std::size_t rank = piece.global.size();
  if (rank > machine::Shape::max_rank || piece.begin.size() != rank || piece.extent.size() != rank)
    return fmt::format("global, begin and extent have {}, {} and {} dimensions", rank,
                       piece.begin.size(), piece.extent.size());
  for (std::size_t dim = 0; dim < rank; ++dim) {
    const std::int64_t global = piece.global[dim], begin = piece.begin[dim],
                       extent = piece.extent[dim];
    if (global < 0 || begin < 0 || extent < 0 || begin > global || extent > global - begin)
      return fmt::format("{} elements from index {} are not inside an extent of {}", extent, begin,
                         global);
  }
  std::int64_t whole = 0, box = 0;
  if (!product(piece.global, whole)) return "more than 2^60 elements";
  product(piece.extent, box);
  if (piece.range.begin < 0 || piece.range.end < piece.range.begin || piece.range.end > box)
    return fmt::format("elements {} to {} of a box of {}", piece.range.begin, piece.range.end, box);
  return "";
}

std::vector<Run> runs(const Piece& piece) {
  // The number of the box's elements that are contiguous in the tensor. They cover the innermost
  // dimensions that the box contains completely, and its extent in the next dimension.
  std::int64_t length = 1;
  std::size_t outer = piece.global.size();
  while (outer > 0) {
    --outer;
    length *= piece.extent[outer];
    if (piece.extent[outer] != piece.global[outer]) break;
  }
  std::vector<Run> found;
  for (std::int64_t at = piece.range.begin; at < piece.range.end;) {
    std::int64_t rest = at, global = 0, stride = 1;
    for (std::size_t dim = piece.global.size(); dim > 0; --dim) {
      global += (piece.begin[dim - 1] + rest % piece.extent[dim - 1]) * stride;
      rest /= piece.extent[dim - 1];
      stride *= piece.global[dim - 1];
    }
    const std::int64_t size = std::min(length - at % length, piece.range.end - at);
    found.push_back({global, at - piece.range.begin, size});
    at += size;
  }
  return found;
}

std::vector<FlatPiece> flat_pieces(const std::vector<Parameter*>& parameters,
                                   const std::vector<std::int64_t>& offsets, int tp, int tp_rank,
                                   Range range) {
  SHARDMARK_CHECK(parameters.size(), ==, offsets.size());
  std::vector<FlatPiece> found;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = *parameters[i];
    const machine::Shape local =
        Parameter::local_shape(parameter.name, parameter.global_shape, parameter.placement, tp);
    const Range all{offsets[i], offsets[i] + local.size()};
    const Range here = intersection(all, range);
    if (here.size() == 0) continue;
    Piece piece{.name = parameter.name};
    for (int dim = 0; dim < parameter.global_shape.rank(); ++dim) {
      const std::int64_t extent = local[dim];
      const bool cut =
          parameter.placement.tp == collectives::Spread::sharded && parameter.placement.dim == dim;
      piece.global.push_back(parameter.global_shape[dim]);
      piece.extent.push_back(extent);
      piece.begin.push_back(cut ? parameter.placement.part(tp_rank) * extent : 0);
    }
    piece.range = {here.begin - all.begin, here.end - all.begin};
    found.push_back({std::move(piece), here.begin - range.begin});
  }
  return found;
}

}  // namespace zero
