#include "zero/stages/transfers.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "machine/base/error.h"
#include "machine/world/step_clock.h"

namespace zero {
using machine::Operation;

Transfers::Transfers(const StepContext& context)
    : context_(context),
      worker_(context.options.overlap_comm && context.plan.dp > 1 && !context.transfers_apart()) {}

// A plan allocates its scratch in its first run. The caller waits for that run, because a ledger
// belongs to one thread.
Transfers::Ticket Transfers::start(Operation operation, Dtype dtype, std::int64_t count,
                                   std::string what, const std::function<void()>& job,
                                   collectives::Communicator* over) {
  std::unique_ptr<machine::Event> end;
  const Ticket ticket = worker_.submit([=, this, &end, what = std::move(what)] {
    std::optional<machine::During> over_dp;
    if (context_.plan.most_holders() > 1) over_dp.emplace(machine::Part::communication, "dp");
    announce(operation, dtype, count, over ? over->size() : context_.plan.most_holders());
    try {
      if (context_.transfers_apart())
        end = (over ? over : context_.communicators.dp)->run_apart(job);
      else
        job();
    } catch (const machine::Timeout& timeout) {
      const machine::Failure failure = timeout.failure();
      throw machine::Timeout(
          fmt::format("ZeRO stage {}, {}: {}", context_.stage, what, failure.text), failure.rank,
          failure.peer);
    }
  });
  if (end) ends_.emplace(ticket, std::move(end));
  if (context_.transfers_apart()) return ticket;
  if (known_.insert({over, operation, dtype, count}).second) worker_.wait(ticket);
  return ticket;
}

void Transfers::wait(Ticket ticket) {
  worker_.wait(ticket);
  const auto later = ends_.upper_bound(ticket);
  if (later == ends_.begin()) return;
  const machine::During exposed(machine::Part::communication, "dp");
  for (auto end = ends_.begin(); end != later; ++end)  // of both groups, whose streams differ
    context_.device().stream().wait(*end->second);
  ends_.erase(ends_.begin(), later);
}

void Transfers::wait_all() {
  worker_.wait_all();
  if (!ends_.empty()) wait(ends_.rbegin()->first);
}

void Transfers::announce(Operation operation, Dtype dtype, std::int64_t count, int ranks) const {
  if (!context_.options.before_transfer) return;
  const bool whole = operation == Operation::all_reduce;
  const std::int64_t sent = std::int64_t{ranks - 1} * (whole ? 2 * (count / ranks) : count);
  context_.options.before_transfer(static_cast<std::size_t>(sent) * machine::size_of(dtype));
}

}  // namespace zero
