#pragma once
// A linear layer over tp ranks in 8 bits, by plain loops in double over the codes of
// fp8_reference.h: the operands of every product, and the sums of the products with the sizes of
// their terms.
//
//   Fp8LinearReference reference(question);
//   reference.start(weight, bias);                  // whole tensors
//   reference.pass(x, d_y);                         // a micro-batch
//   reference.y().values, reference.operands(rank)

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "suite/reference/float8/fp8_reference.h"

namespace suite {

struct Fp8LinearQuestion {
  int ranks = 1;
  bool column = true;  // the split of the weight: its rows, or its columns
  bool e5m2_gradients = true;
  std::string recipe;  // Megatron's name
  int margin = 0, history = 1;
  bool of_largest = false;  // of the history
  std::int64_t tokens = 1, in = 1, out = 1;
};

// The extent of a whole matrix that tp splits.
enum class Fp8Cut : unsigned char { whole, rows, columns };

// Sums of a whole result, and the sums of the absolute values of their terms.
struct Fp8Terms {
  std::int64_t cols = 0;
  std::vector<double> values, sizes;
};

class Fp8LinearReference {
 public:
  using Values = std::vector<double>;
  explicit Fp8LinearReference(const Fp8LinearQuestion& question);

  Fp8Cut cut_of_x() const { return question_.column ? Fp8Cut::whole : Fp8Cut::columns; }
  Fp8Cut cut_of_weight() const { return question_.column ? Fp8Cut::rows : Fp8Cut::columns; }
  Fp8Cut cut_of_d_y() const { return question_.column ? Fp8Cut::columns : Fp8Cut::whole; }

  void start(Values weight, Values bias);
  void pass(const Values& x, const Values& d_y);

  // Returns the operands of a rank's products in the last pass, by "product operand".
  const std::vector<std::pair<std::string, Fp8Matrix>>& operands(int rank) const {
    return operands_[static_cast<std::size_t>(rank)];
  }
  const Fp8Terms& y() const { return y_; }
  const Fp8Terms& d_x() const { return d_x_; }
  // Return the terms of all passes.
  const Fp8Terms& d_weight() const { return d_weight_; }
  const Fp8Terms& d_bias() const { return d_bias_; }

 private:
  enum class Kind : unsigned char { input, weight, gradient };
  // Encodes each rank's part. Returns the whole decoded matrix.
  Values encode(const char* operand, const Values& whole, std::int64_t cols, Fp8Cut cut, Kind kind,
                bool along_rows);

  Fp8LinearQuestion question_;
  Fp8DelayedScale of_input_, of_weight_, of_gradient_;
  Values weight_, bias_;
  std::vector<std::vector<std::pair<std::string, Fp8Matrix>>> operands_;  // by rank
  Fp8Terms y_, d_x_, d_weight_, d_bias_;
};

}  // namespace suite
