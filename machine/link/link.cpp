#include "machine/link/link.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "machine/base/error.h"
#include "machine/device/device.h"

namespace machine {

std::string_view name(Transport transport) {
  constexpr std::string_view names[] = {"shared_memory", "mpi", "cuda_ipc", "nccl"};
  return names[static_cast<std::size_t>(transport)];
}

Traffic& Traffic::operator+=(const Traffic& other) {
  bytes_sent += other.bytes_sent;
  messages_sent += other.messages_sent;
  bytes_received += other.bytes_received;
  messages_received += other.messages_received;
  return *this;
}

Link::Link(Group group) : group_(std::move(group)) {}

Link::~Link() = default;

bool Link::has_own_stream() const { return stream() && stream() != &stream()->device().stream(); }

void Link::start_after_device() {
  if (has_own_stream()) stream()->wait(*stream()->device().stream().record());
}

void Link::end_before_device() {
  if (has_own_stream()) stream()->device().stream().wait(*stream()->record());
}

bool Link::stages(const Device& device) const {
  return stream() == nullptr && !device.readable_by_host();
}

Memory Link::allocate_registered(std::size_t, Category, Registered) {
  throw MachineError(fmt::format("transport {} registers no memory; use nccl", name(transport())));
}

std::uint64_t Link::send(int peer, const void* data, std::size_t bytes) {
  const std::uint64_t number = do_send(peer, data, bytes);
  current_->bytes_sent += bytes;
  ++current_->messages_sent;
  return number;
}

std::uint64_t Link::lend(int peer, const void* data, std::size_t bytes) {
  const std::uint64_t number = do_lend(peer, data, bytes);
  current_->bytes_sent += bytes;
  ++current_->messages_sent;
  return number;
}

void Link::send_to_all(std::span<const int> peers, const void* data, std::size_t bytes,
                       std::span<std::uint64_t> numbers) {
  do_send_to_all(peers, data, bytes, numbers);
  current_->bytes_sent += bytes * peers.size();
  current_->messages_sent += peers.size();
}

void Link::do_send_to_all(std::span<const int> peers, const void* data, std::size_t bytes,
                          std::span<std::uint64_t> numbers) {
  for (std::size_t i = 0; i < peers.size(); ++i) numbers[i] = do_send(peers[i], data, bytes);
}

std::uint64_t Link::deliver(int peer, std::size_t bytes) {
  const std::uint64_t number = do_deliver(peer, bytes);
  current_->bytes_sent += bytes;
  ++current_->messages_sent;
  return number;
}

void Link::receive(int peer, void* into, std::size_t bytes, Store store) {
  do_receive(peer, into, bytes, store);
  current_->bytes_received += bytes;
  ++current_->messages_received;
}

const void* Link::receive_in_place(int peer, std::size_t bytes) {
  const void* data = do_receive_in_place(peer, bytes);
  current_->bytes_received += bytes;
  ++current_->messages_received;
  return data;
}

void Link::exchange(std::span<const Transfer> transfers) {
  do_exchange(transfers);
  for (const Transfer& transfer : transfers) {
    (transfer.sends ? current_->bytes_sent : current_->bytes_received) += transfer.bytes;
    ++(transfer.sends ? current_->messages_sent : current_->messages_received);
  }
}

void Link::do_exchange(std::span<const Transfer>) {
  throw std::logic_error("this transport does not support groups of messages");
}

void Link::flush() {
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) wait_sent(peer, last_sent(peer));
}

Traffic Link::total() const {
  Traffic sum;
  for (const auto& [label, traffic] : traffic_) sum += traffic;
  return sum;
}

void Link::reset_traffic() {
  for (auto& [label, traffic] : traffic_) traffic = {};
}

void Link::count(const std::map<TrafficLabel, Traffic>& repeated) {
  for (const auto& [label, traffic] : repeated) traffic_[label] += traffic;
}

}  // namespace machine
