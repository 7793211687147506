#include "layers/column_parallel_linear.h"

#include "layers/fp8/fp8_products.h"
#include "layers/region.h"
#include "machine/base/reject.h"
#include "machine/world/step_clock.h"

namespace layers {

namespace {

// Declares one matrix sharded along its rows, or stacked matrices sharded along their second
// extent.
Parameter declare_cut(const Context& context, const std::string& name, std::int64_t out,
                      std::int64_t in, int stacked) {
  const Placement rows{.tp = Spread::sharded, .dim = 0}, columns{.tp = Spread::sharded, .dim = 1};
  const Shape one = in == 0 ? Shape{out} : Shape{out, in};
  Parameter::local_shape(name, one, rows, context.tp.size());  // rejects the degree
  const Role role = in == 0 ? Role::bias : Role::weight;
  return stacked == 1 ? declare(context, name, one, rows, role)
                      : declare(context, name, {stacked, one.size()}, columns, role);
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(const Context& context, const std::string& name,
                                           std::int64_t in, std::int64_t out,
                                           const ColumnOptions& options)
    : context_(context),
      in_(in),
      out_(out),
      options_(options),
      weight_(declare_cut(context, name + ".weight", out, in, options.stacked)),
      bias_(declare_cut(context, name + ".bias", out, 0, options.stacked)) {
  if (options.gather_output && (context.sequence_parallel || options.stacked > 1))
    machine::reject("{}: gather_output does not support {}", name,
                    context.sequence_parallel ? "sequence parallelism" : "stacked matrices");
  weight_.layer_writes_first_sum = !context.fp8.options.on();
  if (!context.fp8.options.on()) return;
  for (const auto& [asked, option] : {std::pair(options.gather_output, "gather_output"),
                                      {context.overlap.enabled, "tp-comm-overlap"},
                                      {context.fused_epilogues, "fused-epilogues"}})
    if (asked) machine::reject("{}: {} does not support fp8-format", name, option);
  fp8_ = std::make_shared<Fp8Products>(
      context.device, context.dtype, context.tp, context.fp8,
      context.sequence_parallel ? Fp8Products::Gathers::input : Fp8Products::Gathers::none);
}

Matrix ColumnParallelLinear::weight_of(const Tensor& tensor) const {
  return matrix(weight_matrix(tensor));
}

Tensor ColumnParallelLinear::bias_of(const Tensor& tensor) const {
  return tensor.reshape({tensor.size()});
}

Matrix ColumnParallelLinear::own_columns(const Tensor& y) const {
  return gathers() ? own_columns_of(context_, y) : matrix(y);
}

Tensor ColumnParallelLinear::weight_matrix(const Tensor& tensor) const {
  return tensor.reshape({tensor.size() / in_, in_});
}

void ColumnParallelLinear::finish(const Tensor& y, const Tensor& active) const {
  if (options_.bias && !options_.skip_bias_add)
    context_.kernels().add_bias(y, bias_of(bias_.value), y);
  if (active) context_.kernels().gelu(y, active);
}

void ColumnParallelLinear::multiply(const Tensor& x, const Tensor& y, const Tensor& active) const {
  const bool adds_bias = options_.bias && !options_.skip_bias_add;
  const Matrix weight = weight_of(weight_.value).transposed();
  if (context_.fused_epilogues && adds_bias && !gathers() &&
      fused_gemm(context_.stream(), matrix(x), weight, bias_of(bias_.value), active ? y : Tensor(),
                 active ? active : y))
    return;
  gemm(context_.stream(), matrix(x), weight, matrix(y));
  finish(y, active);
}

void ColumnParallelLinear::forward(const Tensor& x, const Tensor& y, const Tensor& active) {
  if (fp8_) {
    fp8_->forward(x, weight_matrix(weight_.value), y);
    return finish(y, active);
  }
  const Tensor part =
      gathers() ? context_.tensor({y.rows(), out_ / context_.tp.size()}, Category::buffers) : y;
  enter_while(context_, x, Category::buffers, context_.overlap.gathers_by_share(),
              [&](const Tensor& all, RowRange rows) {
                multiply(rows.of(all), rows.of(part), active ? rows.of(active) : Tensor());
              });
  if (gathers()) gather_columns(context_, part, y);
}

void ColumnParallelLinear::multiply_gradient(const Tensor& d_y, const Tensor& d_x) const {
  gemm(context_.stream(), own_columns(d_y), weight_of(weight_.value), matrix(d_x));
}

void ColumnParallelLinear::backward_input(const Tensor& d_y, const Tensor& d_x, Category kept) {
  if (fp8_) {
    const Tensor d_all = inside(context_, d_x);
    fp8_->input_gradient(d_y, weight_matrix(weight_.value), d_all, kept);
    return leave(context_, d_all, d_x);
  }
  leave_while(
      context_, d_x, context_.overlap.scatters_gradients_by_share(),
      [&](const Tensor& all, RowRange rows) { multiply_gradient(rows.of(d_y), rows.of(all)); });
}

void ColumnParallelLinear::backward_weights(const Tensor& x, const Tensor& d_y) {
  if (!fp8_) return add_gradients(enter(context_, x), d_y);
  fp8_->weight_gradient(x, d_y, weight_.gradient ? weight_matrix(weight_.gradient) : Tensor());
  add_bias_gradient(d_y);
}

void ColumnParallelLinear::add_gradients(const Tensor& all_x, const Tensor& d_y) {
  if (weight_.gradient)  // not frozen
    gemm(context_.stream(), own_columns(d_y).transposed(), matrix(all_x),
         weight_of(weight_.gradient), 1, weight_.kept_gradient());
  add_bias_gradient(d_y);
}

void ColumnParallelLinear::add_bias_gradient(const Tensor& d_y) const {
  if (!options_.bias || !bias_.gradient) return;
  const Tensor gradient = bias_of(bias_.gradient);
  if (!gathers()) return context_.kernels().accumulate_column_sums(d_y, gradient);
  const Tensor sums(context_.device, gradient.dtype(), {out_}, Category::buffers);
  context_.kernels().fill(sums, 0);
  context_.kernels().accumulate_column_sums(d_y, sums);
  context_.kernels().accumulate(sums.slice(context_.tp.rank() * gradient.size(), gradient.shape()),
                                gradient);
}

void ColumnParallelLinear::backward(const Tensor& x, const Tensor& d_y, const Tensor& d_x) {
  const Tensor d_all = inside(context_, d_x);
  const auto multiply = [&] { multiply_gradient(d_y, d_all); };
  Tensor all_x = x;
  if (context_.sequence_parallel && context_.overlap.gathers_beside()) {
    all_x = context_.tensor({context_.all_rows(x.rows()), x.cols()}, Category::buffers);
    context_.tp.run_beside(machine::Operation::all_gather, x, all_x, multiply);
  } else {
    multiply();
    all_x = enter(context_, x);
  }
  const auto add = [&] {
    const machine::During weights(machine::Part::backward_weights);
    add_gradients(all_x, d_y);
  };
  if (context_.overlap.reduces_beside()) return leave_beside(context_, d_all, d_x, add);
  leave(context_, d_all, d_x);
  add();
}

Parameters ColumnParallelLinear::parameters() {
  return options_.bias ? Parameters{&weight_, &bias_} : Parameters{&weight_};
}

}  // namespace layers
