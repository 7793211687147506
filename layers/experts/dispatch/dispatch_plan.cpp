#include "layers/experts/dispatch/dispatch_plan.h"

namespace layers {
namespace {

std::size_t index_of(std::int64_t value) { return static_cast<std::size_t>(value); }

// Appends the rows for an expert from the choices of one rank. first_slot: of the choices.
void append(const MoeConfig& config, std::span<const std::int32_t> choices, std::int64_t first_slot,
            int expert, TokenRows& rows) {
  std::int64_t added = 0;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] != expert) continue;
    const auto slot = static_cast<std::int32_t>(first_slot + static_cast<std::int64_t>(i));
    rows.slot.push_back(slot);
    rows.token.push_back(slot / config.topk);
    ++added;
  }
  if (!config.pads()) return;
  const auto tokens = static_cast<std::int64_t>(choices.size()) / config.topk;
  for (; added < config.capacity(tokens); ++added) {
    rows.slot.push_back(-1);
    rows.token.push_back(-1);
  }
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
  for (int to = 0; to < ranks; ++to)
    for (int i = 0; i < each; ++i)
      append(config, routing.choices, 0, to / degrees.etp * each + i, plan.sent);
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

AllGatherPlan all_gather_plan(const MoeConfig& config, ExpertParallel degrees, int rank,
                              std::span<const std::int32_t> choices) {
  const int ranks = degrees.ranks(), each = config.num_experts / degrees.ep;
  const std::size_t own = choices.size() / index_of(ranks);
  AllGatherPlan plan;
  for (int i = 0; i < each; ++i) {
    const std::size_t before = plan.held.token.size();
    for (std::size_t from = 0; from < index_of(ranks); ++from)
      append(config, choices.subspan(from * own, own), static_cast<std::int64_t>(from * own),
             rank / degrees.etp * each + i, plan.held);
    plan.rows.push_back(static_cast<std::int64_t>(plan.held.token.size() - before));
  }
  return plan;
}

}  // namespace layers
