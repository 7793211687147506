#include "pipeline/prove.h"

#include <fmt/format.h>

#include "pipeline/messages.h"

namespace pipeline {
namespace {

// The progress of one micro-batch of one chunk.
struct Progress {
  bool forward = false, backward_input = false, backward_weights = false;
};

// Checks the order of the actions of one stage, independent of the other stages.
std::optional<Fault> stage_fault(const StageSchedules& schedules, int stage, int micro_batches) {
  const StageSchedule& schedule = schedules.of(stage);
  const Placement& placement = schedules.placement;
  const int chunks = placement.chunks();
  std::vector<Progress> progress(micro_batches * chunks);
  const auto fault = [&](std::size_t position, std::string what) {
    return Fault{stage, position, std::move(what)};
  };
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    const Action& action = schedule[i];
    if (action.micro_batch < 0 || action.micro_batch >= micro_batches)
      return fault(i,
                   fmt::format("{} is not one of {} micro-batches", text(action), micro_batches));
    if (action.chunk < 0 || action.chunk >= chunks)
      return fault(i, fmt::format("{} is not in one of {} chunks", text(action), chunks));
    const int copy = placement.copy_of(action.micro_batch, micro_batches);
    if (copy != placement.copy(stage, action.chunk))
      return fault(i, fmt::format("{} is of copy {} of the model", text(action), copy));
    Progress& at = progress[action.chunk * micro_batches + action.micro_batch];
    const bool full = action.kind == Kind::backward;
    if (action.kind == Kind::forward) {
      if (at.forward) return fault(i, fmt::format("{} runs a second time", text(action)));
      at.forward = true;
      continue;
    }
    if (!at.forward)
      return fault(i, fmt::format("{} comes before {}", text(action),
                                  text(forward(action.micro_batch, action.chunk))));
    if (full || action.kind == Kind::backward_input) {
      if (at.backward_input) return fault(i, fmt::format("{} runs a second time", text(action)));
      at.backward_input = true;
    }
    if (full || action.kind == Kind::backward_weights) {
      if (!at.backward_input)
        return fault(i, fmt::format("{} comes before {}", text(action),
                                    text(backward_input(action.micro_batch, action.chunk))));
      if (at.backward_weights) return fault(i, fmt::format("{} runs a second time", text(action)));
      at.backward_weights = true;
    }
  }
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (int m = 0; m < micro_batches; ++m) {
      if (placement.copy_of(m, micro_batches) != placement.copy(stage, chunk)) continue;
      const Progress& at = progress[chunk * micro_batches + m];
      const char* missing = !at.forward            ? "forward"
                            : !at.backward_input   ? "backward"
                            : !at.backward_weights ? "backward_weights"
                                                   : nullptr;
      if (missing)
        return fault(schedule.size(),
                     fmt::format("{} of micro-batch {}{} is missing", missing, m,
                                 chunks > 1 ? fmt::format(" of chunk {}", chunk) : ""));
    }
  }
  return {};
}

std::optional<Fault> find_fault(const StageSchedules& schedules, int micro_batches) {
  for (std::size_t stage = 0; stage < schedules.size(); ++stage)
    if (auto fault = stage_fault(schedules, static_cast<int>(stage), micro_batches)) return fault;
  return {};
}

Proof drawn(const StageSchedules& schedules, int micro_batches, const Fault& fault) {
  return {fmt::format("{} stages, {} micro-batches:\n{}", schedules.size(), micro_batches,
                      draw(schedules, fault)),
          {}};
}

// The zero-bubble papers' F = I = W, then different primes, then F longer than B. All are whole
// numbers, so that their sums are exact in double.
constexpr Costs proof_costs[] = {{1, 1, 1}, {5, 3, 11}, {3, 2, 0}};

}  // namespace

Proof prove(const StageSchedules& schedules, int micro_batches) {
  auto fault = find_fault(schedules, micro_batches);
  if (!fault)
    fault = simulate_or_fault(schedules, std::vector<Costs>(schedules.size()), false).fault;
  return fault ? drawn(schedules, micro_batches, *fault) : Proof{};
}

// A schedule that finishes for some costs finishes for all costs. So it is simulated again only to
// compare it with a formula.
Proof prove(const Schedule& schedule, const Size& size) {
  const StageSchedules actions = all_stages(schedule, size);
  const auto named = [&](const Proof& proof) {
    return Proof{fmt::format("{}, {}", schedule.name, proof.fault), {}};
  };
  const auto refuse = [&](const std::string& what) {
    return Proof{fmt::format("{}, {} stages of {} chunks, {} micro-batches: {}\n{}", schedule.name,
                             size.stages, size.chunks, size.micro_batches, what, draw(actions)),
                 {}};
  };
  if (const auto fault = find_fault(actions, size.micro_batches))
    return named(drawn(actions, size.micro_batches, *fault));
  for (int stage = 0; stage < size.stages; ++stage) {
    const int peak = peak_activations(actions.of(stage));
    const int claimed = schedule.peak(stage, size);
    if (peak != claimed)
      return refuse(
          fmt::format("{} micro-batches are live at once on stage {}; the paper claims {}", peak,
                      stage, claimed));
  }
  Proof proof;
  bool finishes = false;
  for (const Costs& costs : proof_costs) {
    const std::string where = fmt::format("F = {}, I = {}, W = {}", costs.forward,
                                          costs.backward_input, costs.backward_weights);
    const Formula claimed = schedule.span(size, costs);
    if (!claimed) {
      proof.unclaimed.push_back(fmt::format("{}: the formula needs {}", where, claimed.needs));
      if (finishes) continue;
    }
    const Simulation simulation =
        simulate_or_fault(actions, std::vector<Costs>(actions.size(), costs), false);
    if (simulation.fault) return named(drawn(actions, size.micro_batches, *simulation.fault));
    finishes = true;
    if (claimed && simulation.span_s != claimed.seconds)
      return refuse(fmt::format("a step takes {}; the paper claims {} for {}", simulation.span_s,
                                claimed.seconds, where));
  }
  return proof;
}

}  // namespace pipeline
