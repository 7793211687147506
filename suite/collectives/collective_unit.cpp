#include "suite/collectives/collective_unit.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "collectives/execute.h"
#include "collectives/layout.h"
#include "suite/collectives/traffic.h"
#include "suite/collectives/wrong_elements.h"

namespace suite {

using collectives::automatic;
using collectives::Communicator;
using collectives::deals_in_shares;
using collectives::Extent;
using collectives::has_root;
using collectives::reduces;
using harness::Bytes;
using harness::Profile;
using machine::Category;
using machine::Dtype;
using machine::Operation;
using machine::Reduction;
using machine::Tensor;
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
    return c.dtype == Dtype::float32 && c.transport == Transport::shared_memory && c.ranks == 4 &&
           bytes == 32768;
  const bool swept = c.dtype == Dtype::float32 && c.transport == Transport::shared_memory;
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

bool has_inner(std::string_view algorithm) {
  return algorithm == "hierarchical" || algorithm == "mesh";
}
bool has_inner(Operation operation) {
  return std::ranges::any_of(collectives::algorithms(), [&](const auto& algorithm) {
    return algorithm.operation == operation && has_inner(algorithm.name);
  });
}
// 0: what the communicator finds.
int inner_of(const CollectiveCase& c) {
  int inner = 0;
  std::from_chars(c.inner.data(), c.inner.data() + c.inner.size(), inner);
  return inner;
}
std::string why_not_inner(const CollectiveCase& c) {
  if (c.inner == automatic) return {};
  if (c.inner.find_first_not_of("0123456789") != std::string::npos || inner_of(c) < 1)
    return fmt::format("'{}' is neither a number of ranks nor {}", c.inner, automatic);
  if (!has_inner(c.algorithm))
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
      .axis("transport", &CollectiveCase::transport, {Transport::shared_memory, Transport::mpi})
      .axis("dtype", &CollectiveCase::dtype,
            quick ? std::vector{Dtype::float32, Dtype::bfloat16} : all(machine::every_dtype),
            all(machine::every_dtype));
  if (reduces(operation))
    sweep.axis("reduction", &CollectiveCase::reduction,
               quick ? std::vector{Reduction::sum} : all(machine::all_reductions),
               all(machine::all_reductions));
  sweep.axis("ranks", &CollectiveCase::ranks,
             quick ? std::vector{2, 4} : std::vector{1, 2, 3, 4, 8});
  if (has_root(operation))
    sweep.axis("root", &CollectiveCase::root, quick ? std::vector{1} : std::vector{0, 1});
  if (has_inner(operation)) sweep.axis("inner", &CollectiveCase::inner, {std::string(automatic)});
  if (operation == Operation::all_to_all_v)
    sweep.axis("traffic", &CollectiveCase::traffic,
               {std::begin(generated_traffic), std::end(generated_traffic)});
  sweep.axis("bytes", &CollectiveCase::bytes, harness::powers(8, 64 << 20, quick ? 16 : 4));
  sweep.only([operation](const CollectiveCase& c) {
    if (c.algorithm == collectives::library && c.transport != Transport::mpi)
      return std::string("algorithm library runs over transport mpi only");
    if (has_root(operation) && c.root >= c.ranks)
      return fmt::format("root {} is none of {} ranks", c.root, c.ranks);
    if (std::string why = why_not_inner(c); !why.empty()) return why;
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
  if (c.algorithm == collectives::library && context.world.ranks_are_threads())
    return "algorithm library needs ranks that are processes";
  return context.world.why_not(context.group, c.transport);
}

CollectiveUnit::CollectiveUnit(Operation operation, const CollectiveCase& c,
                               harness::Context& context,
                               std::shared_ptr<const collectives::TrafficMatrix> traffic)
    : operation_(operation),
      case_(c),
      context_(context),
      held_before_(context.device.ledger().current(Category::buffers)),
      traffic_(std::move(traffic)) {
  communicator_ = connect();
  if (c.transport == Transport::shared_memory && !context.world.ranks_are_threads())
    library_ = std::make_unique<Communicator>(context.world, context.group, Transport::mpi);
  const auto size = static_cast<std::int64_t>(size_of(c.dtype));
  const std::int64_t whole = c.bytes.value / size;
  count_ = deals_in_shares(operation) ? whole / c.ranks : whole;
  if (c.bytes.value > 0) count_ = std::max<std::int64_t>(1, count_);
  if (operation == Operation::all_to_all_v) {
    if (!traffic_) traffic_ = traffic_matrix(c.traffic, c.ranks, c.bytes.value, c.dtype);
    count_ = traffic_->busiest();
  }
  algorithm_ = c.algorithm;
  if (algorithm_ == automatic) {
    const collectives::Choice choice = collectives::choose(
        context.world, *communicator_, operation, c.dtype, count_, c.reduction, c.root, traffic_);
    algorithm_ = choice.best->name;
    note_ = "auto: " + choice.text();
    // Without the scratch that the others keep.
    communicator_ = connect();
  }
  buffers_ = out_of_place();
  fill(buffers_);
  if (buffers_.out) {
    const Tensor right(context.device, c.dtype, {buffers_.out.size()}, Category::buffers);
    from_doubles(right, expected(question(), context.group.index));
    expected_hash_ = hash(right);
  }
  context.device.ledger().reset_peaks();
}

std::unique_ptr<Communicator> CollectiveUnit::connect() const {
  auto communicator =
      std::make_unique<Communicator>(context_.world, context_.group, case_.transport);
  if (case_.inner != automatic) communicator->set_inner(inner_of(case_));
  return communicator;
}

collectives::Call CollectiveUnit::call_of_rank() const {
  const int inner = case_.inner == automatic ? communicator_->inner() : inner_of(case_);
  return {context_.group.index, case_.ranks, 1, case_.root, inner, traffic_.get()};
}

CollectiveUnit::Buffers CollectiveUnit::out_of_place() {
  const auto buffer = [&](Extent extent, std::int64_t elements) {
    if (extent == Extent::none) return Tensor();
    return Tensor(context_.device, case_.dtype, {elements}, Category::buffers);
  };
  const collectives::Extents held = extents(operation_, call_of_rank());
  const auto elements = collectives::buffer_elements(operation_, call_of_rank(), count_);
  return {buffer(held.input, elements.input), buffer(held.output, elements.output)};
}

CollectiveUnit::Buffers CollectiveUnit::in_place() {
  const collectives::Extents held = extents(operation_, call_of_rank());
  Buffers both = out_of_place();
  if (!both.in || !both.out) return both;
  const std::int64_t own = context_.group.index * count_;
  if (held.input == held.output)
    both.out = both.in;
  else if (held.input == Extent::own_share)
    both.in = both.out.slice(own, {count_});
  else
    both.out = both.in.slice(own, {count_});
  return both;
}

void CollectiveUnit::fill(const Buffers& buffers) const {
  if (buffers.out)  // what nobody wrote shows
    from_doubles(buffers.out,
                 std::vector<double>(static_cast<std::size_t>(buffers.out.size()), -77));
  if (!buffers.in) return;
  std::vector<double> values(static_cast<std::size_t>(buffers.in.size()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = pattern(question(), context_.group.index, static_cast<std::int64_t>(i));
  from_doubles(buffers.in, values);
}

Question CollectiveUnit::question() const {
  return {operation_, case_.reduction, case_.dtype,   case_.ranks,
          case_.root, count_,          traffic_.get()};
}

void CollectiveUnit::mark(bool marked) {
  constexpr std::int64_t page = 4096;
  const Tensor& in = buffers_.in;
  const std::int64_t stride = page / static_cast<std::int64_t>(size_of(case_.dtype));
  // Two more moves every sum, product, extremum and average.
  for (std::int64_t i = 0; i < in.size(); i += stride)
    from_doubles(in.slice(i, {1}),
                 {pattern(question(), context_.group.index, i) + (marked ? 2 : 0)});
}

void CollectiveUnit::rehearse() {
  if (buffers_.in && context_.device.readable_by_host()) mark(true);
  run();
  context_.device.stream().synchronize();
  if (buffers_.in && context_.device.readable_by_host()) mark(false);
}

std::string CollectiveUnit::check() {
  if (!buffers_.out || hash(buffers_.out) == expected_hash_) return {};
  const Tensor right(context_.device, case_.dtype, {buffers_.out.size()}, Category::buffers);
  from_doubles(right, expected(question(), context_.group.index));
  const WrongElements wrong = wrong_elements(buffers_.out, right);
  if (uses_library()) return wrong.text;
  const auto& algorithm = collectives::find_algorithm(operation_, algorithm_);
  const int writer = last_writer(
      algorithm, collectives::with_pieces(algorithm, call_of_rank(), count_, case_.dtype), count_,
      wrong.first);
  return wrong.text + (writer < 0 ? "; written by this rank itself"
                                  : fmt::format("; received from rank {}", writer));
}

void CollectiveUnit::call(Communicator& communicator, std::string_view algorithm,
                          const Buffers& buffers) {
  communicator.run(operation_, algorithm, buffers.in, buffers.out, case_.reduction, case_.root,
                   traffic_);
}

void CollectiveUnit::judge_numerics(harness::Judge& judge, std::string_view how,
                                    const Buffers& buffers) {
  fill(buffers);
  call(*communicator_, algorithm_, buffers);
  context_.device.stream().synchronize();
  if (buffers.out)
    judge.exact(fmt::format("{}, {}", name(operation_), how), to_doubles(buffers.out),
                expected(question(), context_.group.index));
}

void CollectiveUnit::judge_volume(harness::Judge& judge) {
  if (uses_library())
    return judge.not_applicable(harness::Oracle::volume,
                                "the MPI library does not count what it sends");
  const machine::TrafficLabel label{operation_, case_.dtype};
  communicator_->link().reset_traffic();
  run();
  const auto measured = communicator_->link().traffic().find(label);
  judge.volume(
      "world", label,
      measured == communicator_->link().traffic().end() ? machine::Traffic{} : measured->second,
      expected_traffic(collectives::find_algorithm(operation_, algorithm_), call_of_rank(), count_,
                       case_.dtype));
}

void CollectiveUnit::judge(harness::Judge& judge) {
  // Peak so far: what the timed runs held.
  const auto bytes = [](const Tensor& tensor) { return tensor ? tensor.bytes() : 0; };
  const std::size_t scratch =
      uses_library() ? 0
                     : scratch_bytes(collectives::find_algorithm(operation_, algorithm_),
                                     call_of_rank(), count_, case_.dtype);
  if (context_.device.readable_by_host())
    judge.memory(Category::buffers, context_.device.ledger().peak(Category::buffers) - held_before_,
                 bytes(buffers_.in) + bytes(buffers_.out) + scratch);
  else
    judge.not_applicable(harness::Oracle::memory, "CUDA tensors are staged through host memory");

  judge_volume(judge);
  judge_numerics(judge, "out of place", buffers_);
  // Ours only: MPICH 4.0.2's MPI_Reduce in place reads address -1 at a root other than 0.
  if (collectives::may_be_in_place(operation_) && !uses_library())
    judge_numerics(judge, "in place", in_place());

  judge_rounding(judge);
}

// Real numbers, whose sum depends on the order: within its rounding of the sum in double; equal
// bits on all ranks that hold the same result, in a second run and by a fresh communicator.
void CollectiveUnit::judge_rounding(harness::Judge& judge) {
  const bool real = machine::is_floating(case_.dtype);
  machine::Kernels& kernels = context_.device.stream().kernels();
  const auto fill_as = [&](int rank, const Tensor& part, std::int64_t from, std::int64_t whole) {
    kernels.fill_normal(part, context_.seed + static_cast<std::uint64_t>(rank), {0, from, whole}, 0,
                        1);
  };
  if (buffers_.in && real) fill_as(context_.group.index, buffers_.in, 0, buffers_.in.size());
  const bool same_everywhere = operation_ == Operation::all_reduce ||
                               operation_ == Operation::all_gather ||
                               operation_ == Operation::broadcast;
  const std::string key =
      same_everywhere ? std::string("result") : fmt::format("rank {}", context_.group.index);
  const std::unique_ptr<Communicator> fresh = connect();
  for (Communicator* communicator : {communicator_.get(), communicator_.get(), fresh.get()}) {
    call(*communicator, algorithm_, buffers_);
    context_.device.stream().synchronize();
    if (!buffers_.out) continue;
    fingerprint_ = hash(buffers_.out);
    judge.same_bits(key, fingerprint_);
  }
  if (!real || !reduces(operation_) || !buffers_.out || buffers_.out.size() == 0) return;

  // Three windows of it: every rank's values are made anew here.
  const std::int64_t size = buffers_.out.size(), window = std::min<std::int64_t>(size, 2048);
  const std::int64_t whole = deals_in_shares(operation_) ? size * case_.ranks : size;
  std::vector<double> actual, values, bounds;
  for (const std::int64_t begin : {std::int64_t{0}, (size - window) / 2, size - window}) {
    std::vector<std::vector<double>> terms;
    const Tensor part(context_.device, case_.dtype, {window}, Category::buffers);
    for (int rank = 0; rank < case_.ranks; ++rank) {
      fill_as(rank, part, source_index(question(), context_.group.index, begin), whole);
      terms.push_back(to_doubles(part));
    }
    const std::vector<double> got = to_doubles(buffers_.out.slice(begin, {window}));
    actual.insert(actual.end(), got.begin(), got.end());
    for (std::size_t i = 0; i < got.size(); ++i) {
      std::vector<double> meeting;
      for (const auto& of_rank : terms) meeting.push_back(of_rank[i]);
      const Bounded right = reduce_exactly(question(), meeting);
      values.push_back(right.value);
      bounds.push_back(right.bound);
    }
  }
  judge.numerics(fmt::format("{} of real numbers", name(case_.reduction)), actual, values, bounds);
}

void CollectiveUnit::describe(harness::Record& record) const {
  if (!note_.empty()) record.note = note_;
  if (buffers_.out) record.fingerprint = fmt::format("{:016x}", fingerprint_);
}

// Read plus written through memory by each rank at the least, if all bear the same part and peers'
// memory is read and written in place.
harness::Cost CollectiveUnit::cost() const {
  using enum Operation;
  harness::Cost cost;
  const double n = case_.ranks;
  const double whole = static_cast<double>(count_) * static_cast<double>(size_of(case_.dtype)) *
                       (deals_in_shares(operation_) ? n : 1);
  cost.algorithm_bytes = whole;
  cost.bus_factor = collectives::bus_factor(operation_, case_.ranks);
  switch (operation_) {
    case reduce_scatter:
    case reduce:
      cost.memory_bytes = whole + whole / n;
      break;
    case gather:
    case scatter:
      cost.memory_bytes = 2 * whole / n;
      break;
    case all_to_all_v:
      cost.memory_bytes = 2 * static_cast<double>(traffic_->total()) *
                          static_cast<double>(size_of(case_.dtype)) / n;
      break;
    default:
      cost.memory_bytes = 2 * whole;
      break;
  }
  const auto bytes = [](const Tensor& tensor) { return tensor ? tensor.bytes() : 0; };
  cost.working_set_bytes = static_cast<double>(bytes(buffers_.in) + bytes(buffers_.out));
  return cost;
}

}  // namespace suite
