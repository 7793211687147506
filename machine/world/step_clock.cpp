#include "machine/world/step_clock.h"

#include <fmt/format.h>

#include <algorithm>

#include "machine/base/clock.h"
#include "machine/base/error.h"
#include "machine/device/profile_range.h"

namespace machine {
namespace {

constexpr std::string_view part_names[] = {"other",
                                           "data",
                                           "graph",
                                           "forward",
                                           "recompute",
                                           "backward input",
                                           "backward weights",
                                           "bubble",
                                           "optimizer",
                                           "offload",
                                           "communication"};
constexpr auto groups_begin = static_cast<std::size_t>(Part::communication);

}  // namespace

std::string_view name(Part part) { return part_names[static_cast<std::size_t>(part)]; }

std::string StepTimes::Row::text() const {
  return group.empty() ? std::string(name(part)) : fmt::format("{} {}", name(part), group);
}

// ---- one thread

void StepClock::Recorder::clear(double now_s, Stream* stream) {
  for (std::size_t part = lane.rows.size(); part < groups_begin; ++part)
    lane.rows.push_back({static_cast<Part>(part), {}, 0});
  for (StepTimes::Row& row : lane.rows) row.seconds = 0;
  lane.intervals.clear();
  waited_s.clear();
  stack_.clear();
  last_s_ = now_s;
  stream_ = stream;
  marks_.clear();
  if (stream_) marks_.push_back({stream_->record(), {}});
}

std::size_t StepClock::Recorder::row(Part part, std::string_view group) {
  if (part != Part::communication) return static_cast<std::size_t>(part);
  for (std::size_t i = groups_begin; i < lane.rows.size(); ++i)
    if (lane.rows[i].group == group) return i;
  lane.rows.push_back({part, std::string(group), 0});
  return lane.rows.size() - 1;
}

void StepClock::Recorder::charge(double now_s) {
  lane.rows[stack_.empty() ? 0 : stack_.back().row].seconds += now_s - last_s_;
  last_s_ = now_s;
}

void StepClock::Recorder::push(Part part, std::string_view group, int peer, bool is_message) {
  if (stream_ && is_message) part = Part::bubble;
  const std::size_t its_row = row(part, group);
  begin({its_row, peer, is_message, false, 0}, stream_ ? lane.rows[its_row].text() : "");
}

void StepClock::Recorder::push_wait(int peer) { begin({0, peer, false, true, 0}, "wait"); }

void StepClock::Recorder::begin(const Frame& frame, const std::string& shown) {
  if (!stream_) return begin(frame, steady_s());
  marks_.push_back({stream_->record(), frame});
  begin_profile_range(shown);
  ++shown_;
}

void StepClock::Recorder::begin(Frame frame, double now_s) {
  charge(now_s);
  if (frame.waits && !stack_.empty())
    frame.row =
        stack_.back().is_message ? static_cast<std::size_t>(Part::bubble) : stack_.back().row;
  frame.start_s = now_s;
  stack_.push_back(frame);
}

// Called by destructors. If the device is lost, the run already ends with that failure.
void StepClock::Recorder::pop() {
  if (shown_ > 0) {
    end_profile_range();
    --shown_;
  }
  if (!stream_) return end(steady_s());
  try {
    marks_.push_back({stream_->record(), {}});
  } catch (const MachineError&) {
    stream_ = nullptr;
    marks_.clear();
  }
}

void StepClock::Recorder::end(double now_s) {
  if (stack_.empty()) return;  // the clock was stopped meanwhile
  charge(now_s);
  const Frame& frame = stack_.back();
  lane.intervals.push_back({frame.row, frame.peer, frame.start_s, last_s_});
  if (frame.waits) waited_s[frame.peer] += last_s_ - frame.start_s;
  stack_.pop_back();
}

void StepClock::Recorder::close(double now_s) {
  charge(now_s);
  stack_.clear();
}

double StepClock::Recorder::resolve(double& end_s) {
  for (; shown_ > 0; --shown_) end_profile_range();
  const std::unique_ptr<Event> last = stream_->record();
  last->synchronize();
  end_s = steady_s();
  const auto time_of = [&](const Mark& mark) { return end_s - last->seconds_since(*mark.reached); };
  const double start_s = last_s_ = time_of(marks_.front());
  stream_ = nullptr;
  for (std::size_t i = 1; i < marks_.size(); ++i) {
    const double now_s = time_of(marks_[i]);
    if (marks_[i].frame)
      begin(*marks_[i].frame, now_s);
    else
      end(now_s);
  }
  marks_.clear();
  return start_s;
}

// ---- a step

StepClock* StepClock::running() { return here ? here->clock : nullptr; }

void StepClock::start(Stream* stream) {
  SHARDMARK_CHECK(here == nullptr, ==, true);
  const double now_s = steady_s();
  own_.clock = this;
  own_.clear(now_s, stream);
  {
    const std::lock_guard lock(mutex_);
    running_ = true;
    times_.others.clear();
  }
  times_.start_s = now_s;
  here = &own_;
}

void StepClock::stop() {
  if (here != &own_) return;
  leave();
  if (own_.queues())
    times_.start_s = own_.resolve(times_.end_s);
  else
    times_.end_s = steady_s();
  own_.close(times_.end_s);
  std::swap(times_.own, own_.lane);  // not a copy: callers time this
  times_.own.name = own_.lane.name = "compute";
  std::swap(times_.waited_s, own_.waited_s);
}

void StepClock::leave() {
  here = nullptr;
  const std::lock_guard lock(mutex_);
  running_ = false;
}

void StepClock::add(const StepTimes::Lane& lane) {
  const std::lock_guard lock(mutex_);
  if (!running_) return;
  auto mine = std::ranges::find(times_.others, lane.name, &StepTimes::Lane::name);
  if (mine == times_.others.end()) {
    times_.others.push_back({lane.name, {}, {}});
    mine = times_.others.end() - 1;
  }
  for (const StepTimes::Interval& interval : lane.intervals) {
    const StepTimes::Row& row = lane.rows[interval.row];
    auto known = std::ranges::find_if(mine->rows, [&](const StepTimes::Row& other) {
      return other.part == row.part && other.group == row.group;
    });
    if (known == mine->rows.end())
      known = mine->rows.insert(mine->rows.end(), {row.part, row.group, 0});
    mine->intervals.push_back({static_cast<std::size_t>(known - mine->rows.begin()), interval.peer,
                               std::max(interval.start_s, times_.start_s), interval.end_s});
  }
}

StepClock::Job::Job(StepClock* clock, const char* lane) : clock_(clock) {
  if (!clock_) return;
  recorder_.emplace(lane);
  recorder_->clock = clock_;
  recorder_->clear(steady_s());
  here = &*recorder_;
}

StepClock::Job::~Job() {
  if (!clock_) return;
  here = nullptr;
  clock_->add(recorder_->lane);
}

// ---- hidden communication

namespace {

using Span = std::pair<double, double>;

// Returns the union as sorted, disjoint spans.
std::vector<Span> united(std::vector<Span> spans) {
  std::ranges::sort(spans);
  std::vector<Span> result;
  for (const Span& span : spans) {
    if (!result.empty() && span.first <= result.back().second)
      result.back().second = std::max(result.back().second, span.second);
    else
      result.push_back(span);
  }
  return result;
}

double length(const std::vector<Span>& spans) {
  double sum = 0;
  for (const auto& [start, end] : spans) sum += end - start;
  return sum;
}

double overlap(const std::vector<Span>& a, const std::vector<Span>& b) {
  double sum = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum += std::max(0.0, std::min(a[i].second, b[j].second) - std::max(a[i].first, b[j].first));
    (a[i].second < b[j].second ? i : j)++;
  }
  return sum;
}

}  // namespace

std::map<std::string, double> hidden_communication(const StepTimes& times) {
  std::map<std::string, std::vector<Span>> beside;
  for (const StepTimes::Lane& lane : times.others)
    for (const StepTimes::Interval& interval : lane.intervals)
      if (const StepTimes::Row& row = lane.rows[interval.row]; row.part == Part::communication)
        beside[row.group].emplace_back(interval.start_s, interval.end_s);
  std::vector<Span> waited;
  for (const StepTimes::Interval& interval : times.own.intervals)
    if (interval.peer == StepTimes::other_thread)
      waited.emplace_back(interval.start_s, interval.end_s);
  waited = united(std::move(waited));
  std::map<std::string, double> hidden;
  for (auto& [group, spans] : beside) {
    const std::vector<Span> all = united(std::move(spans));
    hidden[group] = length(all) - overlap(all, waited);
  }
  return hidden;
}

}  // namespace machine
