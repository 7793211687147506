#include "collectives/communicator/calls.h"

#include "collectives/communicator/communicator.h"

namespace collectives {

std::string_view usual_algorithm(const CollectiveCalls& calls, machine::Transport transport) {
  // A communicator selects by the length of its input.
  const std::int64_t input =
      calls.operation == machine::Operation::all_gather ? calls.count() : calls.elements;
  return default_algorithm(calls.operation, transport,
                           static_cast<std::size_t>(input) * size_of(calls.dtype), calls.ranks);
}

void CallsCost::add(const CollectiveCalls& calls, std::string_view algorithm, int rank) {
  if (calls.ranks == 1) return;
  const Algorithm& found = find_algorithm(calls.operation, algorithm);
  const Call call{rank, calls.ranks};
  const machine::TrafficLabel label{calls.operation, calls.dtype};
  const machine::Traffic one = expected_traffic(found, call, calls.count(), calls.dtype);
  machine::Traffic& sum = traffic_[calls.group][label];
  for (std::int64_t i = 0; i < calls.calls; ++i) sum += one;
  scratch_[{calls.group, label, calls.elements}] =
      scratch_bytes(found, call, calls.count(), calls.dtype);
}

CallsCost::ByLabel CallsCost::traffic(const std::string& group) const {
  const auto found = traffic_.find(group);
  return found == traffic_.end() ? ByLabel{} : found->second;
}

std::size_t CallsCost::scratch() const {
  std::size_t bytes = 0;
  for (const auto& [call, size] : scratch_) bytes += size;
  return bytes;
}

}  // namespace collectives
