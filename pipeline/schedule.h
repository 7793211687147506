#pragma once
// A pipeline schedule is data: for each stage the list of its actions, in order, and the part of
// the model of each of its chunks (placement.h). It does not depend on tensors, ranks or links. The
// same list is proved (prove.h), timed and drawn (simulate.h) and executed (execute.h).
//
//   text(find_schedule("1f1b").stage(0, {4, 4}))   // "F0 F1 F2 F3 B0 B1 B2 B3"
//
// To add a schedule: write its pure function in schedules/NAME.h with the paper's figure as
// static_assert. Add a row to schedules/table.cpp with the peak and the time that the paper claims.
// prove_test.cpp then proves it for every count of stages and micro-batches, and the executor runs
// it unchanged.

#include <compare>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/number_text.h"
#include "pipeline/placement.h"

namespace pipeline {

enum class Kind : unsigned char {
  forward,           // F
  backward_input,    // I: the gradient of the stage's input, which the previous stage waits for
  backward_weights,  // W: the gradients of its parameters, which only the optimizer waits for
  backward,          // B: both, as one action; the gradient of the input leaves when it ends
};

// One pass of a micro-batch through one chunk of layers of a stage.
struct Action {
  Kind kind = Kind::forward;
  int micro_batch = 0;
  int chunk = 0;
  auto operator<=>(const Action&) const = default;
};

using StageSchedule = std::vector<Action>;  // of one stage

constexpr Action forward(int micro_batch, int chunk = 0) {
  return {Kind::forward, micro_batch, chunk};
}
constexpr Action backward(int micro_batch, int chunk = 0) {
  return {Kind::backward, micro_batch, chunk};
}
constexpr Action backward_input(int micro_batch, int chunk = 0) {
  return {Kind::backward_input, micro_batch, chunk};
}
constexpr Action backward_weights(int micro_batch, int chunk = 0) {
  return {Kind::backward_weights, micro_batch, chunk};
}

constexpr char letter(Kind kind) { return "FIWB"[static_cast<int>(kind)]; }

// "F0"; chunk 2 of micro-batch 0 is "F0.2".
constexpr std::string text(const Action& action) {
  std::string out(1, letter(action.kind));
  append_number(out, action.micro_batch);
  if (action.chunk != 0) {
    out += '.';
    append_number(out, action.chunk);
  }
  return out;
}

// "F0 F1 B0 B1"
constexpr std::string text(const StageSchedule& schedule) {
  std::string out;
  for (const Action& action : schedule) {
    if (!out.empty()) out += ' ';
    out += text(action);
  }
  return out;
}

// Parses the output of text(). Throws std::invalid_argument for any other text.
constexpr Action parse_action(std::string_view word) {
  const std::size_t kind =
      word.empty() ? std::string_view::npos : std::string_view("FIWB").find(word[0]);
  if (kind == std::string_view::npos)
    throw std::invalid_argument("schedule: action '" + std::string(word) +
                                "' (expected F, B, I or W first)");
  word.remove_prefix(1);
  Action action{static_cast<Kind>(kind), take_number(word), 0};
  if (!word.empty() && word[0] == '.') {
    word.remove_prefix(1);
    action.chunk = take_number(word);
  }
  if (!word.empty())
    throw std::invalid_argument("schedule: invalid action; expected the form F0 or F0.1");
  return action;
}

constexpr StageSchedule parse(std::string_view words) {
  StageSchedule schedule;
  while (!words.empty()) {
    const std::size_t space = words.find(' ');
    const std::string_view word = words.substr(0, space);
    if (!word.empty()) schedule.push_back(parse_action(word));
    words.remove_prefix(space == std::string_view::npos ? words.size() : space + 1);
  }
  return schedule;
}

// Returns the maximum number of live micro-batches. A micro-batch is live from its forward (its
// input is kept) to the end of its backward, or of its backward_weights if the halves are separate.
// Chunks count separately.
constexpr int peak_activations(const StageSchedule& schedule) {
  int alive = 0, peak = 0;
  for (const Action& action : schedule) {
    if (action.kind == Kind::forward && ++alive > peak) peak = alive;
    if (action.kind == Kind::backward || action.kind == Kind::backward_weights) --alive;
  }
  return peak;
}

static_assert(parse("F0 F1.2 I0 W0 B1.2") == StageSchedule{forward(0), forward(1, 2),
                                                           backward_input(0), backward_weights(0),
                                                           backward(1, 2)});

// The time of one action on one stage, in seconds or any unit. transfer is the additional time of a
// message to a neighbour. It delays the receiver, not the sender.
struct Costs {
  double forward = 1, backward_input = 1, backward_weights = 1, transfer = 0;
  constexpr double backward() const { return backward_input + backward_weights; }
  constexpr double of(Kind kind) const {
    if (kind == Kind::forward) return forward;
    if (kind == Kind::backward) return backward();
    return kind == Kind::backward_input ? backward_input : backward_weights;
  }
};

// The schedules of all stages, first to last.
class StageSchedules {
 public:
  StageSchedules() = default;
  // Throws std::invalid_argument if the model is placed on another number of stages.
  StageSchedules(std::vector<StageSchedule> stages, Placement placement);
  // Chunk c of stage i is part c * stages + i of the model.
  StageSchedules(std::vector<StageSchedule> stages);
  StageSchedules(std::initializer_list<StageSchedule> stages)
      : StageSchedules(std::vector<StageSchedule>(stages)) {}

  Placement placement;
  std::size_t size() const { return stages_.size(); }
  StageSchedule& operator[](std::size_t stage) { return stages_[stage]; }
  const StageSchedule& operator[](std::size_t stage) const { return stages_[stage]; }
  const StageSchedule& of(int stage) const { return stages_.at(stage); }
  auto begin() const { return stages_.begin(); }
  auto end() const { return stages_.end(); }

 private:
  std::vector<StageSchedule> stages_;
};

struct Size {
  int stages = 1, micro_batches = 1;
  int chunks = 1;  // of a stage: virtual stages
};

// A time from a paper's formula, or its requirement ("m >= p") if the formula does not hold.
struct Formula {
  double seconds = 0;
  std::string_view needs = {};
  explicit operator bool() const { return needs.empty(); }
};

// A schedule as listed: `shardmark list`, axis values and the prover's tests all read schedules().
struct Schedule {
  std::string_view name;    // as the literature names it
  std::string_view source;  // paper
  Placement (*placement)(const Size&);
  StageSchedule (*stage)(int stage, const Size&);
  // The paper's claims, which the prover compares with the actions. peak: the maximum number of
  // live micro-batches (of a chunk) on a stage. span: the longest time from a stage's first action
  // to its last, if all stages have equal costs and transfers cost 0.
  int (*peak)(int stage, const Size&);
  Formula (*span)(const Size&, const Costs&);
  int chunks = 1;                                    // per stage, by default
  bool any_chunks = false;                           // other numbers are supported
  bool parts_backward = false;                       // has I and W
  std::string_view (*needs)(const Size&) = nullptr;  // the unmet requirement, or empty; may be null

  // Returns whether a stage is one part of the model and its backward is one action.
  bool whole() const { return chunks == 1 && !parts_backward; }
  // Returns why there is no schedule of this size, or empty.
  std::string why_not(const Size& size) const;
};

const std::vector<Schedule>& schedules();
std::vector<std::string> schedule_names();
// Throws std::invalid_argument that names the nearest valid name.
const Schedule& find_schedule(std::string_view name);

// Returns the actions of every stage. Throws std::invalid_argument with the reason if the size is
// not supported.
StageSchedules all_stages(const Schedule& schedule, const Size& size);
StageSchedules all_stages(const Schedule& schedule, int stages, int micro_batches);

}  // namespace pipeline
