#include "collectives/plan.h"

#include <fmt/format.h>

#include <stdexcept>

#include "collectives/algorithms/direct.h"
#include "collectives/algorithms/direct_one_step.h"
#include "collectives/algorithms/dissemination.h"
#include "collectives/algorithms/ring.h"
#include "machine/device/names.h"

namespace collectives {

namespace {
int none_kept(const Call&) { return 0; }
}  // namespace

const std::vector<Algorithm>& algorithms() {
  using enum machine::Operation;
  static const std::vector<Algorithm> table{
      {all_reduce, "ring", ring::paper, ring::all_reduce, ring::all_reduce_volume, none_kept,
       false},
      {all_reduce, "direct", direct::paper, direct::all_reduce, direct::all_reduce_volume,
       direct::reduce_bays},
      {all_reduce, "direct_one_step", direct_one_step::paper, direct_one_step::all_reduce,
       direct_one_step::volume, direct_one_step::bays},
      {all_gather, "ring", ring::paper, ring::all_gather, ring::one_lap_volume},
      {all_gather, "direct", direct::paper, direct::all_gather, direct::one_step_volume},
      {reduce_scatter, "ring", ring::paper, ring::reduce_scatter, ring::one_lap_volume,
       ring::reduce_scatter_bays, false},
      {reduce_scatter, "direct", direct::paper, direct::reduce_scatter, direct::one_step_volume,
       direct::reduce_bays},
      {broadcast, "ring", ring::paper, ring::broadcast, ring::broadcast_volume},
      {broadcast, "direct", direct::paper, direct::broadcast, direct::from_root_volume},
      {reduce, "ring", ring::paper, ring::reduce, ring::reduce_volume, ring::reduce_bays},
      {reduce, "direct", direct::paper, direct::reduce, direct::to_root_volume,
       direct::rooted_bays},
      {gather, "direct", direct::paper, direct::gather, direct::to_root_volume},
      {scatter, "direct", direct::paper, direct::scatter, direct::from_root_volume},
      {all_to_all, "direct", direct::paper, direct::all_to_all, direct::one_step_volume},
      {barrier, "dissemination", dissemination::paper, dissemination::barrier,
       dissemination::volume},
      {send_receive, "direct", direct::paper, direct::send_receive, direct::send_receive_volume},
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
    case send_receive:
    case barrier:  // of nothing
    case none:
      break;
  }
  return {Extent::whole, Extent::whole};
}

bool may_be_in_place(machine::Operation operation) {
  using enum machine::Operation;
  return operation != all_to_all && operation != send_receive && operation != barrier;
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
