#include "machine/link/nccl.h"

#include <fmt/format.h>

#include <cstring>
#include <string>

#include "machine/base/error.h"
#include "machine/device/cuda/internals.h"
#include "machine/device/cuda/runtime.h"
#include "machine/link/cuda_links.h"
#include "machine/world/world.h"

namespace machine {
namespace {

std::string words(ncclResult_t result, ncclComm_t communicator) {
  const char* last = ncclGetLastError(communicator);
  return fmt::format("{}{}{}", ncclGetErrorString(result), last && *last ? ": " : "",
                     last ? last : "");
}

// Returns true when NCCL has completed the call. `state` is then its result.
bool settled(ncclComm_t communicator, ncclResult_t& state) {
  const ncclResult_t asked = ncclCommGetAsyncError(communicator, &state);
  if (asked != ncclSuccess) state = asked;
  return state != ncclInProgress;
}

}  // namespace

NcclLink::NcclLink(Group group, ncclComm_t communicator, Device& device, WaitPolicy policy)
    : Link(std::move(group)),
      communicator_(communicator),
      device_(device),
      index_(cuda::internals(device).index),
      wait_(policy),
      sent_(size()),
      landed_(size()),
      bytes_(device.allocate(size() + 1, Category::buffers)) {}

NcclLink::~NcclLink() {
  try {
    flush();
    device_.stream().synchronize();
    if (!communicator_) return;
    finish(ncclCommFinalize(communicator_), "ncclCommFinalize");
    ncclCommDestroy(communicator_);
  } catch (const MachineError&) {
    abort();  // a peer or the device is lost; the run already ends with that failure
  }
}

ncclComm_t NcclLink::communicator() const {
  if (!communicator_)
    throw MachineError(fmt::format("the NCCL communicator of group {} was aborted", group().name));
  return communicator_;
}

cudaStream_t NcclLink::queue() const { return cuda::internals(device_).stream; }

void NcclLink::make_current() const { cuda::make_current(index_); }

void NcclLink::abort() {
  if (communicator_) ncclCommAbort(communicator_);
  communicator_ = nullptr;
}

void NcclLink::check(ncclResult_t result, const char* call, int peer) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const int mine = group().members[rank()];
  const std::string with = peer < 0
                               ? fmt::format("among the {} ranks of group {}", size(), group().name)
                               : fmt::format("with rank {}", group().members[peer]);
  const std::string said = words(result, communicator_);
  abort();
  throw MachineError(fmt::format("{} of rank {} {} failed: {}; set NCCL_DEBUG=WARN for details",
                                 call, mine, with, said));
}

void NcclLink::finish(ncclResult_t result, const char* call, int peer, std::size_t bytes) {
  const int member = peer < 0 ? any_of_group : group().members[peer];
  const Waiting meeting{operation(), member, ++calls_, bytes, "meet"};
  wait_.queued(meeting);
  if (result == ncclInProgress) {
    try {
      wait_.polling([&] { return settled(communicator_, result); }, meeting);
    } catch (const MachineError&) {
      abort();
      throw;
    }
  }
  check(result, call, peer);
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
    for (const Transfer& one : all) {
      // An empty message is sent as one byte, because NCCL does not document that empty transfers
      // wait.
      const std::size_t bytes = one.bytes == 0 ? 1 : one.bytes;
      void* data = one.bytes > 0 ? one.data : one.sends ? byte(size()) : byte(one.peer);
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
    landed = device_.allocate(bytes, Category::buffers);
  }
  do_receive(peer, landed.data(), bytes, Store::cached);
  return landed.data();
}

namespace cuda {

bool has_nccl() { return true; }

std::unique_ptr<Link> connect_nccl(World& world, const Group& group) {
  Device& device = world.device();
  make_current(internals(device).index);
  // All ranks take part in both exchanges, including ranks that failed.
  const auto told = [](const std::string& text) {
    if (text.front() == '-') throw MachineError("transport nccl: " + text.substr(1));
    return text.substr(1);
  };
  ncclUniqueId id;
  std::string mine;
  if (group.index == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    mine = result == ncclSuccess
               ? "+" + std::string(id.internal, sizeof id.internal)
               : fmt::format("-rank {}: ncclGetUniqueId: {}", world.rank(), words(result, nullptr));
  }
  mine = told(world.broadcast(group, 0, mine));
  std::memcpy(id.internal, mine.data(), sizeof id.internal);

  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t communicator = nullptr;
  mine.assign(1, '+');
  try {
    ncclResult_t result =
        ncclCommInitRankConfig(&communicator, group.size(), id, group.index, &config);
    if (result == ncclInProgress) {
      const int someone = group.members[group.index == 0 ? group.members.size() - 1 : 0];
      Wait(world.wait_policy())
          .polling([&] { return settled(communicator, result); },
                   {Operation::none, someone, 0, 0, "join NCCL"});
    }
    if (result != ncclSuccess)
      throw MachineError(fmt::format("ncclCommInitRankConfig: {}", words(result, communicator)));
  } catch (const MachineError& error) {
    mine = fmt::format("-rank {}: {}", world.rank(), error.what());
  }
  const auto abort = [&] {
    if (communicator) ncclCommAbort(communicator);
  };
  try {
    for (const std::string& theirs : world.all_gather(group, mine)) told(theirs);
  } catch (const MachineError&) {
    abort();
    throw;
  }
  return std::make_unique<NcclLink>(group, communicator, device, world.wait_policy());
}

}  // namespace cuda
}  // namespace machine
