#pragma once
// The ranks of one launch, and what each of them runs on.
//
// Two ways to have ranks: processes started by mpiexec or srun (MpiWorld, mpi_world.h), and threads of
// one process (run_ranks, for tests and sanitizers). Code above sees the same World.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "machine/device/device.h"
#include "machine/link/link.h"
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

  Device& device() { return *device_; }
  Board& board() { return *board_; }

  double timeout_s() const { return timeout_s_; }
  void set_timeout_s(double seconds) { timeout_s_ = seconds; }

  // Control plane: waits sleep, so ranks without work cost nothing. Collective over the group.
  // Not for what is measured.
  void barrier(const Group& group);
  std::vector<std::string> all_gather(const Group& group, std::string_view mine);  // in group order
  std::string broadcast(const Group& group, int root, std::string_view mine);      // root's

  // A new link among the group's ranks; collective over the group. Throws MachineError naming the
  // reason when this transport cannot join them (other hosts, ranks that are threads).
  virtual std::unique_ptr<Link> connect(const Group& group, Transport transport) = 0;
  // Why connect would refuse, or empty.
  virtual std::string why_not(const Group& group, Transport transport) const = 0;

 protected:
  Group group_;
  std::unique_ptr<Link> control_;  // among all ranks
  std::unique_ptr<Device> device_;
  std::unique_ptr<Board> board_;
  double timeout_s_ = 60;
};

// Runs body on `ranks` threads, each with its own World; returns when all have. The first exception
// that is not a PeerFailure is thrown again here.
void run_ranks(int ranks, const std::function<void(World&)>& body, double timeout_s = 60);

}  // namespace machine
