#include "machine/link/nccl.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "machine/base/error.h"
#include "machine/device/cuda/internals.h"
#include "machine/device/cuda/runtime.h"
#include "machine/link/cuda_links.h"
#include "machine/world/world.h"

namespace machine {

NcclLink::NcclLink(Group group, Wiring wiring)
    : Link(std::move(group)),
      wiring_(std::move(wiring)),
      index_(cuda::internals(*wiring_.device).index),
      wait_(wiring_.policy),
      sent_(size()),
      landed_(size()) {}

NcclLink::~NcclLink() {
  try {
    flush();
    stream()->synchronize();
    if (wiring_.communicator) wiring_.communicators->give_back(group(), wiring_.communicator);
  } catch (const MachineError&) {
    abort();  // a peer or the device is lost; the run already ends with that failure
  }
}

ncclComm_t NcclLink::communicator() const {
  if (!wiring_.communicator)
    throw MachineError(fmt::format("the NCCL communicator of group {} was aborted", group().name));
  return wiring_.communicator;
}

cudaStream_t NcclLink::queue() const { return cuda::handle_of(*stream()); }

void NcclLink::make_current() const { cuda::make_current(index_); }

void NcclLink::make_current_to_free() const noexcept { cudaSetDevice(index_); }

void NcclLink::abort() {
  if (wiring_.communicator) wiring_.communicators->abort(group(), wiring_.communicator);
  wiring_.communicator = nullptr;
}

void NcclLink::check(ncclResult_t result, const char* call, int peer, std::size_t bytes) {
  const int member = peer < 0 ? any_of_group : group().members[peer];
  wait_.queued({operation(), member, calls_, bytes, "meet"});
  if (result == ncclSuccess) return;
  const int mine = group().members[rank()];
  const std::string with = peer < 0
                               ? fmt::format("among the {} ranks of group {}", size(), group().name)
                               : fmt::format("with rank {}", member);
  const std::string said = nccl_text(result);
  abort();
  throw MachineError(fmt::format("{} of rank {} {} failed: {}; set NCCL_DEBUG=WARN for details",
                                 call, mine, with, said));
}

std::uint64_t NcclLink::do_send(int peer, const void* data, std::size_t bytes) {
  waiting_.push_back({true, peer, const_cast<void*>(data), bytes});
  return ++sent_[peer];
}

void NcclLink::do_wait_sent(int, std::uint64_t) {
  if (!waiting_.empty()) do_exchange({});
}

void NcclLink::do_exchange(std::span<const Transfer> transfers) {
  const ncclComm_t communicator = this->communicator();
  std::vector<Transfer> all;
  all.swap(waiting_);
  all.insert(all.end(), transfers.begin(), transfers.end());
  if (all.empty()) return;
  make_current();
  const cudaStream_t stream = queue();
  std::size_t total = 0;
  for (const Transfer& one : all) total += one.bytes;
  group_of("a group of ncclSend and ncclRecv", all.front().peer, total, [&](auto keep) {
    std::size_t empty = 0;
    for (const Transfer& one : all) {
      // An empty message is sent as one byte, because NCCL does not document that empty transfers
      // wait. Each has its own, because the buffers of a group may not overlap.
      const std::size_t bytes = one.bytes == 0 ? 1 : one.bytes;
      void* data = one.bytes > 0 ? one.data : byte(empty++ % spare_bytes);
      keep(one.sends ? ncclSend(data, bytes, ncclUint8, one.peer, communicator, stream)
                     : ncclRecv(data, bytes, ncclUint8, one.peer, communicator, stream));
    }
  });
}

void NcclLink::do_receive(int peer, void* into, std::size_t bytes, Store) {
  const Transfer one{false, peer, into, bytes};
  do_exchange({&one, 1});
}

const void* NcclLink::do_receive_in_place(int peer, std::size_t bytes) {
  Memory& landed = landed_[peer];
  if (landed.bytes() < bytes) {
    landed = {};
    landed = wiring_.device->allocate(bytes, Category::links);
  }
  do_receive(peer, landed.data(), bytes, Store::cached);
  return landed.data();
}

namespace cuda {

bool has_nccl() { return true; }

std::unique_ptr<Link> connect_nccl(World& world, const Group& group, LinkStream stream) {
  Device& device = world.device();
  auto& communicators = world.kept<NcclCommunicators>();
  NcclLink::Wiring wiring{&device, nullptr, &communicators, nullptr, {}, world.wait_policy()};
  wiring.communicator = communicators.take(world, group, [&] {
    make_current(internals(device).index);
    if (stream == LinkStream::own) wiring.own_stream = device.make_stream();
    wiring.bytes = device.allocate(NcclLink::spare_bytes, Category::links);
  });
  return std::make_unique<NcclLink>(group, std::move(wiring));
}

}  // namespace cuda
}  // namespace machine
