#include "zero/partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "machine/device/error.h"
#include "machine/device/kernels.h"

namespace zero {
namespace {

using collectives::Parameter;
using machine::Category;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::vector<Over> before_dp(const GradientRow& row) {
  std::vector<Over> extra = row.reduce;
  std::erase(extra, Over::dp);
  return extra;
}

bool is_tied(const GradientRow& row) {
  return std::find(row.reduce.begin(), row.reduce.end(), Over::embedding) != row.reduce.end();
}

// Tied first, partial next, the rest last; inside that by replicas.
bool lies_before(const GradientRow& a, const GradientRow& b) {
  const auto extra_a = before_dp(a), extra_b = before_dp(b);
  if (extra_a.empty() != extra_b.empty()) return extra_b.empty();
  if (extra_a != extra_b) return extra_a < extra_b;
  if (a.replicas != b.replicas) return a.replicas > b.replicas;
  return is_tied(a) && a.parameter < b.parameter;
}

}  // namespace

Range intersection(Range a, Range b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

Layout layout(const GradientPlan& plan) {
  Layout result;
  result.shards = plan.dp;
  result.offsets.resize(plan.rows.size());
  std::vector<std::size_t> order(plan.rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return lies_before(plan.rows[a], plan.rows[b]);
  });

  const auto close_segment = [&] {
    if (result.segments.empty()) return;
    Segment& segment = result.segments.back();
    std::int64_t parts = 1;
    for (const Over over : segment.reduce) parts = std::lcm(parts, std::int64_t{plan.size(over)});
    result.elements =
        segment.range.begin + round_up(result.elements - segment.range.begin, alignment * parts);
    segment.range.end = result.elements;
  };
  for (const std::size_t index : order) {
    const GradientRow& row = plan.rows[index];
    const std::vector<Over> extra = before_dp(row);
    if (result.segments.empty() || result.segments.back().reduce != extra ||
        result.segments.back().replicas != row.replicas) {
      close_segment();
      result.segments.push_back({extra, row.replicas, {result.elements, result.elements}});
    }
    result.offsets[index] = result.elements;
    result.elements += round_up(row.elements, alignment);
  }
  close_segment();
  result.elements = round_up(result.elements, alignment * plan.dp);
  return result;
}

FlatStates::FlatStates(machine::Device& device, const GradientPlan& plan,
                       const std::vector<Parameter*>& parameters)
    : device_(device),
      layout_(zero::layout(plan)),
      values_(device, plan.value_dtype, {layout_.elements}, Category::parameters),
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
    const machine::Tensor value = values_.slice(layout_.offsets[i], shape);
    if (parameter.value) {
      if (parameter.value.dtype() != plan.value_dtype || parameter.value.shape() != shape) {
        throw std::invalid_argument(
            fmt::format("parameter {}: value is {} {}, the plan says {} {}", parameter.name,
                        machine::name(parameter.value.dtype()), parameter.value.shape().text(),
                        machine::name(plan.value_dtype), shape.text()));
      }
      device.stream().copy(value.data(), parameter.value.data(), value.bytes());
      device.stream().synchronize();  // before the value's own memory goes
    }
    parameter.value = value;
    parameter.gradient = gradients_.slice(layout_.offsets[i], shape);
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
