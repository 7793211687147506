#include "collectives/communicator.h"

#include <fmt/format.h>

#include <stdexcept>

#include "collectives/library.h"

namespace collectives {

using machine::Category;
using machine::Operation;
using machine::Tensor;

std::string_view default_algorithm(Operation operation, machine::Transport transport,
                                   std::size_t bytes, int ranks) {
  if (operation == Operation::all_reduce && bytes <= 4096 / static_cast<std::size_t>(ranks))
    return "direct_one_step";
  // Reductions stay direct everywhere: the same parameter must get the same bits on ranks that hold
  // it at different places of their buffers (tied embeddings), and ring's order depends on the
  // place.
  const bool moves_only = operation == Operation::all_gather;
  return moves_only && transport == machine::Transport::mpi ? "ring" : "direct";
}

Communicator::Communicator(machine::World& world, const machine::Group& group,
                           machine::Transport transport)
    : world_(world), link_(world.connect(group, transport)) {}

Communicator::~Communicator() = default;

void Communicator::run(Operation operation, std::string_view algorithm, const Tensor& in,
                       const Tensor& out, machine::Reduction reduction) {
  if (in.dtype() != out.dtype())
    throw std::invalid_argument(fmt::format("{}: input is {}, output {}", machine::name(operation),
                                            machine::name(in.dtype()), machine::name(out.dtype())));
  const bool gathers = operation == Operation::all_gather,
             scatters = operation == Operation::reduce_scatter;
  if (in.size() * (gathers ? size() : 1) != out.size() * (scatters ? size() : 1))
    throw std::invalid_argument(fmt::format("{} among {} ranks: {} elements in do not fit {} out",
                                            machine::name(operation), size(), in.size(),
                                            out.size()));
  const std::int64_t count = scatters ? out.size() : in.size();

  if (!in.device().readable_by_host()) {  // staged: down, through the host, up
    machine::Stream& stream = in.device().stream();
    const bool in_place = in.data() == out.data();
    const Tensor host_in(world_.host_device(), in.dtype(), {in.size()}, Category::buffers);
    const Tensor host_out =
        in_place ? host_in
                 : Tensor(world_.host_device(), out.dtype(), {out.size()}, Category::buffers);
    stream.copy(host_in.data(), in.data(), in.bytes());
    stream.synchronize();
    run(operation, algorithm, host_in, host_out, reduction);
    stream.copy(out.data(), host_out.data(), out.bytes());
    stream.synchronize();
    return;
  }

  machine::Kernels& kernels = world_.host_device().stream().kernels();
  if (algorithm == library) {
    link_->count_as({operation, in.dtype()});
    run_library(operation, *link_, kernels, in.dtype(), reduction, in.data(), out.data(), count);
    return;
  }
  if (algorithm.empty())
    algorithm = default_algorithm(operation, link_->transport(), in.bytes(), size());
  const auto* in_bytes = static_cast<const std::byte*>(in.data());
  auto* out_bytes = static_cast<std::byte*>(out.data());
  const std::size_t share =
      static_cast<std::size_t>(rank()) * static_cast<std::size_t>(count) * size_of(in.dtype());
  const bool in_place = gathers    ? in_bytes == out_bytes + share
                        : scatters ? out_bytes == in_bytes + share
                                   : in_bytes == out_bytes;

  const CallKey key{&find_algorithm(operation, algorithm), count, in.dtype(), in_place};
  if (!last_key_ || *last_key_ != key) {
    auto found = executions_.find(key);
    if (found == executions_.end())
      found =
          executions_
              .emplace(key, std::make_unique<Execution>(key, rank(), size(), world_.host_device()))
              .first;
    last_key_ = &found->first;
    last_ = found->second.get();
  }
  last_->run(*link_, reduction, in_bytes, out_bytes);
}

void Communicator::all_reduce(const Tensor& in, const Tensor& out, std::string_view algorithm,
                              machine::Reduction reduction) {
  if (size() == 1 && in.data() == out.data()) return;
  run(Operation::all_reduce, algorithm, in, out, reduction);
}

void Communicator::all_gather(const Tensor& in, const Tensor& out, std::string_view algorithm) {
  run(Operation::all_gather, algorithm, in, out, machine::Reduction::sum);
}

void Communicator::reduce_scatter(const Tensor& in, const Tensor& out, std::string_view algorithm) {
  run(Operation::reduce_scatter, algorithm, in, out, machine::Reduction::sum);
}

void Communicator::barrier() {
  // Dissemination (Hensgen, Finkel and Manber 1988): in round k, to the rank 2^k ahead.
  link_->count_as({Operation::barrier, machine::Dtype::float32});
  for (int distance = 1; distance < size(); distance *= 2) {
    link_->send((rank() + distance) % size(), nullptr, 0);
    link_->receive((rank() - distance % size() + size()) % size(), nullptr, 0);
  }
}

}  // namespace collectives
