#include "layers/row_parallel_linear.h"

#include "layers/fp8/fp8_products.h"
#include "layers/region.h"
#include "machine/base/reject.h"

namespace layers {

RowParallelLinear::RowParallelLinear(const Context& context, const std::string& name,
                                     std::int64_t in, std::int64_t out, const RowOptions& options)
    : context_(context),
      in_(in),
      options_(options),
      weight_(declare(context, name + ".weight", {out, in}, {.tp = Spread::sharded, .dim = 1},
                      Role::residual)),
      bias_(declare(context, name + ".bias", {out}, context.between_regions(), Role::bias)) {
  if (!options.input_is_parallel && context.sequence_parallel)
    machine::reject("{}: input_is_parallel false does not support sequence parallelism", name);
  weight_.layer_writes_first_sum = !context.fp8.options.on();
  if (!context.fp8.options.on()) return;
  for (const auto& [asked, option] :
       {std::pair(!options.input_is_parallel, "input_is_parallel false"),
        {context.overlap.enabled, "tp-comm-overlap"}})
    if (asked) machine::reject("{}: {} does not support fp8-format", name, option);
  fp8_ = std::make_shared<Fp8Products>(
      context.device, context.dtype, context.tp, context.fp8,
      context.sequence_parallel ? Fp8Products::Gathers::gradient : Fp8Products::Gathers::none);
}

Matrix RowParallelLinear::own_columns(const Tensor& x) const {
  return scatters() ? own_columns_of(context_, x) : matrix(x);
}

void RowParallelLinear::forward(const Tensor& x, const Tensor& y) {
  leave_while(context_, y, context_.overlap.scatters_by_share(),
              [&](const Tensor& all, RowRange rows) {
                if (fp8_) return fp8_->forward(x, weight_.value, all);
                gemm(context_.stream(), own_columns(rows.of(x)), matrix(weight_.value).transposed(),
                     matrix(rows.of(all)));
              });
  if (options_.bias && !options_.skip_bias_add) context_.kernels().add_bias(y, bias_.value, y);
}

Tensor RowParallelLinear::backward_input(const Tensor& d_y, const Tensor& d_x, Category kept) {
  if (fp8_) {
    Tensor sums;
    if (gathers_codes() && options_.bias) {
      sums = context_.row_values(d_y.cols(), kept);
      context_.kernels().fill(sums, 0);
      context_.kernels().accumulate_column_sums(d_y, sums);
    }
    const Tensor all = fp8_->input_gradient(d_y, weight_.value, d_x, kept);
    if (sums) bias_sums_[all.data()] = sums;
    return all;
  }
  const Tensor part =
      scatters() ? context_.tensor({d_x.rows(), in_ / context_.tp.size()}, Category::buffers) : d_x;
  Tensor all = enter_while(context_, d_y, kept, context_.overlap.gathers_by_share(),
                           [&](const Tensor& rows_of_all, RowRange rows) {
                             gemm(context_.stream(), matrix(rows.of(rows_of_all)),
                                  matrix(weight_.value), matrix(rows.of(part)));
                           });
  if (scatters()) gather_columns(context_, part, d_x);
  return all;
}

void RowParallelLinear::backward_weights(const Tensor& x, const Tensor& all_d_y) {
  if (fp8_)
    fp8_->weight_gradient(x, all_d_y, weight_.gradient);
  else if (weight_.gradient)  // not frozen
    gemm(context_.stream(), matrix(all_d_y).transposed(), own_columns(x), matrix(weight_.gradient),
         1, weight_.kept_gradient());
  if (!options_.bias) return;
  const auto sums = bias_sums_.extract(all_d_y.data());
  if (!bias_.gradient) return;
  if (!sums.empty()) return context_.kernels().accumulate(sums.mapped(), bias_.gradient);
  const std::int64_t own = context_.own_rows(all_d_y.rows());
  context_.kernels().accumulate_column_sums(all_d_y.row_range(context_.first_row(own), own),
                                            bias_.gradient);
}

Parameters RowParallelLinear::parameters() {
  return options_.bias ? Parameters{&weight_, &bias_} : Parameters{&weight_};
}

}  // namespace layers
