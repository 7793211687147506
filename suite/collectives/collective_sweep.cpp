// The cases of the collectives: axes, what names no case, and what each profile takes of it.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
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
using harness::Profile;
using machine::Dtype;
using machine::Operation;
using machine::Reduction;
using machine::Transport;

namespace {

// The first three operations are swept over sizes in `quick`; of the others two sizes show that
// they are right, and how near the library.
bool in_quick(Operation operation, const CollectiveCase& c) {
  using enum Operation;
  const std::int64_t bytes = c.bytes.value;
  const bool first =
      operation == all_reduce || operation == all_gather || operation == reduce_scatter;
  if (c.algorithm == collectives::library)
    return c.dtype == Dtype::float32 && c.ranks == 2 && bytes == 32768 && first;
  const bool headline =
      c.algorithm == "ring" || c.algorithm == "direct" || c.algorithm == "direct_one_step";
  if (first && !headline)
    return c.dtype == Dtype::float32 && c.transport != Transport::mpi && c.ranks == 4 &&
           bytes == 32768;
  const bool swept = c.dtype == Dtype::float32 && c.transport != Transport::mpi;
  if (swept && operation == all_reduce)
    return c.ranks == 2 ? c.algorithm != "direct_one_step" || bytes <= 524288 : bytes <= 524288;
  if (swept && first) return c.ranks == 2 && bytes % 32768 == 0;
  if (first) return c.ranks == 4 && (bytes == 8 || bytes == 32768);
  if (operation == all_to_all_v && c.traffic != "skewed" && (c.algorithm != "direct" || !swept))
    return false;
  return c.dtype == Dtype::float32 && bytes == 32768 &&
         c.ranks == (c.transport == Transport::mpi ? 2 : 4);
}

// Every dtype and reduction at one size; the usual ones at all.
bool in_acceptance(const CollectiveCase& c) {
  const bool usual =
      (c.dtype == Dtype::float32 || c.dtype == Dtype::bfloat16) && c.reduction == Reduction::sum;
  return usual || (c.bytes.value == 8192 && c.ranks == 3);
}

bool has_library(Transport transport) {
  return transport == Transport::mpi || transport == Transport::nccl;
}

bool has_inner(Operation operation) {
  return std::ranges::any_of(collectives::algorithms(), [&](const auto& algorithm) {
    return algorithm.operation == operation && reads_inner(algorithm);
  });
}
std::string why_not_inner(Operation operation, const CollectiveCase& c) {
  if (c.inner == automatic) return {};
  if (c.inner.find_first_not_of("0123456789") != std::string::npos || inner_of(c) < 1)
    return fmt::format("'{}' is neither a number of ranks nor {}", c.inner, automatic);
  if (c.algorithm == collectives::library ||
      (c.algorithm != automatic &&
       !reads_inner(collectives::find_algorithm(operation, c.algorithm))))
    return fmt::format("algorithm {} does not ask which ranks are near", c.algorithm);
  if (c.ranks % inner_of(c) != 0)
    return fmt::format("inner {} does not divide {} ranks", c.inner, c.ranks);
  return {};
}

template <class T, std::size_t n>
std::vector<T> all(const T (&values)[n]) {
  return {std::begin(values), std::end(values)};
}

}  // namespace

int inner_of(const CollectiveCase& c) {
  int inner = 0;
  std::from_chars(c.inner.data(), c.inner.data() + c.inner.size(), inner);
  return inner;
}

harness::Sweep<CollectiveCase> collective_sweep(Operation operation, Profile profile) {
  std::vector<std::string> names;
  for (const auto& algorithm : collectives::algorithms())
    if (algorithm.operation == operation) names.emplace_back(algorithm.name);
  names.emplace_back(collectives::library);
  std::vector<std::string> allowed = names;
  allowed.emplace_back(automatic);
  const bool quick = profile == Profile::quick;
  harness::Sweep<CollectiveCase> sweep;
  sweep.axis("algorithm", &CollectiveCase::algorithm, names, allowed)
      .axis("transport", &CollectiveCase::transport, harness::usual_transports(),
            all(machine::all_transports))
      .axis("dtype", &CollectiveCase::dtype,
            quick ? std::vector{Dtype::float32, Dtype::bfloat16} : all(machine::every_dtype),
            all(machine::every_dtype));
  if (reduces(operation))
    sweep.axis("reduction", &CollectiveCase::reduction,
               quick ? std::vector{Reduction::sum} : all(machine::all_reductions),
               all(machine::all_reductions));
  sweep.axis("ranks", &CollectiveCase::ranks,
             quick ? std::vector{2, 4} : std::vector{1, 2, 3, 4, 7, 8});
  if (has_root(operation))
    sweep.axis("root", &CollectiveCase::root, quick ? std::vector{1} : std::vector{0, 1});
  if (has_inner(operation)) sweep.axis("inner", &CollectiveCase::inner, {std::string(automatic)});
  if (operation == Operation::all_to_all_v)
    sweep.axis("traffic", &CollectiveCase::traffic,
               {std::begin(generated_traffic), std::end(generated_traffic)});
  sweep.axis("bytes", &CollectiveCase::bytes, harness::powers(8, 64 << 20, quick ? 16 : 4));
  sweep.only([operation](const CollectiveCase& c) {
    if (c.algorithm == collectives::library && !has_library(c.transport))
      return std::string("algorithm library runs over transport mpi or nccl only");
    if (has_root(operation) && c.root >= c.ranks)
      return fmt::format("root {} is none of {} ranks", c.root, c.ranks);
    if (std::string why = why_not_inner(operation, c); !why.empty()) return why;
    if (operation == Operation::all_to_all_v)
      if (std::string why = why_no_traffic(c.traffic, c.ranks, c.bytes.value); !why.empty())
        return why;
    if (c.algorithm == collectives::library || c.algorithm == automatic) return std::string();
    return collectives::find_algorithm(operation, c.algorithm).refuses({0, c.ranks, 1, c.root});
  });
  sweep.sample([operation, quick](const CollectiveCase& c) {
    return quick ? in_quick(operation, c) : in_acceptance(c);
  });
  return sweep;
}

std::string collective_why_not(const CollectiveCase& c, const harness::Context& context) {
  if (c.algorithm == collectives::library && c.transport == Transport::mpi &&
      context.world.ranks_are_threads())
    return "algorithm library needs ranks that are processes";
  if (c.algorithm == collectives::library && c.transport == Transport::nccl)
    if (std::string why = collectives::why_not_nccl(c.reduction, c.dtype, c.ranks); !why.empty())
      return why;
  return machine::why_not(context.world, context.group, c.transport);
}

std::unique_ptr<collectives::Communicator> library_beside(const CollectiveCase& c,
                                                          const harness::Context& context) {
  if (c.algorithm == collectives::library || c.transport == Transport::mpi) return nullptr;
  CollectiveCase theirs = c;
  theirs.algorithm = collectives::library;
  theirs.transport = machine::between_devices(c.transport) ? Transport::nccl : Transport::mpi;
  // All ranks alike: who has no GPU of its own is not always the one that asks.
  for (const std::string& why :
       context.world.all_gather(context.group, collective_why_not(theirs, context)))
    if (!why.empty()) return nullptr;
  return std::make_unique<collectives::Communicator>(context.world, context.group,
                                                     theirs.transport);
}

}  // namespace suite
