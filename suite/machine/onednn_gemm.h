#pragma once
// oneDNN called directly, as a yardstick: y = x Wᵀ by the fastest matmul primitive that it has for
// plain row-major matrices of this shape.

#include <memory>
#include <string>

#include "machine/device/tensor.h"

namespace suite {

class OnednnGemm {
 public:
  // x [m, k], weight [n, k], host memory, which stay theirs; the result goes to memory of its own.
  // Tries every implementation that oneDNN offers, with the weight as it lies and transposed to
  // [k, n] in advance, for about 20 ms each. Null where oneDNN has only its reference kernel (half,
  // double, bfloat16 on some processors). Runs on the device's threads.
  static std::unique_ptr<OnednnGemm> fastest(const machine::Tensor& x,
                                             const machine::Tensor& weight);
  ~OnednnGemm();

  void run();

 private:
  struct Product;
  OnednnGemm(std::unique_ptr<Product> product, int threads);

  std::unique_ptr<Product> product_;
  int threads_;
};

}  // namespace suite
