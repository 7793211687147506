#pragma once
// The executor of all plans. A plan is first bound to element counts and a dtype (Execution), then
// run any number of times on any buffers over any link.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "collectives/bind.h"
#include "collectives/plan.h"
#include "collectives/rounds.h"
#include "collectives/traffic_matrix.h"
#include "machine/device/host/stream_copy.h"
#include "machine/device/kernels.h"
#include "machine/link/link.h"

namespace collectives {

// The key of a bound call.
struct CallKey {
  const Algorithm* algorithm = nullptr;
  std::int64_t count = 0;  // elements of the whole buffer, or of a share (deals_in_shares)
  machine::Dtype dtype = machine::Dtype::float32;
  bool in_place = false;
  int root = 0;
  int inner = 1;
  std::shared_ptr<const TrafficMatrix> traffic{};  // of all_to_all_v; compared by its address
  auto operator<=>(const CallKey&) const = default;
};

// Returns the call with the number of pieces for a share of this size. A piece is small enough to
// stay in a core's cache while it is forwarded, and large enough that messages do not dominate.
// Parts of an all_to_all_v are not split, because short parts would send as many messages as the
// longest.
Call with_pieces(const Algorithm& algorithm, Call call, std::int64_t count, machine::Dtype dtype);

// Points of a run, for an all-gather or a reduce-scatter of shares. An empty function is not
// called.
struct ShareHooks {
  std::function<void(int share)> before_read;  // of the input, for the first time
  std::function<void(int share)> after_write;  // of the output, for the last time
  // A sum waits for the peer's message before its own share is needed, so the message is on the
  // wire until then. Plans over rendezvous links always do so.
  bool receives_first = false;
};

class Execution {
 public:
  // Allocates the plan's scratch, if it has any, on the stream's device, and keeps it. For
  // rendezvous links (Link::is_rendezvous) it requires the rounds and also allocates the staging of
  // received parts, in the category links. ranks_of_host: how many of the ranks share this rank's
  // host and its caches; 0: all.
  Execution(const CallKey& key, int rank, int ranks, machine::Stream& stream,
            const std::vector<Round>* rounds = nullptr, int ranks_of_host = 0);

  // Sums round to the dtype after each addition. The buffers are memory of the device. Returns when
  // peers have read all data that they need. If the link has a stream, this holds in its order.
  void run(machine::Link& link, machine::Reduction reduction, const std::byte* input,
           std::byte* output, const ShareHooks& hooks = {});

  // Returns the shares in the order of the hooks: of the output of all_gather, or of the input of
  // reduce_scatter. Empty for other operations.
  const std::vector<int>& share_order() const { return share_order_; }

  // Returns how results are stored that no later step reads.
  machine::Store store() const { return store_; }

 private:
  void prepare_order();
  void prepare_rounds(std::vector<Round> rounds, const std::vector<std::size_t>& action_of);
  void run_in_order(machine::Link& link, machine::Reduction reduction, std::byte* const* buffers,
                    const ShareHooks& hooks);
  void run_in_rounds(machine::Link& link, machine::Reduction reduction, std::byte* const* buffers,
                     const ShareHooks& hooks);
  void order_shares(const CallKey& key, int ranks);
  // Calls the hook for the shares of an action.
  void call_at(std::size_t action, const std::function<void(int)>& hook) const {
    if (hook)
      for (const int share : shares_at_[action]) hook(share);
  }
  std::byte* at(std::byte* const* buffers, Place place) const {
    return buffers[static_cast<std::size_t>(place.buffer)] + place.offset;
  }
  void copy(void* to, const void* from, std::size_t bytes, machine::Store store) {
    if (!on_host_)
      stream_.copy(to, from, bytes);
    else if (store == machine::Store::streaming)
      machine::host::stream_copy(to, from, bytes);
    else if (bytes > 0)
      std::memcpy(to, from, bytes);
  }

  // Starts a send, or writes the message to the place that the peer has posted. Returns its number.
  std::uint64_t send(machine::Link& link, const Action& action, const std::byte* source);

  // Writes the sum of `summands` to its target and, if all peers of the sends that follow have
  // posted a place for it, to these peers. Returns the number of sends that this replaces.
  std::size_t reduce(machine::Link& link, machine::Reduction reduction, std::size_t index,
                     std::span<const void* const> summands, void* target);

  machine::Stream& stream_;
  machine::Kernels& kernels_;
  bool on_host_;
  machine::TrafficLabel label_;
  machine::Store store_ = machine::Store::cached;
  machine::Memory scratch_, staging_;
  std::vector<Action> actions_;
  std::vector<std::size_t> last_sends_;  // for each peer, the last action that sends to it
  std::vector<std::uint64_t> numbers_;   // by action: number of its message in the current run
  std::vector<void*> targets_;
  std::vector<const void*> summands_;
  std::vector<Round> rounds_;           // of actions, for rendezvous links
  std::vector<std::size_t> staged_at_;  // by receive_reduce action: offset in staging_
  std::vector<machine::Transfer> transfers_;
  std::vector<std::vector<int>> shares_at_;  // by action: read there first, or written there last
  std::vector<int> untouched_;  // shares that no action reads or writes: in place, or empty
  std::vector<int> share_order_;
};

}  // namespace collectives
