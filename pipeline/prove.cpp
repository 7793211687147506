#include "pipeline/prove.h"

#include <fmt/format.h>

#include "pipeline/messages.h"

namespace pipeline {
namespace {

// How far one micro-batch of one chunk has come.
struct Progress {
  bool forward = false, backward_input = false, backward_weights = false;
};

// The order of the actions of one stage, whatever the other stages do.
std::optional<Fault> stage_fault(const StageSchedule& schedule, int stage, int micro_batches,
                                 int chunks) {
  std::vector<Progress> progress(static_cast<std::size_t>(micro_batches * chunks));
  const auto fault = [&](std::size_t position, std::string what) {
    return Fault{stage, position, std::move(what)};
  };
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    const Action& action = schedule[i];
    if (action.micro_batch < 0 || action.micro_batch >= micro_batches || action.chunk < 0) {
      return fault(i,
                   fmt::format("{} is not one of {} micro-batches", text(action), micro_batches));
    }
    Progress& at =
        progress[static_cast<std::size_t>(action.chunk * micro_batches + action.micro_batch)];
    const bool full = action.kind == Kind::backward;
    if (action.kind == Kind::forward) {
      if (at.forward) return fault(i, fmt::format("{} runs a second time", text(action)));
      at.forward = true;
      continue;
    }
    if (!at.forward) {
      return fault(i, fmt::format("{} comes before {}", text(action),
                                  text(forward(action.micro_batch, action.chunk))));
    }
    if (full || action.kind == Kind::backward_input) {
      if (at.backward_input) return fault(i, fmt::format("{} runs a second time", text(action)));
      at.backward_input = true;
    }
    if (full || action.kind == Kind::backward_weights) {
      if (!at.backward_input) {
        return fault(i, fmt::format("{} comes before {}", text(action),
                                    text(backward_input(action.micro_batch, action.chunk))));
      }
      if (at.backward_weights) return fault(i, fmt::format("{} runs a second time", text(action)));
      at.backward_weights = true;
    }
  }
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (int m = 0; m < micro_batches; ++m) {
      const Progress& at = progress[static_cast<std::size_t>(chunk * micro_batches + m)];
      const char* missing = !at.forward            ? "forward"
                            : !at.backward_input   ? "backward"
                            : !at.backward_weights ? "backward_weights"
                                                   : nullptr;
      if (missing) {
        return fault(schedule.size(),
                     fmt::format("{} of micro-batch {}{} is missing", missing, m,
                                 chunks > 1 ? fmt::format(" of chunk {}", chunk) : ""));
      }
    }
  }
  return {};
}

std::optional<Fault> find_fault(const StageSchedules& schedules, int micro_batches) {
  for (std::size_t stage = 0; stage < schedules.size(); ++stage) {
    auto fault = stage_fault(schedules[stage], static_cast<int>(stage), micro_batches,
                             num_chunks(schedules));
    if (fault) return fault;
  }
  return simulate_or_fault(schedules, std::vector<Costs>(schedules.size())).fault;
}

// Whole numbers, so that sums of them are exact in double: unlike primes, and F longer than B.
constexpr Costs proof_costs[] = {{5, 3, 11}, {3, 2, 0}};

}  // namespace

Proof prove(const StageSchedules& schedules, int micro_batches) {
  const auto fault = find_fault(schedules, micro_batches);
  return {fault ? fmt::format("{} stages, {} micro-batches:\n{}", schedules.size(), micro_batches,
                              draw(schedules, fault))
                : ""};
}

Proof prove(const Schedule& schedule, int stages, int micro_batches) {
  const StageSchedules actions = all_stages(schedule, stages, micro_batches);
  if (Proof proof = prove(actions, micro_batches); !proof)
    return {fmt::format("{}, {}", schedule.name, proof.fault)};

  const auto refuse = [&](const std::string& what) {
    return Proof{fmt::format("{}, {} stages, {} micro-batches: {}\n{}", schedule.name, stages,
                             micro_batches, what, draw(actions))};
  };
  for (int stage = 0; stage < stages; ++stage) {
    const int peak = peak_activations(actions[static_cast<std::size_t>(stage)]);
    const int claimed = schedule.peak_activations(stage, stages, micro_batches);
    if (peak != claimed) {
      return refuse(fmt::format("{} micro-batches are alive at once on stage {}, {} claimed", peak,
                                stage, claimed));
    }
  }
  for (const Costs& costs : proof_costs) {
    const double makespan = simulate(actions, std::vector<Costs>(actions.size(), costs)).makespan_s;
    const double claimed = schedule.makespan(stages, micro_batches, costs);
    if (makespan != claimed) {
      return refuse(fmt::format("a step takes {}, {} claimed, where F = {}, I = {}, W = {}",
                                makespan, claimed, costs.forward, costs.backward_input,
                                costs.backward_weights));
    }
  }
  return {};
}

}  // namespace pipeline
