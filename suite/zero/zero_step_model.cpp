#include "suite/zero/zero_step_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "machine/device/kernels.h"
#include "machine/device/random.h"
#include "suite/reference/whole_values.h"

namespace suite {

using collectives::Parameter;
using machine::Dtype;
using machine::Tensor;

namespace {

double random_value(std::uint64_t seed, std::int64_t index, Dtype dtype) {
  const double value = 2 * machine::uniform(seed, static_cast<std::uint64_t>(index)) - 1;
  return dtype == Dtype::float64 ? value : static_cast<double>(static_cast<float>(value));
}

// The first and the last part use this row, as a tied embedding. The last adds the gradient of the
// first half of its elements, the first that of the other half.
constexpr int shared_row = 5;

}  // namespace

ZeroStepModel::ZeroStepModel(std::int64_t elements, Dtype dtype, std::uint64_t seed, int rank,
                             int ranks, int micro_batches)
    : dtype_(dtype), seed_(seed), rank_(rank), ranks_(ranks), micro_batches_(micro_batches) {
  std::int64_t left = elements;
  const auto add = [&](std::string name, machine::Shape shape) {
    Parameter p;
    p.name = std::move(name);
    p.global_shape = shape;
    p.weight_decay = shape.rank() > 1;
    first_element_.push_back(elements - left);
    left -= shape.size();
    parameters_.push_back(std::move(p));
    return static_cast<int>(parameters_.size()) - 1;
  };
  const auto weight = [&](std::int64_t cols) {
    return add(fmt::format("weight.{}", cols),
               {std::max<std::int64_t>(1, elements / 10 / cols), cols});
  };
  add("unused", {70});
  parts_.push_back(
      {add("scale", {1}), add("gain", {7}), add("shift", {13}), add("empty", {0}), weight(129)});
  parts_.push_back({weight(65), weight(257)});
  parts_.push_back({weight(33), add("frozen", {129})});
  parts_.push_back({weight(127), weight(31), weight(63)});
  parts_.push_back({weight(95), add("bias", {left}), shared_row});

  for (std::int64_t i = 0; i < elements; ++i) initial_.push_back(random_value(seed, i, dtype));
}

std::vector<Parameter*> ZeroStepModel::list() {
  std::vector<Parameter*> all;
  for (Parameter& p : parameters_) all.push_back(&p);
  return all;
}

zero::GradientPlan ZeroStepModel::plan() {
  return zero::gradient_plan(list(), dtype_, machine::Grid({.dp = ranks_}, rank_),
                             7 * ranks_ * micro_batches_, {"frozen"});
}

std::vector<double> ZeroStepModel::values(zero::Step& step) {
  std::vector<double> all;
  step.before_use(list());
  for (const Parameter& p : parameters_) append(all, p.value);
  step.after_use(list());
  return all;
}

std::vector<int> ZeroStepModel::part_of_rows() const {
  std::vector<int> result(parameters_.size(), static_cast<int>(parts_.size()));
  for (std::size_t part = parts_.size(); part-- > 0;)  // the first that uses a row has it
    for (const int row : parts_[part])
      result[static_cast<std::size_t>(row)] = static_cast<int>(part);
  return result;
}

zero::Usage ZeroStepModel::usage() const {
  zero::Usage usage = zero::forward_and_backward(parts_, micro_batches_);
  usage.ready.front().pop_back();  // the shared row is ready with the first part
  return usage;
}

std::vector<bool> ZeroStepModel::decays() const {
  std::vector<bool> result;
  for (const Parameter& p : parameters_)
    result.insert(result.end(), static_cast<std::size_t>(p.global_shape.size()), p.weight_decay);
  return result;
}

double ZeroStepModel::contribution(int index, std::int64_t element) const {
  for (std::size_t row = 0; row < parameters_.size(); ++row) {
    const bool here = first_element_[row] <= element &&
                      element < first_element_[row] + parameters_[row].global_shape.size();
    if (here && (parameters_[row].name == "frozen" || parameters_[row].name == "unused")) return 0;
  }
  return random_value(seed_ + 1 + static_cast<std::uint64_t>(index), element, dtype_);
}

void ZeroStepModel::forget() {
  for (Parameter& p : parameters_) p.value = p.gradient = Tensor();
}

void ZeroStepModel::set_values() const {
  for (std::size_t row = 0; row < parameters_.size(); ++row) {
    const Parameter& p = parameters_[row];
    const auto first = initial_.begin() + first_element_[row];
    from_doubles(p.value, {first, first + p.value.size()});
  }
}

void ZeroStepModel::make_gradients(machine::Device& device, Dtype dtype) {
  const auto elements = static_cast<std::int64_t>(initial_.size());
  for (int micro_batch = 0; micro_batch < micro_batches_; ++micro_batch) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < elements; ++i)
      values.push_back(contribution(micro_batch * ranks_ + rank_, i));
    gradients_.emplace_back(device, dtype, machine::Shape{elements},
                            machine::Category::activations);
    from_doubles(gradients_.back(), values);
  }
}

void ZeroStepModel::negate_gradients() {
  for (const Tensor& gradients : gradients_)
    gradients.device().stream().kernels().scale(gradients, -1, gradients);
}

double ZeroStepModel::replace_gradient(double value) {
  const Tensor& gradients = gradients_.front();
  const Tensor last = gradients.slice(gradients.size() - 1, {1});
  const double before = to_doubles(last).front();
  from_doubles(last, {value});
  return before;
}

zero::Step::Part ZeroStepModel::part(const std::vector<int>& rows) {
  zero::Step::Part result;
  for (const int row : rows) result.push_back(&parameters_[static_cast<std::size_t>(row)]);
  return result;
}

void ZeroStepModel::run(zero::Step& step, int micro_batch, const OnUse& on_use) {
  const auto use = [&](const std::vector<int>& rows) {
    for (const int row : rows) {
      const auto at = static_cast<std::size_t>(row);
      if (on_use) on_use(parameters_[at], first_element_[at]);
    }
  };
  step.begin_micro_batch(micro_batch + 1 == micro_batches_);
  for (const std::vector<int>& rows : parts_) {
    step.before_use(part(rows));
    use(rows);
    step.after_use(part(rows));
  }
  for (std::size_t i = parts_.size(); i-- > 0;) {
    const zero::Step::Part used = part(parts_[i]);
    step.before_use(used);
    use(parts_[i]);
    step.before_gradients(used);
    for (const int row : parts_[i]) {
      const auto at = static_cast<std::size_t>(row);
      const Parameter& p = parameters_[at];
      if (!trained(p)) continue;
      std::int64_t begin = 0, end = p.gradient.size();
      if (row == shared_row) (i == 0 ? begin : end) = end / 2;
      if (begin == end) continue;
      p.gradient.device().stream().kernels().accumulate(
          gradients_[static_cast<std::size_t>(micro_batch)].slice(first_element_[at] + begin,
                                                                  {end - begin}),
          p.gradient.reshape({p.gradient.size()}).slice(begin, {end - begin}));
    }
    step.after_use(used);
    zero::Step::Part ready = used;
    if (i + 1 == parts_.size()) ready.pop_back();
    step.gradients_ready(ready);
  }
  step.end_micro_batch();
}

}  // namespace suite
