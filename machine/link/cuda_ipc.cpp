// The cuda_ipc transport: StreamedLink with CUDA's events as marks and with peers' device memory
// mapped (CUDA C++ Programming Guide, "Interprocess Communication").
//
// Lifetimes: a world keeps its device until all its ranks have ended. Mappings of arenas are closed
// with the link that opened them. A peer may use an event or an arena of this rank until the peer
// closes its end of the link. Therefore own events are destroyed, and arenas can be released, after
// a barrier of the world. Opened events are destroyed with the link. Ranks that are threads use
// each other's events and memory directly, because a process cannot open its own handles.

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "machine/base/error.h"
#include "machine/device/cuda/internals.h"
#include "machine/device/cuda/runtime.h"
#include "machine/link/cuda_links.h"
#include "machine/link/streamed.h"
#include "machine/world/world.h"

namespace machine::cuda {
namespace {

// Events per kind of mark and peer. Few, because events that other processes can open are scarce:
// PyTorch keeps fewer than 1000 per process. If a later mark has replaced an earlier one, the wait
// is for the later mark.
constexpr std::uint64_t events_kept = 4;

// The arenas of a rank, in its host memory that peers map: handles, or base addresses for threads.
struct Exports {
  static constexpr std::size_t most = 1 << 15;  // only the pages of those that exist are used
  struct Word {
    alignas(16) std::byte bytes[sizeof(cudaIpcMemHandle_t)];
  };
  std::atomic<std::uint32_t> count{0};
  Word arenas[most];
};
static_assert(sizeof(cudaIpcMemHandle_t) == 64 && sizeof(cudaIpcEventHandle_t) == 64);

using EventRings = std::array<cudaEvent_t, num_marks * events_kept>;  // one ring per mark

void destroy(int device, std::vector<EventRings>& of_peers) {
  cudaSetDevice(device);
  for (EventRings& events : of_peers)
    for (cudaEvent_t& event : events)
      if (event) cudaEventDestroy(std::exchange(event, nullptr));
}

// Own events, one EventRings per peer; destroyed with the last owner.
class OwnEvents {
 public:
  OwnEvents(int device, int peers, int self, bool shared) : device_(device), rings_(peers) {
    make_current(device);
    const unsigned flags = cudaEventDisableTiming | (shared ? cudaEventInterprocess : 0u);
    try {
      for (int peer = 0; peer < peers; ++peer)
        for (cudaEvent_t& event : rings_[peer])
          if (peer != self) SHARDMARK_CUDA(device, cudaEventCreateWithFlags(&event, flags));
    } catch (...) {
      destroy(device_, rings_);
      throw;
    }
  }
  ~OwnEvents() { destroy(device_, rings_); }
  OwnEvents(const OwnEvents&) = delete;
  OwnEvents& operator=(const OwnEvents&) = delete;
  const EventRings& for_peer(int peer) const { return rings_[peer]; }

 private:
  int device_;
  std::vector<EventRings> rings_;  // value-initialized: null
};

// An event that a rank created for a peer: its handle, or the event itself for threads.
using EventWord = std::array<std::byte, sizeof(cudaIpcEventHandle_t)>;
constexpr std::size_t words_a_peer = num_marks * events_kept;

class IpcNeighbours final : public Neighbours {
 public:
  struct Wiring {
    Device* device;
    std::unique_ptr<Stream> own_stream;  // null: the device's
    int rank;
    bool threads;
    std::shared_ptr<OwnEvents> own;
    std::vector<std::string> events;  // by peer: its EventWords, for all its peers
    World::Shared exports;
    std::function<void(std::function<void()>)> after_barrier;
  };
  explicit IpcNeighbours(Wiring wiring);
  ~IpcNeighbours() override;
  // Publishes the arenas that exist. Opens one arena of each peer.
  void publish() { tell_of_arenas(); }
  void try_memory_of_peers();
  IpcNeighbours(const IpcNeighbours&) = delete;
  IpcNeighbours& operator=(const IpcNeighbours&) = delete;

  Stream& stream() override {
    return wiring_.own_stream ? *wiring_.own_stream : wiring_.device->stream();
  }
  void record(Mark mark, int peer, std::uint64_t number) override {
    make_current(device_.index);
    SHARDMARK_CUDA(device_.index,
                   cudaEventRecord(event(wiring_.own->for_peer(peer), mark, number), queue_));
  }
  void wait(Mark mark, int peer, std::uint64_t number) override {
    make_current(device_.index);
    SHARDMARK_CUDA(device_.index,
                   cudaStreamWaitEvent(queue_, event(theirs_[peer], mark, number), 0));
  }
  std::uint64_t address(const void* data, std::size_t bytes) override;
  std::byte* at(int peer, std::uint64_t address) override;

 private:
  static constexpr int offset_bits = 48;  // of an address: the arena is in the higher bits

  static cudaEvent_t event(const EventRings& rings, Mark mark, std::uint64_t number) {
    return rings[static_cast<std::size_t>(mark) * events_kept + number % events_kept];
  }
  Exports& exports_of(int rank) {
    return *reinterpret_cast<Exports*>(wiring_.exports.blocks[rank]);
  }
  void open_events();
  void tell_of_arenas();
  void close();

  Wiring wiring_;
  Internals device_;
  cudaStream_t queue_;                           // stream()
  std::shared_ptr<const void> kept_;             // own arenas
  std::vector<EventRings> theirs_;               // by peer: its events for this rank
  std::vector<std::vector<std::byte*>> mapped_;  // by peer: its arenas; null: not mapped yet
};

IpcNeighbours::IpcNeighbours(Wiring wiring)
    : wiring_(std::move(wiring)),
      device_(internals(*wiring_.device)),
      queue_(handle_of(stream())),
      kept_(device_.arenas->keep()),
      theirs_(wiring_.events.size()),
      mapped_(wiring_.events.size()) {
  try {
    open_events();
  } catch (...) {
    close();
    throw;
  }
}

void IpcNeighbours::open_events() {
  make_current(device_.index);
  for (std::size_t peer = 0; peer < theirs_.size(); ++peer) {
    if (peer == static_cast<std::size_t>(wiring_.rank)) continue;
    const char* words =
        wiring_.events[peer].data() + wiring_.rank * words_a_peer * sizeof(EventWord);
    for (cudaEvent_t& event : theirs_[peer]) {
      if (wiring_.threads) {
        std::memcpy(&event, words, sizeof event);
      } else {
        cudaIpcEventHandle_t handle;
        std::memcpy(&handle, words, sizeof handle);
        SHARDMARK_CUDA(device_.index, cudaIpcOpenEventHandle(&event, handle));
      }
      words += sizeof(EventWord);
    }
  }
}

IpcNeighbours::~IpcNeighbours() { close(); }

// The link has waited for the stream, unless the run ends with a failure. In that case, closing
// memory that is still read does no more harm. Errors here come from earlier calls.
void IpcNeighbours::close() {
  cudaSetDevice(device_.index);
  if (!wiring_.threads) {
    for (auto& arenas : mapped_)
      for (std::byte*& base : arenas)
        if (base) cudaIpcCloseMemHandle(std::exchange(base, nullptr));
    destroy(device_.index, theirs_);
  }
  cudaGetLastError();
  wiring_.exports.retire();
  wiring_.after_barrier([own = std::move(wiring_.own), arenas = std::move(kept_)]() mutable {
    own.reset();
    arenas.reset();
  });
}

std::uint64_t IpcNeighbours::address(const void* data, std::size_t bytes) {
  const auto place = device_.arenas->find(data, bytes);
  if (!place)
    throw std::logic_error(fmt::format(
        "cuda_ipc: {} bytes at {} are not memory of this rank's CUDA device", bytes, data));
  tell_of_arenas();
  return std::uint64_t{place->arena} << offset_bits | place->offset;
}

// Publishes new arenas. Called before a word that refers to one of them.
void IpcNeighbours::tell_of_arenas() {
  Exports& mine = exports_of(wiring_.rank);
  const std::size_t told = mine.count.load(std::memory_order_relaxed);
  const std::size_t count = device_.arenas->count();
  if (told == count) return;
  if (count > Exports::most)
    throw MachineError(fmt::format("cuda_ipc: {} arenas; expected at most {}; use fewer tensors",
                                   count, Exports::most));
  make_current(device_.index);
  for (std::size_t arena = told; arena < count; ++arena) {
    std::byte* base = device_.arenas->base(arena);
    if (wiring_.threads) {
      std::memcpy(mine.arenas[arena].bytes, &base, sizeof base);
      continue;
    }
    cudaIpcMemHandle_t handle;
    SHARDMARK_CUDA(device_.index, cudaIpcGetMemHandle(&handle, base));
    std::memcpy(mine.arenas[arena].bytes, &handle, sizeof handle);
  }
  mine.count.store(static_cast<std::uint32_t>(count), std::memory_order_release);
}

std::byte* IpcNeighbours::at(int peer, std::uint64_t address) {
  const std::size_t arena = address >> offset_bits;
  const std::uint64_t offset = address & ((std::uint64_t{1} << offset_bits) - 1);
  if (peer == wiring_.rank) return device_.arenas->base(arena) + offset;
  auto& mapped = mapped_[peer];
  if (mapped.size() <= arena) mapped.resize(arena + 1);
  if (!mapped[arena]) {
    const Exports& theirs = exports_of(peer);
    SHARDMARK_CHECK(arena, <, std::size_t{theirs.count.load(std::memory_order_acquire)});
    if (wiring_.threads) {
      std::memcpy(&mapped[arena], theirs.arenas[arena].bytes, sizeof(std::byte*));
    } else {
      cudaIpcMemHandle_t handle;
      std::memcpy(&handle, theirs.arenas[arena].bytes, sizeof handle);
      void* base = nullptr;
      make_current(device_.index);
      SHARDMARK_CUDA(device_.index,
                     cudaIpcOpenMemHandle(&base, handle, cudaIpcMemLazyEnablePeerAccess));
      mapped[arena] = static_cast<std::byte*>(base);
    }
  }
  return mapped[arena] + offset;
}

void IpcNeighbours::try_memory_of_peers() {
  for (std::size_t peer = 0; peer < theirs_.size(); ++peer) at(static_cast<int>(peer), 0);
}

std::string words_of(const OwnEvents& own, int peers, int self, bool threads, int device) {
  std::string words(peers * words_a_peer * sizeof(EventWord), '\0');
  char* to = words.data();
  for (int peer = 0; peer < peers; ++peer)
    for (const cudaEvent_t& event : own.for_peer(peer)) {
      if (peer != self && threads) std::memcpy(to, &event, sizeof event);
      if (peer != self && !threads) {
        cudaIpcEventHandle_t handle;
        SHARDMARK_CUDA(device, cudaIpcGetEventHandle(&handle, event));
        std::memcpy(to, &handle, sizeof handle);
      }
      to += sizeof(EventWord);
    }
  return words;
}

// Threads must enable access to each other's devices. For processes, opening a handle enables it.
void enable_peers(World& world, const Group& group, int device) {
  for (const int member : group.members) {
    const int peer = index_of(world.board().of(member)->device.load());
    if (peer == device || peer < 0) continue;
    make_current(device);
    const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
      continue;
    }
    check(device, "cudaDeviceEnablePeerAccess", status);
  }
}

// A rank's text is '+' and a word, or '-' and an error. Throws the first error.
void agree(const Group& group, const std::vector<std::string>& texts,
           Failure::Kind kind = Failure::Kind::exception) {
  for (std::size_t peer = 0; peer < texts.size(); ++peer)
    if (texts[peer].front() == '-')
      throw MachineError(fmt::format("transport cuda_ipc: rank {}: {}", group.members[peer],
                                     texts[peer].substr(1)),
                         kind);
}

bool sees_all_peers(const World& world, const Group& group) {
  return std::ranges::all_of(group.members, [&](int member) {
    return index_of(world.board().of(member)->device.load()) >= 0;
  });
}

}  // namespace

std::string why_not_peers(std::uint64_t from, std::uint64_t to) {
  if (from == to) return "";
  const int here = index_of(from), there = index_of(to);
  // A process can open memory of devices that it does not see (cudaIpcOpenMemHandle). Only opening
  // it shows whether there is peer access: connect_ipc does.
  if (here < 0 || there < 0) return "";
  int can = 0;
  SHARDMARK_CUDA(here, cudaDeviceCanAccessPeer(&can, here, there));
  return can ? "" : fmt::format("device {} has no peer access to device {}", here, there);
}

std::unique_ptr<Link> connect_ipc(World& world, const Group& group, LinkStream stream) {
  IpcNeighbours::Wiring wiring;
  wiring.device = &world.device();
  wiring.rank = group.index;
  wiring.threads = world.ranks_are_threads();
  wiring.after_barrier = [&world](std::function<void()> call) {
    world.after_barrier(std::move(call));
  };
  // Whether a rank does not see the device of a peer.
  const std::vector<int> seen = world.all_gather(group, int{sees_all_peers(world, group)});
  const bool hidden = std::ranges::find(seen, 0) != seen.end();
  // All ranks take part in the exchange, including a rank whose device fails.
  std::string mine(1, '+');
  Memory arena;  // that peers can open
  try {
    if (hidden) arena = world.device().allocate(1, Category::buffers);
    const int device = internals(*wiring.device).index;
    if (wiring.threads) enable_peers(world, group, device);
    if (stream == LinkStream::own) wiring.own_stream = wiring.device->make_stream();
    wiring.own = std::make_shared<OwnEvents>(device, group.size(), group.index, !wiring.threads);
    mine += words_of(*wiring.own, group.size(), group.index, wiring.threads, device);
  } catch (const MachineError& error) {
    mine = std::string("-") + error.what();
  }
  wiring.events = world.all_gather(group, mine);
  agree(group, wiring.events);
  for (std::string& theirs : wiring.events) theirs.erase(0, 1);
  ChannelEnds ends = make_channels(world, group);
  wiring.exports =
      world.share(group, sizeof(Exports), [](std::byte* block) { new (block) Exports; });
  // No rank records a mark before all ranks have opened all events.
  std::unique_ptr<IpcNeighbours> neighbours;
  const auto on_all_ranks = [&](Failure::Kind kind, const auto& work) {
    std::string outcome(1, '+');
    try {
      work();
    } catch (const MachineError& error) {
      outcome = std::string("-") + error.what();
    }
    agree(group, world.all_gather(group, outcome), kind);
  };
  try {
    const auto kind = hidden ? Failure::Kind::unsupported : Failure::Kind::exception;
    on_all_ranks(kind, [&] {
      neighbours = std::make_unique<IpcNeighbours>(std::move(wiring));
      if (hidden) neighbours->publish();
    });
    // Without this, a rank that cannot open the memory of a peer would fail at its first message.
    if (hidden) on_all_ranks(kind, [&] { neighbours->try_memory_of_peers(); });
  } catch (...) {
    ends.retire();
    throw;
  }
  return std::make_unique<StreamedLink>(group, std::move(ends), std::move(neighbours),
                                        world.wait_policy());
}

}  // namespace machine::cuda
