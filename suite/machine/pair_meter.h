#pragma once
// Times one ordered pair of ranks over a link. Both ranks of a pair call the same function with the
// same arguments. The rank `from` keeps the time.
//
// Latency: half of a round trip of small_bytes that `from` starts; the mean of `trips` successive
// trips. Bandwidth: the time of `window` successive messages until the acknowledgement of their
// receiver arrives. All calls use the same buffers, so on one host the data may come from a cache.
// The bytes of a message depend on sender, receiver and position. Over a link with a stream, times
// begin and end when the stream has done its work.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "harness/measure/statistics.h"
#include "machine/base/clock.h"
#include "machine/device/kernels.h"
#include "machine/device/random.h"
#include "machine/link/link.h"
#include "suite/reference/unit.h"

namespace suite {

class PairMeter {
 public:
  static constexpr int trips = 8, window = 4;
  static constexpr std::int64_t small_bytes = 8;

  // memory: a device whose memory the link moves. bytes: the size of a bandwidth message. seconds:
  // a monotonic clock.
  PairMeter(machine::Link& link, machine::Device& memory, std::int64_t bytes, std::uint64_t seed,
            std::function<double()> seconds = machine::steady_s)
      : link_(link),
        bytes_(bytes),
        seed_(seed),
        seconds_(std::move(seconds)),
        peers_(static_cast<std::size_t>(link.size())) {
    for (Tensor* const buffer : {&out_, &in_}) {
      *buffer = Tensor(memory, Dtype::uint8, {window * bytes}, Category::buffers);
      clear(*buffer);  // touches the memory before it is timed
    }
    small_out_ = Tensor(memory, Dtype::uint64, {link.size() * numbers}, Category::buffers);
    small_in_ = Tensor(memory, Dtype::uint64, {numbers}, Category::buffers);
    std::vector<std::uint64_t> codes;
    for (int peer = 0; peer < link.size(); ++peer)
      for (int number = 0; number < numbers; ++number)
        codes.push_back(code(link.rank(), peer, number));
    put(codes, small_out_);
    clear(small_in_);
    memory.stream().synchronize();
  }

  // The first trip waits for the peer and is not timed.
  void latency(int from, int to) {
    const bool starts = link_.rank() == from;
    const int peer = starts ? to : from;
    double begin = 0;
    clear(small_in_);
    for (int trip = 0; trip <= trips; ++trip) {
      if (trip == 1) begin = now();
      if (starts) send_small(peer, trip);
      receive_small(peer, trip);
      if (!starts) send_small(peer, trip);
    }
    if (starts) at(peer).latencies_s.push_back((now() - begin) / (2 * trips));
    link_.wait_sent(peer, all_messages);
    compare_small(peer, 0, trips + 1);
  }

  // checked: the message is new, and the receiver compares it. Its time is not recorded.
  void bandwidth(int from, int to, bool checked) {
    auto* const out = out_.as<std::uint8_t>();
    auto* const in = in_.as<std::uint8_t>();
    const auto size = static_cast<std::size_t>(bytes_);
    if (link_.rank() == from) {
      if (checked) put(pattern(from, to), out_);
      clear(small_in_);
      receive_small(to, ready);
      const double begin = now();
      for (int i = 0; i < window; ++i) link_.send(to, out + i * bytes_, size);
      receive_small(to, taken);
      if (!checked) at(to).streams_s.push_back(now() - begin);
      link_.wait_sent(to, all_messages);
      compare_small(to, ready, 2);
      return;
    }
    if (checked) clear(in_);
    send_small(from, ready);
    for (int i = 0; i < window; ++i) link_.receive(from, in + i * bytes_, size);
    send_small(from, taken);
    link_.wait_sent(from, all_messages);
    if (!checked) return;
    const std::vector<std::uint8_t> expected = pattern(from, to);
    const auto got = values_of<std::uint8_t>(in_);
    for (std::size_t i = 0; i < expected.size(); ++i) at(from).wrong += got[i] != expected[i];
  }

  // Median and fastest of the calls from this rank to peer; 0 before the first call.
  struct Calls {
    double median = 0, fastest = 0;
  };
  Calls latency_s(int peer) const {
    const std::vector<double>& calls = at(peer).latencies_s;
    if (calls.empty()) return {};
    return {harness::median(calls), std::ranges::min(calls)};
  }
  Calls bandwidth_GBps(int peer) const {
    const std::vector<double>& calls = at(peer).streams_s;
    if (calls.empty()) return {};
    const double bytes = static_cast<double>(window * bytes_);
    return {bytes / harness::median(calls) / 1e9, bytes / std::ranges::min(calls) / 1e9};
  }
  // Returns the number of wrong bytes and words from peer. Small messages are always compared,
  // large ones if checked.
  std::int64_t wrong(int peer) const { return at(peer).wrong; }

  // Returns the traffic of this rank in one pass, with each direction of each pair once. Per peer,
  // a rank starts one latency, answers one, streams once and acknowledges twice (when it is ready,
  // and when it has all messages). The peer sends the same traffic.
  machine::Traffic expected_traffic() const {
    const auto peers = static_cast<std::uint64_t>(link_.size() - 1);
    constexpr std::uint64_t small = 2 * (trips + 1) + 2;
    const std::uint64_t messages = peers * (small + window);
    const std::uint64_t bytes =
        peers * (small * small_bytes + window * static_cast<std::uint64_t>(bytes_));
    return {bytes, messages, bytes, messages};
  }

 private:
  static constexpr std::uint64_t all_messages = std::numeric_limits<std::uint64_t>::max();
  static constexpr int ready = trips + 1, taken = trips + 2, numbers = trips + 3;

  struct Peer {
    std::vector<double> latencies_s, streams_s;  // one per call
    std::int64_t wrong = 0;
  };
  Peer& at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  const Peer& at(int peer) const { return peers_[static_cast<std::size_t>(peer)]; }

  // Returns a code of a message: sender, receiver, number.
  static std::uint64_t code(int from, int to, int number) {
    return (static_cast<std::uint64_t>(from) << 40) | (static_cast<std::uint64_t>(to) << 16) |
           static_cast<std::uint64_t>(number);
  }
  void send_small(int peer, int number) {
    link_.send(peer, small_out_.as<std::uint64_t>() + peer * numbers + number, small_bytes);
  }
  void receive_small(int peer, int number) {
    link_.receive(peer, small_in_.as<std::uint64_t>() + number, small_bytes);
  }
  void compare_small(int peer, int first, int count) {
    const auto got = values_of<std::uint64_t>(small_in_);
    for (int number = first; number < first + count; ++number)
      at(peer).wrong += got[static_cast<std::size_t>(number)] != code(peer, link_.rank(), number);
  }

  double now() const {
    if (link_.stream()) link_.stream()->synchronize();
    return seconds_();
  }
  static machine::Stream& stream_of(const Tensor& tensor) { return tensor.device().stream(); }
  static void clear(const Tensor& tensor) { stream_of(tensor).kernels().fill(tensor, 0); }
  template <class T>
  static void put(const std::vector<T>& values, const Tensor& tensor) {
    stream_of(tensor).copy(tensor.data(), values.data(), tensor.bytes());
    stream_of(tensor).synchronize();  // the values may end
  }
  template <class T>
  static std::vector<T> values_of(const Tensor& tensor) {
    std::vector<T> values(static_cast<std::size_t>(tensor.size()));
    stream_of(tensor).copy(values.data(), tensor.data(), tensor.bytes());
    stream_of(tensor).synchronize();
    return values;
  }

  std::vector<std::uint8_t> pattern(int from, int to) const {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(window * bytes_));
    const std::uint64_t key = seed_ ^ code(from + 1, to + 1, 0);
    for (std::size_t at = 0; at < bytes.size(); at += 16) {
      const auto words = machine::philox(key, at / 16);
      std::memcpy(bytes.data() + at, words.data(), std::min(sizeof words, bytes.size() - at));
    }
    return bytes;
  }

  machine::Link& link_;
  std::int64_t bytes_;
  std::uint64_t seed_;
  std::function<double()> seconds_;
  Tensor out_, in_;   // [window, bytes]
  Tensor small_out_;  // [peer, number]: constant, because peers may read it in place
  Tensor small_in_;   // [number]: of the last call
  std::vector<Peer> peers_;
};

}  // namespace suite
