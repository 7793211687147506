#pragma once
// For tests: a rendezvous link among threads. A group ends when all its transfers have met.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "machine/base/error.h"
#include "machine/link/link.h"

namespace machine {

struct MeetingPoint {
  std::mutex mutex;
  std::condition_variable changed;
  // By sender and receiver: open receives and open sends.
  std::map<std::pair<int, int>, std::deque<Transfer*>> open[2];
  std::map<const Transfer*, bool> met;
};

class MeetingLink final : public Link {
 public:
  MeetingLink(Group group, MeetingPoint& point) : Link(std::move(group)), point_(point) {}
  Transport transport() const override { return Transport::nccl; }
  bool is_rendezvous() const override { return true; }

 private:
  void do_exchange(std::span<const Transfer> transfers) override {
    std::vector<Transfer> mine(transfers.begin(), transfers.end());
    std::unique_lock lock(point_.mutex);
    for (Transfer& transfer : mine) {
      const auto channel =
          transfer.sends ? std::pair(rank(), transfer.peer) : std::pair(transfer.peer, rank());
      auto& others = point_.open[transfer.sends ? 0 : 1][channel];
      point_.met[&transfer] = false;
      if (others.empty()) {
        point_.open[transfer.sends ? 1 : 0][channel].push_back(&transfer);
        continue;
      }
      Transfer& other = *others.front();
      others.pop_front();
      if (other.bytes != transfer.bytes) throw std::logic_error("sizes disagree");
      if (transfer.bytes > 0)
        std::memcpy(transfer.sends ? other.data : transfer.data,
                    transfer.sends ? transfer.data : other.data, transfer.bytes);
      point_.met[&transfer] = point_.met[&other] = true;
    }
    point_.changed.notify_all();
    const bool all = point_.changed.wait_for(lock, std::chrono::seconds(20), [&] {
      return std::ranges::all_of(mine, [&](const Transfer& one) { return point_.met[&one]; });
    });
    if (!all) throw Timeout(fmt::format("rank {} meets no rank", rank()));
    for (const Transfer& one : mine) point_.met.erase(&one);
  }
  [[noreturn]] static void only_groups() { throw std::logic_error("only groups meet"); }
  std::uint64_t do_send(int, const void*, std::size_t) override { only_groups(); }
  void do_wait_sent(int, std::uint64_t) override { only_groups(); }
  std::uint64_t last_sent(int) const override { return 0; }
  void do_receive(int, void*, std::size_t, Store) override { only_groups(); }
  const void* do_receive_in_place(int, std::size_t) override { only_groups(); }
  void do_release(int) override { only_groups(); }
  MeetingPoint& point_;
};

}  // namespace machine
