#include "collectives/placement.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <tuple>

#include "machine/device/device.h"

namespace collectives {
namespace {

using machine::Shape;

TEST(Placement, ShardsTheNamedExtent) {
  const Placement rows{.tp = Spread::sharded, .dim = 0}, columns{.tp = Spread::sharded, .dim = 1};
  EXPECT_EQ(Parameter::local_shape("w", {12, 8}, rows, 4), (Shape{3, 8}));
  EXPECT_EQ(Parameter::local_shape("w", {12, 8}, columns, 4), (Shape{12, 2}));
  EXPECT_EQ(Parameter::local_shape("b", {12}, rows, 3), (Shape{4}));
  EXPECT_EQ(Parameter::local_shape("w", {12, 8}, {}, 4), (Shape{12, 8}));
}

// Ranks of etp share an expert, whatever the degree of tp is.
TEST(Placement, PartsOfAnExpertAreThoseOfEtp) {
  const auto device = machine::make_host_device();
  for (const auto& [etp, etp_rank, rows] : {std::tuple(1, 0, 12), {3, 2, 4}}) {
    const Placement placement{.tp = Spread::sharded, .dim = 0, .etp = etp, .etp_rank = etp_rank};
    EXPECT_EQ(placement.parts(2), etp);
    EXPECT_EQ(placement.part(1), etp_rank);
    Parameter parameter;
    parameter.name = "w";
    parameter.global_shape = {12, 8};
    parameter.placement = placement;
    const Shape local = Parameter::local_shape("w", {12, 8}, placement, 2);
    EXPECT_EQ(local, (Shape{rows, 8}));
    parameter.value =
        machine::Tensor(*device, machine::Dtype::float32, local, machine::Category::parameters);
    EXPECT_EQ(parameter.region(1).row, etp_rank * rows);
  }
  try {
    Parameter::local_shape("w", {10, 8}, {.tp = Spread::sharded, .etp = 4}, 2);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "w [10, 8]: extent 10 is not divisible by expert-tensor-parallel-size 4");
  }
}

TEST(Placement, RejectsADegreeThatDoesNotDivide) {
  try {
    Parameter::local_shape("blocks.0.mlp.fc1.weight", {10, 8}, {.tp = Spread::sharded}, 4);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "blocks.0.mlp.fc1.weight [10, 8]: extent 10 is not divisible by "
                 "tensor-model-parallel-size 4");
  }
}

// A random value is keyed by its place in the global matrix, so all shards come from one matrix.
TEST(Placement, ShardsOfARandomMatrixFitTogether) {
  const auto device = machine::make_host_device();
  const auto make = [&](Placement placement, int tp, int tp_rank) {
    Parameter parameter;
    parameter.name = "w";
    parameter.global_shape = {12, 8};
    parameter.placement = placement;
    parameter.value = machine::Tensor(*device, machine::Dtype::float32,
                                      Parameter::local_shape("w", {12, 8}, placement, tp),
                                      machine::Category::parameters);
    device->stream().kernels().fill_normal(parameter.value, 5, parameter.region(tp_rank), 0, 1);
    return machine::to_doubles(parameter.value);
  };
  const std::vector<double> whole = make({}, 1, 0);
  for (const int dim : {0, 1})
    for (int part = 0; part < 4; ++part) {
      const std::vector<double> shard = make({.tp = Spread::sharded, .dim = dim}, 4, part);
      const int rows = dim == 0 ? 3 : 12, cols = dim == 0 ? 8 : 2;
      for (int row = 0; row < rows; ++row)
        for (int col = 0; col < cols; ++col) {
          const int global_row = dim == 0 ? part * 3 + row : row,
                    global_col = dim == 1 ? part * 2 + col : col;
          EXPECT_EQ(shard[static_cast<std::size_t>(row * cols + col)],
                    whole[static_cast<std::size_t>(global_row * 8 + global_col)]);
        }
    }
}

}  // namespace
}  // namespace collectives
