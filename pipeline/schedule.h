#pragma once
// A pipeline schedule is data: for each stage the list of its actions, in order. It knows nothing
// of tensors, ranks or links. The same list is proved (prove.h), timed and drawn (simulate.h) and
// executed (execute.h).
//
//   text(find_schedule("1f1b").stage(0, 4, 4))   // "F0 F1 F2 F3 B0 B1 B2 B3"
//
// To add a schedule: write its pure function in schedules/NAME.h with the paper's figure as
// static_assert, and give it a row in schedule.cpp with the peak and the makespan that the paper
// claims. prove_test.cpp then proves it for every count of stages and micro-batches, and the
// executor runs it as it is. A zero-bubble schedule (ZB-H1: Qi et al. 2024, arXiv:2401.10241)
// writes I and W where 1F1B writes B; the rules of the two halves are already proved, timed and
// executed.

#include <compare>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pipeline {

enum class Kind : unsigned char {
  forward,           // F
  backward_input,    // I: the gradient of the stage's input, which the stage before waits for
  backward_weights,  // W: the gradients of its parameters, which only the optimizer waits for
  backward,          // B: both, as one action; the gradient of the input leaves when it ends
};

// One micro-batch through one chunk of layers. A stage holds one chunk, or several with
// interleaving: then chunk c of stage i is the (c * stages + i)-th part of the model (Narayanan et
// al. 2021, arXiv:2104.04473).
struct Action {
  Kind kind = Kind::forward;
  int micro_batch = 0;
  int chunk = 0;
  auto operator<=>(const Action&) const = default;
};

using StageSchedule = std::vector<Action>;          // of one stage
using StageSchedules = std::vector<StageSchedule>;  // of all stages, first to last

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

namespace detail {
constexpr void append_number(std::string& out, int number) {
  if (number < 0) out += '-';
  std::string digits;
  long rest = number < 0 ? -static_cast<long>(number) : number;
  do digits.insert(digits.begin(), static_cast<char>('0' + rest % 10));
  while (rest /= 10);
  out += digits;
}

constexpr int take_number(std::string_view& word) {
  if (word.empty() || word[0] < '0' || word[0] > '9')
    throw std::invalid_argument("schedule: a number is missing");
  int number = 0;
  for (; !word.empty() && word[0] >= '0' && word[0] <= '9'; word.remove_prefix(1)) {
    if (number > 99'999'999) throw std::invalid_argument("schedule: the number is too large");
    number = 10 * number + (word[0] - '0');
  }
  return number;
}
}  // namespace detail

// "F0"; chunk 2 of micro-batch 0 is "F0.2".
constexpr std::string text(const Action& action) {
  std::string out(1, letter(action.kind));
  detail::append_number(out, action.micro_batch);
  if (action.chunk != 0) {
    out += '.';
    detail::append_number(out, action.chunk);
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

// Reads what text() writes. Throws std::invalid_argument on anything else.
constexpr Action parse_action(std::string_view word) {
  const std::size_t kind =
      word.empty() ? std::string_view::npos : std::string_view("FIWB").find(word[0]);
  if (kind == std::string_view::npos)
    throw std::invalid_argument("schedule: an action starts with F, B, I or W");
  word.remove_prefix(1);
  Action action{static_cast<Kind>(kind), detail::take_number(word), 0};
  if (!word.empty() && word[0] == '.') {
    word.remove_prefix(1);
    action.chunk = detail::take_number(word);
  }
  if (!word.empty()) throw std::invalid_argument("schedule: an action reads like F0 or F0.1");
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

// The most micro-batches that are alive at once: forward makes one alive (its input is kept), the
// end of its backward, or of its backward_weights where the halves are parted, ends it. Chunks
// count apart.
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
static_assert(text(parse("F0 F10.2 I0 W0 B10.2")) == "F0 F10.2 I0 W0 B10.2");

// Seconds, or any unit, that one action takes on one stage. transfer is what a message to a
// neighbour takes beside them; it delays the receiver, never the sender.
struct Costs {
  double forward = 1, backward_input = 1, backward_weights = 1, transfer = 0;
  constexpr double backward() const { return backward_input + backward_weights; }
  constexpr double of(Kind kind) const {
    switch (kind) {
      case Kind::forward:
        return forward;
      case Kind::backward_input:
        return backward_input;
      case Kind::backward_weights:
        return backward_weights;
      case Kind::backward:
        return backward();
    }
    return 0;
  }
};

// A schedule as listed: `shardmark list`, axis values and the prover's tests all read schedules().
struct Schedule {
  std::string_view name;    // as the literature names it
  std::string_view source;  // paper
  StageSchedule (*stage)(int stage, int stages, int micro_batches);
  // What the paper claims, proved against the actions: the most micro-batches alive on a stage, and
  // the time of a step when all stages cost the same and transfers cost nothing.
  int (*peak_activations)(int stage, int stages, int micro_batches);
  double (*makespan)(int stages, int micro_batches, const Costs& costs);
};

const std::vector<Schedule>& schedules();
// Throws std::invalid_argument naming the nearest right name.
const Schedule& find_schedule(std::string_view name);

// The actions of every stage. Throws std::invalid_argument unless stages and micro_batches are
// positive.
StageSchedules all_stages(const Schedule& schedule, int stages, int micro_batches);

}  // namespace pipeline
