#include "suite/training_step/step_products.h"

#include <algorithm>
#include <array>
#include <map>

#include "machine/device/kernels.h"

namespace suite {

using machine::Dtype;
using machine::Matrix;

namespace {

// Returns the number of elements from the first to the last in memory.
std::int64_t extent(const Matrix& x) {
  return (x.rows - 1) * x.row_stride + (x.cols - 1) * x.col_stride +
         (x.batch[0] - 1) * x.batch_stride[0] + (x.batch[1] - 1) * x.batch_stride[1] + 1;
}

}  // namespace

StepProducts::StepProducts(machine::Device& device,
                           const std::vector<machine::GemmLog::Product>& products)
    : device_(device), products_(products) {
  std::array<std::map<Dtype, std::int64_t>, 3> most;
  const auto each_operand = [this](const auto& work) {
    for (machine::GemmLog::Product& product : products_) {
      work(product.a, 0);
      work(product.b, 1);
      work(product.c, 2);
    }
  };
  each_operand([&](const Matrix& x, std::size_t place) {
    std::int64_t& elements = most[place][x.dtype];
    elements = std::max(elements, extent(x));
  });
  std::array<std::map<Dtype, void*>, 3> where;
  for (std::size_t place = 0; place < most.size(); ++place) {
    for (const auto& [dtype, elements] : most[place]) {
      operands_.emplace_back(device, dtype, machine::Shape{elements}, machine::Category::buffers);
      device.stream().kernels().fill_uniform(operands_.back(), place, {}, -1, 1);
      where[place][dtype] = operands_.back().data();
    }
  }
  each_operand([&](Matrix& x, std::size_t place) { x.data = where[place].at(x.dtype); });
}

void StepProducts::run() {
  for (const auto& [a, b, c, alpha, beta] : products_) gemm(device_.stream(), a, b, c, alpha, beta);
}

double StepProducts::flops() const {
  double sum = 0;
  for (const machine::GemmLog::Product& product : products_) sum += product.flops();
  return sum;
}

}  // namespace suite
