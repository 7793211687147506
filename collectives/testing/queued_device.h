#pragma once
// For tests: a device of host memory with a stream that runs behind its caller, like a GPU stream.
// Also the marks that a StreamedLink puts into such streams.

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

#include "machine/device/kernels.h"
#include "machine/link/streamed.h"

namespace collectives {

class Worker {
 public:
  ~Worker() {
    push({});
    thread_.join();
  }
  void push(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
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
  int count_ = 0;
  std::thread thread_{[this] { run(); }};
};

// Kernels that queue reductions. Collectives on whole numbers use no other kernels.
class QueuedKernels final : public machine::Kernels {
 public:
  QueuedKernels(machine::Kernels& host, Worker& worker) : host_(host), worker_(worker) {}
  void reduce_to_all(machine::Reduction reduction, machine::Dtype dtype, const void* a,
                     const void* b, std::span<void* const> outs, std::int64_t count,
                     machine::Store store) override {
    worker_.push([=, this, outs = std::vector<void*>(outs.begin(), outs.end())] {
      host_.reduce_to_all(reduction, dtype, a, b, outs, count, store);
    });
  }
  using T = const machine::Tensor&;
  void fill(T, double) override { no(); }
  void cast(T, T) override { no(); }
  void add(T, T, T) override { no(); }
  void scale(T, double, T) override { no(); }
  void accumulate(T, T) override { no(); }
  void divide(machine::Dtype, void*, std::int64_t, std::int64_t) override { no(); }
  void sum_of_squares(T, T) override { no(); }
  void fill_normal(T, std::uint64_t, machine::Region, double, double) override { no(); }
  void fill_uniform(T, std::uint64_t, machine::Region, double, double) override { no(); }
  void add_bias(T, T, T) override { no(); }
  void accumulate_column_sums(T, T) override { no(); }
  void gelu(T, T) override { no(); }
  void gelu_backward(T, T, T) override { no(); }
  void layer_norm(T, T, T, double, T, T, T) override { no(); }
  void layer_norm_backward_input(T, T, T, T, T, T) override { no(); }
  void layer_norm_backward_weights(T, T, T, T, T, T) override { no(); }
  void causal_softmax(T, double, T) override { no(); }
  void causal_softmax_backward(T, T, double, T) override { no(); }
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
  using M = const machine::Matrix&;
  void swiglu(M, M, M) override { no(); }
  void swiglu_backward(M, M, M, M, M) override { no(); }
  void rotary(M, const machine::Rotary&, M) override { no(); }
  void rotary_backward(M, const machine::Rotary&, M) override { no(); }
  void dropout(T, double, std::uint64_t, machine::Region, T) override { no(); }
  void sum(T, T) override { no(); }
  void sgd(T, double, double, T, T) override { no(); }
  using Mask = const std::uint8_t*;
  void momentum(T, double, const machine::Momentum&, Mask, T, T, T) override { no(); }
  void rmsprop(T, double, const machine::RmsProp&, Mask, T, T, T) override { no(); }
  void adam(T, double, const machine::Adam&, std::int64_t, Mask, T, T, T, T) override { no(); }
  void adamw(T, double, const machine::AdamW&, std::int64_t, Mask, T, T, T, T) override { no(); }
  void triad(T, T, double, T) override { no(); }

 private:
  [[noreturn]] static void no() { throw std::logic_error("not queued here"); }
  void do_gemm(const machine::Matrix&, const machine::Matrix&, const machine::Matrix&, float,
               float) override {
    no();
  }
  void do_attention(const machine::AttentionForward&) override { no(); }
  void do_attention_backward(const machine::AttentionBackward&) override { no(); }
  machine::Kernels& host_;
  Worker& worker_;
};

class QueuedStream final : public machine::Stream {
 public:
  QueuedStream(machine::Device& device, machine::Kernels& host)
      : QueuedStream(device, host, std::make_unique<Worker>()) {}
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) worker_->push([=] { std::memcpy(to, from, bytes); });
  }
  std::unique_ptr<machine::Event> record() override { return nullptr; }
  void wait(const machine::Event&) override {}
  void synchronize() override { worker_->drain(); }
  Worker& worker() { return *worker_; }

 private:
  QueuedStream(machine::Device& device, machine::Kernels& host, std::unique_ptr<Worker> worker)
      : Stream(device, std::make_unique<QueuedKernels>(host, *worker)),
        worker_(std::move(worker)) {}
  std::unique_ptr<Worker> worker_;
};

class QueuedDevice final : public machine::Device {
 public:
  QueuedDevice() : Device(Kind::cuda), inner_(machine::make_host_device()) {
    stream_ = std::make_unique<QueuedStream>(*this, inner_->stream().kernels());
  }
  ~QueuedDevice() override { stream_.reset(); }
  std::string description() const override { return "queued"; }
  std::unique_ptr<machine::Stream> make_stream() override { return nullptr; }
  Worker& worker() { return static_cast<QueuedStream&>(*stream_).worker(); }

 private:
  void* do_allocate(std::size_t bytes) override {
    return ::operator new (bytes, std::align_val_t{64});
  }
  void do_free(void* data, std::size_t) override { ::operator delete (data, std::align_val_t{64}); }
  std::unique_ptr<machine::Device> inner_;
};

// Like an event, a mark keeps only its latest record. A wait is for the record that is the latest
// at the call.
struct MarkedStreams {
  std::mutex mutex;
  std::condition_variable changed;
  struct Point {
    std::uint64_t recorded = 0, reached = 0;
  };
  std::map<std::tuple<machine::Mark, int, int, std::uint64_t>, Point> points;  // of rank, for peer
};

class QueuedNeighbours final : public machine::Neighbours {
 public:
  QueuedNeighbours(QueuedDevice& device, MarkedStreams& marks, int rank, bool careless)
      : device_(device), marks_(marks), rank_(rank), careless_(careless) {}
  machine::Stream& stream() override { return device_.stream(); }
  void record(machine::Mark mark, int peer, std::uint64_t number) override {
    const std::lock_guard lock(marks_.mutex);
    MarkedStreams::Point& point = marks_.points[{mark, rank_, peer, number % 4}];
    const std::uint64_t mine = ++point.recorded;
    device_.worker().push([this, &point, mine] {
      const std::lock_guard inner(marks_.mutex);
      point.reached = std::max(point.reached, mine);
      marks_.changed.notify_all();
    });
  }
  void wait(machine::Mark mark, int peer, std::uint64_t number) override {
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

}  // namespace collectives
