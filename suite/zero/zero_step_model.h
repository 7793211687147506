#pragma once
// The model of zero_step: parameters in parts, and a backward that adds known gradients. Its
// parameters include cases that break real stacks: a parameter without elements, one of a single
// element, prime sizes, a frozen parameter, one that no part uses, and one that two parts share.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/placement.h"
#include "machine/device/kernels.h"
#include "machine/device/random.h"
#include "suite/reference/unit.h"
#include "suite/reference/whole_values.h"
#include "zero/cost/cost.h"
#include "zero/stages/step.h"

namespace suite {

class ZeroStepModel {
 public:
  using Parameter = collectives::Parameter;

  // elements: total of all parameters, at least 1000. rank: dp rank, for its contributions.
  // gradient_dtype: in which gradients are added up; empty: the default (gradient_plan.h).
  ZeroStepModel(std::int64_t elements, Dtype dtype, std::uint64_t seed, int rank, int ranks,
                int micro_batches, std::optional<Dtype> gradient_dtype = {})
      : dtype_(dtype),
        gradient_dtype_(gradient_dtype.value_or(collectives::gradient_dtype(dtype))),
        seed_(seed),
        rank_(rank),
        ranks_(ranks),
        micro_batches_(micro_batches) {
    std::int64_t left = elements;
    const auto add = [&](std::string name, machine::Shape shape) {
      Parameter p;
      p.name = std::move(name);
      p.global_shape = shape;
      p.weight_decay = shape.rank() > 1;
      first_element_.push_back(elements - left);
      left -= shape.size();
      parameters_.push_back(std::move(p));
      return parameters_.size() - 1;
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

    for (std::int64_t i = 0; i < elements; ++i) initial_.push_back(random_value(seed, i));
  }

  std::vector<Parameter*> list() {
    std::vector<Parameter*> all;
    for (Parameter& p : parameters_) all.push_back(&p);
    return all;
  }
  // Every micro-batch counts as 7 tokens, so that the divisor is not a power of two.
  zero::GradientPlan plan() {
    return zero::gradient_plan(list(), dtype_, machine::Grid({.dp = ranks_}, rank_),
                               7 * ranks_ * micro_batches_, {"frozen"}, gradient_dtype_);
  }
  // Returns the row of the plan that the first and the last part use.
  static constexpr std::size_t shared() { return shared_row; }
  bool trained(const Parameter& parameter) const { return parameter.name != "frozen"; }
  zero::Usage usage() const {
    std::vector<std::vector<int>> parts;
    for (const Rows& rows : parts_) parts.emplace_back(rows.begin(), rows.end());
    zero::Usage usage = zero::forward_and_backward(parts, micro_batches_);
    usage.ready.front().pop_back();  // the shared row is ready with the first part
    return usage;
  }

  // Returns the elements of each block of `size` elements of a trained parameter, as [begin, end).
  std::vector<std::pair<std::int64_t, std::int64_t>> blocks(std::int64_t size) const {
    std::vector<std::pair<std::int64_t, std::int64_t>> all;
    for_each([&](const Parameter& p, std::int64_t first) {
      const std::int64_t end = first + p.global_shape.size();
      for (; trained(p) && first < end; first += size)
        all.emplace_back(first, std::min(end, first + size));
    });
    return all;
  }
  std::vector<bool> decays() const {
    std::vector<bool> result;
    for (const Parameter& p : parameters_)
      result.insert(result.end(), static_cast<std::size_t>(p.global_shape.size()), p.weight_decay);
    return result;
  }
  // Returns the contribution to the summed gradient of an element. It is that of micro-batch index
  // / ranks of rank index % ranks.
  double contribution(int index, std::int64_t element) const {
    const auto after = std::ranges::upper_bound(first_element_, element);
    const Parameter& here =
        parameters_[static_cast<std::size_t>(after - first_element_.begin()) - 1];
    if (here.name == "frozen" || here.name == "unused") return 0;
    double value = random_value(seed_ + 1 + static_cast<std::uint64_t>(index), element);
    if (size_of(gradient_dtype_) == 2)
      machine::visit(gradient_dtype_, [&]<class T>(T) {
        value = static_cast<double>(static_cast<float>(T(static_cast<float>(value))));
      });
    return value;
  }

  // Calls visit(parameter, first element) for all parameters.
  void for_each(const auto& visit) const {
    for (std::size_t row = 0; row < parameters_.size(); ++row)
      visit(parameters_[row], first_element_[row]);
  }
  // As for_each, with the values that the step's uses read.
  void with_values(zero::Step& step, const auto& visit) {
    step.before_use(list());
    for_each(visit);
    step.after_use(list());
  }
  std::vector<double> values(zero::Step& step) {
    std::vector<double> all;
    with_values(step, [&](const Parameter& p, std::int64_t) { append(all, p.value); });
    return all;
  }

  // Creates the states on the device, with initial values. Frees the parameters' memory, so the
  // previous states and step must be destroyed.
  std::unique_ptr<zero::FlatStates> states(machine::Device& device, std::int64_t reduce_bucket,
                                           std::int64_t persistence_threshold) {
    for (Parameter& p : parameters_) p.value = p.gradient = Tensor();
    auto states = std::make_unique<zero::FlatStates>(
        device, plan(), list(),
        zero::LayoutOptions{reduce_bucket, part_of_rows(), persistence_threshold});
    for_each([&](const Parameter& p, std::int64_t first_element) {
      const auto first = initial_.begin() + first_element;
      from_doubles(p.value, {first, first + p.value.size()});
    });
    return states;
  }
  // Creates the gradients of backward on the device, counted as activations.
  void make_gradients(machine::Device& device, Dtype dtype) {
    const auto elements = static_cast<std::int64_t>(initial_.size());
    for (int micro_batch = 0; micro_batch < micro_batches_; ++micro_batch) {
      std::vector<double> values;
      for (std::int64_t i = 0; i < elements; ++i)
        values.push_back(contribution(micro_batch * ranks_ + rank_, i));
      gradients_.emplace_back(device, dtype, machine::Shape{elements}, Category::activations);
      from_doubles(gradients_.back(), values);
    }
  }
  // Negates the gradients of all micro-batches.
  void negate_gradients() {
    for (const Tensor& gradients : gradients_)
      gradients.device().stream().kernels().scale(gradients, -1, gradients);
  }
  // Replaces the gradient of the last element in the first micro-batch; returns the previous one.
  double replace_gradient(double value) {
    const Tensor& gradients = gradients_.front();
    const Tensor last = gradients.slice(gradients.size() - 1, {1});
    const double before = to_doubles(last).front();
    from_doubles(last, {value});
    return before;
  }

  // Runs forward and backward of one micro-batch. Calls on_use for every parameter in use.
  using OnUse = std::function<void(const Parameter&, std::int64_t first_element)>;
  void run(zero::Step& step, int micro_batch, const OnUse& on_use = {}) {
    const auto use = [&](const Rows& rows) {
      for (const std::size_t row : rows)
        if (on_use) on_use(parameters_[row], first_element_[row]);
    };
    step.begin_micro_batch(micro_batch + 1 == micro_batches_);
    for (const Rows& rows : parts_) {
      step.before_use(part(rows));
      use(rows);
      step.after_use(part(rows));
    }
    for (std::size_t i = parts_.size(); i-- > 0;) {
      const zero::Step::Part used = part(parts_[i]);
      step.before_use(used);
      use(parts_[i]);
      step.before_gradients(used);
      for (const std::size_t row : parts_[i]) {
        const Parameter& p = parameters_[row];
        if (!trained(p)) continue;
        std::int64_t begin = 0, end = p.gradient.size();
        if (row == shared_row) (i == 0 ? begin : end) = end / 2;
        if (begin == end) continue;
        p.gradient.device().stream().kernels().accumulate(
            gradients_[static_cast<std::size_t>(micro_batch)].slice(first_element_[row] + begin,
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

 private:
  using Rows = std::vector<std::size_t>;
  // The first and the last part use this row, as a tied embedding. The last part adds the gradient
  // of the first half of its elements, the first part that of the other half.
  static constexpr std::size_t shared_row = 5;

  double random_value(std::uint64_t seed, std::int64_t index) const {
    const double value = 2 * machine::uniform(seed, static_cast<std::uint64_t>(index)) - 1;
    return dtype_ == Dtype::float64 ? value : static_cast<double>(static_cast<float>(value));
  }
  // Returns the first part that uses each row.
  std::vector<int> part_of_rows() const {
    std::vector<int> result(parameters_.size(), static_cast<int>(parts_.size()));
    for (std::size_t part = parts_.size(); part-- > 0;)
      for (const std::size_t row : parts_[part]) result[row] = static_cast<int>(part);
    return result;
  }
  zero::Step::Part part(const Rows& rows) {
    zero::Step::Part result;
    for (const std::size_t row : rows) result.push_back(&parameters_[row]);
    return result;
  }

  Dtype dtype_, gradient_dtype_;
  std::uint64_t seed_;
  int rank_, ranks_, micro_batches_;
  std::vector<Parameter> parameters_;
  std::vector<std::int64_t> first_element_;  // first element of each parameter
  std::vector<Rows> parts_;                  // rows that each part uses
  std::vector<double> initial_;              // concatenated; the dtype rounds them
  std::vector<Tensor> gradients_;            // one per micro-batch, for all parameters
};

}  // namespace suite
