#pragma once
// The three products of a linear layer in 8 bits, and the gathers of sequence parallelism, which
// send codes and scales:
//
//   forward          y   = x Wᵀ     E4M3 E4M3    [tokens, out] = [tokens, in] [in, out]
//   input_gradient   d_x = d_y W    E5M2 E4M3    (E4M3 E4M3 with format e4m3)
//   weight_gradient  d_W = d_yᵀ x   E5M2 E4M3    added to float
//
// A GPU's library multiplies the codes (machine/device/float8/scaled_gemm.h), if it has the
// product: the compute capability and the scales allow it, and 16 divides the extents. Otherwise,
// and on the host, the product is emulated: codes are decoded to float, and the device's product of
// floats sums them in float. Results are rounded once, to the dtype of y and d_x.
//
// Amaxes. tensorwise: of a tensor that is gathered, over tp, because its shards share a scale;
// others are the rank's own. delayed: of all tensors, over Fp8Scheme::amax_group, once a pass (2
// floats in forward, 1 in input_gradient). Blocks need none. Scales of blocks are gathered with
// their codes, so a rank's rows must be a multiple of the block.
//
// Weights are encoded in each product with the scale of the last forward. The scale of x is kept
// until weight_gradient, by the address of x; that of d_y by the address of what input_gradient
// returns.

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>

#include "collectives/communicator/communicator.h"
#include "layers/fp8/delayed_scaling.h"
#include "layers/fp8/options.h"
#include "layers/fp8/quantizer.h"
#include "machine/device/gemm.h"

namespace layers {

// Sees the operands of products, for oracles: "x", "W" or "d_y", and the product that reads it. The
// codes are whole: gathered.
class Fp8Observer {
 public:
  virtual ~Fp8Observer() = default;
  virtual void operand(std::string_view product, std::string_view what, const Quantized& codes) = 0;
  // After a product. by_library: not emulated.
  virtual void multiplied(std::string_view /*product*/, bool /*by_library*/) {}
};

class Fp8Products {
 public:
  // Which tensor sequence parallelism gathers over tp.
  enum class Gathers : unsigned char { none, input, gradient };

  // Throws std::invalid_argument for options that are not valid, and for double values.
  Fp8Products(machine::Device& device, machine::Dtype values, collectives::Communicator& tp,
              const Fp8Scheme& scheme, Gathers gathers);

  // y: of all rows.
  void forward(const machine::Tensor& x, const machine::Tensor& weight, const machine::Tensor& y);
  // Returns the tensor that weight_gradient takes for d_y: d_y itself, or if d_y was gathered its
  // codes, in memory of category `kept`. d_x: of all rows.
  machine::Tensor input_gradient(const machine::Tensor& d_y, const machine::Tensor& weight,
                                 const machine::Tensor& d_x, machine::Category kept);
  // Adds to d_weight, unless it is empty.
  void weight_gradient(const machine::Tensor& x, const machine::Tensor& d_y,
                       const machine::Tensor& d_weight);

 private:
  struct Operand {
    const Quantized& codes;
    bool transposed, weight = false;
  };
  Quantized gathered(const Quantized& own, machine::Category category) const;
  Quantized encode(const Quantizer& quantizer, const machine::Tensor& values, const Scales& scales,
                   Along along, bool gathers, machine::Category category) const;
  void see(std::string_view product, std::string_view what, const Quantized& codes) const;
  void multiply(std::string_view product, const Operand& a, const Operand& b,
                const machine::Tensor& c, bool adds) const;
  void emulate(const Operand& a, const Operand& b, const machine::Tensor& c, bool adds) const;

  machine::Device& device_;
  collectives::Communicator& tp_;
  Fp8Scheme scheme_;
  Gathers gathers_;
  std::unique_ptr<DelayedScaling> forward_scaling_, backward_scaling_;  // of delayed
  std::unique_ptr<Quantizer> input_, weight_, gradient_;
  Scales weight_scales_;
  std::map<const void*, Scales> input_scales_, gradient_scales_;
  std::map<const void*, Quantized> gathered_gradients_;
};

}  // namespace layers
