#pragma once
// The ranks of one launch, and the devices that they run on.
//
//   world.barrier(world.group());
//   std::vector<double> seconds = world.all_gather(group, mine);   // each rank's, in group order
//   auto link = connect(world, group, Transport::shared_memory);   // machine/link/connect.h
//
// Ranks are processes started by mpiexec or srun (MpiWorld, mpi_world.h), or threads of one process
// (run_ranks, for tests and sanitizers). Code above sees the same World.

#include <concepts>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <typeindex>
#include <vector>

#include "machine/base/bytes.h"
#include "machine/device/device.h"
#include "machine/device/faults.h"
#include "machine/world/board.h"
#include "machine/world/group.h"
#include "machine/world/places.h"

namespace machine {

class Post;
struct WaitPolicy;

template <class T>
concept Message = !std::convertible_to<const T&, std::string_view>;

class World {
 public:
  virtual ~World();

  const Group& group() const { return group_; }
  int rank() const { return group_.index; }
  int size() const { return group_.size(); }
  virtual const std::string& host(int rank) const = 0;
  virtual bool ranks_are_threads() const = 0;
  // Returns whether every member runs on this rank's host.
  bool on_one_host(const Group& group) const;

  // device(): the device that this rank computes on, the host unless use_device chose another.
  // host_device(): host memory that peers of this host can read.
  Device& device() { return device_ ? *device_ : *host_device_; }
  Device& host_device() { return *host_device_; }
  void use_device(std::unique_ptr<Device> device);
  bool computes_on_gpu() const { return device_ && device_->kind() == Device::Kind::cuda; }
  // Return the number of devices on which the group's ranks of this host compute, and the number of
  // ranks that share this rank's device, including itself. The ranks must have called use_device.
  int devices_of(const Group& group) const;
  int sharers_of_device(const Group& group) const;
  Board& board() { return *board_; }
  const Board& board() const { return *board_; }
  // Returns the injected faults of this rank's machine. Its devices read them from here.
  Faults& faults() { return faults_; }

  // Sets the places of this host's ranks, in order. set_active_ranks then binds ranks to the cores
  // next to their GPUs. place(): that of this rank; null if its host has no places.
  void set_places(std::vector<Place> places);
  const Place* place() const;
  // Returns the cores that the launcher gave this rank.
  const std::vector<int>& start_cores() const { return start_cores_; }

  // From now on, only the first `ranks` ranks of the world work (one case). Sets the cores to which
  // they are bound, the threads of their GEMMs (their part of the cores) and whether waits may
  // spin. Local.
  void set_active_ranks(int ranks);

  const std::vector<int>& cores() const { return cores_; }  // now, in hwloc's order
  bool oversubscribed() const;  // more active ranks on this host than cores

  // Timeout of waits on links created from now on.
  double timeout_s() const { return timeout_s_; }
  void set_timeout_s(double seconds) { timeout_s_ = seconds; }

  // Control plane. Waits sleep, so ranks without work use no core. A wait fails only when a rank
  // fails. Not for measured communication. Collective over the group; a root is an index into it.
  // Costs: control/tree.h.
  void barrier(const Group& group);
  std::vector<std::string> all_gather(const Group& group, std::string_view mine);  // in group order
  std::string broadcast(const Group& group, int root, std::string_view mine);      // root's
  // Values of any type that base/bytes.h encodes.
  template <Message T>
  std::vector<T> all_gather(const Group& group, const T& mine) {
    std::vector<T> all;
    for (const std::string& theirs : all_gather(group, encode(mine)))
      all.push_back(decode<T>(theirs));
    return all;
  }
  template <Message T>
  T broadcast(const Group& group, int root, const T& mine) {
    return decode<T>(broadcast(group, root, encode(mine)));
  }

  // Sends a text from rank to rank of the world, in order for each pair. A long text waits for its
  // receiver.
  void send(int to, std::string_view text);
  std::string receive(int from);
  template <Message T>
  void send(int to, const T& value) {
    send(to, encode(value));
  }
  template <Message T>
  T receive(int from) {
    return decode<T>(receive(from));
  }

  // ---- For links (machine/link).
  // Host memory of this rank that peers of its host see. Ranks name a place in it by its offset
  // from `base`. Peer memory starts at bases[rank of the world]: null for other hosts. For ranks
  // that are threads every base is null, so an offset is an address.
  struct SharedMemory {
    std::byte* base = nullptr;
    std::size_t bytes = ~std::size_t{0};
    HostMemory* memory = nullptr;  // allocates in it
    std::vector<std::byte*> bases;

    // Return the offset of a place of this rank, and the place at an offset in the memory of a rank
    // of the world.
    std::uint64_t offset(const void* data) const { return number(data) - number(base); }
    std::byte* at(int rank, std::uint64_t offset) const {
      return reinterpret_cast<std::byte*>(number(bases[rank]) + offset);
    }

   private:
    // C++ does not define an offset from a null pointer.
    static std::uint64_t number(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }
  };
  virtual SharedMemory shared_memory() = 0;
  // One block of that memory per member, as mapped here, in group order. share() calls `construct`
  // on this rank's block before a peer sees it. Collective over the group, whose ranks share a
  // host. Call `retire` once, when this rank no longer uses the blocks. The block is freed when
  // every rank has passed a later barrier of the world.
  struct Shared {
    std::vector<std::byte*> blocks;
    std::function<void()> retire;
  };
  Shared share(const Group& group, std::size_t bytes,
               const std::function<void(std::byte*)>& construct);
  WaitPolicy wait_policy() const;
  // Returns this rank's T, which later links reuse. It is destroyed before the device.
  template <class T>
  T& kept() {
    std::shared_ptr<void>& one = kept_[typeid(T)];
    if (!one) one = std::make_shared<T>();
    return *static_cast<T*>(one.get());
  }
  // Called after every rank has passed a barrier of the world.
  void after_barrier(std::function<void()> call) { retired_.push_back(std::move(call)); }

 protected:
  World();
  void set_host_device(std::unique_ptr<Device> device);

  Group group_;
  // Cores of this host that its ranks share.
  virtual int cores_of_host() const = 0;
  // Binds this rank, the index-th of `active` on its host; sets cores_. Returns its threads.
  virtual int bind(int index, int active) = 0;

  // Frees memory of closed links after every rank has passed a barrier of the world. Until then a
  // peer may still read it.
  std::vector<std::function<void()>> retired_;

  std::unique_ptr<Board> board_;
  Faults faults_;
  std::unique_ptr<Device> host_device_, device_;
  std::unique_ptr<Post> post_;        // among all ranks
  void (*before_sleep_)() = nullptr;  // of waits (WaitPolicy)
  std::vector<int> start_cores_, cores_;
  std::vector<Place> places_;                              // of this host's ranks
  std::vector<std::string> gpus_of_host(int ranks) const;  // bus ids of its first ranks

 private:
  double timeout_s_ = 60;
  int active_ranks_ = 0;

 protected:
  std::map<std::type_index, std::shared_ptr<void>> kept_;
};

// Runs body on `ranks` threads, each with its own World. Returns when all have ended. Rethrows the
// first exception that is not a PeerFailure, else the first PeerFailure.
void run_ranks(int ranks, const std::function<void(World&)>& body, double timeout_s = 60);

}  // namespace machine
