#include "zero/optimizer.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "collectives/placement.h"
#include "machine/device/error.h"
#include "machine/device/names.h"

namespace zero {

using machine::Category;
using machine::Dtype;
using machine::Tensor;

namespace {

bool needs_master(Dtype value) { return collectives::gradient_dtype(value) != value; }

// Beside the master.
struct States {
  bool first = false, second = false, mask = true;
};
States states(const Rule& rule) {
  struct Of {
    States operator()(const Sgd&) const { return {.mask = false}; }
    States operator()(const Momentum&) const { return {.first = true}; }
    States operator()(const RmsProp&) const { return {.second = true}; }
    States operator()(const Adam&) const { return {.first = true, .second = true}; }
    States operator()(const AdamW&) const { return {.first = true, .second = true}; }
  };
  return std::visit(Of{}, rule);
}

const std::vector<std::pair<std::string, Rule>>& rules() {
  static const std::vector<std::pair<std::string, Rule>> all = {{"sgd", Sgd{}},
                                                                {"momentum", Momentum{}},
                                                                {"rmsprop", RmsProp{}},
                                                                {"adam", Adam{}},
                                                                {"adamw", AdamW{}}};
  return all;
}

}  // namespace

std::string_view name(const Rule& rule) {
  for (const auto& [name, other] : rules())
    if (other.index() == rule.index()) return name;
  return "?";
}

std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const auto& [name, rule] : rules()) names.push_back(name);
  return names;
}

Rule find_rule(std::string_view name) {
  for (const auto& [known, rule] : rules())
    if (known == name) return rule;
  throw std::invalid_argument(machine::unknown("optimizer", name, rule_names()));
}

std::size_t optimizer_bytes_per_element(const Rule& rule, Dtype value) {
  const States kept = states(rule);
  const std::size_t count = std::size_t{kept.first} + kept.second + needs_master(value);
  return count * machine::size_of(collectives::gradient_dtype(value));
}

std::size_t mask_bytes_per_element(const Rule& rule) { return states(rule).mask ? 1 : 0; }

Optimizer::Optimizer(Rule rule, Tensor values, const std::vector<std::uint8_t>& decay_mask)
    : rule_(rule), values_(std::move(values)), master_(values_) {
  SHARDMARK_CHECK(decay_mask.size(), ==, static_cast<std::size_t>(values_.size()));
  machine::Device& device = values_.device();
  const Dtype dtype = collectives::gradient_dtype(values_.dtype());
  if (needs_master(values_.dtype()))
    master_ = Tensor(device, dtype, values_.shape(), Category::optimizer);
  values_changed();
  const States kept = states(rule_);
  const auto make = [&](Tensor& moment) {
    moment = Tensor(device, dtype, values_.shape(), Category::optimizer);
    device.stream().kernels().fill(moment, 0);
  };
  if (kept.first) make(first_moment_);
  if (kept.second) make(second_moment_);
  if (!kept.mask) return;
  const auto decays = [](std::uint8_t byte) { return byte != 0; };
  decays_somewhere_ = std::ranges::any_of(decay_mask, decays);
  decays_everywhere_ = std::ranges::all_of(decay_mask, decays);
  decay_mask_ = device.allocate(decay_mask.size(), Category::buffers);
  device.stream().copy(decay_mask_.data(), decay_mask.data(), decay_mask.size());
  device.stream().synchronize();
}

void Optimizer::values_changed() {
  if (master_.data() != values_.data()) values_.device().stream().kernels().cast(values_, master_);
}

void Optimizer::update(const Tensor& gradient, double gradient_scale) {
  ++steps_;
  machine::Kernels& kernels = values_.device().stream().kernels();
  std::visit(
      [&](auto options) {
        using Options = decltype(options);
        if constexpr (std::is_same_v<Options, Sgd>) {
          kernels.sgd(gradient, gradient_scale, options.learning_rate, master_, values_);
        } else {
          // A mask that is the same everywhere need not be read.
          if (!decays_somewhere_) options.weight_decay = 0;
          const bool uniform = decays_everywhere_ || options.weight_decay == 0;
          const auto* const mask =
              uniform ? nullptr : static_cast<const std::uint8_t*>(decay_mask_.data());
          if constexpr (std::is_same_v<Options, Momentum>)
            kernels.momentum(gradient, gradient_scale, options, mask, master_, first_moment_,
                             values_);
          else if constexpr (std::is_same_v<Options, RmsProp>)
            kernels.rmsprop(gradient, gradient_scale, options, mask, master_, second_moment_,
                            values_);
          else if constexpr (std::is_same_v<Options, Adam>)
            kernels.adam(gradient, gradient_scale, options, steps_, mask, master_, first_moment_,
                         second_moment_, values_);
          else
            kernels.adamw(gradient, gradient_scale, options, steps_, mask, master_, first_moment_,
                          second_moment_, values_);
        }
      },
      rule_);
}

}  // namespace zero
