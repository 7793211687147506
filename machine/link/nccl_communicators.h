#pragma once
// The NCCL communicators of a rank. They are made once per group and kept: a link takes one, and
// gives it back.
//
// ncclCommInitRankConfig and ncclCommSplit wait for all ranks, so they are called without blocking
// and with a deadline. But a non-blocking communicator passes every later call to a thread. So the
// group's first communicator is non-blocking and only serves ncclCommSplit, which makes blocking
// ones for the links (NCCL User Guide, "Creating a communicator with options").

#include <nccl.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "machine/world/control/wait.h"
#include "machine/world/world.h"

namespace machine {

std::string nccl_text(ncclResult_t result);

class NcclCommunicators {
 public:
  NcclCommunicators() = default;
  ~NcclCommunicators();
  NcclCommunicators(const NcclCommunicators&) = delete;
  NcclCommunicators& operator=(const NcclCommunicators&) = delete;

  // Returns a blocking communicator of the group. prepare() makes what the link needs besides. If
  // either fails on one rank, all ranks throw MachineError. Collective over the group.
  ncclComm_t take(World& world, const Group& group, const std::function<void()>& prepare);
  // All work on the communicator has ended.
  void give_back(const Group& group, ncclComm_t communicator);
  void abort(const Group& group, ncclComm_t communicator);

 private:
  struct Child {
    ncclComm_t communicator;
    std::uint64_t number;  // among the splits of the source
    bool used;
  };
  struct OfGroup {
    ncclComm_t source = nullptr;
    std::uint64_t splits = 0;
    std::vector<Child> children;
  };

  void make_source(World& world, const Group& group, OfGroup& of);
  ncclComm_t split(World& world, const Group& group, OfGroup& of);

  std::map<std::vector<int>, OfGroup> groups_;  // by members
  WaitPolicy policy_;
};

}  // namespace machine
