#include "zero/matrices/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "machine/base/error.h"
#include "machine/device/gemm.h"
#include "machine/device/kernels.h"
#include "zero/states/layout.h"

namespace zero {

using machine::Category, machine::Matrix, machine::Tensor;

namespace {

constexpr Quintic simple = {3.4445F, -4.7750F, 2.0315F};
// Megatron-LM's, of its package emerging_optimizers.
constexpr Quintic each_step[] = {{4.0848F, -6.8946F, 2.9270F},
                                 {3.9505F, -6.3029F, 2.6377F},
                                 {3.7418F, -5.5913F, 2.3037F},
                                 {2.8769F, -3.1427F, 1.2046F},
                                 {2.8366F, -3.0525F, 1.2012F}};
constexpr double least_norm = 1e-15;

}  // namespace

double muon_scale(MuonScale scale, std::int64_t rows, std::int64_t columns) {
  const auto out = static_cast<double>(rows), in = static_cast<double>(columns);
  switch (scale) {
    case MuonScale::spectral:
      return std::sqrt(std::max(out, in));
    case MuonScale::unit_rms_norm:
      return std::sqrt(out / in);
    case MuonScale::shape_scaling:
      return std::sqrt(std::max(1.0, out / in));
  }
  return 1;
}

Quintic quintic(NewtonSchulzType type, int step) {
  return type == NewtonSchulzType::simple ? simple : each_step[static_cast<std::size_t>(step) % 5];
}

std::int64_t square_elements(std::int64_t rows, int tp) {
  const std::int64_t multiple = tp > 1 ? alignment * tp : 1;
  return (rows * rows + multiple - 1) / multiple * multiple;
}

NewtonSchulz::NewtonSchulz(machine::Device& device, machine::Dtype dtype,
                           std::int64_t most_elements, std::int64_t most_rows, int tp)
    : device_(device),
      other_(device, dtype, {most_elements}, Category::buffers),
      square_(device, dtype, {square_elements(most_rows, tp)}, Category::buffers),
      polynomial_(device, dtype, {most_rows * most_rows}, Category::buffers) {}

std::size_t NewtonSchulz::bytes(machine::Dtype dtype, std::int64_t most_elements,
                                std::int64_t most_rows, int tp) {
  return static_cast<std::size_t>(most_elements + square_elements(most_rows, tp) +
                                  most_rows * most_rows) *
         size_of(dtype);
}

void NewtonSchulz::run(const Tensor& x, double norm, NewtonSchulzType type, int steps,
                       bool from_left, collectives::Communicator* tp, std::string_view all_reduce) {
  machine::Stream& stream = device_.stream();
  machine::Kernels& kernels = stream.kernels();
  const std::int64_t rows = from_left ? x.rows() : x.cols();
  const Tensor square = square_.slice(0, {rows, rows}),
               polynomial = polynomial_.slice(0, {rows, rows});
  const Matrix a = matrix(square), p = matrix(polynomial);
  const bool sums = tp && tp->size() > 1;
  const Tensor summed = square_.slice(0, {square_elements(rows, sums ? tp->size() : 1)});
  kernels.fill(summed, 0);  // the padding
  Tensor now = x, next = other_.slice(0, {x.rows(), x.cols()});
  kernels.scale(x, 1 / std::max(norm, least_norm), x);
  for (int step = 0; step < steps; ++step) {
    const Quintic of = quintic(type, step);
    const Matrix from = matrix(now), to = matrix(next);
    if (from_left)
      gemm(stream, from, from.transposed(), a);
    else
      gemm(stream, from.transposed(), from, a);
    if (sums) tp->all_reduce(summed, summed, all_reduce);
    kernels.scale(square, of.b, polynomial);
    gemm(stream, a, a, p, of.c, 1);
    kernels.scale(now, of.a, next);
    if (from_left)
      gemm(stream, p, from, to, 1, 1);
    else
      gemm(stream, from, p, to, 1, 1);
    std::swap(now, next);
  }
  if (now.data() != x.data()) kernels.scale(now, 1, x);
}

}  // namespace zero
