#include "collectives/plan.h"

#include <fmt/format.h>

#include <stdexcept>

#include "collectives/algorithms/direct.h"
#include "collectives/algorithms/direct_one_step.h"
#include "collectives/algorithms/ring.h"
#include "machine/device/names.h"

namespace collectives {

const std::vector<Algorithm>& algorithms() {
  using enum machine::Operation;
  static const std::vector<Algorithm> table{
      {all_reduce, "ring", ring::paper, ring::all_reduce, ring::all_reduce_elements,
       ring::all_reduce_messages},
      {all_reduce, "direct", direct::paper, direct::all_reduce, direct::all_reduce_elements,
       direct::all_reduce_messages},
      {all_reduce, "direct_one_step", direct_one_step::paper, direct_one_step::all_reduce,
       direct_one_step::elements, direct_one_step::messages},
      {all_gather, "ring", ring::paper, ring::all_gather, ring::one_lap_elements,
       ring::one_lap_messages},
      {all_gather, "direct", direct::paper, direct::all_gather, direct::one_step_elements,
       direct::one_step_messages},
      {reduce_scatter, "ring", ring::paper, ring::reduce_scatter, ring::one_lap_elements,
       ring::one_lap_messages},
      {reduce_scatter, "direct", direct::paper, direct::reduce_scatter, direct::one_step_elements,
       direct::one_step_messages},
  };
  return table;
}

const Algorithm& find_algorithm(machine::Operation operation, std::string_view name) {
  std::vector<std::string> known;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.operation != operation) continue;
    if (algorithm.name == name) return algorithm;
    known.emplace_back(algorithm.name);
  }
  throw std::invalid_argument(
      machine::unknown(fmt::format("{} algorithm", machine::name(operation)), name, known));
}

namespace {

std::string text(Slice slice) {
  constexpr std::string_view names[] = {"input", "output", "scratch"};
  const std::string_view name = names[static_cast<std::size_t>(slice.buffer)];
  if (slice.count == 1) return fmt::format("{}[{}]", name, slice.first);
  return fmt::format("{}[{}:{}]", name, slice.first, slice.first + slice.count);
}

}  // namespace

std::string text(const Step& step) {
  switch (step.verb) {
    case Verb::send:
      return fmt::format("send {} {}", step.peer, text(step.source));
    case Verb::receive:
      return fmt::format("receive {} {}", step.peer, text(step.target));
    case Verb::post:
      return fmt::format("post {} {}", step.peer, text(step.target));
    case Verb::receive_reduce:
      return fmt::format("receive_reduce {} {} -> {}", step.peer, text(step.source),
                         text(step.target));
    case Verb::copy:
      return fmt::format("copy {} -> {}", text(step.source), text(step.target));
    case Verb::reduce:
      return fmt::format("reduce {} -> {}", text(step.source), text(step.target));
  }
  return "?";
}

std::string text(const Plan& plan) {
  std::string result;
  for (const Step& step : plan.steps) result += (result.empty() ? "" : "; ") + text(step);
  return result;
}

}  // namespace collectives
