#pragma once
// Times one ordered pair of ranks over a link. Both ranks of a pair call the same function with the
// same arguments; the rank `from` keeps the time.
//
// Latency: half of a round trip of small_bytes that `from` starts, mean of `trips` in a row.
// Bandwidth: `window` messages one after another, until their receiver's acknowledgement is back.
// The buffers stay the same from call to call, so on one host they may come from a cache. The bytes
// of a message depend on sender, receiver and position.

#include <cstdint>
#include <functional>
#include <vector>

#include "machine/device/tensor.h"
#include "machine/link/link.h"

namespace suite {

class PairMeter {
 public:
  static constexpr int trips = 8, window = 4;
  static constexpr std::int64_t small_bytes = 8;

  // memory: of the host, readable by the link's peers. bytes: of a message of the bandwidth.
  // seconds: a clock that only goes forward; the steady one when empty.
  PairMeter(machine::Link& link, machine::Device& memory, std::int64_t bytes, std::uint64_t seed,
            std::function<double()> seconds = {});

  void latency(int from, int to);
  // checked: the message is new, and what arrives is compared; its time is not kept.
  void bandwidth(int from, int to, bool checked);

  // Median and fastest of the calls from here to peer; 0 before the first.
  struct Calls {
    double median = 0, fastest = 0;
  };
  Calls latency_s(int peer) const;
  Calls bandwidth_GBps(int peer) const;
  // Wrong bytes and words from peer: of small messages always, of large ones if checked.
  std::int64_t wrong(int peer) const { return wrong_[static_cast<std::size_t>(peer)]; }
  // The traffic of this rank in one pass, each direction of each pair once.
  machine::Traffic expected_traffic() const;

 private:
  void send_small(int peer, int number);
  void receive_small(int peer, int number);
  std::vector<std::uint8_t> pattern(int from, int to) const;

  machine::Link& link_;
  std::int64_t bytes_;
  std::uint64_t seed_;
  std::function<double()> seconds_;
  machine::Tensor out_, in_;                                  // [window, bytes]
  std::uint64_t small_ = 0;                                   // must stay until it is taken
  std::vector<std::vector<double>> latencies_s_, streams_s_;  // [peer][call]
  std::vector<std::int64_t> wrong_;
};

}  // namespace suite
