#include "machine/link/nccl_communicators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "machine/base/error.h"
#include "machine/world/board.h"

namespace machine {
namespace {

// A rank's resources for the next link of a group, or the reason for their absence.
struct Offer {
  std::string error;
  bool has_source = false;
  std::uint64_t kept = 0;  // number of its first unused child
  static auto members(auto& self) { return std::tie(self.error, self.has_source, self.kept); }
};

// Waits until the communicator, which is not blocking, has completed a call that returned `result`.
// Asks even after a success, which ncclCommSplit returns before it has made the communicator.
void complete(ncclComm_t communicator, ncclResult_t result, const char* call,
              const WaitPolicy& policy, int someone) {
  if (result == ncclSuccess || result == ncclInProgress)
    Wait(policy).polling(
        [&] {
          const ncclResult_t asked = ncclCommGetAsyncError(communicator, &result);
          if (asked != ncclSuccess) result = asked;
          return result != ncclInProgress;
        },
        {Operation::none, someone, 0, 0, "join NCCL"});
  if (result != ncclSuccess) throw MachineError(fmt::format("{}: {}", call, nccl_text(result)));
}

// Another member, for the text of a timeout: NCCL does not say who is late.
int someone_of(const Group& group) {
  return group.members[group.index == 0 ? group.members.size() - 1 : 0];
}

// Runs step() and throws the first rank's error on all ranks.
void agreed(World& world, const Group& group, const std::function<void()>& step) {
  std::string mine;
  try {
    step();
  } catch (const MachineError& error) {
    mine = error.what();
  }
  const std::vector<std::string> errors = world.all_gather(group, mine);
  for (std::size_t peer = 0; peer < errors.size(); ++peer)
    if (!errors[peer].empty())
      throw MachineError(
          fmt::format("transport nccl: rank {}: {}", group.members[peer], errors[peer]));
}

}  // namespace

std::string nccl_text(ncclResult_t result) {
  const char* last = ncclGetLastError(nullptr);
  return fmt::format("{}{}{}", ncclGetErrorString(result), last && *last ? ": " : "",
                     last ? last : "");
}

// Communicators of ranks that end together: every rank has passed a barrier, and all have the same
// groups in the same order.
NcclCommunicators::~NcclCommunicators() {
  bool healthy = !policy_.board || policy_.board->failed_rank() < 0;
  for (auto& [members, of] : groups_) {
    try {
      // With a deadline. The blocking calls below then find their peers here.
      if (healthy && of.source)
        complete(of.source, ncclCommFinalize(of.source), "ncclCommFinalize", policy_,
                 members.front());
    } catch (const MachineError&) {
      healthy = false;
    }
    const auto end = healthy ? ncclCommDestroy : ncclCommAbort;
    for (const Child& child : of.children) end(child.communicator);
    if (of.source) end(of.source);
  }
}

void NcclCommunicators::make_source(World& world, const Group& group, OfGroup& of) {
  ncclUniqueId id;
  ncclResult_t result = ncclSuccess;
  if (group.index == 0) result = ncclGetUniqueId(&id);
  agreed(world, group, [&] {
    if (result != ncclSuccess)
      throw MachineError(fmt::format("ncclGetUniqueId: {}", nccl_text(result)));
  });
  const std::string told =
      world.broadcast(group, 0, std::string_view(id.internal, sizeof id.internal));
  std::memcpy(id.internal, told.data(), sizeof id.internal);
  agreed(world, group, [&] {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t started =
        ncclCommInitRankConfig(&of.source, group.size(), id, group.index, &config);
    complete(of.source, started, "ncclCommInitRankConfig", policy_, someone_of(group));
  });
}

ncclComm_t NcclCommunicators::split(World& world, const Group& group, OfGroup& of) {
  Child child{nullptr, of.splits + 1, false};
  const auto keep = [&] {
    if (child.communicator) of.children.push_back(child);
  };
  try {
    agreed(world, group, [&] {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 1;
      complete(of.source, ncclCommSplit(of.source, 0, group.index, &child.communicator, &config),
               "ncclCommSplit", policy_, someone_of(group));
    });
  } catch (const MachineError&) {
    keep();  // is aborted after its source
    throw;
  }
  ++of.splits;
  child.used = true;
  keep();
  return child.communicator;
}

ncclComm_t NcclCommunicators::take(World& world, const Group& group,
                                   const std::function<void()>& prepare) {
  policy_ = world.wait_policy();
  OfGroup& of = groups_[group.members];
  Offer mine;
  try {
    prepare();
  } catch (const MachineError& error) {
    mine.error = error.what();
  }
  const auto unused = std::ranges::find(of.children, false, &Child::used);
  mine.has_source = of.source != nullptr;
  if (unused != of.children.end()) mine.kept = unused->number;
  const std::vector<Offer> offers = world.all_gather(group, mine);
  for (std::size_t peer = 0; peer < offers.size(); ++peer)
    if (!offers[peer].error.empty())
      throw MachineError(
          fmt::format("transport nccl: rank {}: {}", group.members[peer], offers[peer].error));
  const auto alike = [&](auto member) {
    return std::ranges::all_of(offers, [&](const Offer& offer) {
      return offer.*member != 0 && offer.*member == mine.*member;
    });
  };
  if (alike(&Offer::kept)) {
    unused->used = true;
    return unused->communicator;
  }
  const auto abort_unused = [&] {
    std::erase_if(of.children, [](const Child& child) {
      if (!child.used) ncclCommAbort(child.communicator);
      return !child.used;
    });
  };
  abort_unused();  // the ranks do not have the same ones, or none
  try {
    if (!alike(&Offer::has_source)) {
      if (of.source) ncclCommAbort(std::exchange(of.source, nullptr));
      of.splits = 0;
      make_source(world, group, of);
    }
    return split(world, group, of);
  } catch (const MachineError&) {
    if (of.source) ncclCommAbort(std::exchange(of.source, nullptr));
    abort_unused();
    throw;
  }
}

void NcclCommunicators::give_back(const Group& group, ncclComm_t communicator) {
  for (Child& child : groups_[group.members].children)
    if (child.communicator == communicator) child.used = false;
}

void NcclCommunicators::abort(const Group& group, ncclComm_t communicator) {
  std::erase_if(groups_[group.members].children,
                [&](const Child& child) { return child.communicator == communicator; });
  ncclCommAbort(communicator);
}

}  // namespace machine
