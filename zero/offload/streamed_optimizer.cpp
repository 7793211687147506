#include "zero/offload/streamed_optimizer.h"

#include <stdexcept>
#include <utility>

#include "machine/base/error.h"
#include "zero/offload/file_store.h"
#include "zero/offload/host_store.h"

namespace zero {

namespace {

StreamPlan plan_of(const Rule& rule, const std::vector<OwnedRange>& owned,
                   const StateOptions& options, std::optional<Dtype> gradient_dtype) {
  std::vector<std::int64_t> sizes;
  std::vector<bool> away;
  for (const OwnedRange& each : owned) {
    SHARDMARK_CHECK(each.decay_mask.size(), ==, static_cast<std::size_t>(each.size()));
    SHARDMARK_CHECK(each.home && (options.cpu.ratio != 1 || options.is_delayed()), ==, false);
    sizes.push_back(each.size());
    away.push_back(each.home != nullptr);
  }
  return stream_plan(rule, owned.at(0).dtype(), sizes, options, away, gradient_dtype);
}

}  // namespace

StreamedOptimizer::StreamedOptimizer(const Rule& rule, std::vector<OwnedRange> owned,
                                     machine::Device& host, const StateOptions& options,
                                     std::optional<Dtype> gradient_dtype)
    : OwnedOptimizer(rule),
      owned_(std::move(owned)),
      host_(host),
      options_(options),
      plan_(plan_of(rule, owned_, options_, gradient_dtype)),
      worker_(options_.is_delayed()) {
  SHARDMARK_CHECK(host_.readable_by_host(), ==, true);
  const Dtype value = owned_.front().dtype();
  const StreamPieces& pieces = plan_.pieces;
  std::vector<std::uint8_t> mask;
  for (std::size_t i = 0; i < owned_.size(); ++i) {
    OwnedRange& each = owned_[i];
    const std::int64_t stays = host_range(i).begin;
    const auto split = each.decay_mask.begin() + stays;
    on_device_.push_back(stays == 0
                             ? nullptr
                             : std::make_unique<Optimizer>(
                                   rule_, each.values.slice(0, {stays}),
                                   std::vector<std::uint8_t>(each.decay_mask.begin(), split)));
    mask.insert(mask.end(), split, each.decay_mask.end());
    each.decay_mask = {};
  }
  const auto buffer = [](machine::Device& on, Dtype dtype, std::int64_t elements) {
    return Tensor(on, dtype, {elements}, Category::buffers);
  };
  staged_gradients_ = buffer(host_, plan_.gradient, pieces.staged);
  if (plan_.stages_values) staged_values_ = buffer(host_, value, pieces.staged);
  if (options_.device == OffloadDevice::nvme) {
    store_ = std::make_unique<FileStore>(rule, value, pieces, mask, host_, options_.nvme);
    down_ = up_ = std::make_shared<Lane>(device(), "copies");
  } else {
    store_ = std::make_unique<HostStore>(rule, value, pieces, mask, host_);
    down_ = std::make_shared<Lane>(device(), "copies down");
    up_ = std::make_shared<Lane>(device(), "copies up");
  }
  guarded([&] {
    take_values({.reads = false}, [&](std::int64_t, const PieceStates& states) {
      for (const Tensor& moment : {states.first_moment, states.second_moment})
        if (moment) host_.stream().kernels().fill(moment, 0);
    });
  });
}

void StreamedOptimizer::set_steps(std::int64_t steps) {
  OwnedOptimizer::set_steps(steps);
  for (const auto& optimizer : on_device_)
    if (optimizer) optimizer->set_steps(steps);
}

Range StreamedOptimizer::host_range(std::size_t owned) const {
  return streamed_part(owned_[owned].size(), options_);
}

// ---- pieces

Tensor StreamedOptimizer::staged(const Tensor& staging, std::int64_t index) const {
  return staging.slice(plan_.pieces.at(index).in_staging, {plan_.pieces.at(index).size()});
}

Tensor StreamedOptimizer::values(std::int64_t index) const {
  const StreamPiece& piece = plan_.pieces.at(index);
  const Tensor& whole = at_home(index) ? home_values_ : range_of(index).values;
  return whole.slice(piece.range.begin, {piece.size()});
}

Tensor StreamedOptimizer::host_values(std::int64_t index, const PieceStates& states) const {
  if (masters_go_up()) return states.master;
  return at_home(index) ? values(index) : staged(staged_values_, index);
}

machine::Worker::Ticket StreamedOptimizer::go_down(const std::vector<Tensor>& gradients,
                                                   std::int64_t index) {
  const StreamPiece& piece = plan_.pieces.at(index);
  const Tensor gradient = gradients[piece.owned].slice(piece.range.begin, {piece.size()});
  const void* const from = gradient.data();
  const void* const own =
      plan_.takes_values_down() && !at_home(index) ? values(index).data() : nullptr;
  return down_->worker.submit([this, index, from, own] {
    const machine::During copying(machine::Part::offload);
    before(OffloadPhase::down, index);
    const auto copy = [&](const Tensor& to, const void* there) {
      down_->stream->copy(to.data(), there, to.bytes());
      moved_.down += to.bytes();
    };
    copy(staged(staged_gradients_, index), from);
    if (own) copy(staged(staged_values_, index), own);
    down_->stream->synchronize();
  });
}

void StreamedOptimizer::update_piece(const Rule& rule, std::int64_t step, double scale,
                                     std::int64_t index, const PieceStates& states) {
  before(OffloadPhase::update, index);
  const Tensor gradient = staged(staged_gradients_, index);
  const Tensor mine = host_values(index, states), master = states.master ? states.master : mine;
  update_range(rule, step, gradient, scale, states.decay, states.decay_mask,
               {mine, master, states.first_moment, states.second_moment});
  if (!at_home(index)) return;
  const Tensor home = values(index);
  if (home.data() != mine.data()) host_.stream().copy(home.data(), mine.data(), mine.bytes());
}

machine::Worker::Ticket StreamedOptimizer::go_up(std::int64_t index, const PieceStates& states) {
  const Tensor mine = host_values(index, states);
  return up_->worker.submit(
      [this, index, to = values(index).data(), from = mine.data(), bytes = mine.bytes()] {
        const machine::During copying(machine::Part::offload);
        before(OffloadPhase::up, index);
        up_->stream->copy(to, from, bytes);
        up_->stream->synchronize();
        moved_.up += bytes;
      });
}

void StreamedOptimizer::pass(StateStore::Access states, StateStore::Access values,
                             const StateStore::Use& use) {
  store_->pass(states, [&](std::int64_t index, const PieceStates& piece_states) {
    const OwnedRange& range = range_of(index);
    const Range at = plan_.pieces.at(index).range;
    if (range.home && at.begin == 0) home_values_ = range.open(values.reads);
    use(index, piece_states);
    if (range.home && at.end == range.size()) range.close(values.writes);
  });
}

// ---- updates

// After an error, stops the threads before the caller gets the exception, because they use the
// caller's memory.
void StreamedOptimizer::guarded(const std::function<void()>& work) {
  if (broken_) throw std::logic_error("the offloaded optimizer is used after an error");
  broken_ = true;
  try {
    work();
  } catch (...) {
    for (machine::Worker* worker : {&down_->worker, &up_->worker, &worker_}) worker->stop();
    throw;
  }
  broken_ = false;
}

// Queued work of the device may still write the gradients and read the values.
void StreamedOptimizer::wait_for_device() {
  const auto event = device().stream().record();
  down_->stream->wait(*event);
  up_->stream->wait(*event);
}

void StreamedOptimizer::update(const std::vector<Tensor>& gradients, double gradient_scale,
                               const Updated& updated) {
  SHARDMARK_CHECK(gradients.size(), ==, owned_.size());
  for (std::size_t i = 0; i < owned_.size(); ++i) {
    SHARDMARK_CHECK(gradients[i].size(), ==, owned_[i].size());
    SHARDMARK_CHECK(machine::name(gradients[i].dtype()), ==,
                    machine::name(staged_gradients_.dtype()));
  }
  const std::int64_t step = steps_ + 1;
  const IoCounts start = store_->counts();
  guarded([&] {
    wait_for_device();
    apply_pending();
    for (std::size_t i = 0; i < owned_.size(); ++i)
      if (on_device_[i])
        update_on_device(i, gradients[i].slice(0, {host_range(i).begin}), gradient_scale);
    if (options_.is_delayed())
      start_delayed(gradients, step, gradient_scale);
    else
      update_overlapped(gradients, step, gradient_scale);
  });
  const IoCounts end = store_->counts();
  moved_.nvme_read += end.bytes_read - start.bytes_read;
  moved_.nvme_written += end.bytes_written - start.bytes_written;
  steps_ = step;
  for (std::size_t i = gradients.size(); i-- > 0;) updated(i);
}

void StreamedOptimizer::update_on_device(std::size_t owned, const Tensor& gradient, double scale) {
  on_device_[owned]->rule() = rule_;
  on_device_[owned]->update(gradient, scale);
}

// A slot holds the gradients of the piece before last until that piece is updated, and its values
// until they are copied up.
void StreamedOptimizer::update_overlapped(const std::vector<Tensor>& gradients, std::int64_t step,
                                          double scale) {
  std::vector<machine::Worker::Ticket> up;
  machine::Worker::Ticket coming = plan_.pieces.count() > 0 ? go_down(gradients, 0) : 0;
  // The update overwrites values. It reads them only if they are the only master.
  pass({}, {.reads = plan_.takes_values_down()},
       [&](std::int64_t index, const PieceStates& states) {
         const auto next = index + 1 < plan_.pieces.count() ? go_down(gradients, index + 1) : 0;
         down_->worker.wait(std::exchange(coming, next));
         if (index >= 2) up_->worker.wait(up[static_cast<std::size_t>(index - 2)]);
         update_piece(rule_, step, scale, index, states);
         up.push_back(at_home(index) ? 0 : go_up(index, states));
       });
  up_->worker.wait_all();
}

void StreamedOptimizer::start_delayed(const std::vector<Tensor>& gradients, std::int64_t step,
                                      double scale) {
  for (std::int64_t i = 0; i < plan_.pieces.count(); ++i) go_down(gradients, i);
  down_->worker.wait_all();
  worker_.submit([this, rule = rule_, step, scale] {
    store_->pass({}, [&](std::int64_t index, const PieceStates& states) {
      update_piece(rule, step, scale, index, states);
    });
  });
  pending_ = true;
}

void StreamedOptimizer::apply_pending() {
  if (!pending_) return;
  worker_.wait_all();
  store_->pass({.writes = false},
               [&](std::int64_t index, const PieceStates& states) { go_up(index, states); });
  up_->worker.wait_all();
  pending_ = false;
}

void StreamedOptimizer::drain() {
  guarded([&] {
    wait_for_device();
    apply_pending();
  });
}

// ---- states and values from outside

void StreamedOptimizer::check_not_pending() const {
  if (pending_)
    throw std::logic_error("states or values are used while an update is pending; drain first");
}

void StreamedOptimizer::set_master(std::int64_t index, const PieceStates& states) {
  Tensor from = values(index);
  if (!at_home(index)) {
    const Tensor to = host_values(index, states);
    machine::Stream& stream = device().stream();
    stream.copy(to.data(), from.data(), to.bytes());
    stream.synchronize();
    from = to;
  }
  if (!plan_.wide_values)
    host_.stream().kernels().cast(from, states.master);
  else if (at_home(index))
    host_.stream().copy(states.master.data(), from.data(), from.bytes());
}

void StreamedOptimizer::take_values(StateStore::Access states, const StateStore::Use& then) {
  pass(states, {.writes = false}, [&](std::int64_t index, const PieceStates& of) {
    if (of.master) set_master(index, of);
    then(index, of);
  });
}

void StreamedOptimizer::values_changed() {
  check_not_pending();
  guarded([&] {
    if (!plan_.takes_values_down()) take_values({}, [](std::int64_t, const PieceStates&) {});
    for (const auto& optimizer : on_device_)
      if (optimizer) optimizer->values_changed();
  });
}

void StreamedOptimizer::visit(bool writes, const Visit& call) {
  check_not_pending();
  std::size_t next = 0;  // first range whose part on the device was not visited
  const auto on_device = [&](std::size_t end) {
    for (; next < end; ++next)
      if (on_device_[next]) {
        const std::int64_t begin = owned_[next].range.begin;
        call({begin, begin + host_range(next).begin}, on_device_[next]->states());
      }
  };
  guarded([&] {
    pass({.writes = writes}, {.writes = writes},
         [&](std::int64_t index, const PieceStates& states) {
           const StreamPiece& piece = plan_.pieces.at(index);
           on_device(piece.owned + 1);
           const std::int64_t begin = owned_[piece.owned].range.begin;
           const Tensor mine = values(index);
           call({begin + piece.range.begin, begin + piece.range.end},
                {mine, plan_.wide_values ? mine : states.master, states.first_moment,
                 states.second_moment});
           if (writes && masters_go_up()) set_master(index, states);
         });
    on_device(owned_.size());
  });
}

}  // namespace zero
