#include "zero/matrices/newton_schulz.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "machine/device/random.h"
#include "machine/world/world.h"
#include "zero/testing/plain_newton_schulz.h"

namespace zero {
namespace {

using machine::Category, machine::Dtype, machine::Tensor;
using testing::PlainMatrix;

PlainMatrix random_matrix(std::size_t rows, std::size_t columns, std::uint64_t seed) {
  PlainMatrix x{rows, columns, {}};
  for (std::uint64_t i = 0; i < rows * columns; ++i)
    x.at.push_back(machine::uniform(seed, i) - 0.5 + 1e-3);
  return x;
}

std::vector<testing::PlainQuintic> steps_of(NewtonSchulzType type, int steps) {
  if (type == NewtonSchulzType::simple) return testing::jordans(steps);
  const testing::PlainQuintic each[] = {{4.0848F, -6.8946F, 2.9270F},
                                        {3.9505F, -6.3029F, 2.6377F},
                                        {3.7418F, -5.5913F, 2.3037F},
                                        {2.8769F, -3.1427F, 1.2046F},
                                        {2.8366F, -3.0525F, 1.2012F}};
  std::vector<testing::PlainQuintic> all;
  for (int step = 0; step < steps; ++step) all.push_back(each[step % 5]);
  return all;
}

PlainMatrix run(const PlainMatrix& given, Dtype dtype, NewtonSchulzType type, int steps,
                bool from_left) {
  const auto device = machine::make_host_device();
  const auto rows = static_cast<std::int64_t>(given.rows),
             columns = static_cast<std::int64_t>(given.columns);
  const Tensor x(*device, dtype, {rows, columns}, Category::buffers);
  from_doubles(x, given.at);
  const std::int64_t of_square = from_left ? rows : columns;
  NewtonSchulz iteration(*device, dtype, rows * columns, of_square, 1);
  EXPECT_EQ(device->ledger().current(Category::buffers),
            x.bytes() + NewtonSchulz::bytes(dtype, rows * columns, of_square, 1));
  iteration.run(x, norm(given), type, steps, from_left, nullptr, "");
  return {given.rows, given.columns, to_doubles(x)};
}

TEST(NewtonSchulz, MatchesPlainLoopsFromBothSides) {
  for (const auto& [rows, columns] : {std::pair<std::size_t, std::size_t>{6, 10}, {10, 6}, {7, 7}})
    for (const NewtonSchulzType type : {NewtonSchulzType::quintic, NewtonSchulzType::simple})
      for (const Dtype dtype : {Dtype::float32, Dtype::float64})
        for (const int steps : {1, 5, 6})
          for (const bool from_left : {true, false}) {
            const PlainMatrix given = random_matrix(rows, columns, 7);
            PlainMatrix got = run(given, dtype, type, steps, from_left);
            const PlainMatrix wanted = orthogonalized(given, steps_of(type, steps));
            for (std::size_t i = 0; i < got.at.size(); ++i) got.at[i] -= wanted.at[i];
            EXPECT_LE(norm(got), testing::orthogonalized_error(given, steps_of(type, steps),
                                                               machine::unit_roundoff(dtype),
                                                               machine::unit_roundoff(dtype)))
                << rows << " x " << columns << ", " << steps << " steps";
          }
}

// Jordan's claim: values from 0.01 of the norm come into an interval around 1.
TEST(NewtonSchulz, MakesSingularValuesNearlyEqual) {
  for (const auto& [rows, columns] :
       {std::pair<std::size_t, std::size_t>{8, 24}, {24, 8}, {12, 12}})
    for (const auto& [type, low, high] : {std::tuple(NewtonSchulzType::simple, 0.68, 1.135),
                                          {NewtonSchulzType::quintic, 0.977, 1.032}}) {
      const PlainMatrix given = random_matrix(rows, columns, 11);
      double least = 1;
      for (const double value : testing::singular_values(given))
        least = std::min(least, value / norm(given));
      ASSERT_GT(least, 0.01);
      for (const double value :
           testing::singular_values(run(given, Dtype::float32, type, 5, rows <= columns))) {
        EXPECT_GT(value, low) << rows << " x " << columns;
        EXPECT_LT(value, high) << rows << " x " << columns;
      }
    }
}

TEST(NewtonSchulz, ZeroStaysZero) {
  PlainMatrix zero{3, 4, std::vector<double>(12)};
  EXPECT_EQ(run(zero, Dtype::float32, NewtonSchulzType::quintic, 5, true).at, zero.at);
}

TEST(MuonScale, DependsOnTheShape) {
  EXPECT_DOUBLE_EQ(muon_scale(MuonScale::spectral, 16, 64), 8);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScale::spectral, 64, 16), 8);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScale::unit_rms_norm, 16, 64), 0.5);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScale::shape_scaling, 16, 64), 1);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScale::shape_scaling, 64, 16), 2);
}

}  // namespace
}  // namespace zero
