#include "collectives/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "machine/base/names.h"

namespace collectives {

bool reads_inner(const Algorithm& algorithm) {
  return algorithm.plan({0, 6, 1, 0, 2}).steps != algorithm.plan({0, 6, 1, 0, 3}).steps;
}

const Algorithm& find_algorithm(machine::Operation operation, std::string_view name) {
  const auto found = std::ranges::find_if(algorithms(), [&](const Algorithm& algorithm) {
    return algorithm.operation == operation && algorithm.name == name;
  });
  if (found != algorithms().end()) return *found;
  std::vector<std::string> known;
  for (const Algorithm& algorithm : algorithms())
    if (algorithm.operation == operation) known.emplace_back(algorithm.name);
  throw std::invalid_argument(
      machine::unknown(fmt::format("{} algorithm", machine::name(operation)), name, known));
}

Extents extents(machine::Operation operation, const Call& call) {
  using enum machine::Operation;
  const bool root = call.rank == call.root;
  switch (operation) {
    case all_gather:
      return {Extent::own_share, Extent::whole};
    case reduce_scatter:
      return {Extent::whole, Extent::own_share};
    case broadcast:
      return {root ? Extent::whole : Extent::none, Extent::whole};
    case reduce:
      return {Extent::whole, root ? Extent::whole : Extent::none};
    case gather:
      return {Extent::own_share, root ? Extent::whole : Extent::none};
    case scatter:
      return {root ? Extent::whole : Extent::none, Extent::own_share};
    case all_reduce:
    case all_to_all:
    case all_to_all_v:
    case send_receive:
    case barrier:  // without data
    case none:
      break;
  }
  return {Extent::whole, Extent::whole};
}

bool may_be_in_place(machine::Operation operation) {
  using enum machine::Operation;
  return operation != all_to_all && operation != all_to_all_v && operation != send_receive &&
         operation != barrier;
}

bool reduces(machine::Operation operation) {
  using enum machine::Operation;
  return operation == all_reduce || operation == reduce_scatter || operation == reduce;
}

bool has_root(machine::Operation operation) {
  using enum machine::Operation;
  return operation == broadcast || operation == reduce || operation == gather ||
         operation == scatter;
}

bool deals_in_shares(machine::Operation operation) {
  using enum machine::Operation;
  return operation == all_gather || operation == reduce_scatter || operation == gather ||
         operation == scatter || operation == all_to_all;
}

namespace {

std::string text(Slice slice) {
  constexpr std::string_view names[] = {"input", "output", "scratch"};
  const std::string_view name = names[static_cast<std::size_t>(slice.buffer)];
  const std::string like =
      slice.buffer == Buffer::scratch ? fmt::format(" like {}", slice.like) : std::string();
  if (slice.count == 1) return fmt::format("{}[{}{}]", name, slice.first, like);
  return fmt::format("{}[{}:{}{}]", name, slice.first, slice.first + slice.count, like);
}

}  // namespace

std::string text(const Step& step) {
  switch (step.verb) {
    case Verb::send:
      return fmt::format("{} {} {}", step.pushes ? "push" : "send", step.peer, text(step.source));
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
