#include "suite/collectives/collective_unit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "collectives/execute.h"
#include "collectives/layout.h"
#include "suite/files/traffic.h"
#include "suite/reference/whole_values.h"

namespace suite {

using collectives::automatic;
using collectives::Communicator;
using collectives::deals_in_shares;
using collectives::Extent;
using collectives::reduces;

namespace {

// Returns whether input and output are the same memory.
bool is_one(const CollectiveUnit::Buffers& buffers) {
  return buffers.in && buffers.out && buffers.in.data() == buffers.out.data();
}

}  // namespace

Writer last_writer(const collectives::Algorithm& algorithm, const collectives::Call& call,
                   std::int64_t count, std::int64_t index) {
  const collectives::Plan plan = algorithm.plan(call);
  const collectives::Layout layout(algorithm.operation, plan, call, count);
  Writer writer;
  for (const collectives::Step& step : plan.steps) {
    using enum collectives::Verb;
    if (step.verb == send || step.verb == post) continue;
    if (step.target.buffer != collectives::Buffer::output) continue;
    const collectives::ChunkRange range = layout.elements(step.target);
    if (index < range.begin || index >= range.end) continue;
    const bool comes = step.verb == receive || step.verb == receive_reduce;
    writer = {comes ? step.peer : -1, step.verb == receive_reduce};
  }
  return writer;
}

CollectiveUnit::CollectiveUnit(Operation operation, const CollectiveCase& c, Context& context,
                               std::shared_ptr<const collectives::TrafficMatrix> traffic)
    : operation_(operation),
      case_(c),
      context_(context),
      traffic_(std::move(traffic)),
      communicator_(connect()),
      library_(library_beside(operation, c, context)),
      errors_(error_words(context.device)),
      memory_(context.device.ledger()) {
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
    const collectives::Choice choice = collectives::choose(*communicator_, operation, c.dtype,
                                                           count_, c.reduction, c.root, traffic_);
    algorithm_ = choice.best->name;
    note_ = "auto: " + choice.text();
    // A fresh communicator does not hold the scratch buffers of the other algorithms.
    communicator_ = connect();
  }
  buffers_ = c.in_place ? in_place() : out_of_place();
  fill(buffers_);
  if (context.device.readable_by_host() && buffers_.out) {
    const Tensor right = right_output();
    expected_hash_ = hash(right);
    for (std::int64_t i = 0; i < right.size(); i += mark_stride(right))
      spoilt_.push_back(~static_cast<const std::byte*>(right.slice(i, {1}).data())[0]);
  }
  if (c.graph) capture();
  memory_.reset();
}

// NCCL and our plans allocate and connect in the first call, which no capture allows.
void CollectiveUnit::capture() {
  machine::Stream& stream = context_.device.stream();
  run(buffers_);
  if (library_) call(*library_, collectives::library, buffers_);
  stream.synchronize();
  graph_ = stream.capture([&] { run(buffers_); });
  if (library_)
    library_graph_ = stream.capture([&] { call(*library_, collectives::library, buffers_); });
  fill(buffers_);
}

std::unique_ptr<Communicator> CollectiveUnit::connect() const {
  auto communicator =
      std::make_unique<Communicator>(context_.world, context_.group, case_.transport);
  if (case_.inner != automatic) communicator->set_inner(inner_of(case_));
  return communicator;
}

collectives::Call CollectiveUnit::call_of_rank() const {
  return {context_.group.index, case_.ranks, 1, case_.root, communicator_->inner(), traffic_.get()};
}

CollectiveUnit::Buffers CollectiveUnit::out_of_place() {
  const auto buffer = [&](Extent extent, std::int64_t elements) {
    if (case_.registered != machine::Registered::no)
      return registered_buffer(extent != Extent::none, elements);
    if (extent == Extent::none) return Tensor();
    return Tensor(context_.device, case_.dtype, {elements}, Category::buffers);
  };
  const collectives::Extents held = extents(operation_, call_of_rank());
  const auto elements = collectives::buffer_elements(operation_, call_of_rank(), count_);
  return {buffer(held.input, elements.input), buffer(held.output, elements.output)};
}

// All ranks register the same bytes, also a rank that has no such buffer. The unit keeps them, so
// all ranks release them in one order.
Tensor CollectiveUnit::registered_buffer(bool held, std::int64_t elements) {
  const auto of_ranks = context_.world.all_gather(context_.group, held ? elements : 0);
  const std::int64_t most = std::max<std::int64_t>(1, *std::ranges::max_element(of_ranks));
  const std::size_t bytes = static_cast<std::size_t>(most) * size_of(case_.dtype);
  const Tensor& whole = registered_.emplace_back(
      communicator_->link().allocate_registered(bytes, Category::buffers, case_.registered),
      case_.dtype, machine::Shape{most});
  return held ? whole.slice(0, {elements}) : Tensor();
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
  machine::Kernels& kernels = context_.device.stream().kernels();
  if (buffers.out) kernels.fill(buffers.out, -77);
  if (buffers.in) kernels.fill_pattern(buffers.in, pattern_of(question()), context_.group.index, 0);
}

Tensor CollectiveUnit::right_output() const {
  const Tensor right(context_.device, case_.dtype, {buffers_.out.size()}, Category::buffers);
  from_doubles(right, expected(question(), context_.group.index));
  return right;
}

std::size_t CollectiveUnit::bytes_of_buffers() const {
  return buffers_.in.bytes() + (is_one(buffers_) ? 0 : buffers_.out.bytes());
}

WrongElements CollectiveUnit::wrong_in(const Tensor& output) const {
  return wrong_elements(output, question(), context_.group.index, errors_, bound_of_library());
}

// NCCL's avg multiplies floating terms by 1/n before it adds them: n + 1 roundings of a sum whose
// terms together are at most 3 in magnitude.
double CollectiveUnit::bound_of_library() const {
  if (!uses_library() || case_.transport != Transport::nccl || !reduces(operation_) ||
      case_.reduction != machine::Reduction::avg)
    return 0;
  return 3 * std::expm1((case_.ranks + 1) * std::log1p(unit_roundoff(case_.dtype)));
}

Question CollectiveUnit::question() const {
  return {operation_, case_.reduction, case_.dtype,   case_.ranks,
          case_.root, count_,          traffic_.get()};
}

// Returns the distance between marks. A peer reads a marked line from this rank's cache, also in
// the timed run. One mark per page made a copy of 4 MiB a quarter slower. So marks are sparse, but
// every piece of every share has some.
std::int64_t CollectiveUnit::mark_stride(const Tensor& tensor) const {
  constexpr std::int64_t page = 4096, pieces = collectives::max_outstanding / 4;  // of a share
  const std::int64_t most = std::max<std::int64_t>(256, 4 * pieces * case_.ranks);
  return std::max(page / static_cast<std::int64_t>(size_of(case_.dtype)), tensor.size() / most);
}

void CollectiveUnit::mark(bool marked) {
  const Tensor& in = buffers_.in;
  // Adding two changes every sum, product, extremum and average.
  for (std::int64_t i = 0; in && i < in.size(); i += mark_stride(in))
    from_doubles(in.slice(i, {1}),
                 {pattern(question(), context_.group.index, i) + (marked ? 2 : 0)});
}

void CollectiveUnit::spoil() {
  const Tensor& out = buffers_.out;
  if (is_one(buffers_)) return;  // it would change the input
  auto wrong = spoilt_.begin();
  for (std::int64_t i = 0; out && i < out.size(); i += mark_stride(out))
    static_cast<std::byte*>(out.slice(i, {1}).data())[0] = *wrong++;
}

void CollectiveUnit::rehearse(harness::Runner runner) {
  const bool marks = context_.device.readable_by_host();
  if (marks) mark(true);
  if (runner == harness::Runner::unit)
    run();
  else
    yardstick();
  context_.device.stream().synchronize();
  if (marks) {
    mark(false);
    // Without this, a runner that never writes would leave the other runner's right output.
    spoil();
  } else if (buffers_.out && !is_one(buffers_)) {  // on a GPU single elements are slow
    context_.device.stream().kernels().fill(buffers_.out, 113);
  }
}

std::optional<machine::Failure> CollectiveUnit::check(harness::Runner runner) {
  if (!buffers_.out) return std::nullopt;
  if (context_.device.readable_by_host() && hash(buffers_.out) == expected_hash_)
    return std::nullopt;
  const WrongElements wrong = wrong_in(buffers_.out);
  if (wrong.count == 0) return std::nullopt;
  machine::Failure failure{.kind = machine::Failure::Kind::wrong_result, .text = wrong.text};
  if (uses_library() || runner == harness::Runner::yardstick) return failure;
  const auto& algorithm = collectives::find_algorithm(operation_, algorithm_);
  const Writer writer = last_writer(
      algorithm, collectives::with_pieces(algorithm, call_of_rank(), count_, case_.dtype), count_,
      wrong.first);
  if (writer.rank < 0) {
    failure.text += "; written by this rank";
    return failure;
  }
  failure.peer = context_.group.members[static_cast<std::size_t>(writer.rank)];
  if (writer.summed) failure.summed_ranks = case_.ranks;
  failure.text +=
      fmt::format("; {} rank {}", writer.summed ? "summed with the message from" : "received from",
                  failure.peer);
  return failure;
}

void CollectiveUnit::call(Communicator& communicator, std::string_view algorithm,
                          const Buffers& buffers) {
  communicator.run(operation_, algorithm, buffers.in, buffers.out, case_.reduction, case_.root,
                   traffic_);
}

void CollectiveUnit::judge_numerics(Judge& judge, std::string_view how, const Buffers& buffers) {
  fill(buffers);
  run(buffers);
  judge_output(judge, how, buffers.out);
}

void CollectiveUnit::judge_output(Judge& judge, std::string_view how, const Tensor& output) {
  context_.device.stream().synchronize();
  if (!output) return;
  const std::string what = fmt::format("{}, {}", name(operation_), how);
  if (context_.device.readable_by_host())
    return judge.exact(what, to_doubles(output), expected(question(), context_.group.index));
  // The device finds the errors, because the output may be larger than the host's memory.
  const WrongElements wrong = wrong_in(output);
  if (wrong.count == 0) return judge.numerics(what, 0, 0);
  // Bits may differ although the numbers are equal (-0).
  judge.numerics(what + ": " + wrong.text,
                 std::max(wrong.largest, std::numeric_limits<double>::denorm_min()), 0);
}

void CollectiveUnit::judge_volume(Judge& judge) {
  if (uses_library())
    return judge.not_applicable(Oracle::volume,
                                "the library does not count the bytes that it sends");
  const machine::TrafficLabel label{operation_, case_.dtype};
  communicator_->link().reset_traffic();
  run(buffers_);  // a graph's messages are not counted
  auto measured = communicator_->link().traffic();
  judge.volume("world", label, measured[label],
               expected_traffic(collectives::find_algorithm(operation_, algorithm_), call_of_rank(),
                                count_, case_.dtype));
}

// The peak so far is that of the timed runs.
void CollectiveUnit::judge_memory(Judge& judge) {
  if (&communicator_->device() != &context_.device)
    return judge.not_applicable(Oracle::memory, "CUDA tensors are staged through host memory");
  std::size_t expected = bytes_of_buffers();
  if (!uses_library()) {
    const auto& algorithm = collectives::find_algorithm(operation_, algorithm_);
    const collectives::Call call = call_of_rank();
    expected += scratch_bytes(algorithm, call, count_, case_.dtype);
    if (const auto* rounds = communicator_->rounds(
            {&algorithm, count_, case_.dtype, false, call.root, call.inner, traffic_})) {
      judge.shares_reference(Oracle::memory);  // the plan's rounds
      judge.memory(Category::links, memory_.peak(Category::links),
                   collectives::staging_bytes(algorithm, call, count_, case_.dtype, *rounds));
    }
  }
  judge.memory(Category::buffers, memory_.peak(Category::buffers), expected);
}

void CollectiveUnit::judge(Judge& judge) {
  judge_memory(judge);
  judge_volume(judge);
  judge_numerics(judge, "out of place", case_.in_place ? out_of_place() : buffers_);
  // Skips MPI: MPI_Reduce in place of MPICH 4.0.2 reads address -1 at a root other than 0.
  if (collectives::may_be_in_place(operation_) &&
      (!uses_library() || case_.transport == Transport::nccl))
    judge_numerics(judge, "in place", in_place());
  if (graph_) {
    fill(buffers_);
    graph_->launch();
    judge_output(judge, "as a graph", buffers_.out);
  }
  judge_rounding(judge);
}

// Uses real numbers, whose sum depends on the order. The result is within its rounding of the sum
// in double. Its bits are equal on all ranks that hold the same result, in a second run and with a
// fresh communicator.
void CollectiveUnit::judge_rounding(Judge& judge) {
  const bool real = machine::is_floating(case_.dtype);
  machine::Kernels& kernels = context_.device.stream().kernels();
  const auto fill_as = [&](int rank, const Tensor& part, std::int64_t from, std::int64_t whole) {
    const bool has_kernel = machine::has_every_kernel(case_.dtype);
    const Tensor drawn =
        has_kernel ? part
                   : Tensor(context_.device, Dtype::float32, part.shape(), Category::buffers);
    kernels.fill_normal(drawn, context_.seed + static_cast<std::uint64_t>(rank), {0, from, whole},
                        0, 1);
    if (!has_kernel) kernels.cast(drawn, part);
    context_.device.stream().synchronize();  // before `drawn` is destroyed
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
  if (graph_) {
    graph_->launch();
    context_.device.stream().synchronize();
    if (buffers_.out) judge.same_bits(key, hash(buffers_.out));
  }
  if (!real || !reduces(operation_) || !buffers_.out || buffers_.out.size() == 0) return;

  // Checks only three windows of the result, because this rank draws the values of all ranks again.
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
    append(actual, buffers_.out.slice(begin, {window}));
    for (std::size_t i = 0; i < static_cast<std::size_t>(window); ++i) {
      std::vector<double> meeting;
      for (const auto& of_rank : terms) meeting.push_back(of_rank[i]);
      const Bounded right = reduce_exactly(question(), meeting);
      values.push_back(right.value);
      bounds.push_back(right.error);
    }
  }
  judge.numerics(fmt::format("{} of real numbers", name(case_.reduction)), actual, values, bounds);
}

void CollectiveUnit::describe(Description& description) const {
  if (!note_.empty()) description.note = note_;
  if (buffers_.out) description.fingerprint = fmt::format("{:016x}", fingerprint_);
}

// Returns the minimum bytes that each rank reads plus writes through memory, and the bytes that it
// receives. Assumes that all ranks do the same work and access peers' memory in place (Chan,
// Heimlich, Purkayastha, van de Geijn 2007, doi:10.1002/cpe.1206).
Cost CollectiveUnit::cost() const {
  using enum Operation;
  Cost cost;
  const double n = case_.ranks;
  const double whole = static_cast<double>(count_) * static_cast<double>(size_of(case_.dtype)) *
                       (deals_in_shares(operation_) ? n : 1);
  cost.algorithm_bytes = whole;
  cost.bus_factor = collectives::bus_factor(operation_, case_.ranks);
  cost.transport = case_.transport;
  // At least: inputs that all ranks together read from memory once, and outputs.
  const auto bytes_of = [&](Extent extent) {
    return extent == Extent::none ? 0 : extent == Extent::own_share ? whole / n : whole;
  };
  collectives::Call call = call_of_rank();
  for (call.rank = 0; call.rank < case_.ranks; ++call.rank) {
    const collectives::Extents held = extents(operation_, call);
    cost.memory_bytes += (bytes_of(held.input) + bytes_of(held.output)) / n;
  }
  cost.wire_bytes = whole * (n - 1) / n;
  if (operation_ == gather || operation_ == scatter) cost.wire_bytes /= n;
  if (operation_ == all_reduce) cost.wire_bytes *= 2;
  if (operation_ == send_receive) cost.wire_bytes = case_.ranks > 1 ? whole : 0;
  if (operation_ == all_to_all_v)
    cost.memory_bytes =
        2 * static_cast<double>(traffic_->total()) * static_cast<double>(size_of(case_.dtype)) / n;
  if (case_.in_place) {  // a rank's own share, or the root's, is not copied
    const bool shares_reads = operation_ == all_gather || operation_ == broadcast;
    cost.memory_bytes = shares_reads ? whole : cost.memory_bytes * (n - 1) / n;
  }
  cost.working_set_bytes = static_cast<double>(bytes_of_buffers());
  return cost;
}

}  // namespace suite
