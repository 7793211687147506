// The cases of the collectives: axes, invalid combinations, and the slices of each profile.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "collectives/communicator/library.h"
#include "machine/link/connect.h"
#include "suite/collectives/collective_unit.h"
#include "suite/files/traffic.h"

namespace suite {

using collectives::automatic;
using collectives::has_root;
using collectives::reads_inner;
using collectives::reduces;
using machine::Reduction;

namespace {

bool has_inner(Operation operation) {
  return std::ranges::any_of(collectives::algorithms(), [&](const auto& algorithm) {
    return algorithm.operation == operation && reads_inner(algorithm);
  });
}
std::string why_not_inner(Operation operation, const CollectiveCase& c) {
  if (c.inner == automatic) return {};
  if (inner_of(c) < 1)
    return fmt::format("inner is '{}'; expected a number of ranks or {}", c.inner, automatic);
  if (c.algorithm == collectives::library ||
      (c.algorithm != automatic &&
       !reads_inner(collectives::find_algorithm(operation, c.algorithm))))
    return fmt::format("algorithm {} does not read inner", c.algorithm);
  if (c.ranks % inner_of(c) != 0)
    return fmt::format("inner {} does not divide {} ranks", c.inner, c.ranks);
  return {};
}

// Returns whether two algorithms have the same steps on every rank, for every number of pieces and
// near ranks.
bool same_plans(const collectives::Algorithm& one, const collectives::Algorithm& other, int ranks) {
  for (int inner = 1; inner <= ranks; ++inner)
    for (const int root : {0, 1})
      for (const int pieces : {1, 2})
        for (int rank = 0; rank < ranks && root < ranks && ranks % inner == 0; ++rank) {
          const collectives::Call call{rank, ranks, pieces, root, inner};
          if (!one.refuses(call).empty() || !other.refuses(call).empty()) return false;
          const collectives::Plan plan = one.plan(call), same = other.plan(call);
          if (plan.pieces != same.pieces || plan.shares != same.shares || plan.bays != same.bays ||
              plan.steps != same.steps)
            return false;
        }
  return true;
}

// Returns the operation's algorithms: the first of those with the same plans for `ranks`.
std::vector<std::string> distinct(Operation operation, int ranks) {
  std::vector<std::string> found;
  for (const std::string& name : algorithm_names(operation))
    if (std::ranges::none_of(found, [&](const std::string& other) {
          return same_plans(collectives::find_algorithm(operation, other),
                            collectives::find_algorithm(operation, name), ranks);
        }))
      found.push_back(name);
  return found;
}

template <class T, std::size_t n>
std::vector<T> all(const T (&values)[n]) {
  return {std::begin(values), std::end(values)};
}

}  // namespace

std::vector<std::string> algorithm_names(Operation operation) {
  std::vector<std::string> names;
  for (const auto& algorithm : collectives::algorithms())
    if (algorithm.operation == operation) names.emplace_back(algorithm.name);
  return names;
}

std::string why_not_library(const CollectiveCase& c) {
  if (c.algorithm != collectives::library || c.transport == Transport::mpi ||
      c.transport == Transport::nccl)
    return {};
  return "algorithm library runs over transport mpi or nccl only";
}

std::string why_not_graph(Transport transport) {
  if (transport == Transport::nccl) return {};
  return fmt::format(
      "graph on requires transport nccl (got {}): the host takes part in each message of other "
      "transports",
      name(transport));
}

Sweep<CollectiveCase> collective_sweep(Operation operation, const harness::PlanRequest& request) {
  using Case = CollectiveCase;
  using Variations = std::vector<harness::Variation>;
  using enum Profile;
  const std::vector<std::string> names = algorithm_names(operation);
  const auto with_library = [](std::vector<std::string> ours) {
    ours.emplace_back(collectives::library);
    return ours;
  };
  std::vector<std::string> allowed = with_library(names);
  allowed.emplace_back(automatic);
  const std::vector<Transport> transports = harness::usual_transports(request.device);
  std::vector<Transport> swept = transports;
  std::erase(swept, Transport::mpi);
  // MPI is not swept over sizes.
  const std::vector<Transport> shown(transports.size() - swept.size(), Transport::mpi);

  Sweep<Case> sweep;
  sweep.axis("algorithm", &Case::algorithm, names.front(), allowed)
      .axis("transport", &Case::transport, transports.front(), all(machine::all_transports))
      .axis("dtype", &Case::dtype, Dtype::float32, all(machine::every_dtype));
  if (reduces(operation))
    sweep.axis("reduction", &Case::reduction, Reduction::sum, all(machine::all_reductions));
  sweep.axis("ranks", &Case::ranks, 4);
  if (has_root(operation)) sweep.axis("root", &Case::root, 1);
  if (has_inner(operation)) sweep.axis("inner", &Case::inner, std::string(automatic));
  const bool has_traffic = operation == Operation::all_to_all_v;
  if (has_traffic) sweep.axis("traffic", &Case::traffic, "skewed");
  if (operation == Operation::broadcast) sweep.axis("in_place", &Case::in_place, false);
  sweep.axis("graph", &Case::graph, false);
  sweep.axis("bytes", &Case::bytes, harness::Bytes{32768});
  sweep.only([operation, has_traffic](const Case& c) {
    if (std::string why = why_not_library(c); !why.empty()) return why;
    if (c.graph)
      if (std::string why = why_not_graph(c.transport); !why.empty()) return why;
    if (has_root(operation) && c.root >= c.ranks)
      return fmt::format("root {} is not one of {} ranks", c.root, c.ranks);
    if (std::string why = why_not_inner(operation, c); !why.empty()) return why;
    if (has_traffic)
      if (std::string why = why_no_traffic(c.traffic, c.ranks, c.bytes.value); !why.empty())
        return why;
    if (c.algorithm == collectives::library || c.algorithm == automatic) return std::string();
    return collectives::find_algorithm(operation, c.algorithm).refuses({0, c.ranks, 1, c.root});
  });
  const auto joined = [](Variations all, const Variations& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  // of_some: the axes that only some operations have.
  const auto slice = [&](std::vector<Profile> profiles, const char* name, Variations variations,
                         const Variations& of_some = {}) {
    sweep.slice(std::move(profiles), name, joined(std::move(variations), of_some));
  };
  Variations roots, reductions, traffics;
  if (has_root(operation)) roots = {vary(&Case::root, {0, 1})};
  if (reduces(operation)) reductions = {vary(&Case::reduction, all(machine::all_reductions))};
  if (has_traffic)
    traffics = {vary(&Case::traffic, {std::begin(generated_traffic), std::end(generated_traffic)})};
  const Variations roots_and_traffics = joined(roots, traffics),
                   types = joined(reductions, roots_and_traffics);

  const std::vector<Dtype> floats{Dtype::float32, Dtype::bfloat16};
  const auto sizes = vary(&Case::bytes, harness::powers(8, 64 << 20, 4));
  for (const int ranks : {2, 3, 4, 7, 8})
    slice({acceptance, paper}, "matrix",
          {vary(&Case::algorithm, with_library(distinct(operation, ranks))),
           vary(&Case::transport, transports), vary(&Case::dtype, floats),
           vary(&Case::ranks, {ranks}), sizes},
          roots_and_traffics);
  // One rank sends nothing over any transport, except in the library.
  for (const auto& [algorithms, over] :
       {std::pair(distinct(operation, 1), std::vector{transports.front()}),
        {with_library({}), transports}})
    slice({acceptance, paper}, "one rank",
          {vary(&Case::algorithm, algorithms), vary(&Case::transport, over),
           vary(&Case::dtype, floats), vary(&Case::ranks, {1}), sizes},
          roots_and_traffics);
  slice({acceptance, paper}, "types",
        {vary(&Case::algorithm, with_library(distinct(operation, 3))),
         vary(&Case::transport, transports), vary(&Case::dtype, all(machine::every_dtype)),
         vary(&Case::ranks, {3}), vary(&Case::bytes, {{8192}})},
        types);

  if (request.device == machine::Device::Kind::cuda)
    slice({acceptance, paper}, "graph",
          {vary(&Case::algorithm, with_library({names.front()})),
           vary(&Case::transport, {Transport::nccl}), vary(&Case::graph, {true}),
           vary(&Case::ranks, {2, 8}), sizes});

  // The first three operations are swept over sizes. For the others one size is enough.
  const bool first = operation == Operation::all_reduce || operation == Operation::all_gather ||
                     operation == Operation::reduce_scatter;
  std::vector<std::string> headlines{names.front()}, others = names;
  if (first) headlines = {"ring", "direct"};
  if (operation == Operation::all_reduce) headlines.emplace_back("direct_one_step");
  for (const std::string& name : headlines) std::erase(others, name);
  if (operation == Operation::all_reduce) {
    const auto four = vary(&Case::bytes, {{8}, {2048}, {32768}, {524288}});
    const auto two_ranks = vary(&Case::ranks, {2}), over = vary(&Case::transport, swept);
    slice({quick}, "sizes",
          {vary(&Case::algorithm, {"ring", "direct"}), over, two_ranks,
           vary(&Case::bytes, {{8}, {2048}, {32768}, {524288}, {8388608}})});
    slice({quick}, "sizes", {vary(&Case::algorithm, {"direct_one_step"}), over, two_ranks, four});
    slice({quick}, "sizes", {vary(&Case::algorithm, headlines), over, four});
  } else if (first) {
    slice({quick}, "sizes",
          {vary(&Case::transport, swept), vary(&Case::ranks, {2}),
           vary(&Case::bytes, {{32768}, {8388608}})});  // two ranks: ring and direct are the same
  }
  if (first) {
    slice({quick}, "types",
          {vary(&Case::algorithm, headlines), vary(&Case::transport, swept),
           vary(&Case::dtype, {Dtype::bfloat16}), vary(&Case::bytes, {{8}, {32768}})});
    slice({quick}, "transports",
          {vary(&Case::algorithm, headlines), vary(&Case::transport, shown)});
    slice({quick}, "library",
          {vary(&Case::algorithm, {std::string(collectives::library)}),
           vary(&Case::transport, transports), vary(&Case::ranks, {2})});
  } else {
    slice({quick}, "transports", {vary(&Case::transport, shown), vary(&Case::ranks, {2})});
  }
  if (operation == Operation::broadcast) {
    const auto in_place = vary(&Case::in_place, {true}),
               direct = vary(&Case::algorithm, {"direct"});
    slice({quick}, "in place",
          {direct, vary(&Case::transport, swept), in_place, vary(&Case::ranks, {2}),
           vary(&Case::bytes, {{4 << 20}})});
    slice({acceptance, paper}, "in place",
          {vary(&Case::algorithm, with_library(distinct(operation, 8))),
           vary(&Case::transport, transports), vary(&Case::dtype, floats), in_place,
           vary(&Case::ranks, {2, 8}), sizes});
    slice({smoke}, "in place",
          {direct, in_place, vary(&Case::ranks, {2, 3}), vary(&Case::bytes, {{8}, {1 << 20}})});
  }
  // Algorithms with few steps at any number of ranks, and the library.
  const auto of_launch = vary(&Case::algorithm, with_library(headlines));
  sweep.launch_slice(
      request, {quick},
      {of_launch, vary(&Case::transport, transports), vary(&Case::bytes, {{32768}, {8388608}})});
  sweep.launch_slice(
      request, {acceptance, paper},
      {of_launch, vary(&Case::transport, transports), vary(&Case::dtype, floats), sizes});
  slice({quick}, "algorithms", {vary(&Case::algorithm, others), vary(&Case::transport, swept)});
  if (has_traffic)
    slice({quick}, "traffic",
          {vary(&Case::transport, swept), vary(&Case::traffic, {"sparse", "hot_spot"})});
  // Covers a prime number of elements, of the whole or of a share; one element or share; and
  // numbers of ranks that are not powers of two.
  const bool shares = !reduces(operation) || operation == Operation::reduce_scatter;
  slice({quick}, "edges",
        {vary(&Case::algorithm, distinct(operation, 3)), vary(&Case::transport, swept),
         vary(&Case::ranks, {3}), vary(&Case::bytes, {{shares ? 3 * 337 * 4 : 1009 * 4}})});
  slice({quick}, "edges",
        {vary(&Case::algorithm, headlines), vary(&Case::transport, swept), vary(&Case::ranks, {3}),
         vary(&Case::bytes, {{shares ? 3 * 4 : 4}})});
  slice({smoke}, "smoke",
        {vary(&Case::algorithm, names), vary(&Case::ranks, {1, 2, 3, 4}),
         vary(&Case::dtype, floats), vary(&Case::bytes, {{0}, {8}, {4036}})},
        traffics);
  slice({smoke}, "smoke",
        {vary(&Case::dtype, all(machine::every_dtype)), vary(&Case::ranks, {3}),
         vary(&Case::bytes, {{1000}})},
        types);
  return sweep;
}

std::string collective_why_not(Operation operation, const CollectiveCase& c,
                               const Context& context) {
  if (c.algorithm == collectives::library && c.transport == Transport::mpi &&
      context.world.ranks_are_threads())
    return "algorithm library needs ranks that are processes";
  if (c.algorithm == collectives::library && c.transport == Transport::nccl)
    if (std::string why = collectives::why_not_nccl(operation, c.reduction, c.dtype, c.ranks,
                                                    context.device.compute_capability());
        !why.empty())
      return why;
  return machine::why_not(context.world, context.group, c.transport);
}

std::unique_ptr<collectives::Communicator> library_beside(Operation operation,
                                                          const CollectiveCase& c,
                                                          const Context& context) {
  if (c.algorithm == collectives::library || c.transport == Transport::mpi) return nullptr;
  CollectiveCase theirs = c;
  theirs.algorithm = collectives::library;
  theirs.transport = machine::between_devices(c.transport) ? Transport::nccl : Transport::mpi;
  // All ranks make the same decision, even if only one of them has no GPU.
  for (const std::string& why :
       context.world.all_gather(context.group, collective_why_not(operation, theirs, context)))
    if (!why.empty()) return nullptr;
  return std::make_unique<collectives::Communicator>(context.world, context.group,
                                                     theirs.transport);
}

}  // namespace suite
