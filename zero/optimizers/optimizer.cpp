#include "zero/optimizers/optimizer.h"

#include <algorithm>
#include <stdexcept>

#include "collectives/placement.h"
#include "machine/base/error.h"
#include "machine/base/names.h"
#include "machine/world/step_clock.h"

namespace zero {

namespace {

const std::vector<std::pair<std::string, Rule>>& rules() {
  static const std::vector<std::pair<std::string, Rule>> all = {
      {"sgd", Sgd{}},   {"momentum", Momentum{}}, {"rmsprop", RmsProp{}},
      {"adam", Adam{}}, {"adamw", AdamW{}},       {"lion", Lion{}}};
  return all;
}

template <class... Rules>
bool is_one_of(const Rule& rule) {
  return (std::holds_alternative<Rules>(rule) || ...);
}

}  // namespace

std::string_view name(const Rule& rule) {
  if (std::holds_alternative<Lamb>(rule)) return "lamb";
  if (std::holds_alternative<Muon>(rule)) return "muon";
  if (std::holds_alternative<Adafactor>(rule)) return "adafactor";
  if (std::holds_alternative<OneBitAdam>(rule)) return "one_bit_adam";
  if (std::holds_alternative<OneBitLamb>(rule)) return "one_bit_lamb";
  if (std::holds_alternative<AdamW8Bit>(rule)) return "adamw_8bit";
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

// The rules that keep a state are listed, so a new rule does not keep it by accident.
KeptStates kept_states(const Rule& rule, Dtype value) {
  return {
      .master = collectives::gradient_dtype(value) != value,
      .first_moment =
          is_one_of<AdamW, Adam, Momentum, Lion, Lamb, Muon, OneBitAdam, OneBitLamb, AdamW8Bit>(
              rule),
      .second_moment =
          is_one_of<AdamW, Adam, RmsProp, Lamb, Muon, Adafactor, OneBitAdam, OneBitLamb, AdamW8Bit>(
              rule),
      .mask = is_one_of<AdamW, Adam, Momentum, RmsProp, Lion, Muon, AdamW8Bit>(rule),
      .coded = std::holds_alternative<AdamW8Bit>(rule)};
}

std::size_t optimizer_bytes_per_element(const Rule& rule, Dtype value) {
  const KeptStates kept = kept_states(rule, value);
  const std::size_t wide = machine::size_of(collectives::gradient_dtype(value)),
                    of_moment = kept.coded ? 1 : wide;
  return (kept.master ? wide : 0) + (kept.first_moment ? of_moment : 0) +
         (kept.second_moment ? of_moment : 0);
}

std::size_t scale_bytes(const Rule& rule, std::int64_t elements) {
  if (!kept_states(rule, Dtype::float32).coded) return 0;
  return static_cast<std::size_t>(2 * machine::moment_blocks(elements)) * sizeof(float);
}

std::size_t mask_bytes_per_element(const Rule& rule) {
  return kept_states(rule, Dtype::float32).mask ? 1 : 0;
}

Decay decay_of(const std::vector<std::uint8_t>& decay_mask) {
  const auto decays = [](std::uint8_t byte) { return byte != 0; };
  return std::ranges::all_of(decay_mask, decays)   ? Decay::everywhere
         : std::ranges::any_of(decay_mask, decays) ? Decay::masked
                                                   : Decay::nowhere;
}

RangeStates make_states(const Rule& rule, const Tensor& values) {
  machine::Device& device = values.device();
  machine::Kernels& kernels = device.stream().kernels();
  const Dtype dtype = collectives::gradient_dtype(values.dtype());
  const KeptStates kept = kept_states(rule, values.dtype());
  RangeStates states{values, values, {}, {}};
  const auto make = [&](Tensor& state) {
    state = Tensor(device, dtype, values.shape(), Category::optimizer);
  };
  if (kept.master) {
    make(states.master);
    kernels.cast(values, states.master);
  }
  if (kept.coded) {
    const machine::Moments8Bit moments =
        machine::zero_moments(device, values.size(), Category::optimizer);
    states.first_moment = moments.first;
    states.second_moment = moments.second;
    states.scales = moments.scales;
    return states;
  }
  for (const auto& [keeps, moment] : {std::pair(kept.first_moment, &states.first_moment),
                                      {kept.second_moment, &states.second_moment}}) {
    if (!keeps) continue;
    make(*moment);
    kernels.fill(*moment, 0);
  }
  return states;
}

Optimizer::Optimizer(Rule rule, const Tensor& values, const std::vector<std::uint8_t>& decay_mask)
    : rule_(rule), states_(make_states(rule_, values)) {
  SHARDMARK_CHECK(decay_mask.size(), ==, static_cast<std::size_t>(values.size()));
  if (mask_bytes_per_element(rule_) == 0) return;
  decay_ = decay_of(decay_mask);
  machine::Device& device = values.device();
  decay_mask_ = device.allocate(decay_mask.size(), Category::buffers);
  device.stream().copy(decay_mask_.data(), decay_mask.data(), decay_mask.size());
  device.stream().synchronize();
}

void Optimizer::values_changed() {
  const Tensor &values = states_.values, &master = states_.master;
  if (master.data() != values.data()) values.device().stream().kernels().cast(values, master);
}

void Optimizer::update(const Tensor& gradient, double gradient_scale) {
  ++steps_;
  update_range(rule_, steps_, gradient, gradient_scale, decay_,
               static_cast<const std::uint8_t*>(decay_mask_.data()), states_);
}

void update_range(const Rule& rule, std::int64_t step, const Tensor& gradient,
                  double gradient_scale, Decay decay, const std::uint8_t* decay_mask,
                  const RangeStates& range) {
  const machine::During updating(machine::Part::optimizer);
  const auto& [values, master, first_moment, second_moment, scales, fresh_variance] = range;
  machine::Kernels& kernels = values.device().stream().kernels();
  std::visit(
      [&](auto options) {
        using Options = decltype(options);
        if constexpr (std::is_same_v<Options, Lamb>) {
          throw std::logic_error("LAMB updates whole parameters");
        } else if constexpr (std::is_same_v<Options, Muon>) {
          throw std::logic_error("Muon updates whole matrices");
        } else if constexpr (std::is_same_v<Options, Adafactor>) {
          throw std::logic_error("Adafactor updates whole parameters");
        } else if constexpr (std::is_same_v<Options, OneBitAdam> ||
                             std::is_same_v<Options, OneBitLamb>) {
          throw std::logic_error("1-bit optimizers sum momenta");
        } else if constexpr (std::is_same_v<Options, Sgd>) {
          kernels.sgd(gradient, gradient_scale, options.learning_rate, master, values);
        } else {
          if (decay == Decay::nowhere) options.weight_decay = 0;
          const auto* const mask =
              decay == Decay::masked && options.weight_decay != 0 ? decay_mask : nullptr;
          if constexpr (std::is_same_v<Options, Momentum>)
            kernels.momentum(gradient, gradient_scale, options, mask, master, first_moment, values);
          else if constexpr (std::is_same_v<Options, RmsProp>)
            kernels.rmsprop(gradient, gradient_scale, options, mask, master, second_moment, values);
          else if constexpr (std::is_same_v<Options, Adam>)
            kernels.adam(gradient, gradient_scale, options, step, mask, master, first_moment,
                         second_moment, values);
          else if constexpr (std::is_same_v<Options, AdamW8Bit>)
            machine::adamw_8bit(values.device().stream(), gradient, gradient_scale, options.adamw(),
                                step, mask, master, {first_moment, second_moment, scales}, values);
          else if constexpr (std::is_same_v<Options, Lion>)
            kernels.lion(gradient, gradient_scale, options, mask, master, first_moment, values);
          else
            kernels.adamw(gradient, gradient_scale, options, step, mask, master, first_moment,
                          second_moment, values);
        }
      },
      rule);
}

}  // namespace zero
