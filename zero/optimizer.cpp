#include "zero/optimizer.h"

#include "collectives/placement.h"
#include "machine/device/error.h"

namespace zero {

using machine::Category;
using machine::Dtype;
using machine::Tensor;

namespace {

bool needs_master(Dtype value) { return collectives::gradient_dtype(value) != value; }

}  // namespace

std::size_t optimizer_bytes_per_element(const Rule& rule, Dtype value) {
  const std::size_t states =
      (std::holds_alternative<AdamW>(rule) ? 2 : 0) + (needs_master(value) ? 1 : 0);
  return states * machine::size_of(collectives::gradient_dtype(value));
}

std::size_t mask_bytes_per_element(const Rule& rule) {
  return std::holds_alternative<AdamW>(rule) ? 1 : 0;
}

Optimizer::Optimizer(Rule rule, Tensor values, const std::vector<std::uint8_t>& decay_mask)
    : rule_(rule), values_(std::move(values)), master_(values_) {
  SHARDMARK_CHECK(decay_mask.size(), ==, static_cast<std::size_t>(values_.size()));
  machine::Device& device = values_.device();
  const Dtype dtype = collectives::gradient_dtype(values_.dtype());
  if (needs_master(values_.dtype()))
    master_ = Tensor(device, dtype, values_.shape(), Category::optimizer);
  values_changed();
  if (std::holds_alternative<Sgd>(rule_)) return;
  for (Tensor* moment : {&first_moment_, &second_moment_}) {
    *moment = Tensor(device, dtype, values_.shape(), Category::optimizer);
    device.stream().kernels().fill(*moment, 0);
  }
  decay_mask_ = device.allocate(decay_mask.size(), Category::buffers);
  device.stream().copy(decay_mask_.data(), decay_mask.data(), decay_mask.size());
  device.stream().synchronize();
}

void Optimizer::values_changed() {
  if (master_.data() != values_.data()) values_.device().stream().kernels().cast(values_, master_);
}

void Optimizer::update(const Tensor& gradient, double gradient_scale) {
  machine::Kernels& kernels = values_.device().stream().kernels();
  ++steps_;
  if (const AdamW* adamw = std::get_if<AdamW>(&rule_)) {
    kernels.adamw(gradient, gradient_scale, *adamw, steps_,
                  static_cast<const std::uint8_t*>(decay_mask_.data()), master_, first_moment_,
                  second_moment_, values_);
  } else {
    kernels.sgd(gradient, gradient_scale, std::get<Sgd>(rule_).learning_rate, master_, values_);
  }
}

}  // namespace zero
