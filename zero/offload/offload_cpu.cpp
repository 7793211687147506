#include "zero/offload/offload_cpu.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "collectives/placement.h"
#include "machine/base/error.h"

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

struct Cut {
  std::vector<OffloadPiece> pieces;
  std::vector<std::int64_t> first_state;  // of each range
  std::int64_t host = 0, device = 0;      // elements
  std::int64_t largest_on_device = 0;     // of a range
  std::int64_t staged = 0, largest_piece = 0;
};

std::int64_t on_host(std::int64_t elements, double ratio) {
  return std::llround(ratio * static_cast<double>(elements));
}

// Pieces take turns in two slots of the staging, each as long as its longest piece; delayed, every
// piece has a place of its own.
Cut cut(const std::vector<std::int64_t>& sizes, const OffloadOptions& options) {
  Cut result;
  std::int64_t slot[2] = {};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    result.first_state.push_back(result.host);
    const std::int64_t device = sizes[i] - on_host(sizes[i], options.ratio);
    result.device += device;
    result.largest_on_device = std::max(result.largest_on_device, device);
    for (std::int64_t begin = device; begin < sizes[i];) {
      const std::int64_t size = std::min(options.piece_size, sizes[i] - begin);
      std::int64_t& longest = slot[result.pieces.size() % 2];
      longest = std::max(longest, size);
      result.pieces.push_back({i, {begin, begin + size}, result.host, result.host});
      result.host += size;
      begin += size;
    }
  }
  result.largest_piece = std::max(slot[0], slot[1]);
  result.staged = options.delayed_update ? result.host : slot[0] + slot[1];
  for (std::size_t i = 0; !options.delayed_update && i < result.pieces.size(); ++i)
    result.pieces[i].in_staging = i % 2 == 0 ? 0 : slot[0];
  return result;
}

std::vector<std::int64_t> sizes_of(const std::vector<OwnedRange>& owned) {
  std::vector<std::int64_t> sizes;
  for (const OwnedRange& each : owned) sizes.push_back(each.size());
  return sizes;
}

}  // namespace

OffloadCost offload_cost(const Rule& rule, Dtype value, const std::vector<std::int64_t>& sizes,
                         const OffloadOptions& options, const std::vector<bool>& away) {
  const Dtype gradient = check(options, value), wide = collectives::gradient_dtype(value);
  const KeptStates kept = kept_states(rule, value);
  const Cut parts = cut(sizes, options);
  OffloadCost cost;
  cost.host_elements = parts.host;
  cost.pieces = std::ssize(parts.pieces);
  const auto host = static_cast<std::size_t>(parts.host);
  const auto device = static_cast<std::size_t>(parts.device);
  std::size_t going_up = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (i >= away.size() || !away[i])
      going_up += static_cast<std::size_t>(on_host(sizes[i], options.ratio));
  // Values that are their own master on the device have one on the host all the same.
  const auto states = static_cast<std::size_t>(1 + kept.first_moment + kept.second_moment);
  cost.host_optimizer = host * states * size_of(wide);
  cost.host_buffers = static_cast<std::size_t>(parts.staged) *
                          (size_of(gradient) + (kept.master && going_up > 0 ? size_of(value) : 0)) +
                      host * mask_bytes_per_element(rule);
  cost.device_optimizer = device * optimizer_bytes_per_element(rule, value);
  cost.device_buffers = device * mask_bytes_per_element(rule);
  if (gradient != wide) {
    cost.host_buffers += static_cast<std::size_t>(parts.largest_piece) * size_of(wide);
    cost.device_buffers += static_cast<std::size_t>(parts.largest_on_device) * size_of(wide);
  }
  cost.down = host * size_of(gradient);
  cost.up = going_up * size_of(value);
  return cost;
}

OffloadOptimizer::OffloadOptimizer(const Rule& rule, std::vector<OwnedRange> owned,
                                   machine::Device& host, OffloadOptions options)
    : OwnedOptimizer(rule),
      owned_(std::move(owned)),
      host_(host),
      options_(std::move(options)),
      kept_(kept_states(rule, owned_.at(0).dtype())),
      worker_(options_.delayed_update) {
  SHARDMARK_CHECK(host_.readable_by_host(), ==, true);
  const Dtype value = owned_.front().dtype(), wide = collectives::gradient_dtype(value);
  const Dtype gradient = check(options_, value);
  Cut parts = cut(sizes_of(owned_), options_);
  pieces_ = std::move(parts.pieces);
  first_state_ = std::move(parts.first_state);
  std::vector<std::uint8_t> host_mask;
  bool any_goes_up = false;
  for (OwnedRange& each : owned_) {
    SHARDMARK_CHECK(each.decay_mask.size(), ==, static_cast<std::size_t>(each.size()));
    SHARDMARK_CHECK(each.home && (options_.ratio != 1 || options_.delayed_update), ==, false);
    const std::int64_t stays = each.size() - on_host(each.size(), options_.ratio);
    any_goes_up = any_goes_up || (!each.home && stays < each.size());
    const auto split = each.decay_mask.begin() + stays;
    on_device_.push_back(stays == 0
                             ? nullptr
                             : std::make_unique<Optimizer>(
                                   rule_, each.values.slice(0, {stays}),
                                   std::vector<std::uint8_t>(each.decay_mask.begin(), split)));
    host_mask.insert(host_mask.end(), split, each.decay_mask.end());
    each.decay_mask = {};
  }
  if (parts.largest_on_device > 0 && gradient != wide)
    wide_on_device_ = Tensor(device(), wide, {parts.largest_on_device}, Category::buffers);

  const auto state = [&] { return Tensor(host_, wide, {parts.host}, Category::optimizer); };
  const auto zeros = [&] {
    const Tensor moment = state();
    host_.stream().kernels().fill(moment, 0);
    return moment;
  };
  master_ = state();
  if (kept_.first_moment) first_moment_ = zeros();
  if (kept_.second_moment) second_moment_ = zeros();
  const auto buffer = [&](Dtype dtype, std::int64_t elements) {
    return Tensor(host_, dtype, {elements}, Category::buffers);
  };
  staged_gradients_ = buffer(gradient, parts.staged);
  if (kept_.master && any_goes_up) staged_values_ = buffer(value, parts.staged);
  if (gradient != wide) wide_gradients_ = buffer(wide, parts.largest_piece);
  if (kept_.mask) {
    decay_mask_ = host_.allocate(host_mask.size(), Category::buffers);
    std::ranges::copy(host_mask, static_cast<std::uint8_t*>(decay_mask_.data()));
    // A mask that is the same everywhere need not be read.
    const auto decays = [](std::uint8_t byte) { return byte != 0; };
    decay_ = std::ranges::all_of(host_mask, decays)   ? Decay::everywhere
             : std::ranges::any_of(host_mask, decays) ? Decay::masked
                                                      : Decay::nowhere;
  }
  down_stream_ = device().make_stream();
  up_stream_ = device().make_stream();
  values_changed();
}

void OffloadOptimizer::set_steps(std::int64_t steps) {
  OwnedOptimizer::set_steps(steps);
  for (const auto& optimizer : on_device_)
    if (optimizer) optimizer->set_steps(steps);
}

Range OffloadOptimizer::host_range(std::size_t owned) const {
  const std::int64_t size = owned_[owned].size();
  return {size - on_host(size, options_.ratio), size};
}

RangeStates OffloadOptimizer::states(std::size_t owned) const {
  if (pending_)
    throw std::logic_error("states are asked for while an update is pending: drain first");
  const Range range = host_range(owned);
  const auto part = [&](const Tensor& whole) {
    return whole ? whole.slice(first_state_[owned], {range.size()}) : whole;
  };
  const Tensor& values = owned_[owned].values;
  return {values ? values.slice(range.begin, {range.size()}) : values, part(master_),
          part(first_moment_), part(second_moment_)};
}

void OffloadOptimizer::visit(bool writes, const Visit& call) {
  for (std::size_t i = 0; i < owned_.size(); ++i) {
    const Range range = host_range(i);
    const std::int64_t begin = owned_[i].range.begin;
    RangeStates states = this->states(i);
    if (on_device_[i]) call({begin, begin + range.begin}, on_device_[i]->states());
    if (owned_[i].home) states.values = owned_[i].open(true);
    if (!kept_.master) states.master = states.values;  // the same bits
    call({begin + range.begin, begin + range.end}, states);
    owned_[i].close(writes);
  }
  if (writes && !kept_.master) values_changed();
}

// ---- pieces

Tensor OffloadOptimizer::staged(const Tensor& staging, std::int64_t index) const {
  return staging.slice(piece(index).in_staging, {piece(index).range.size()});
}

Tensor OffloadOptimizer::state(const Tensor& whole, std::int64_t index) const {
  return whole ? whole.slice(piece(index).in_states, {piece(index).range.size()}) : whole;
}

// Values that are wide go up from the master itself, which nobody writes before the next update.
Tensor OffloadOptimizer::host_values(std::int64_t index) const {
  const Range at = piece(index).range;
  if (range_of(index).home && kept_.master) return home_values_.slice(at.begin, {at.size()});
  return staged_values_ ? staged(staged_values_, index) : state(master_, index);
}

Tensor OffloadOptimizer::device_values(std::int64_t index) const {
  const OffloadPiece& at = piece(index);
  return owned_[at.owned].values.slice(at.range.begin, {at.range.size()});
}

Worker::Ticket OffloadOptimizer::go_down(const std::vector<Tensor>& gradients, std::int64_t index) {
  const OffloadPiece& at = piece(index);
  const void* const from = gradients[at.owned].slice(at.range.begin, {at.range.size()}).data();
  return down_.submit([this, from, index] {
    const machine::During copying(machine::Part::offload);
    before(OffloadPhase::down, index);
    const Tensor to = staged(staged_gradients_, index);
    down_stream_->copy(to.data(), from, to.bytes());
    down_stream_->synchronize();
    moved_.down += to.bytes();
  });
}

void OffloadOptimizer::update_piece(const Rule& rule, std::int64_t step, double scale,
                                    std::int64_t index) {
  before(OffloadPhase::update, index);
  Tensor gradient = staged(staged_gradients_, index);
  if (wide_gradients_) {
    const Tensor wide = wide_gradients_.slice(0, {gradient.size()});
    host_.stream().kernels().cast(gradient, wide);
    gradient = wide;
  }
  const auto* const mask = static_cast<const std::uint8_t*>(decay_mask_.data());
  update_range(rule, step, gradient, scale, decay_, mask ? mask + piece(index).in_states : nullptr,
               {host_values(index), state(master_, index), state(first_moment_, index),
                state(second_moment_, index)});
}

Worker::Ticket OffloadOptimizer::go_up(std::int64_t index) {
  return up_.submit([this, index] {
    const machine::During copying(machine::Part::offload);
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
    for (Worker* progress : {&down_, &up_, &worker_}) progress->stop();
    throw;
  }
  broken_ = false;
}

// What is queued on the device may still write the gradients and read the values.
void OffloadOptimizer::wait_for_device() {
  const auto event = device().stream().record();
  down_stream_->wait(*event);
  up_stream_->wait(*event);
}

void OffloadOptimizer::update(const std::vector<Tensor>& gradients, double gradient_scale) {
  SHARDMARK_CHECK(gradients.size(), ==, owned_.size());
  for (std::size_t i = 0; i < owned_.size(); ++i) {
    SHARDMARK_CHECK(gradients[i].size(), ==, owned_[i].size());
    SHARDMARK_CHECK(machine::name(gradients[i].dtype()), ==,
                    machine::name(staged_gradients_.dtype()));
  }
  guarded([&] {
    wait_for_device();
    apply_pending();
    ++steps_;
    for (std::size_t i = 0; i < owned_.size(); ++i)
      if (on_device_[i])
        update_on_device(i, gradients[i].slice(0, {host_range(i).begin}), gradient_scale);
    if (options_.delayed_update && steps_ > options_.warmup_steps)
      start_delayed(gradients, gradient_scale);
    else
      update_overlapped(gradients, gradient_scale);
  });
}

void OffloadOptimizer::update_on_device(std::size_t owned, Tensor gradient, double scale) {
  if (wide_on_device_) {
    const Tensor wide = wide_on_device_.slice(0, {gradient.size()});
    device().stream().kernels().cast(gradient, wide);
    gradient = wide;
  }
  on_device_[owned]->rule() = rule_;
  on_device_[owned]->update(gradient, scale);
}

// A slot's gradients are those of the piece before last until that was updated, its values until
// they are up.
void OffloadOptimizer::update_overlapped(const std::vector<Tensor>& gradients, double scale) {
  std::vector<Worker::Ticket> down, up;
  for (std::int64_t i = 0; i < pieces(); ++i) {
    while (std::ssize(down) < std::min(i + 2, pieces()))
      down.push_back(go_down(gradients, std::ssize(down)));
    down_.wait(down[static_cast<std::size_t>(i)]);
    if (i >= 2) up_.wait(up[static_cast<std::size_t>(i - 2)]);
    if (range_of(i).home) {
      update_at_home(scale, i);
      up.push_back(0);
      continue;
    }
    update_piece(rule_, steps_, scale, i);
    up.push_back(go_up(i));
  }
  up_.wait_all();
}

void OffloadOptimizer::update_at_home(double scale, std::int64_t index) {
  const Range at = piece(index).range;
  const OwnedRange& range = range_of(index);
  if (at.begin == 0) home_values_ = range.open(false);
  update_piece(rule_, steps_, scale, index);
  if (!kept_.master) {
    const Tensor to = home_values_.slice(at.begin, {at.size()});
    host_.stream().copy(to.data(), host_values(index).data(), to.bytes());
  }
  if (at.end == range.size()) range.close(true);
}

void OffloadOptimizer::start_delayed(const std::vector<Tensor>& gradients, double scale) {
  for (std::int64_t i = 0; i < pieces(); ++i) go_down(gradients, i);
  down_.wait_all();
  worker_.submit([this, rule = rule_, step = steps_, scale] {
    for (std::int64_t i = 0; i < pieces(); ++i) update_piece(rule, step, scale, i);
  });
  pending_ = true;
}

void OffloadOptimizer::apply_pending() {
  if (!pending_) return;
  worker_.wait_all();
  for (std::int64_t i = 0; i < pieces(); ++i) go_up(i);
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
    machine::Stream& stream = device().stream();
    for (std::int64_t i = 0; i < pieces(); ++i) {
      if (const OwnedRange& range = range_of(i); range.home) {
        const Range at = piece(i).range;
        if (at.begin == 0) home_values_ = range.open(true);
        const Tensor from = home_values_.slice(at.begin, {at.size()}), to = state(master_, i);
        if (kept_.master)
          host_.stream().kernels().cast(from, to);
        else
          host_.stream().copy(to.data(), from.data(), to.bytes());
        if (at.end == range.size()) range.close(false);
        continue;
      }
      const Tensor to = host_values(i);
      stream.copy(to.data(), device_values(i).data(), to.bytes());
      stream.synchronize();
      if (staged_values_) host_.stream().kernels().cast(to, state(master_, i));
    }
    for (const auto& optimizer : on_device_)
      if (optimizer) optimizer->values_changed();
  });
}

}  // namespace zero
