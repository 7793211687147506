#include "layers/tensor_grids/grid_norm.h"

#include "machine/base/reject.h"

namespace layers {

using machine::Category, machine::Tensor;

// The input of a first layer is the output of a second one.
GridNorm::GridNorm(const GridContext& context, const std::string& name, std::int64_t tokens,
                   std::int64_t hidden, double epsilon)
    : context_(context),
      hidden_(hidden),
      epsilon_(epsilon),
      block_(output_block(context.grid(), context.rank(), PairPlace::second,
                          {tokens, hidden, hidden})),
      gain_(context, name + ".gain", PairPlace::second, {tokens, hidden, hidden},
            collectives::Role::gain),
      bias_(context, name + ".bias", PairPlace::second, {tokens, hidden, hidden}),
      norm_(machine::make_split_norm(context.device)) {
  const std::string why =
      why_not_divided(context.grid(), PairPlace::second, {tokens, hidden, hidden});
  if (!why.empty()) machine::reject("{}: {}", name, why);
}

Tensor GridNorm::sums_of_rows() const {
  return Tensor(context_.device, context_.accumulator(), {2, block_.rows}, Category::buffers);
}

void GridNorm::add_up(const Tensor& sums) const {
  if (context_.grid().mode == TensorParallelMode::one_d) return;  // rows are whole
  if (collectives::Communicator* const row = context_.groups.find(GridAxis::row))
    row->all_reduce(sums);
}

void GridNorm::forward(const Tensor& x, const Tensor& y, Statistics& statistics, Category kept) {
  for (Tensor* of_rows : {&statistics.mean, &statistics.rstd})
    *of_rows = Tensor(context_.device, context_.accumulator(), {block_.rows}, kept);
  const Tensor sums = sums_of_rows();
  norm_->sums(x, sums);
  add_up(sums);
  const Tensor gain = gain_.whole(), bias = bias_.whole();
  norm_->normalize(x, sums, hidden_, gain, bias, epsilon_, y, statistics.mean, statistics.rstd);
}

void GridNorm::backward_input(const Tensor& x, const Statistics& statistics, const Tensor& d_y,
                              const Tensor& d_x) {
  const Tensor sums = sums_of_rows(), gain = gain_.whole();
  norm_->slope_sums(x, gain, statistics.mean, statistics.rstd, d_y, sums);
  add_up(sums);
  norm_->slopes(x, gain, statistics.mean, statistics.rstd, d_y, sums, hidden_, d_x);
}

void GridNorm::backward_weights(const Tensor& x, const Statistics& statistics, const Tensor& d_y) {
  const Tensor of_gain = gain_.gradient_sums(), of_bias = bias_.gradient_sums();
  context_.kernels().layer_norm_backward_weights(x, statistics.mean, statistics.rstd, d_y, of_gain,
                                                 of_bias);
  gain_.add_gradient(of_gain);
  bias_.add_gradient(of_bias);
}

}  // namespace layers
