#include "layers/fp8/fp8_products.h"

#include <utility>

#include "layers/fp8/scaled_products.h"
#include "machine/base/error.h"
#include "machine/base/reject.h"
#include "machine/device/kernels.h"

namespace layers {

using machine::Blocks, machine::Category, machine::Dtype, machine::Tensor;

namespace {

enum : std::size_t { of_input, of_weight };  // tensors of forward

Dtype dtype_of_gradients(Fp8Format format) {
  return format == Fp8Format::hybrid ? Dtype::float8_e5m2 : Dtype::float8_e4m3;
}

}  // namespace

Fp8Products::Fp8Products(machine::Device& device, Dtype values, collectives::Communicator& tp,
                         const Fp8Scheme& scheme, Gathers gathers)
    : device_(device), tp_(tp), scheme_(scheme), gathers_(gathers) {
  const Fp8Options& options = scheme.options;
  options.validate();
  if (values == Dtype::float64)
    machine::reject("fp8-format {} requires dtype float, bfloat16 or half (got double)",
                    name(options.format));
  const Dtype forward = Dtype::float8_e4m3, backward = dtype_of_gradients(options.format);
  const auto shards = [&](Gathers tensor) { return gathers == tensor ? &tp : nullptr; };
  switch (options.recipe) {
    case Fp8Recipe::delayed: {
      collectives::Communicator& group = scheme.amax_group ? *scheme.amax_group : tp;
      forward_scaling_ =
          std::make_unique<DelayedScaling>(device, options, group, std::vector{forward, forward});
      backward_scaling_ =
          std::make_unique<DelayedScaling>(device, options, group, std::vector{backward});
      input_ = forward_scaling_->quantizer(of_input);
      weight_ = forward_scaling_->quantizer(of_weight);
      gradient_ = backward_scaling_->quantizer(0);
      break;
    }
    case Fp8Recipe::tensorwise:
      input_ = make_tensorwise(forward, shards(Gathers::input));
      weight_ = make_tensorwise(forward, nullptr);
      gradient_ = make_tensorwise(backward, shards(Gathers::gradient));
      break;
    case Fp8Recipe::blockwise:
      input_ = make_blockwise(forward, false);
      weight_ = make_blockwise(forward, true);
      gradient_ = make_blockwise(backward, false);
      break;
    case Fp8Recipe::mxfp8:
      input_ = make_mxfp8(forward);
      weight_ = make_mxfp8(forward);
      gradient_ = make_mxfp8(backward);
      break;
  }
}

Quantized Fp8Products::gathered(const Quantized& own, Category category) const {
  const std::int64_t rows = own.codes.rows(), ranks = tp_.size();
  const auto whole = [&](const Tensor& part) {
    const Tensor all(device_, part.dtype(), {ranks * part.rows(), part.cols()}, category);
    tp_.all_gather(part, all);
    return all;
  };
  if (scheme_.options.per_tensor()) {
    const Tensor codes = whole(own.codes);
    return {codes, own.inverse, Blocks::whole(codes)};
  }
  if (rows % own.blocks.rows != 0)
    machine::reject(
        "fp8-recipe {} with sequence-parallel requires rows of a rank that {} divides (got {})",
        name(scheme_.options.recipe), own.blocks.rows, rows);
  return {whole(own.codes), whole(own.inverse), own.blocks};
}

Quantized Fp8Products::encode(const Quantizer& quantizer, const Tensor& values,
                              const Scales& scales, Along along, bool gathers,
                              Category category) const {
  if (!gathers) return quantizer.encode(values, scales, along, category);
  return gathered(quantizer.encode(values, scales, along, Category::buffers), category);
}

void Fp8Products::see(std::string_view product, std::string_view what,
                      const Quantized& codes) const {
  if (scheme_.observer) scheme_.observer->operand(product, what, codes);
}

void Fp8Products::multiply(std::string_view product, const Operand& a, const Operand& b,
                           const Tensor& c, bool adds) const {
  const auto scaled = [&](const Operand& x) {
    return machine::ScaledMatrix{x.codes.codes, x.codes.inverse,
                                 scaling_of(scheme_.options.recipe, x.weight), x.transposed};
  };
  const machine::ScaledMatrix left = scaled(a), right = scaled(b);
  const std::int64_t inner = a.transposed ? left.codes.rows() : left.codes.cols();
  const bool by_library =
      machine::why_not_scaled_gemm(device_.compute_capability(),
                                   {c.rows(), c.cols(), inner, left.scaling, right.scaling})
          .empty();
  if (by_library)
    machine::scaled_gemm(device_.stream(), left, right, c, adds);
  else
    emulate(a, b, c, adds);
  if (scheme_.observer) scheme_.observer->multiplied(product, by_library);
}

void Fp8Products::emulate(const Operand& a, const Operand& b, const Tensor& c, bool adds) const {
  machine::Stream& stream = device_.stream();
  const auto decoded = [&](const Operand& operand) {
    const Quantized& from = operand.codes;
    Tensor values(device_, Dtype::float32, from.codes.shape(), Category::buffers);
    machine::decode(stream, from.codes, from.blocks, from.inverse, values);
    return values;
  };
  const auto matrix_of = [](const Tensor& values, const Operand& operand) {
    const machine::Matrix whole = machine::matrix(values);
    return operand.transposed ? whole.transposed() : whole;
  };
  const Tensor left = decoded(a), right = decoded(b);
  const bool wide = c.dtype() == Dtype::float32;
  SHARDMARK_CHECK(wide || !adds, ==, true);
  const Tensor sums =
      wide ? c : Tensor(device_, Dtype::float32, {c.rows(), c.cols()}, Category::buffers);
  gemm(stream, matrix_of(left, a), matrix_of(right, b), machine::matrix(sums), 1, adds ? 1 : 0);
  if (!wide) stream.kernels().cast(sums, c);
}

void Fp8Products::forward(const Tensor& x, const Tensor& weight, const Tensor& y) {
  const Scales scales = input_->choose(x, Category::activations);
  weight_scales_ = weight_->choose(weight, Category::buffers);
  {
    const Quantized of_x = encode(*input_, x, scales, Along::cols, gathers_ == Gathers::input,
                                  Category::buffers),
                    of_w = encode(*weight_, weight, weight_scales_, Along::cols, false,
                                  Category::buffers);
    see("forward", "x", of_x);
    see("forward", "W", of_w);
    multiply("forward", {of_x, false}, {of_w, true, true}, y, false);
  }
  input_scales_[x.data()] = scales;
  if (forward_scaling_) forward_scaling_->update();
}

Tensor Fp8Products::input_gradient(const Tensor& d_y, const Tensor& weight, const Tensor& d_x,
                                   Category kept) {
  const bool gathers = gathers_ == Gathers::gradient;
  const Scales scales = gradient_->choose(d_y, kept);
  Quantized of_d_y = encode(*gradient_, d_y, scales, Along::cols, gathers,
                            gathers && scheme_.options.per_tensor() ? kept : Category::buffers);
  see("input_gradient", "d_y", of_d_y);
  {
    const Quantized of_w =
        encode(*weight_, weight, weight_scales_, Along::rows, false, Category::buffers);
    see("input_gradient", "W", of_w);
    multiply("input_gradient", {of_d_y, false}, {of_w, false, true}, d_x, false);
  }
  if (backward_scaling_) backward_scaling_->update();
  if (!gathers) {
    gradient_scales_[d_y.data()] = scales;
    return d_y;
  }
  // The weights' gradient sums over rows, along which blocks are encoded again.
  if (!scheme_.options.per_tensor()) {
    of_d_y = {};
    of_d_y = encode(*gradient_, d_y, scales, Along::rows, true, kept);
  }
  gathered_gradients_[of_d_y.codes.data()] = of_d_y;
  return of_d_y.codes;
}

void Fp8Products::weight_gradient(const Tensor& x, const Tensor& d_y, const Tensor& d_weight) {
  const auto input = input_scales_.extract(x.data());
  if (input.empty()) throw std::logic_error("Fp8Products: a weight gradient without its forward");
  auto gathered = gathered_gradients_.extract(d_y.data());
  const auto gradient = gradient_scales_.extract(d_y.data());
  if (gathered.empty() && gradient.empty())
    throw std::logic_error("Fp8Products: a weight gradient without its input gradient");
  // The gather of a frozen weight also runs, so that the traffic equals that without codes.
  if (!d_weight && gathers_ != Gathers::input) return;
  const Quantized of_x = encode(*input_, x, input.mapped(), Along::rows, gathers_ == Gathers::input,
                                Category::buffers);
  if (!d_weight) return;
  const Quantized of_d_y = gathered.empty() ? encode(*gradient_, d_y, gradient.mapped(),
                                                     Along::rows, false, Category::buffers)
                                            : gathered.mapped();
  see("weight_gradient", "x", of_x);
  see("weight_gradient", "d_y", of_d_y);
  multiply("weight_gradient", {of_d_y, true}, {of_x, false}, d_weight, true);
}

}  // namespace layers
