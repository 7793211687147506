#pragma once
// For tests: a device of host memory with a stream that runs behind its caller, like a GPU stream.
// Also the marks that a StreamedLink puts into such streams, and such a link.

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <vector>

#include "machine/base/clock.h"
#include "machine/device/kernels.h"
#include "machine/link/streamed.h"
#include "machine/world/world.h"

namespace machine {

class QueueThread {
 public:
  ~QueueThread() {
    push({});
    thread_.join();
  }
  void push(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    ++pushed_;
    changed_.notify_all();
  }
  std::size_t pushed() {
    const std::lock_guard lock(mutex_);
    return pushed_;
  }
  void drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !queue_.empty(); });
      const auto work = std::move(queue_.front());
      queue_.pop_front();
      if (!work) return;
      busy_ = true;
      lock.unlock();
      // Yields sometimes, so that the delay behind the callers varies.
      if (++count_ % 7 == 0) std::this_thread::yield();
      work();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false;
  std::size_t pushed_ = 0;
  int count_ = 0;
  std::thread thread_{[this] { run(); }};
};

// Kernels that queue reductions. Collectives on whole numbers use no other kernels.
class QueuedKernels final : public Kernels {
 public:
  QueuedKernels(Kernels& host, QueueThread& worker) : host_(host), worker_(worker) {}
  void reduce_to_all(Reduction reduction, Dtype dtype, std::span<const void* const> ins,
                     std::span<void* const> outs, std::int64_t count, Store store) override {
    worker_.push([=, this, ins = std::vector<const void*>(ins.begin(), ins.end()),
                  outs = std::vector<void*>(outs.begin(), outs.end())] {
      host_.reduce_to_all(reduction, dtype, ins, outs, count, store);
    });
  }
  using T = const Tensor&;
  void fill(T, double) override { no(); }
  void cast(T, T) override { no(); }
  void add(T, T, T) override { no(); }
  void scale(T, double, T) override { no(); }
  void accumulate(T, T) override { no(); }
  void divide(Dtype, void*, std::int64_t, std::int64_t) override { no(); }
  void sum_of_squares(T, T) override { no(); }
  void fill_normal(T, std::uint64_t, Region, double, double) override { no(); }
  void fill_uniform(T, std::uint64_t, Region, double, double) override { no(); }
  void fill_pattern(T, const Pattern&, int, std::int64_t) override { no(); }
  void check_pattern(T, const Pattern&, const PatternPart&, double, T) override { no(); }
  void add_bias(T, T, T) override { no(); }
  void accumulate_column_sums(T, T) override { no(); }
  void gelu(T, T) override { no(); }
  void gelu_backward(T, T, T) override { no(); }
  void layer_norm(T, T, T, double, T, T, T) override { no(); }
  void layer_norm_backward_input(T, T, T, T, T, T) override { no(); }
  void layer_norm_backward_weights(T, T, T, T, T, T) override { no(); }
  void softmax(T, double, const SoftmaxMask&, T) override { no(); }
  void softmax_backward(T, T, double, const SoftmaxMask&, T) override { no(); }
  void embedding(const std::int32_t*, T, std::int64_t, T) override { no(); }
  void embedding_backward(const std::int32_t*, T, std::int64_t, T) override { no(); }
  void row_max(T, std::int64_t, std::int64_t, T) override { no(); }
  void exp_sums(T, T, const std::int32_t*, std::int64_t, std::int64_t, T, T) override { no(); }
  void cross_entropy(T, T, const std::int32_t*, T) override { no(); }
  void cross_entropy_backward(T, T, T, const std::int32_t*, std::int64_t, std::int64_t, double,
                              T) override {
    no();
  }
  void rms_norm(T, T, double, T, T) override { no(); }
  void rms_norm_backward_input(T, T, T, T, T) override { no(); }
  void rms_norm_backward_weights(T, T, T, T) override { no(); }
  using M = const Matrix&;
  void merge_attention(M, M, M, M) override { no(); }
  void swiglu(M, M, M) override { no(); }
  void swiglu_backward(M, M, M, M, M) override { no(); }
  void rotary(M, const Rotary&, M) override { no(); }
  void rotary_backward(M, const Rotary&, M) override { no(); }
  void dropout(T, double, std::uint64_t, Region, T) override { no(); }
  void sum(T, T) override { no(); }
  void sgd(T, double, double, T, T) override { no(); }
  using Mask = const std::uint8_t*;
  void momentum(T, double, const Momentum&, Mask, T, T, T) override { no(); }
  void rmsprop(T, double, const RmsProp&, Mask, T, T, T) override { no(); }
  void adam(T, double, const Adam&, std::int64_t, Mask, T, T, T, T) override { no(); }
  void adamw(T, double, const AdamW&, std::int64_t, Mask, T, T, T, T) override { no(); }
  void lion(T, double, const Lion&, Mask, T, T, T) override { no(); }
  void triad(T, T, double, T) override { no(); }

 private:
  [[noreturn]] static void no() { throw std::logic_error("not queued here"); }
  void do_gemm(const Matrix&, const Matrix&, const Matrix&, float, float) override { no(); }
  void do_attention(const AttentionForward&) override { no(); }
  void do_attention_backward(const AttentionBackward&) override { no(); }
  Kernels& host_;
  QueueThread& worker_;
};

// A point in a worker's queue, and the time when the worker reached it.
class QueuedEvent final : public Event {
 public:
  explicit QueuedEvent(QueueThread& worker) : worker_(worker) {
    worker.push([reached = reached_s_] { *reached = steady_s(); });
  }
  void synchronize() override { worker_.drain(); }
  double seconds_since(const Event& earlier) const override {
    return *reached_s_ - *dynamic_cast<const QueuedEvent&>(earlier).reached_s_;
  }

 private:
  QueueThread& worker_;
  std::shared_ptr<double> reached_s_ = std::make_shared<double>(0);
};

class QueuedStream final : public Stream {
 public:
  QueuedStream(Device& device, Kernels& host)
      : QueuedStream(device, host, std::make_unique<QueueThread>()) {}
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) worker_->push([=] { std::memcpy(to, from, bytes); });
  }
  void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                 std::size_t bytes, std::int64_t rows) override {
    worker_->push([=] {
      for (std::int64_t row = 0; row < rows; ++row)
        std::memcpy(static_cast<char*>(to) + row * to_pitch,
                    static_cast<const char*>(from) + row * from_pitch, bytes);
    });
  }
  std::unique_ptr<Event> record() override { return std::make_unique<QueuedEvent>(*worker_); }
  void wait(const Event&) override {}
  void synchronize() override { worker_->drain(); }
  QueueThread& worker() { return *worker_; }

 private:
  QueuedStream(Device& device, Kernels& host, std::unique_ptr<QueueThread> worker)
      : Stream(device, std::make_unique<QueuedKernels>(host, *worker)),
        worker_(std::move(worker)) {}
  std::unique_ptr<QueueThread> worker_;
};

class QueuedDevice final : public Device {
 public:
  QueuedDevice() : Device(Kind::cuda), inner_(make_host_device()) {
    stream_ = std::make_unique<QueuedStream>(*this, inner_->stream().kernels());
  }
  ~QueuedDevice() override { stream_.reset(); }
  std::string description() const override { return "queued"; }
  std::unique_ptr<Stream> make_stream() override { return nullptr; }
  QueueThread& worker() { return static_cast<QueuedStream&>(*stream_).worker(); }

 private:
  void* do_allocate(std::size_t bytes) override {
    return ::operator new (bytes, std::align_val_t{64});
  }
  // In stream order, because queued work may use the memory.
  void do_free(void* data, std::size_t) override {
    worker().push([data] { ::operator delete (data, std::align_val_t{64}); });
  }
  std::unique_ptr<Device> inner_;
};

// Like an event, a mark keeps only its latest record. A wait is for the record that is the latest
// at the call.
struct MarkedStreams {
  std::mutex mutex;
  std::condition_variable changed;
  struct Point {
    std::uint64_t recorded = 0, reached = 0;
  };
  std::map<std::tuple<Mark, int, int, std::uint64_t>, Point> points;  // of rank, for peer
};

class QueuedNeighbours final : public Neighbours {
 public:
  QueuedNeighbours(QueuedDevice& device, MarkedStreams& marks, int rank, bool careless)
      : device_(device), marks_(marks), rank_(rank), careless_(careless) {}
  Stream& stream() override { return device_.stream(); }
  void record(Mark mark, int peer, std::uint64_t number) override {
    const std::lock_guard lock(marks_.mutex);
    MarkedStreams::Point& point = marks_.points[{mark, rank_, peer, number % 4}];
    const std::uint64_t mine = ++point.recorded;
    device_.worker().push([this, &point, mine] {
      const std::lock_guard inner(marks_.mutex);
      point.reached = std::max(point.reached, mine);
      marks_.changed.notify_all();
    });
  }
  void wait(Mark mark, int peer, std::uint64_t number) override {
    const std::lock_guard lock(marks_.mutex);
    MarkedStreams::Point& point = marks_.points[{mark, peer, rank_, number % 4}];
    const std::uint64_t wanted = point.recorded;
    if (wanted == 0) throw std::logic_error("waits for what was never recorded");
    if (careless_) return;
    device_.worker().push([this, &point, wanted] {
      std::unique_lock inner(marks_.mutex);
      marks_.changed.wait(inner, [&] { return point.reached >= wanted; });
    });
  }
  std::uint64_t address(const void* data, std::size_t) override {
    return reinterpret_cast<std::uint64_t>(data);
  }
  std::byte* at(int, std::uint64_t address) override {
    return reinterpret_cast<std::byte*>(address);
  }

 private:
  QueuedDevice& device_;
  MarkedStreams& marks_;
  int rank_;
  bool careless_;
};

// Collective over the group. The device must outlive the link and the links of all peers.
inline std::unique_ptr<Link> queued_link(World& world, QueuedDevice& device, MarkedStreams& marks,
                                         bool careless = false) {
  return std::make_unique<StreamedLink>(
      world.group(), make_channels(world, world.group()),
      std::make_unique<QueuedNeighbours>(device, marks, world.rank(), careless),
      world.wait_policy());
}

}  // namespace machine
