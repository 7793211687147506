#include "machine/link/faulty_link.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

#include "machine/base/clock.h"
#include "machine/world/control/waited.h"

namespace machine {
namespace {

class FaultyLink final : public Link {
 public:
  FaultyLink(std::unique_ptr<Link> link, const Faults& faults)
      : Link(link->group()), link_(std::move(link)), peers_(size()) {
    const int mine = world_rank(rank());
    for (int peer = 0; peer < size(); ++peer) {
      const int theirs = world_rank(peer);
      Peer& its = peers_[peer];
      for (const SlowLink& slow : faults.slow_links)
        if (std::minmax(slow.first, slow.second) == std::minmax(mine, theirs))
          its.seconds_per_byte = 1 / slow.bytes_per_second;
      for (const CorruptMessage& corrupt : faults.corrupt_messages) {
        if (corrupt.rank == mine && corrupt.peer == theirs) its.corrupt = corrupt;
        its.plain &= corrupt.rank != theirs || corrupt.peer != mine;
      }
      its.plain &= its.seconds_per_byte == 0;
    }
  }

  Transport transport() const override { return link_->transport(); }
  bool shares_cores() const override { return link_->shares_cores(); }
  Link& link() { return *link_; }

 private:
  struct Peer {
    double seconds_per_byte = 0, free_at_s = 0;
    std::uint64_t last_sent = 0;
    std::optional<CorruptMessage> corrupt;
    bool plain = true;  // no fault towards this peer, so direct writes to its memory are allowed
    std::vector<std::byte> landed;
  };

  int world_rank(int peer) const { return group().members[peer]; }
  // The inner link gets the same operation, because its waits report it.
  Link& as_counted() {
    const std::lock_guard lock(counting_);  // one thread may send and another receive
    if (operation() != counted_) link_->count_as({operation(), Dtype::float32});
    counted_ = operation();
    return *link_;
  }

  std::uint64_t do_send(int peer, const void* data, std::size_t bytes) override {
    return peers_[peer].last_sent = as_counted().send(peer, data, bytes);
  }
  std::uint64_t do_lend(int peer, const void* data, std::size_t bytes) override {
    return peers_[peer].last_sent = as_counted().lend(peer, data, bytes);
  }
  void do_wait_sent(int peer, std::uint64_t number) override {
    as_counted().wait_sent(peer, number);
  }
  std::uint64_t last_sent(int peer) const override { return peers_[peer].last_sent; }
  void do_post(int peer, int ahead, void* into, std::size_t bytes) override {
    link_->post(peer, ahead, into, bytes);
  }
  void* do_posted(int peer, std::size_t bytes) override {
    return peers_[peer].plain ? link_->posted(peer, bytes) : nullptr;
  }
  std::uint64_t do_deliver(int peer, std::size_t bytes) override {
    return peers_[peer].last_sent = as_counted().deliver(peer, bytes);
  }

  void do_start_receive(int peer, void* into, std::size_t bytes) override {
    as_counted().start_receive(peer, into, bytes);
  }
  void do_receive(int peer, void* into, std::size_t bytes, Store store) override {
    as_counted().receive(peer, into, bytes, store);
    if (is_due(peer, bytes)) flip(static_cast<std::byte*>(into), bytes, peers_[peer].corrupt->bit);
    delay(peers_[peer], bytes);
  }
  const void* do_receive_in_place(int peer, std::size_t bytes) override {
    const void* data = as_counted().receive_in_place(peer, bytes);
    if (is_due(peer, bytes)) {
      auto& landed = peers_[peer].landed;
      const auto* from = static_cast<const std::byte*>(data);
      landed.assign(from, from + bytes);
      flip(landed.data(), bytes, peers_[peer].corrupt->bit);
      data = landed.data();
    }
    delay(peers_[peer], bytes);
    return data;
  }
  void do_release(int peer) override { link_->release(peer); }

  bool is_due(int peer, std::size_t bytes) {
    return peers_[peer].corrupt && bytes > 0 && peers_[peer].corrupt->due();
  }
  static void flip(std::byte* data, std::size_t bytes, std::uint64_t bit) {
    const std::uint64_t at = bit % (8 * bytes);
    data[at / 8] ^= std::byte{1} << (at % 8);
  }
  // Counted as waiting time, because the receiver of a slow link would wait.
  static void delay(Peer& peer, std::size_t bytes) {
    if (peer.seconds_per_byte == 0) return;
    const double begin = steady_s();
    peer.free_at_s =
        std::max(peer.free_at_s, begin) + peer.seconds_per_byte * static_cast<double>(bytes);
    for (double now = begin; now < peer.free_at_s; now = steady_s())
      if (peer.free_at_s - now > 100e-6)
        std::this_thread::sleep_for(std::chrono::duration<double>(peer.free_at_s - now - 60e-6));
    add_waited_s(steady_s() - begin);
  }

  std::unique_ptr<Link> link_;
  std::vector<Peer> peers_;
  std::mutex counting_;
  std::optional<Operation> counted_;  // operation that link_ counts under
};

}  // namespace

std::unique_ptr<Link> with_faults(std::unique_ptr<Link> link, const Faults& faults) {
  if (faults.slow_links.empty() && faults.corrupt_messages.empty()) return link;
  return std::make_unique<FaultyLink>(std::move(link), faults);
}

Link& plain(Link& link) {
  auto* faulty = dynamic_cast<FaultyLink*>(&link);
  return faulty ? faulty->link() : link;
}

}  // namespace machine
