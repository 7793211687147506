#pragma once
// The ranks of one launch, and what each of them runs on.
//
// Two ways to have ranks: processes started by mpiexec or srun (MpiWorld, mpi_world.h), and threads
// of one process (run_ranks, for tests and sanitizers). Code above sees the same World.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "machine/device/device.h"
#include "machine/link/link.h"
#include "machine/link/shared_memory.h"
#include "machine/link/wait.h"
#include "machine/world/board.h"
#include "machine/world/group.h"

namespace machine {

class World {
 public:
  virtual ~World() = default;

  const Group& group() const { return group_; }
  int rank() const { return group_.index; }
  int size() const { return group_.size(); }
  virtual const std::string& host(int rank) const = 0;
  virtual bool ranks_are_threads() const = 0;
  // Every member runs on this rank's host.
  bool on_one_host(const Group& group) const;

  // What this rank computes on (the host unless use_device chose another), and host memory that
  // peers of this host can read.
  Device& device() { return device_ ? *device_ : *host_device_; }
  Device& host_device() { return *host_device_; }
  void use_device(std::unique_ptr<Device> device);
  bool computes_on_gpu() const { return device_ && device_->kind() == Device::Kind::cuda; }
  // Of the group's ranks on this host: devices that they compute on, and ranks that share this
  // rank's, itself among them. The ranks have used their devices before they ask.
  int devices_of(const Group& group) const;
  int sharers_of_device(const Group& group) const;
  Board& board() { return *board_; }

  // Only the first `ranks` ranks of the world work from here on (one case): sets the cores they are
  // bound to, the threads of their GEMMs (cores / ranks) and whether waiting may spin. Local.
  void set_active_ranks(int ranks);
  int active_ranks() const { return active_ranks_; }
  const std::vector<int>& cores() const {
    return cores_;
  }  // this rank's now, hwloc's logical numbers

  // Of every wait in a link made from here on.
  double timeout_s() const { return timeout_s_; }
  void set_timeout_s(double seconds) { timeout_s_ = seconds; }

  // Control plane: waits sleep, so ranks without work cost nothing. Collective over the group.
  // Not for what is measured.
  void barrier(const Group& group);
  std::vector<std::string> all_gather(const Group& group, std::string_view mine);  // in group order
  std::string broadcast(const Group& group, int root, std::string_view mine);      // root's

  // A new link among the group's ranks; collective over the group. Throws MachineError naming the
  // reason when this transport cannot join them (other hosts, ranks that are threads).
  std::unique_ptr<Link> connect(const Group& group, Transport transport);
  // Why connect would refuse, or empty. Each rank answers for its own host.
  std::string why_not(const Group& group, Transport transport) const;

  // What links are made of. Collective over the group, ranks of one host:
  // a block of host memory of each of its ranks as seen from here, in group order; `construct` is
  // called on this rank's before a peer sees it. To be retired once, when this rank no longer uses
  // it; given back when every rank has passed a barrier of the world after that.
  struct Shared {
    std::vector<std::byte*> blocks;
    std::function<void()> retire;
  };
  Shared share(const Group& group, std::size_t bytes,
               const std::function<void(std::byte*)>& construct);
  ChannelEnds make_channels(const Group& group);
  WaitPolicy wait_policy() const;
  // Called after every rank has passed a barrier of the world.
  void after_barrier(std::function<void()> call) { retired_.push_back(std::move(call)); }

 protected:
  Group group_;
  // Cores of this host that its ranks share.
  virtual int cores_of_host() const = 0;
  // Binds this rank, the index-th of `active` on its host; sets cores_.
  virtual void bind(int index, int active) = 0;

  // The transports that are not between devices.
  virtual std::unique_ptr<Link> connect_host(const Group& group, Transport transport) = 0;
  virtual std::string why_not_host(const Group& group, Transport transport) const = 0;

  // Host memory of this rank that peers of its host see, and where theirs is seen from here: at
  // bases[world rank]; null where addresses are shared, or where there is none.
  struct SharedMemory {
    OwnMemory own;
    HostMemory* memory = nullptr;
    std::vector<std::byte*> bases;
  };
  virtual SharedMemory shared_memory() = 0;
  std::unique_ptr<Link> connect_shared_memory(const Group& group);

  // Memory of closed links, given back once every rank has passed a barrier of the world: until
  // then a peer may still look at it.
  std::vector<std::function<void()>> retired_;

  std::unique_ptr<Board> board_;
  std::unique_ptr<Device> host_device_, device_;
  std::unique_ptr<Link> control_;  // among all ranks; waits without a timeout, until a rank fails
  std::vector<int> cores_;

 private:
  double timeout_s_ = 60;
  int active_ranks_ = 0;
};

// Runs body on `ranks` threads, each with its own World; returns when all have. The first exception
// that is not a PeerFailure is thrown again here.
void run_ranks(int ranks, const std::function<void(World&)>& body, double timeout_s = 60);

}  // namespace machine
