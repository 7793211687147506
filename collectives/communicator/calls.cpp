#include "collectives/communicator/calls.h"

#include "collectives/communicator/communicator.h"

namespace collectives {

std::string_view usual_algorithm(const CollectiveCalls& calls, machine::Transport transport,
                                 const GroupAlgorithms& algorithms) {
  if (const std::string_view chosen = algorithms.of(calls.operation); !chosen.empty())
    return chosen;
  // A communicator selects by the length of its input.
  const std::int64_t input =
      calls.operation == machine::Operation::all_gather ? calls.count() : calls.elements;
  return default_algorithm(calls.operation, transport,
                           static_cast<std::size_t>(input) * size_of(calls.dtype), calls.ranks);
}

void CallsCost::add(const CollectiveCalls& calls, std::string_view algorithm, int rank) {
  if (calls.ranks == 1) return;
  if (algorithm == library)
    by_library_[calls.group].insert({calls.operation, calls.dtype});
  else
    add(calls, find_algorithm(calls.operation, algorithm), {rank, calls.ranks, 1, calls.root}, 0);
}

void CallsCost::add(const CollectiveCalls& calls, Communicator& group, std::string_view asked) {
  if (calls.ranks == 1) return;
  const std::string_view name =
      asked.empty() ? usual_algorithm(calls, group.link().transport(), group.algorithms()) : asked;
  if (name == library) return add(calls, name, group.rank());
  const Algorithm& algorithm = find_algorithm(calls.operation, name);
  const Call call{group.rank(), calls.ranks, 1, calls.root, group.inner()};
  const auto* const rounds =
      group.rounds({&algorithm, calls.count(), calls.dtype, false, calls.root, group.inner()});
  add(calls, algorithm, call,
      rounds ? staging_bytes(algorithm, call, calls.count(), calls.dtype, *rounds) : 0);
}

void CallsCost::add(const CollectiveCalls& calls, const Algorithm& algorithm, const Call& call,
                    std::size_t staging) {
  const machine::TrafficLabel label{calls.operation, calls.dtype};
  const machine::Traffic one = expected_traffic(algorithm, call, calls.count(), calls.dtype);
  machine::Traffic& sum = traffic_[calls.group][label];
  for (std::int64_t i = 0; i < calls.calls; ++i) sum += one;
  kept_[{calls.group, label, calls.elements, calls.root}] = {
      scratch_bytes(algorithm, call, calls.count(), calls.dtype), staging};
}

CallsCost::ByLabel CallsCost::traffic(const std::string& group) const {
  const auto found = traffic_.find(group);
  return found == traffic_.end() ? ByLabel{} : found->second;
}

std::set<machine::TrafficLabel> CallsCost::by_library(const std::string& group) const {
  const auto found = by_library_.find(group);
  return found == by_library_.end() ? std::set<machine::TrafficLabel>{} : found->second;
}

std::size_t CallsCost::scratch() const {
  std::size_t bytes = 0;
  for (const auto& [call, kept] : kept_) bytes += kept.scratch;
  return bytes;
}

std::size_t CallsCost::staging() const {
  std::size_t bytes = 0;
  for (const auto& [call, kept] : kept_) bytes += kept.staging;
  return bytes;
}

}  // namespace collectives
