#pragma once
// One call of the control plane among thousands of ranks in one thread. Counts messages without a
// process or a thread for each rank.
//
//   SimulatedControl all(4096);
//   all.barrier();
//   all.most_messages(); all.total_messages();

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "machine/world/control/tree.h"

namespace machine {

class SimulatedControl {
 public:
  // The members of the group are in reverse world order.
  explicit SimulatedControl(int ranks)
      : group_{"all", std::vector<int>(static_cast<std::size_t>(ranks)), 0},
        messages_(static_cast<std::size_t>(ranks)) {
    std::iota(group_.members.rbegin(), group_.members.rend(), 0);
  }

  void barrier() {
    up([](Post& post, const Group& group) { control::wait_for_all(post, group); });
    down([](Post& post, const Group& group) { control::release_all(post, group); });
  }
  // Calls got(index, gathered) for each rank. `gathered` holds all texts, each after its length
  // (control::split).
  void all_gather(const std::function<std::string(int)>& mine,
                  const std::function<void(int, std::string_view)>& got) {
    std::string gathered;
    up([&](Post& post, const Group& group) {
      gathered = control::gather(post, group, mine(group.index), Operation::all_gather);
    });
    down([&](Post& post, const Group& group) {
      got(group.index, control::broadcast(post, group, 0, group.index == 0 ? gathered : "",
                                          Operation::all_gather));
    });
  }
  void broadcast(int root, std::string_view text,
                 const std::function<void(int, std::string_view)>& got) {
    down(
        [&](Post& post, const Group& group) {
          got(group.index, control::broadcast(post, group, root, group.index == root ? text : "",
                                              Operation::broadcast));
        },
        root);
  }

  int most_messages() const { return *std::max_element(messages_.begin(), messages_.end()); }
  int total_messages() const { return total_; }
  bool all_received() const {
    return std::all_of(texts_.begin(), texts_.end(),
                       [](const auto& channel) { return channel.second.empty(); });
  }

 private:
  class Slot final : public Post {
   public:
    Slot(SimulatedControl& all, int rank) : all_(all), rank_(rank) {}
    void send(int to, std::string_view text, Operation) override {
      all_.texts_[{rank_, to}].emplace_back(text);
      ++all_.messages_[static_cast<std::size_t>(rank_)];
      ++all_.total_;
    }
    std::string receive(int from, Operation) override {
      std::deque<std::string>& waiting = all_.texts_[{from, rank_}];
      if (waiting.empty()) throw std::logic_error("a receive comes before its send");
      std::string text = std::move(waiting.front());
      waiting.pop_front();
      ++all_.messages_[static_cast<std::size_t>(rank_)];
      return text;
    }

   private:
    SimulatedControl& all_;
    int rank_;
  };

  template <class Part>
  void run(int index, Part part) {
    group_.index = index;
    Slot slot(*this, group_.members[static_cast<std::size_t>(index)]);
    part(slot, group_);
  }
  // Runs each rank after the ranks that it receives from: up the tree from the last rank, down from
  // the root.
  template <class Part>
  void up(Part part) {
    for (int index = group_.size(); index-- > 0;) run(index, part);
  }
  template <class Part>
  void down(Part part, int root = 0) {
    for (int place = 0; place < group_.size(); ++place) run((root + place) % group_.size(), part);
  }

  Group group_;
  std::map<std::pair<int, int>, std::deque<std::string>> texts_;
  std::vector<int> messages_;  // sent and received, by world rank
  int total_ = 0;
};

}  // namespace machine
