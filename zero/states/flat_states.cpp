#include "zero/states/flat_states.h"

#include <algorithm>
#include <stdexcept>

#include "machine/base/error.h"
#include "machine/base/reject.h"
#include "machine/device/kernels.h"

namespace zero {

FlatStates::FlatStates(machine::Device& device, const GradientPlan& plan,
                       const std::vector<Parameter*>& parameters, const LayoutOptions& options)
    : device_(device),
      layout_(zero::layout(plan, options)),
      parameters_(parameters),
      values_(device, plan.value_dtype, {layout_.value_elements}, Category::parameters),
      gradients_(device, plan.gradient_dtype, {layout_.elements}, Category::gradients) {
  SHARDMARK_CHECK(parameters.size(), ==, plan.rows.size());
  machine::Kernels& kernels = device.stream().kernels();
  kernels.fill(values_, 0);
  kernels.fill(gradients_, 0);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Parameter& parameter = *parameters[i];
    SHARDMARK_CHECK(parameter.name, ==, plan.rows[i].parameter);
    const machine::Shape shape = Parameter::local_shape(parameter.name, parameter.global_shape,
                                                        parameter.placement, plan.tp);
    shapes_.push_back(shape);
    rows_[&parameter] = static_cast<int>(i);
    const Tensor value = values_.slice(layout_.offsets[i], shape);
    if (parameter.value) {
      if (parameter.value.dtype() != plan.value_dtype || parameter.value.shape() != shape)
        machine::reject("parameter {}: value is {} {}; the plan requires {} {}", parameter.name,
                        machine::name(parameter.value.dtype()), parameter.value.shape().text(),
                        machine::name(plan.value_dtype), shape.text());
      device.stream().copy(value.data(), parameter.value.data(), value.bytes());
      device.stream().synchronize();  // before the value's own memory is freed
    }
    parameter.value = value;
    parameter.gradient =
        plan.rows[i].frozen ? Tensor() : gradients_.slice(layout_.offsets[i], shape);
  }
  find_cleared();
}

// Finds what clear_gradients() fills. On a GPU one kernel fills all gradients. One for each part
// would take a launch each.
void FlatStates::find_cleared() {
  std::vector<std::pair<Range, Parameter*>> left;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter* const parameter = parameters_[i];
    if (device_.readable_by_host() && parameter->gradient && parameter->layer_writes_first_sum)
      left.push_back(
          {{layout_.offsets[i], layout_.offsets[i] + parameter->gradient.size()}, parameter});
  }
  std::ranges::sort(left, {}, [](const auto& each) { return each.first.begin; });
  std::int64_t begin = 0;
  for (const auto& [range, parameter] : left) {
    if (begin < range.begin) cleared_.push_back({begin, range.begin});
    begin = range.end;
    left_.push_back(parameter);
  }
  if (begin < layout_.elements) cleared_.push_back({begin, layout_.elements});
}

void FlatStates::clear_gradients() {
  for (const Range range : cleared_) device_.stream().kernels().fill(gradients(range), 0);
  for (Parameter* parameter : left_) parameter->gradient_is_stale = true;
}

void FlatStates::clear_stale_gradients(const Bucket& bucket) {
  for (const int row : bucket.rows) parameter(row).clear_stale_gradient(device_.stream().kernels());
}

int FlatStates::row(const Parameter* parameter) const {
  const auto found = rows_.find(parameter);
  if (found == rows_.end())
    throw std::logic_error(
        fmt::format("parameter {} is not in the plan of the step", parameter->name));
  return found->second;
}

void FlatStates::release(Tensor& buffer, Tensor Parameter::*what) {
  for (Parameter* parameter : parameters_) parameter->*what = Tensor();
  buffer = Tensor();
}

void FlatStates::view(const Bucket& bucket, const Tensor& whole, Tensor Parameter::*what) {
  for (const int row : bucket.rows) {
    const auto at = static_cast<std::size_t>(row);
    parameters_[at]->*what =
        whole ? whole.slice(layout_.offsets[at] - bucket.range.begin, shapes_[at]) : Tensor();
  }
}

std::vector<std::uint8_t> FlatStates::decay_mask(const GradientPlan& plan, Range range) const {
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(range.size()), 0);
  for (std::size_t i = 0; i < plan.rows.size(); ++i) {
    if (!plan.rows[i].weight_decay) continue;
    const std::int64_t offset = layout_.offsets[i];
    const Range mine = intersection(range, {offset, offset + plan.rows[i].elements});
    if (mine.size() > 0)
      std::fill_n(mask.begin() + (mine.begin - range.begin), mine.size(), std::uint8_t{1});
  }
  return mask;
}

}  // namespace zero
