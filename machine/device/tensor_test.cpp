#include "machine/device/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <utility>

namespace machine {
namespace {

struct Tensors : testing::Test {
  Tensor counting(Shape shape, Dtype dtype = Dtype::float32) {
    Tensor tensor(*device, dtype, shape, Category::activations);
    std::vector<double> values(static_cast<std::size_t>(tensor.size()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
    from_doubles(tensor, values);
    return tensor;
  }
  std::unique_ptr<Device> device = make_host_device();
};

TEST_F(Tensors, ShapesFoldLeadingExtentsIntoRows) {
  const Tensor tensor = counting({2, 3, 5});
  EXPECT_EQ(tensor.rows(), 6);
  EXPECT_EQ(tensor.cols(), 5);
  EXPECT_EQ(tensor.bytes(), 120u);
  EXPECT_EQ(tensor.shape().text(), "[2, 3, 5]");
  EXPECT_EQ(counting({}).size(), 1);
  EXPECT_EQ(counting({}).rows(), 1);
  EXPECT_EQ(counting({4, 0}).rows(), 0);
  EXPECT_EQ(counting({0, 4}).cols(), 4);
  EXPECT_EQ(Tensor().size(), 0);
  EXPECT_FALSE(Tensor());
}

TEST_F(Tensors, ViewsShareMemoryAndKeepItAlive) {
  Tensor view;
  {
    const Tensor tensor = counting({4, 6});
    view = tensor.row_range(1, 2).reshape({3, 4}).slice(5, {2});
    EXPECT_EQ(view.data(), tensor.as<float>() + 11);
  }
  EXPECT_EQ(to_doubles(view), (std::vector<double>{11, 12}));
  EXPECT_EQ(device->ledger().current(Category::activations), 96u);
  view = Tensor();
  EXPECT_EQ(device->ledger().current(), 0u);
}

TEST_F(Tensors, ViewsOutsideAreRejected) {
  const Tensor tensor = counting({4, 6});
  EXPECT_THROW(tensor.reshape({5, 5}), std::logic_error);
  EXPECT_THROW(tensor.slice(20, {5}), std::logic_error);
  EXPECT_THROW(tensor.slice(-1, {2}), std::logic_error);
  EXPECT_THROW(tensor.row_range(3, 2), std::logic_error);
  EXPECT_THROW(tensor.as<double>(), std::logic_error);
  EXPECT_THROW((Shape{1, 2, 3, 4, 5}), std::logic_error);
  EXPECT_EQ(tensor.slice(24, {0}).size(), 0);
}

TEST_F(Tensors, DoublesSurviveARoundTrip) {
  for (const Dtype dtype : every_dtype) {
    const Tensor tensor = counting({7, 11}, dtype);
    const std::vector<double> values = to_doubles(tensor);
    // float8_e4m3 represents integers up to 16, float8_e5m2 up to 8.
    const std::size_t exact = dtype == Dtype::float8_e4m3   ? 17
                              : dtype == Dtype::float8_e5m2 ? 9
                                                            : values.size();
    for (std::size_t i = 0; i < exact; ++i) EXPECT_EQ(values[i], static_cast<double>(i));
  }
  for (const Dtype dtype : {Dtype::int64, Dtype::uint64}) {
    const Tensor tensor = counting({3}, dtype);
    const std::vector<double> values = {0x1p53, 0x1p53 - 1, 0x1p31 + 1};
    from_doubles(tensor, values);
    EXPECT_EQ(to_doubles(tensor), values);
  }
  const Tensor bytes = counting({4}, Dtype::int8);
  from_doubles(bytes, {-1.9, 1000, -1000, NAN});
  EXPECT_EQ(to_doubles(bytes), (std::vector<double>{-1, 127, -128, 0}));
}

TEST_F(Tensors, HashesFollowTheBits) {
  const Tensor first = counting({5, 3}, Dtype::bfloat16),
               second = counting({5, 3}, Dtype::bfloat16);
  EXPECT_EQ(hash(first), hash(second));
  std::vector<double> values = to_doubles(second);
  values.back() += 1;
  from_doubles(second, values);
  EXPECT_NE(hash(first), hash(second));
  // Zeros of both signs are equal numbers with different bits.
  const Tensor zero = counting({1}), negative = counting({1});
  from_doubles(negative, {-0.0});
  EXPECT_NE(hash(zero), hash(negative));
  EXPECT_NE(hash(first.slice(0, {0})), hash(zero));
}

// The size is several strides of the hash and a remainder. Every element and its place must change
// the hash.
TEST_F(Tensors, HashSeesEveryElementAndItsPlace) {
  const Tensor tensor = counting({75});
  const std::uint64_t whole = hash(tensor);
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    tensor.as<float>()[i] += 1;
    EXPECT_NE(hash(tensor), whole) << i;
    tensor.as<float>()[i] -= 1;
  }
  for (std::int64_t i = 1; i < tensor.size(); ++i) {
    std::swap(tensor.as<float>()[0], tensor.as<float>()[i]);
    EXPECT_NE(hash(tensor), whole) << i;
    std::swap(tensor.as<float>()[0], tensor.as<float>()[i]);
  }
  EXPECT_EQ(hash(tensor), whole);
  EXPECT_NE(hash(tensor.slice(0, {74})), whole);
}

}  // namespace
}  // namespace machine
