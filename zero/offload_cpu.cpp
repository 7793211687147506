#include "zero/offload_cpu.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "collectives/placement.h"
#include "machine/device/error.h"

namespace zero {

using machine::Category;
using machine::Dtype;
using machine::Tensor;

namespace {

Dtype check(const OffloadOptions& options, Dtype value) {
  if (options.piece_size < 1)
    throw std::invalid_argument(fmt::format("piece_size {}: must be positive", options.piece_size));
  if (!(options.ratio >= 0 && options.ratio <= 1))
    throw std::invalid_argument(fmt::format("ratio {}: must be 0 to 1", options.ratio));
  if (options.warmup_steps < 0)
    throw std::invalid_argument(
        fmt::format("warmup_steps {}: must not be negative", options.warmup_steps));
  const Dtype wide = collectives::gradient_dtype(value);
  const Dtype gradient = options.gradient_dtype.value_or(wide);
  if (gradient != wide && gradient != value)
    throw std::invalid_argument(
        fmt::format("gradient_dtype {}: gradients of {} values are {}{}", machine::name(gradient),
                    machine::name(value), machine::name(wide),
                    wide == value ? "" : fmt::format(" or {}", machine::name(value))));
  return gradient;
}

}  // namespace

OffloadCost offload_cost(const Rule& rule, Dtype value, std::int64_t elements,
                         const OffloadOptions& options) {
  const Dtype gradient = check(options, value), wide = collectives::gradient_dtype(value);
  const KeptStates kept = kept_states(rule, value);
  OffloadCost cost;
  cost.host_elements = std::llround(options.ratio * static_cast<double>(elements));
  if (cost.host_elements > 0) cost.pieces = (cost.host_elements - 1) / options.piece_size + 1;
  const auto host = static_cast<std::size_t>(cost.host_elements);
  const auto device = static_cast<std::size_t>(elements) - host;
  // Values that are their own master on the device have one on the host all the same.
  const auto states = static_cast<std::size_t>(1 + kept.first_moment + kept.second_moment);
  cost.host_optimizer = host * states * size_of(wide);
  const std::size_t one = std::min(static_cast<std::size_t>(options.piece_size), host);
  const std::size_t staged = options.delayed_update ? host : std::min(2 * one, host);
  cost.host_buffers = staged * (size_of(gradient) + (kept.master ? size_of(value) : 0)) +
                      (gradient == wide ? 0 : one * size_of(wide)) +
                      host * mask_bytes_per_element(rule);
  cost.device_optimizer = device * optimizer_bytes_per_element(rule, value);
  cost.device_buffers =
      device * (mask_bytes_per_element(rule) + (gradient == wide ? 0 : size_of(wide)));
  cost.down = host * size_of(gradient);
  cost.up = host * size_of(value);
  return cost;
}

OffloadOptimizer::OffloadOptimizer(Rule rule, Tensor values,
                                   const std::vector<std::uint8_t>& decay_mask,
                                   machine::Device& host, OffloadOptions options)
    : rule_(rule),
      values_(std::move(values)),
      host_(host),
      options_(std::move(options)),
      cost_(offload_cost(rule, values_.dtype(), values_.size(), options_)),
      slots_(options_.delayed_update ? cost_.pieces : std::min<std::int64_t>(cost_.pieces, 2)),
      worker_(options_.delayed_update) {
  SHARDMARK_CHECK(decay_mask.size(), ==, static_cast<std::size_t>(values_.size()));
  SHARDMARK_CHECK(host_.readable_by_host(), ==, true);
  const Range range = host_range();
  const auto split = decay_mask.begin() + range.begin;
  if (range.begin > 0)
    on_device_ = std::make_unique<Optimizer>(rule_, values_.slice(0, {range.begin}),
                                             std::vector<std::uint8_t>(decay_mask.begin(), split));

  const Dtype wide = collectives::gradient_dtype(values_.dtype());
  const Dtype gradient = options_.gradient_dtype.value_or(wide);
  const KeptStates kept = kept_states(rule_, values_.dtype());
  if (on_device_ && gradient != wide)
    wide_on_device_ = Tensor(values_.device(), wide, {range.begin}, Category::buffers);
  const auto make = [&](Tensor& tensor, Dtype dtype, std::int64_t elements, Category category) {
    tensor = Tensor(host_, dtype, {elements}, category);
  };
  make(master_, wide, range.size(), Category::optimizer);
  for (const auto& [is_kept, moment] : {std::pair{kept.first_moment, &first_moment_},
                                        std::pair{kept.second_moment, &second_moment_}}) {
    if (!is_kept) continue;
    make(*moment, wide, range.size(), Category::optimizer);
    host_.stream().kernels().fill(*moment, 0);
  }
  const std::int64_t piece = std::min(options_.piece_size, range.size());
  const std::int64_t staged = std::min(slots_ * piece, range.size());
  make(staged_gradients_, gradient, staged, Category::buffers);
  if (kept.master) make(staged_values_, values_.dtype(), staged, Category::buffers);
  if (gradient != wide) make(wide_gradients_, wide, piece, Category::buffers);
  if (kept.mask) {
    decay_mask_ = host_.allocate(static_cast<std::size_t>(range.size()), Category::buffers);
    std::copy(split, decay_mask.end(), static_cast<std::uint8_t*>(decay_mask_.data()));
    // A mask that is the same everywhere need not be read.
    const auto decays = [](std::uint8_t byte) { return byte != 0; };
    decay_ = std::all_of(split, decay_mask.end(), decays)   ? Decay::everywhere
             : std::any_of(split, decay_mask.end(), decays) ? Decay::masked
                                                            : Decay::nowhere;
  }
  down_stream_ = values_.device().make_stream();
  up_stream_ = values_.device().make_stream();
  values_changed();
}

void OffloadOptimizer::set_steps(std::int64_t steps) {
  steps_ = steps;
  if (on_device_) on_device_->set_steps(steps);
}

RangeStates OffloadOptimizer::states() const {
  if (pending_)
    throw std::logic_error("states are asked for while an update is pending: drain first");
  const Range range = host_range();
  return {values_.slice(range.begin, {range.size()}), master_, first_moment_, second_moment_};
}

// ---- pieces

Range OffloadOptimizer::piece(std::int64_t index) const {
  const std::int64_t begin = index * options_.piece_size;
  return {begin, std::min(begin + options_.piece_size, cost_.host_elements)};
}

Tensor OffloadOptimizer::slot(const Tensor& staging, std::int64_t index) const {
  return staging.slice(index % slots_ * options_.piece_size, {piece(index).size()});
}

// Values that are wide go up from the master itself, which nobody writes before the next update.
Tensor OffloadOptimizer::host_values(std::int64_t index) const {
  if (staged_values_) return slot(staged_values_, index);
  return master_.slice(piece(index).begin, {piece(index).size()});
}

Tensor OffloadOptimizer::device_values(std::int64_t index) const {
  return values_.slice(host_range().begin + piece(index).begin, {piece(index).size()});
}

Progress::Ticket OffloadOptimizer::go_down(const Tensor& gradient, std::int64_t index) {
  const void* const from =
      gradient.slice(host_range().begin + piece(index).begin, {piece(index).size()}).data();
  return down_.submit([this, from, index] {
    before(OffloadPhase::down, index);
    const Tensor to = slot(staged_gradients_, index);
    down_stream_->copy(to.data(), from, to.bytes());
    down_stream_->synchronize();
    moved_.down += to.bytes();
  });
}

void OffloadOptimizer::update_piece(const Rule& rule, std::int64_t step, double scale,
                                    std::int64_t index) {
  before(OffloadPhase::update, index);
  const Range at = piece(index);
  Tensor gradient = slot(staged_gradients_, index);
  if (wide_gradients_) {
    const Tensor wide = wide_gradients_.slice(0, {at.size()});
    host_.stream().kernels().cast(gradient, wide);
    gradient = wide;
  }
  const auto part = [&](const Tensor& state) {
    return state ? state.slice(at.begin, {at.size()}) : state;
  };
  const auto* const mask = static_cast<const std::uint8_t*>(decay_mask_.data());
  update_range(rule, step, gradient, scale, decay_, mask ? mask + at.begin : nullptr,
               {host_values(index), part(master_), part(first_moment_), part(second_moment_)});
}

Progress::Ticket OffloadOptimizer::go_up(std::int64_t index) {
  return up_.submit([this, index] {
    before(OffloadPhase::up, index);
    const Tensor from = host_values(index);
    up_stream_->copy(device_values(index).data(), from.data(), from.bytes());
    up_stream_->synchronize();
    moved_.up += from.bytes();
  });
}

// ---- updates

// The threads end before the caller knows of an error: they use what is the caller's.
void OffloadOptimizer::guarded(const std::function<void()>& work) {
  if (broken_) throw std::logic_error("the offloaded optimizer is used after an error");
  broken_ = true;
  try {
    work();
  } catch (...) {
    for (Progress* progress : {&down_, &up_, &worker_}) progress->stop();
    throw;
  }
  broken_ = false;
}

// What is queued on the device may still write the gradients and read the values.
void OffloadOptimizer::wait_for_device() {
  const auto event = values_.device().stream().record();
  down_stream_->wait(*event);
  up_stream_->wait(*event);
}

void OffloadOptimizer::update(const Tensor& gradient, double gradient_scale) {
  SHARDMARK_CHECK(gradient.size(), ==, values_.size());
  SHARDMARK_CHECK(machine::name(gradient.dtype()), ==, machine::name(staged_gradients_.dtype()));
  guarded([&] {
    wait_for_device();
    apply_pending();
    ++steps_;
    if (on_device_) update_on_device(gradient.slice(0, {host_range().begin}), gradient_scale);
    if (options_.delayed_update && steps_ > options_.warmup_steps)
      start_delayed(gradient, gradient_scale);
    else
      update_overlapped(gradient, gradient_scale);
  });
}

void OffloadOptimizer::update_on_device(Tensor gradient, double scale) {
  if (wide_on_device_) {
    values_.device().stream().kernels().cast(gradient, wide_on_device_);
    gradient = wide_on_device_;
  }
  on_device_->rule() = rule_;
  on_device_->update(gradient, scale);
}

// A slot's gradients are those of the piece before last until that was updated, its values until
// they are up.
void OffloadOptimizer::update_overlapped(const Tensor& gradient, double scale) {
  std::vector<Progress::Ticket> down, up;
  for (std::int64_t i = 0; i < cost_.pieces; ++i) {
    while (std::ssize(down) < std::min(i + 2, cost_.pieces))
      down.push_back(go_down(gradient, std::ssize(down)));
    down_.wait(down[static_cast<std::size_t>(i)]);
    if (i >= slots_) up_.wait(up[static_cast<std::size_t>(i - slots_)]);
    update_piece(rule_, steps_, scale, i);
    up.push_back(go_up(i));
  }
  up_.wait_all();
}

void OffloadOptimizer::start_delayed(const Tensor& gradient, double scale) {
  for (std::int64_t i = 0; i < cost_.pieces; ++i) go_down(gradient, i);
  down_.wait_all();
  worker_.submit([this, rule = rule_, step = steps_, scale] {
    for (std::int64_t i = 0; i < cost_.pieces; ++i) update_piece(rule, step, scale, i);
  });
  pending_ = true;
}

void OffloadOptimizer::apply_pending() {
  if (!pending_) return;
  worker_.wait_all();
  for (std::int64_t i = 0; i < cost_.pieces; ++i) go_up(i);
  up_.wait_all();
  pending_ = false;
}

void OffloadOptimizer::drain() {
  guarded([&] {
    wait_for_device();
    apply_pending();
  });
}

void OffloadOptimizer::values_changed() {
  if (pending_) throw std::logic_error("values are set while an update is pending: drain first");
  guarded([&] {
    machine::Stream& stream = values_.device().stream();
    for (std::int64_t i = 0; i < cost_.pieces; ++i) {
      const Tensor to = host_values(i);
      stream.copy(to.data(), device_values(i).data(), to.bytes());
      stream.synchronize();
      if (staged_values_)
        host_.stream().kernels().cast(to, master_.slice(piece(i).begin, {piece(i).size()}));
    }
    if (on_device_) on_device_->values_changed();
  });
}

}  // namespace zero
