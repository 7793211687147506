#pragma once
// Runs a step's collectives over dp one after the other: with overlap_comm on its own thread,
// otherwise at once.

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <tuple>

#include "zero/offload/worker.h"
#include "zero/stages/step_context.h"

namespace zero {

class Transfers {
 public:
  using Ticket = Worker::Ticket;
  explicit Transfers(const StepContext& context);  // context: must outlive this

  // what: for the message of a timeout. count: elements of the whole buffer (all_reduce) or of a
  // share. The job must not allocate or free memory.
  Ticket start(machine::Operation operation, Dtype dtype, std::int64_t count, std::string what,
               const std::function<void()>& job);
  void wait(Ticket ticket) { worker_.wait(ticket); }
  void wait_all() { worker_.wait_all(); }
  void stop() { worker_.stop(); }

 private:
  void announce(machine::Operation operation, Dtype dtype, std::int64_t count) const;

  const StepContext& context_;
  std::set<std::tuple<machine::Operation, Dtype, std::int64_t>> known_;
  Worker worker_;  // last member: its thread uses the others
};

}  // namespace zero
