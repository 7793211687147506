#include "collectives/communicator/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "collectives/communicator/library.h"
#include "collectives/layout.h"
#include "machine/link/connect.h"
#include "machine/world/step_clock.h"

namespace collectives {

using machine::Category;
using machine::Operation;
using machine::Tensor;

std::string_view default_algorithm(Operation operation, machine::Transport transport,
                                   std::size_t bytes, int ranks) {
  if (operation == Operation::all_reduce && bytes <= 4096 / static_cast<std::size_t>(ranks))
    return "direct_one_step";
  // Reductions are direct on all transports. A parameter must get the same bits on ranks that hold
  // it at different places of their buffers (tied embeddings), and the order of ring depends on the
  // place.
  if (operation == Operation::barrier) return "dissemination";
  const bool moves_only = operation == Operation::all_gather || operation == Operation::broadcast;
  return moves_only && transport == machine::Transport::mpi ? "ring" : "direct";
}

namespace {

int near_ranks(const machine::World& world, const machine::Group& group) {
  const auto host = [&](int i) -> const std::string& { return world.host(group.members[i]); };
  int inner = 1;
  while (inner < group.size() && host(inner) == host(0)) ++inner;
  bool even = inner < group.size() && group.size() % inner == 0;
  for (int i = 0; i < group.size() && even; ++i) even = host(i) == host(i - i % inner);
  if (even) return inner;
  inner = 1;
  for (int divisor = 2; divisor * divisor <= group.size(); ++divisor)
    if (group.size() % divisor == 0) inner = divisor;
  return inner;
}

int ranks_of_host(const machine::World& world, const machine::Group& group) {
  return static_cast<int>(std::ranges::count_if(
      group.members, [&](int member) { return world.host(member) == world.host(world.rank()); }));
}

class ByControlPlane final : public Agreement {
 public:
  ByControlPlane(machine::World& world, const machine::Group& group)
      : world_(world), group_(group) {}
  void send(int peer, Number number) override { world_.send(member(peer), number); }
  std::optional<Number> receive(int peer) override { return world_.receive<Number>(member(peer)); }

 private:
  int member(int peer) const { return group_.members[peer]; }
  machine::World& world_;
  const machine::Group& group_;
};

}  // namespace

Communicator::Communicator(machine::World& world, const machine::Group& group,
                           machine::Transport transport, machine::LinkStream stream)
    : Communicator(world, machine::connect(world, group, transport, stream)) {}

Communicator::Communicator(machine::World& world, std::unique_ptr<machine::Link> link)
    : world_(world),
      link_(std::move(link)),
      inner_(near_ranks(world, link_->group())),
      ranks_of_host_(ranks_of_host(world, link_->group())),
      staging_(world.host_device()) {}

machine::Device& Communicator::device() const {
  return link_->stream() ? link_->stream()->device() : world_.host_device();
}

Communicator::~Communicator() = default;

namespace {

// Returns the count of a call from its tensors: elements of the whole buffer, or of a share. Throws
// std::invalid_argument if the tensors do not match.
std::int64_t count_of(Operation operation, const Call& call, const Tensor& in, const Tensor& out) {
  const Extents held = extents(operation, call);
  if ((operation == Operation::all_to_all_v) != (call.traffic != nullptr))
    throw std::invalid_argument(fmt::format("{} {} traffic matrix", machine::name(operation),
                                            call.traffic ? "takes no" : "needs a"));
  if (call.traffic && call.traffic->ranks() != call.ranks)
    throw std::invalid_argument(fmt::format("{} among {} ranks: the traffic matrix has {} ranks",
                                            machine::name(operation), call.ranks,
                                            call.traffic->ranks()));
  const Tensor& present = held.input != Extent::none ? in : out;
  const Extent extent = held.input != Extent::none ? held.input : held.output;
  const bool several = extent == Extent::whole && deals_in_shares(operation);
  const std::int64_t count = call.traffic ? call.traffic->busiest()
                             : several    ? present.size() / call.ranks
                                          : present.size();
  const BufferElements needed = buffer_elements(operation, call, count);
  if ((held.input != Extent::none && in.size() != needed.input) ||
      (held.output != Extent::none && out.size() != needed.output))
    throw std::invalid_argument(
        fmt::format("{} among {} ranks: {} input elements do not match {} output elements",
                    machine::name(operation), call.ranks, in.size(), out.size()));
  if (held.input != Extent::none && held.output != Extent::none && in.dtype() != out.dtype())
    throw std::invalid_argument(fmt::format("{}: input is {}, output {}", machine::name(operation),
                                            machine::name(in.dtype()), machine::name(out.dtype())));
  return count;
}

}  // namespace

bool Communicator::is_in_place(Operation operation, int root, const Tensor& in,
                               const Tensor& out) const {
  const Extents held = extents(operation, {rank(), size(), 1, root});
  if (held.input == Extent::none || held.output == Extent::none) return false;
  const auto* input = static_cast<const std::byte*>(in.data());
  const auto* output = static_cast<const std::byte*>(out.data());
  const std::size_t before = static_cast<std::size_t>(rank()) * std::min(in.bytes(), out.bytes());
  if (held.input == held.output) return input == output;
  return held.input == Extent::own_share ? input == output + before : output == input + before;
}

void Communicator::set_inner(int inner) {
  if (inner < 1 || size() % inner != 0)
    throw std::invalid_argument(fmt::format("inner {} does not divide {} ranks", inner, size()));
  inner_ = inner;
  last_call_.reset();
}

namespace {

constexpr std::ptrdiff_t most_matrices = 4;

}  // namespace

const std::vector<Round>* Communicator::rounds(CallKey key) {
  if (!link_->is_rendezvous()) return nullptr;
  key.in_place = false;
  auto known = rounds_.find(key);
  if (known == rounds_.end()) {
    const Call call =
        with_pieces(*key.algorithm, {rank(), size(), 1, key.root, key.inner, key.traffic.get()},
                    key.count, key.dtype);
    ByControlPlane agreement(world_, group());
    known = rounds_.emplace(key, rounds_of(*key.algorithm, call, key.count, agreement)).first;
  }
  return &known->second;
}

Execution& Communicator::execution(const CallKey& key, const Call& call) {
  if (last_key_ && *last_key_ == key) return *last_;
  auto found = executions_.find(key);
  if (found == executions_.end()) {
    const Algorithm& algorithm = *key.algorithm;
    if (const std::string why = algorithm.refuses(call); !why.empty())
      throw std::invalid_argument(
          fmt::format("{} by {}: {}", machine::name(algorithm.operation), algorithm.name, why));
    last_key_ = nullptr;
    if (key.traffic) {  // limits the memory if the matrix changes in every call
      const auto alike = [&](const auto& known) {
        return known.first.traffic && known.first.algorithm == key.algorithm &&
               known.first.dtype == key.dtype;
      };
      if (std::count_if(executions_.begin(), executions_.end(), alike) >= most_matrices) {
        std::erase_if(executions_, alike);
        std::erase_if(rounds_, alike);
      }
    }
    found = executions_
                .emplace(key, std::make_unique<Execution>(key, rank(), size(), stream(),
                                                          rounds(key), ranks_of_host_))
                .first;
  }
  last_key_ = &found->first;
  last_ = found->second.get();
  return *last_;
}

Execution* Communicator::plan_of(Operation operation, const Tensor& in, const Tensor& out) {
  std::string_view algorithm = size() > 1 ? algorithms_.of(operation) : std::string_view();
  if (algorithm == library || link_->stages(in.device())) return nullptr;
  if (algorithm.empty())
    algorithm = default_algorithm(operation, link_->transport(), in.bytes(), size());
  const Call call{rank(), size(), 1, 0, inner_, nullptr};
  return &execution({&find_algorithm(operation, algorithm),
                     count_of(operation, call, in, out),
                     in.dtype(),
                     is_in_place(operation, 0, in, out),
                     0,
                     inner_,
                     {}},
                    call);
}

void Communicator::run(Operation operation, std::string_view algorithm, const Tensor& in,
                       const Tensor& out, machine::Reduction reduction, int root,
                       const std::shared_ptr<const TrafficMatrix>& traffic) {
  std::optional<machine::During> during;
  if (size() > 1) during.emplace(machine::Part::communication, group().name);
  if (last_call_ && !traffic && last_call_->is(operation, algorithm, in, out, root))
    return run_plan(*last_call_->plan, operation, in, out, reduction, root);
  const Call call{rank(), size(), 1, root, inner_, traffic.get()};
  const std::int64_t count = count_of(operation, call, in, out);
  const Extents held = extents(operation, call);
  const Tensor& present = held.input != Extent::none ? in : out;
  const bool in_place = is_in_place(operation, root, in, out);

  if (link_->stream() && &present.device() != &device())
    throw std::invalid_argument(fmt::format(
        "{} over {} requires tensors of {} (got {})", machine::name(operation),
        name(link_->transport()), device().description(), present.device().description()));
  if (link_->stages(present.device())) {
    const bool same = in_place && held.input == held.output;
    const Tensor host_in = held.input == Extent::none ? Tensor() : staging_.down(0, in);
    const Tensor host_out = held.output == Extent::none ? Tensor()
                            : same                      ? host_in
                                                        : staging_.memory(1, out);
    run(operation, algorithm, host_in, host_out, reduction, root, traffic);
    if (held.output != Extent::none) staging_.up(same ? 0 : 1, host_out, out);
    return;
  }

  const machine::Dtype dtype = present.dtype();
  const std::string_view given = algorithm;
  if (algorithm.empty() && size() > 1) algorithm = algorithms_.of(operation);
  if (algorithm == library) {
    link_->count_as({operation, dtype});
    link_->start_after_device();
    run_library({operation, dtype, reduction, count, root, in_place, traffic.get()}, *link_,
                stream().kernels(), in.data(), out.data());
    if (!apart_) link_->end_before_device();
    return;
  }
  if (algorithm.empty())
    algorithm = default_algorithm(operation, link_->transport(), present.bytes(), size());
  const CallKey key{
      &find_algorithm(operation, algorithm), count, dtype, in_place, root, inner_, traffic};
  // A first call allocates memory in the order of the device's stream, so the link's stream starts
  // after it.
  Execution& plan = execution(key, call);
  if (!traffic)
    last_call_ = {operation,  std::string(given), in.data(),   out.data(), in.size(),
                  out.size(), in.dtype(),         out.dtype(), root,       &plan};
  run_plan(plan, operation, in, out, reduction, root);
}

void Communicator::run_plan(Execution& plan, Operation operation, const Tensor& in,
                            const Tensor& out, Reduction reduction, int root) {
  link_->start_after_device();
  plan.run(*link_, reduction, static_cast<const std::byte*>(in.data()),
           static_cast<std::byte*>(out.data()));
  if (reduction == Reduction::avg && reduces(operation) &&
      extents(operation, {rank(), size(), 1, root}).output != Extent::none)
    stream().kernels().divide(out.dtype(), out.data(), out.size(), size());
  if (!apart_) link_->end_before_device();
}

bool Communicator::LastCall::is(Operation its_operation, std::string_view its_algorithm,
                                const Tensor& its_in, const Tensor& its_out, int its_root) const {
  return operation == its_operation && in == its_in.data() && out == its_out.data() &&
         in_size == its_in.size() && out_size == its_out.size() && in_dtype == its_in.dtype() &&
         out_dtype == its_out.dtype() && root == its_root && algorithm == its_algorithm;
}

std::unique_ptr<machine::Event> Communicator::run_apart(const std::function<void()>& queue_calls) {
  if (!link_->has_own_stream())
    throw std::logic_error(
        fmt::format("the link of group {} has no stream of its own", group().name));
  struct Apart {
    explicit Apart(bool& is) : is(is) { is = true; }
    ~Apart() { is = false; }
    bool& is;
  } apart(apart_);
  link_->start_after_device();
  queue_calls();
  return stream().record();
}

void Communicator::all_reduce(const Tensor& in, const Tensor& out, std::string_view algorithm,
                              machine::Reduction reduction) {
  if (size() == 1 && in.data() == out.data()) return;
  run(Operation::all_reduce, algorithm, in, out, reduction);
}

void Communicator::barrier(std::string_view algorithm) {
  if (!nothing_) nothing_ = Tensor(device(), machine::Dtype::float32, {0}, Category::buffers);
  run(Operation::barrier, algorithm, nothing_, nothing_);
}

}  // namespace collectives
