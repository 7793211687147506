#include "suite/collectives/collective_unit.h"

#include <fmt/format.h>

#include <algorithm>

namespace suite {

using collectives::Communicator;
using harness::Bytes;
using harness::Profile;
using machine::Category;
using machine::Dtype;
using machine::Operation;
using machine::Tensor;
using machine::Transport;

harness::Sweep<CollectiveCase> collective_sweep(Operation operation, Profile profile) {
  std::vector<std::string> names;
  for (const auto& algorithm : collectives::algorithms())
    if (algorithm.operation == operation) names.emplace_back(algorithm.name);
  names.emplace_back(collectives::library);
  const bool quick = profile == Profile::quick;
  harness::Sweep<CollectiveCase> sweep;
  sweep.axis("algorithm", &CollectiveCase::algorithm, names, names)
      .axis("transport", &CollectiveCase::transport, {Transport::shared_memory, Transport::mpi})
      .axis("dtype", &CollectiveCase::dtype, {Dtype::float32, Dtype::bfloat16},
            {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64})
      .axis("ranks", &CollectiveCase::ranks, quick ? std::vector{2, 4} : std::vector{1, 2, 3, 4, 8})
      .axis("bytes", &CollectiveCase::bytes, harness::powers(8, 64 << 20, quick ? 16 : 4))
      .only([](const CollectiveCase& c) {
        return c.algorithm == collectives::library && c.transport != Transport::mpi
                   ? std::string("algorithm library runs over transport mpi only")
                   : std::string();
      });
  if (!quick) return sweep;
  // The size sweep in float over shared memory; of everything else one small and one large size.
  return std::move(sweep.sample([operation](const CollectiveCase& c) {
    const std::int64_t bytes = c.bytes.value;
    if (c.algorithm == collectives::library)
      return c.dtype == Dtype::float32 && c.ranks == 2 && bytes == 32768;
    const bool swept = c.dtype == Dtype::float32 && c.transport == Transport::shared_memory;
    if (swept && operation == Operation::all_reduce)
      return c.ranks == 2 ? c.algorithm != "direct_one_step" || bytes <= 524288 : bytes <= 524288;
    if (swept) return c.ranks == 2 && bytes % 32768 == 0;
    return c.ranks == 4 && (bytes == 8 || bytes == 32768);
  }));
}

std::string collective_why_not(const CollectiveCase& c, const harness::Context& context) {
  if (c.algorithm == collectives::library && context.world.ranks_are_threads())
    return "algorithm library needs ranks that are processes";
  return context.world.why_not(context.group, c.transport);
}

CollectiveUnit::CollectiveUnit(Operation operation, const CollectiveCase& c,
                               harness::Context& context)
    : operation_(operation),
      case_(c),
      context_(context),
      held_before_(context.device.ledger().current(Category::buffers)) {
  communicator_ = std::make_unique<Communicator>(context.world, context.group, c.transport);
  if (c.transport == Transport::shared_memory && !context.world.ranks_are_threads())
    library_ = std::make_unique<Communicator>(context.world, context.group, Transport::mpi);
  const auto size = static_cast<std::int64_t>(size_of(c.dtype));
  const std::int64_t whole = c.bytes.value / size;
  count_ = operation == Operation::all_reduce ? std::max<std::int64_t>(1, whole)
                                              : std::max<std::int64_t>(1, whole / c.ranks);
  const std::int64_t gathered = operation == Operation::all_reduce ? count_ : count_ * c.ranks;
  in_ = Tensor(context.device, c.dtype, {operation == Operation::all_gather ? count_ : gathered},
               Category::buffers);
  out_ = Tensor(context.device, c.dtype,
                {operation == Operation::reduce_scatter ? count_ : gathered}, Category::buffers);
  context.device.ledger().reset_peaks();
  fill();
}

namespace {

// Small integers, so that sums of 64 ranks are exact in every dtype (bfloat16 counts to 256).
double pattern(int rank, std::int64_t index) {
  const auto mixed =
      static_cast<std::uint64_t>(index * 131 + rank * 7919 + 1) * 0x9e3779b97f4a7c15u;
  return static_cast<double>((mixed >> 40) % 7) - 3;
}

}  // namespace

void CollectiveUnit::fill() {
  std::vector<double> values(static_cast<std::size_t>(in_.size()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = pattern(context_.group.index, static_cast<std::int64_t>(i));
  from_doubles(in_, values);
  from_doubles(out_, std::vector<double>(static_cast<std::size_t>(out_.size()),
                                         -77));  // what nobody wrote shows
}

std::vector<double> CollectiveUnit::expected() const {
  std::vector<double> values(static_cast<std::size_t>(out_.size()));
  const std::int64_t shift =
      operation_ == Operation::reduce_scatter ? context_.group.index * count_ : 0;
  for (std::int64_t i = 0; i < out_.size(); ++i) {
    double& value = values[static_cast<std::size_t>(i)];
    if (operation_ == Operation::all_gather) {
      value = pattern(static_cast<int>(i / count_), i % count_);
    } else {
      for (int rank = 0; rank < case_.ranks; ++rank) value += pattern(rank, i + shift);
    }
  }
  return values;
}

void CollectiveUnit::call(Communicator& communicator, std::string_view algorithm) {
  switch (operation_) {
    case Operation::all_gather:
      communicator.all_gather(in_, out_, algorithm);
      break;
    case Operation::reduce_scatter:
      communicator.reduce_scatter(in_, out_, algorithm);
      break;
    default:
      communicator.all_reduce(in_, out_, algorithm);
      break;
  }
}

void CollectiveUnit::judge(harness::Judge& judge) {
  // Peak so far: what the timed runs held.
  const bool library = case_.algorithm == collectives::library;
  const std::size_t scratch =
      library ? 0
              : scratch_bytes(collectives::find_algorithm(operation_, case_.algorithm),
                              context_.group.index, case_.ranks, count_, case_.dtype);
  if (context_.device.readable_by_host())
    judge.memory(Category::buffers, context_.device.ledger().peak(Category::buffers) - held_before_,
                 in_.bytes() + out_.bytes() + scratch);
  else
    judge.not_applicable(harness::Oracle::memory, "CUDA tensors are staged through host memory");

  fill();
  communicator_->link().reset_traffic();
  run();
  const machine::TrafficLabel label{operation_, case_.dtype};
  const auto measured = communicator_->link().traffic().find(label);
  if (library) {
    judge.not_applicable(harness::Oracle::volume, "the MPI library does not count what it sends");
  } else {
    judge.volume(
        "world", label,
        measured == communicator_->link().traffic().end() ? machine::Traffic{} : measured->second,
        expected_traffic(collectives::find_algorithm(operation_, case_.algorithm),
                         context_.group.index, case_.ranks, count_, case_.dtype));
  }
  const std::vector<double> got = to_doubles(out_);
  judge.exact(name(operation_), got, expected());

  // Real numbers, whose sum depends on the order: equal bits on all ranks that hold the same
  // result, and in a second run.
  context_.device.stream().kernels().fill_normal(
      in_, context_.seed + static_cast<std::uint64_t>(context_.group.index), {0, 0, in_.size()}, 0,
      1);
  const std::string key = operation_ == Operation::reduce_scatter
                              ? fmt::format("share {}", context_.group.index)
                              : std::string("result");
  for (int repeat = 0; repeat < 2; ++repeat) {
    run();
    context_.device.stream().synchronize();
    judge.same_bits(key, hash(out_));
  }
}

harness::Cost CollectiveUnit::cost() const {
  harness::Cost cost;
  const double n = case_.ranks;
  const double whole = static_cast<double>(std::max(in_.bytes(), out_.bytes()));
  cost.algorithm_bytes = whole;
  cost.bus_factor = collectives::bus_factor(operation_, case_.ranks);
  // Read plus written through memory at the least, when peers' memory is read in place.
  switch (operation_) {
    case Operation::all_gather:
      cost.memory_bytes = 2 * whole;
      break;
    case Operation::reduce_scatter:
      cost.memory_bytes = whole + whole / n;
      break;
    default:  // reads a share of all inputs, writes its sum, reads and writes the others' sums
      cost.memory_bytes = whole + whole / n + 2 * whole * (n - 1) / n;
      break;
  }
  cost.working_set_bytes = static_cast<double>(in_.bytes() + out_.bytes());
  return cost;
}

}  // namespace suite
