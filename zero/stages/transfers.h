#pragma once
// Runs a step's collectives over dp one after the other. With overlap_comm they run on a thread of
// their own, or on a GPU in the stream of the group's link; otherwise at once.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "machine/world/worker.h"
#include "zero/stages/step_context.h"

namespace zero {

class Transfers {
 public:
  using Ticket = machine::Worker::Ticket;
  explicit Transfers(const StepContext& context);  // context: must outlive this

  // what: for the message of a timeout. count: elements of the whole buffer (all_reduce) or of a
  // share. The job must not allocate or free memory, and queues its work on
  // StepContext::transfer_stream().
  // over: the group of the job's collective; null: dp.
  Ticket start(machine::Operation operation, Dtype dtype, std::int64_t count, std::string what,
               const std::function<void()>& job, collectives::Communicator* over = nullptr);
  // Until the job and all earlier jobs have ended. In a stream of the link, only later work of the
  // device's stream waits.
  void wait(Ticket ticket);
  void wait_all();
  void stop() { worker_.stop(); }

 private:
  void announce(machine::Operation operation, Dtype dtype, std::int64_t count, int ranks) const;

  const StepContext& context_;
  std::set<std::tuple<collectives::Communicator*, machine::Operation, Dtype, std::int64_t>> known_;
  std::map<Ticket, std::unique_ptr<machine::Event>> ends_;  // in the links' streams, not awaited
  machine::Worker worker_;  // last member: its thread uses the others
};

}  // namespace zero
