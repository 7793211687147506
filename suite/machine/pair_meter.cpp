#include "suite/machine/pair_meter.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "harness/measure/statistics.h"
#include "machine/base/clock.h"
#include "machine/device/random.h"

namespace suite {
namespace {

// Identifies a message: sender, receiver, number.
std::uint64_t code(int from, int to, int number) {
  return (static_cast<std::uint64_t>(from) << 40) | (static_cast<std::uint64_t>(to) << 16) |
         static_cast<std::uint64_t>(number);
}

constexpr std::uint64_t all_messages = std::numeric_limits<std::uint64_t>::max();
constexpr int ready = PairMeter::trips + 1, taken = PairMeter::trips + 2;

}  // namespace

PairMeter::PairMeter(machine::Link& link, machine::Device& memory, std::int64_t bytes,
                     std::uint64_t seed, std::function<double()> seconds)
    : link_(link),
      bytes_(bytes),
      seed_(seed),
      seconds_(seconds ? std::move(seconds) : machine::steady_s),
      latencies_s_(static_cast<std::size_t>(link.size())),
      streams_s_(static_cast<std::size_t>(link.size())),
      wrong_(static_cast<std::size_t>(link.size())) {
  const auto buffer = [&] {
    machine::Tensor tensor(memory, machine::Dtype::uint8, {window * bytes},
                           machine::Category::buffers);
    std::memset(tensor.data(), 0, tensor.bytes());  // touched before it is timed
    return tensor;
  };
  out_ = buffer();
  in_ = buffer();
}

void PairMeter::send_small(int peer, int number) {
  small_ = code(link_.rank(), peer, number);
  link_.send(peer, &small_, small_bytes);
}

void PairMeter::receive_small(int peer, int number) {
  std::uint64_t got = 0;
  link_.receive(peer, &got, small_bytes);
  if (got != code(peer, link_.rank(), number)) ++wrong_[static_cast<std::size_t>(peer)];
}

// The first trip waits for the peer and is not timed.
void PairMeter::latency(int from, int to) {
  const bool starts = link_.rank() == from;
  const int peer = starts ? to : from;
  double begin = 0;
  for (int trip = 0; trip <= trips; ++trip) {
    if (trip == 1) begin = seconds_();
    if (starts) {
      send_small(peer, trip);
      receive_small(peer, trip);
    } else {
      receive_small(peer, trip);
      send_small(peer, trip);
    }
  }
  if (starts)
    latencies_s_[static_cast<std::size_t>(peer)].push_back((seconds_() - begin) / (2 * trips));
  link_.wait_sent(peer, all_messages);
}

void PairMeter::bandwidth(int from, int to, bool checked) {
  auto* const out = static_cast<std::uint8_t*>(out_.data());
  auto* const in = static_cast<std::uint8_t*>(in_.data());
  const auto size = static_cast<std::size_t>(bytes_);
  if (link_.rank() == from) {
    if (checked) std::ranges::copy(pattern(from, to), out);
    receive_small(to, ready);
    const double begin = seconds_();
    for (int i = 0; i < window; ++i) link_.send(to, out + i * bytes_, size);
    receive_small(to, taken);
    if (!checked) streams_s_[static_cast<std::size_t>(to)].push_back(seconds_() - begin);
    link_.wait_sent(to, all_messages);
    return;
  }
  if (checked) std::memset(in, 0, in_.bytes());
  send_small(from, ready);
  for (int i = 0; i < window; ++i) link_.receive(from, in + i * bytes_, size);
  send_small(from, taken);
  link_.wait_sent(from, all_messages);
  if (!checked) return;
  const std::vector<std::uint8_t> expected = pattern(from, to);
  for (std::size_t i = 0; i < expected.size(); ++i)
    wrong_[static_cast<std::size_t>(from)] += in[i] != expected[i];
}

std::vector<std::uint8_t> PairMeter::pattern(int from, int to) const {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(window * bytes_));
  const std::uint64_t key = seed_ ^ code(from + 1, to + 1, 0);
  for (std::size_t at = 0; at < bytes.size(); at += 16) {
    const auto words = machine::philox(key, at / 16);
    std::memcpy(bytes.data() + at, words.data(), std::min(sizeof words, bytes.size() - at));
  }
  return bytes;
}

PairMeter::Calls PairMeter::latency_s(int peer) const {
  const auto& calls = latencies_s_[static_cast<std::size_t>(peer)];
  if (calls.empty()) return {};
  return {harness::median(calls), std::ranges::min(calls)};
}

PairMeter::Calls PairMeter::bandwidth_GBps(int peer) const {
  const auto& calls = streams_s_[static_cast<std::size_t>(peer)];
  if (calls.empty()) return {};
  const double bytes = static_cast<double>(window * bytes_);
  return {bytes / harness::median(calls) / 1e9, bytes / std::ranges::min(calls) / 1e9};
}

// With each peer a rank starts one latency and answers one, streams once and acknowledges twice
// (that it is ready, that it has all). The peer sends the same.
machine::Traffic PairMeter::expected_traffic() const {
  const auto peers = static_cast<std::uint64_t>(link_.size() - 1);
  constexpr std::uint64_t small = 2 * (trips + 1) + 2;
  const std::uint64_t messages = peers * (small + window);
  const std::uint64_t bytes =
      peers * (small * small_bytes + window * static_cast<std::uint64_t>(bytes_));
  return {bytes, messages, bytes, messages};
}

}  // namespace suite
