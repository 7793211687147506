#pragma once
// The breakdown of a step's time on one rank. Only the innermost part of its thread is charged, so
// the parts sum to the step. Also records the work of other threads for the step, and the waiting
// time per awaited rank.
//
//   StepClock clock;
//   clock.start();                                       // this thread's, until stop
//   {
//     const During forward(Part::forward);               // anywhere below, in any room
//     { const During reduce(Part::communication, "tp"); … }   // not forward's time
//   }
//   clock.stop();
//   clock.times().own.rows                               // forward, communication of tp, other
//
// Without a started clock, During records nothing and only checks a pointer. With a started clock,
// it reads the time twice.
//
// The work of a CUDA device runs behind its caller. A clock that is started with the device's
// stream records events there, and stop() waits for them. The parts are then times of the stream,
// and ranges of a profiler (device/profile_range.h).
// It waits for peers inside of a message, so the whole time of messages is the bubble.

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "machine/device/device.h"

namespace machine {

enum class Part : unsigned char {
  other,  // the rest of a step
  data,
  graph,  // all that a launch of a graph repeats
  forward,
  recompute,
  backward_input,
  backward_weights,
  bubble,  // waiting for a pipeline's neighbour
  optimizer,
  offload,
  communication,  // of a group
};
std::string_view name(Part part);

struct StepTimes {
  struct Row {
    Part part{};
    std::string group;  // of communication
    double seconds = 0;
    std::string text() const;  // "backward weights", "communication tp"
  };
  struct Interval {
    std::size_t row;
    int peer;  // rank waited for; no_peer, or other_thread
    double start_s, end_s;
  };
  static constexpr int no_peer = -1, other_thread = -2;
  struct Lane {
    std::string name;
    std::vector<Row> rows;            // one per part, then one per group
    std::vector<Interval> intervals;  // in order of their ends
  };

  double start_s = 0, end_s = 0;   // steady_s
  Lane own;                        // its rows sum to end_s - start_s
  std::vector<Lane> others;        // rows without seconds
  std::map<int, double> waited_s;  // by rank of the world; part of own's rows
};

// Returns, by group, the seconds in which other threads communicated and this thread did not wait
// for them.
std::map<std::string, double> hidden_communication(const StepTimes& times);

class StepClock {
 public:
  StepClock() = default;
  ~StepClock() {
    if (here == &own_) leave();
  }
  StepClock(const StepClock&) = delete;
  StepClock& operator=(const StepClock&) = delete;

  void start(Stream* stream = nullptr);
  void stop();                                       // no effect if it was not started
  const StepTimes& times() const { return times_; }  // from the last start to its stop
  static StepClock* running();                       // of this thread, or null

  // The parts that one thread is in, as a stack.
  class Recorder {
   public:
    explicit Recorder(std::string name) { lane.name = std::move(name); }
    void clear(double now_s, Stream* stream = nullptr);
    void push(Part part, std::string_view group, int peer, bool is_message);
    void push_wait(int peer);
    void pop();
    void close(double now_s);
    // Charges the parts by the times of their marks in the stream, and returns the time of the
    // first. Waits for the stream. Sets end_s to the current time.
    double resolve(double& end_s);
    bool queues() const { return stream_ != nullptr; }
    StepTimes::Lane lane;
    std::map<int, double> waited_s;
    StepClock* clock = nullptr;

   private:
    struct Frame {
      std::size_t row;
      int peer;
      bool is_message, waits;
      double start_s;
    };
    // The begin (frame) or the end of a part in the stream.
    struct Mark {
      std::unique_ptr<Event> reached;
      std::optional<Frame> frame;
    };
    std::size_t row(Part part, std::string_view group);
    void charge(double now_s);
    void begin(const Frame& frame, const std::string& shown);
    void begin(Frame frame, double now_s);
    void end(double now_s);
    std::vector<Frame> stack_;
    double last_s_ = 0;
    Stream* stream_ = nullptr;
    std::vector<Mark> marks_;  // the first: the start of the step
    int shown_ = 0;            // open ranges of the profiler
  };
  static inline constinit thread_local Recorder* here = nullptr;

  // This thread records nothing while the object exists. For a capture, whose work does not run.
  class Paused {
   public:
    Paused() : recorder_(std::exchange(here, nullptr)) {}
    ~Paused() { here = recorder_; }
    Paused(const Paused&) = delete;
    Paused& operator=(const Paused&) = delete;

   private:
    Recorder* const recorder_;
  };

  // A job that another thread does for a step. While it exists, it records on a lane of that name.
  // `clock` is the clock that ran when the job was queued (null: records nothing). It receives the
  // lane if it still runs when the job ends.
  class Job {
   public:
    Job(StepClock* clock, const char* lane);
    ~Job();
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

   private:
    StepClock* const clock_;
    std::optional<Recorder> recorder_;
  };

 private:
  void leave();
  void add(const StepTimes::Lane& lane);

  StepTimes times_;
  Recorder own_{"compute"};
  std::mutex mutex_;  // guards times_.others and running_
  bool running_ = false;
};

// This thread does that part while the object exists.
class During {
 public:
  explicit During(Part part, std::string_view group = {}, int peer = StepTimes::no_peer)
      : recorder_(StepClock::here) {
    if (recorder_) recorder_->push(part, group, peer, false);
  }
  ~During() {
    if (recorder_) recorder_->pop();
  }
  During(const During&) = delete;
  During& operator=(const During&) = delete;

 protected:
  template <class Push>
  explicit During(Push push) : recorder_(StepClock::here) {
    if (recorder_) push(*recorder_);
  }

 private:
  StepClock::Recorder* const recorder_;
};

// Communication with a pipeline neighbour. Its waiting time is the bubble.
class DuringMessage : public During {
 public:
  explicit DuringMessage(std::string_view group)
      : During([group](StepClock::Recorder& recorder) {
          recorder.push(Part::communication, group, StepTimes::no_peer, true);
        }) {}
};

// For links: this thread waits for that rank of the world while the object exists.
class DuringWait : public During {
 public:
  explicit DuringWait(int peer)
      : During([peer](StepClock::Recorder& recorder) { recorder.push_wait(peer); }) {}
};

}  // namespace machine
