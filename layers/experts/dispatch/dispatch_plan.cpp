#include "layers/experts/dispatch/dispatch_plan.h"

namespace layers {
namespace {

std::size_t index_of(std::int64_t value) { return static_cast<std::size_t>(value); }

// Returns the choices of one rank by expert: their slots, ascending.
std::vector<std::vector<std::int32_t>> slots_of_experts(const MoeConfig& config,
                                                        std::span<const std::int32_t> choices) {
  std::vector<std::vector<std::int32_t>> slots(index_of(config.num_experts));
  const std::size_t even = choices.size() / slots.size();
  for (std::vector<std::int32_t>& of_expert : slots) of_expert.reserve(2 * even);
  for (std::size_t i = 0; i < choices.size(); ++i)
    if (choices[i] >= 0) slots[index_of(choices[i])].push_back(static_cast<std::int32_t>(i));
  return slots;
}

// Appends the rows for an expert, from slots of one rank. capacity: with padding, else 0.
// first_slot: of this rank.
void append(const MoeConfig& config, std::span<const std::int32_t> slots, std::int64_t capacity,
            std::int64_t first_slot, TokenRows& rows) {
  for (const std::int32_t own : slots) {
    const auto slot = static_cast<std::int32_t>(first_slot + own);
    rows.slot.push_back(slot);
    rows.token.push_back(slot / config.topk);
  }
  for (std::int64_t added = std::ssize(slots); added < capacity; ++added) {
    rows.slot.push_back(-1);
    rows.token.push_back(-1);
  }
}

std::int64_t padded_rows(const MoeConfig& config, std::size_t choices) {
  return config.pads() ? config.capacity(static_cast<std::int64_t>(choices) / config.topk) : 0;
}

}  // namespace

std::vector<std::int32_t> rows_of_experts(const MoeConfig& config, const Routing& routing) {
  std::vector<std::int32_t> rows(index_of(config.num_experts));
  for (const std::int32_t expert : routing.choices)
    if (expert >= 0) ++rows[index_of(expert)];
  if (config.pads())
    rows.assign(rows.size(), static_cast<std::int32_t>(config.capacity(routing.tokens)));
  return rows;
}

AllToAllPlan all_to_all_plan(const MoeConfig& config, ExpertParallel degrees, int rank,
                             const Routing& routing, std::span<const std::int32_t> counts) {
  const int ranks = degrees.ranks(), each = config.num_experts / degrees.ep;
  AllToAllPlan plan;
  const auto slots = slots_of_experts(config, routing.choices);
  const std::int64_t capacity = padded_rows(config, routing.choices.size());
  for (std::vector<std::int32_t>* column : {&plan.sent.slot, &plan.sent.token})
    column->reserve(index_of(degrees.etp) * routing.choices.size());
  for (int to = 0; to < ranks; ++to)
    for (int i = 0; i < each; ++i)
      append(config, slots[index_of(to / degrees.etp * each + i)], capacity, 0, plan.sent);
  const auto rows_from = [&](int from, int expert) {
    return std::int64_t{counts[index_of(std::int64_t{from} * config.num_experts + expert)]};
  };
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to) {
      std::int64_t rows = 0;
      for (int i = 0; i < each; ++i) rows += rows_from(from, to / degrees.etp * each + i);
      plan.to_experts.push_back(rows);
    }
  const int first = rank / degrees.etp * each;
  std::vector<std::int64_t> begins;  // of the received rows of [sender, expert]
  std::int64_t received = 0;
  for (int from = 0; from < ranks; ++from)
    for (int i = 0; i < each; ++i) {
      begins.push_back(received);
      received += rows_from(from, first + i);
    }
  plan.received.resize(index_of(received));
  plan.arranged.reserve(index_of(received));
  for (int i = 0; i < each; ++i) {
    std::int64_t of_expert = 0;
    for (int from = 0; from < ranks; ++from) {
      const std::int64_t count = rows_from(from, first + i);
      const std::int64_t begin = begins[index_of(std::int64_t{from} * each + i)];
      for (std::int64_t row = begin; row < begin + count; ++row) {
        plan.received[index_of(row)] = static_cast<std::int32_t>(plan.arranged.size());
        plan.arranged.push_back(static_cast<std::int32_t>(row));
      }
      of_expert += count;
    }
    plan.rows.push_back(of_expert);
  }
  return plan;
}

std::vector<ExpertRun> expert_runs(const MoeConfig& config, ExpertParallel degrees, int from,
                                   int to, std::span<const std::int32_t> counts) {
  const int each = config.num_experts / degrees.ep, first = to / degrees.etp * each;
  std::vector<ExpertRun> runs;
  std::int64_t packed = 0, place = 0;
  for (int expert = first; expert < first + each; ++expert)
    for (int sender = 0; sender < degrees.ranks(); ++sender) {
      const std::int64_t rows =
          counts[index_of(std::int64_t{sender} * config.num_experts + expert)];
      if (sender == from && rows > 0) runs.push_back({packed, place, rows});
      if (sender == from) packed += rows;
      place += rows;
    }
  return runs;
}

AllGatherPlan all_gather_plan(const MoeConfig& config, ExpertParallel degrees, int rank,
                              std::span<const std::int32_t> choices) {
  const int ranks = degrees.ranks(), each = config.num_experts / degrees.ep;
  const std::size_t own = choices.size() / index_of(ranks);
  const std::int64_t capacity = padded_rows(config, own);
  std::vector<std::vector<std::vector<std::int32_t>>> slots;  // of [rank, expert]
  for (std::size_t from = 0; from < index_of(ranks); ++from)
    slots.push_back(slots_of_experts(config, choices.subspan(from * own, own)));
  AllGatherPlan plan;
  for (int i = 0; i < each; ++i) {
    const std::size_t before = plan.held.token.size();
    for (std::size_t from = 0; from < index_of(ranks); ++from)
      append(config, slots[from][index_of(rank / degrees.etp * each + i)], capacity,
             static_cast<std::int64_t>(from * own), plan.held);
    plan.rows.push_back(static_cast<std::int64_t>(plan.held.token.size() - before));
  }
  return plan;
}

}  // namespace layers
