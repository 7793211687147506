#include "suite/configuration/group_algorithms.h"

#include <fmt/format.h>

#include <span>
#include <stdexcept>
#include <string>

#include "collectives/plan.h"
#include "pipeline/schedule.h"

namespace suite {
namespace {

using collectives::GroupAlgorithms;
using machine::Operation;
using machine::Transport;

constexpr Operation of_tp_and_dp[] = {Operation::all_reduce, Operation::all_gather,
                                      Operation::reduce_scatter};
constexpr Operation of_embedding[] = {Operation::all_reduce};

// A group that has a key.
struct Selected {
  std::string_view group;
  const std::string& text;  // empty: the default
  int ranks;
  std::span<const Operation> operations;
  bool by_library;  // by default, over nccl
};

std::vector<Selected> selected(const TrainingConfig& config) {
  const TrainingConfig::Algorithms& all = config.algorithms;
  return {{"tp", all.tp, config.degrees.tp, of_tp_and_dp, true},
          {"dp", all.dp, config.shards(), of_tp_and_dp, true},
          {"hpz", all.dp, std::max(1, config.zero.options.plus_plus.hpz_partition_size),
           of_tp_and_dp, true},
          {"embedding", all.embedding, config.degrees.pp > 1 ? 2 : 1, of_embedding, false}};
}

GroupAlgorithms read(const Selected& one, const GroupAlgorithms& others) {
  if (one.text.empty()) return others;
  try {
    return collectives::read_algorithms(one.text, one.operations, others);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(fmt::format("{}-algorithm: {}", one.group, error.what()));
  }
}

// Returns whether two stages hold the same parameter: both copies of a model, or a tied table of
// the first and the last stage.
bool two_stages_hold_a_parameter(const TrainingConfig& config, std::string_view group) {
  if (config.degrees.pp == 1) return false;
  const pipeline::Schedule& schedule = pipeline::find_schedule(config.pipeline.schedule);
  const pipeline::Placement placement =
      schedule.placement({config.degrees.pp, config.micro_batches(),
                          config.pipeline.virtual_stages.value_or(schedule.chunks)});
  if (placement.copies() > 1) return true;
  // The table is sharded over tp, so its gradients are not summed there.
  return group == "dp" && !config.model.untie_embeddings_and_output_weights &&
         placement.at(0, 0).stage != placement.at(0, placement.parts() - 1).stage;
}

// Returns the named algorithm of our table, or null.
const collectives::Algorithm* in_table(Operation operation, std::string_view name) {
  return name.empty() || name == collectives::library
             ? nullptr
             : &collectives::find_algorithm(operation, name);
}

}  // namespace

void check_algorithm_names(const TrainingConfig& config) {
  for (const Selected& one : selected(config)) {
    const GroupAlgorithms names = read(one, {});
    for (const Operation operation : one.operations)
      if (names.of(operation) == collectives::library && config.transport != Transport::mpi &&
          config.transport != Transport::nccl)
        throw std::invalid_argument(
            fmt::format("{}-algorithm {} requires transport mpi or nccl (got {})", one.group,
                        one.text, machine::name(config.transport)));
  }
}

GroupAlgorithms group_algorithms(const TrainingConfig& config, std::string_view group) {
  for (const Selected& one : selected(config)) {
    if (one.group != group) continue;
    const bool in_one_order = one.ranks > 2 && two_stages_hold_a_parameter(config, group);
    GroupAlgorithms usual;
    if (one.by_library && config.transport == Transport::nccl)
      for (const Operation operation : one.operations)
        if (!in_one_order || !collectives::reduces(operation))
          usual.set(operation, collectives::library);
    const layers::ActivationOptions& activations = config.activations;
    if (group == "tp" && activations.tp_comm.enabled && activations.sequence_parallel &&
        !in_one_order)
      usual = collectives::algorithms_by_share(usual);
    GroupAlgorithms names = read(one, usual);
    for (const Operation operation : one.operations) {
      const std::string_view name = names.of(operation);
      const collectives::Algorithm* const algorithm = in_table(operation, name);
      if (in_one_order && collectives::reduces(operation) && !name.empty() &&
          !(algorithm && algorithm->one_order))
        throw std::invalid_argument(
            fmt::format("{}-algorithm {}: {} by {} adds in an order that depends on the place in a "
                        "buffer, but two stages hold the same parameters and must get the same "
                        "bits; use all_reduce=ours,reduce_scatter=ours",
                        group, one.text, machine::name(operation), name));
      if (!algorithm || one.ranks == 1) continue;
      if (const std::string why = algorithm->refuses({0, one.ranks}); !why.empty())
        throw std::invalid_argument(fmt::format("{}-algorithm {}: {} by {}: {}", group, one.text,
                                                machine::name(operation), name, why));
    }
    return names;
  }
  return {};
}

void validate_algorithms(const TrainingConfig& config) {
  check_algorithm_names(config);
  for (const Selected& one : selected(config)) group_algorithms(config, one.group);
}

}  // namespace suite
