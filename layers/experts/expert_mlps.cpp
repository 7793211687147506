#include "layers/experts/expert_mlps.h"

#include <fmt/format.h>

#include "layers/experts/grouped_gemm.h"

namespace layers {
namespace {

std::vector<Matrix> transposed(std::vector<Matrix> matrices) {
  for (Matrix& matrix : matrices) matrix = matrix.transposed();
  return matrices;
}

}  // namespace

ExpertMlps::ExpertMlps(const Context& context, const std::string& name, const MoeConfig& config,
                       const HeldExperts& held)
    : context_(context), config_(config), held_(held), width_(config.ffn_hidden_size / held.etp) {
  const Placement whole{.etp = held.etp, .etp_rank = held.etp_rank};
  Placement rows = whole, columns = whole;
  rows.tp = columns.tp = Spread::sharded;
  columns.dim = 1;
  const std::int64_t ffn = config.ffn_hidden_size, hidden = config.hidden;
  for (int expert = held.first; expert < held.first + held.count; ++expert) {
    const auto name_of = [&](std::string_view what) {
      return fmt::format("{}.{}.{}", name, expert, what);
    };
    // Gate and up are stacked, each split along its rows, as in ColumnParallelLinear.
    experts_.push_back(
        {config.swiglu ? declare(context, name_of("fc1.weight"), {2, ffn * hidden}, columns)
                       : declare(context, name_of("fc1.weight"), {ffn, hidden}, rows),
         config.swiglu ? declare(context, name_of("fc1.bias"), {2, ffn}, columns, Role::bias)
                       : declare(context, name_of("fc1.bias"), {ffn}, rows, Role::bias),
         declare(context, name_of("fc2.weight"), {hidden, ffn}, columns, Role::residual),
         declare(context, name_of("fc2.bias"), {hidden}, whole, Role::bias)});
  }
}

Matrix ExpertMlps::half(const Tensor& inner, int which) const {
  Matrix columns = matrix(inner);
  columns.cols = width_;
  columns.data = inner.slice(which * width_, {width_}).data();
  return columns;
}

std::vector<Matrix> ExpertMlps::first_weights(Tensor Parameter::*tensor) const {
  std::vector<Matrix> all;
  for (const Expert& expert : experts_) {
    const Tensor& stacked = expert.weight1.*tensor;
    all.push_back(stacked
                      ? matrix(stacked.reshape({stacked.size() / config_.hidden, config_.hidden}))
                      : Matrix());
  }
  return all;
}

std::vector<Matrix> ExpertMlps::second_weights(Tensor Parameter::*tensor) const {
  std::vector<Matrix> all;
  for (const Expert& expert : experts_) {
    const Tensor& weight = expert.weight2.*tensor;
    all.push_back(weight ? matrix(weight) : Matrix());
  }
  return all;
}

void ExpertMlps::add_biases(Parameter Expert::*bias, const Tensor& rows, const Saved& saved) const {
  std::int64_t first = 0;
  for (std::size_t i = 0; i < experts_.size(); first += saved.rows[i++]) {
    if (saved.rows[i] == 0) continue;
    const Tensor of_expert = rows.row_range(first, saved.rows[i]);
    const Tensor& value = (experts_[i].*bias).value;
    context_.kernels().add_bias(of_expert, value.reshape({value.size()}), of_expert);
  }
}

void ExpertMlps::sum_bias_gradients(Parameter Expert::*bias, const Tensor& d_rows,
                                    const Saved& saved) const {
  std::int64_t first = 0;
  for (std::size_t i = 0; i < experts_.size(); first += saved.rows[i++]) {
    const Tensor& gradient = (experts_[i].*bias).gradient;
    if (saved.rows[i] == 0 || !gradient) continue;
    context_.kernels().accumulate_column_sums(d_rows.row_range(first, saved.rows[i]),
                                              gradient.reshape({gradient.size()}));
  }
}

void ExpertMlps::forward(const Tensor& out, Saved& saved, Category kept) {
  const std::int64_t rows = saved.x.rows();
  saved.inner = context_.tensor({rows, (config_.swiglu ? 2 : 1) * width_}, kept);
  saved.active = context_.tensor({rows, width_}, kept);
  grouped_gemm(context_.stream(), matrix(saved.x), saved.rows,
               transposed(first_weights(&Parameter::value)), matrix(saved.inner));
  if (config_.bias) add_biases(&Expert::bias1, saved.inner, saved);
  if (!config_.swiglu)
    context_.kernels().gelu(saved.inner, saved.active);
  else if (rows > 0)  // an empty tensor has no halves
    context_.kernels().swiglu(half(saved.inner, 0), half(saved.inner, 1), matrix(saved.active));
  grouped_gemm(context_.stream(), matrix(saved.active), saved.rows,
               transposed(second_weights(&Parameter::value)), matrix(out));
  if (config_.bias && held_.etp_rank == 0) add_biases(&Expert::bias2, out, saved);
}

void ExpertMlps::backward_input(const Tensor& d_out, const Tensor& d_x, Saved& saved,
                                Category kept) {
  saved.d_out = d_out;
  saved.d_inner = context_.tensor(saved.inner.shape(), kept);
  {
    const Tensor d_active = context_.tensor(saved.active.shape(), Category::buffers);
    grouped_gemm(context_.stream(), matrix(d_out), saved.rows, second_weights(&Parameter::value),
                 matrix(d_active));
    if (!config_.swiglu)
      context_.kernels().gelu_backward(saved.inner, d_active, saved.d_inner);
    else if (d_active.size() > 0)
      context_.kernels().swiglu_backward(half(saved.inner, 0), half(saved.inner, 1),
                                         matrix(d_active), half(saved.d_inner, 0),
                                         half(saved.d_inner, 1));
  }
  saved.inner = Tensor();
  grouped_gemm(context_.stream(), matrix(saved.d_inner), saved.rows,
               first_weights(&Parameter::value), matrix(d_x));
}

void ExpertMlps::backward_weights(Saved& saved) {
  grouped_gemm_of_rows(context_.stream(), matrix(saved.d_out), matrix(saved.active), saved.rows,
                       second_weights(&Parameter::gradient));
  grouped_gemm_of_rows(context_.stream(), matrix(saved.d_inner), matrix(saved.x), saved.rows,
                       first_weights(&Parameter::gradient));
  if (config_.bias) {
    sum_bias_gradients(&Expert::bias1, saved.d_inner, saved);
    sum_bias_gradients(&Expert::bias2, saved.d_out, saved);
  }
  saved = Saved();
}

Parameters ExpertMlps::parameters() {
  Parameters all;
  for (Expert& expert : experts_) {
    all.insert(all.end(), {&expert.weight1, &expert.weight2});
    if (config_.bias) all.insert(all.end(), {&expert.bias1, &expert.bias2});
  }
  return all;
}

}  // namespace layers
