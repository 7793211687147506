#include "machine/world/board.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "machine/base/operation.h"

namespace machine {
namespace {

using Words = std::atomic<std::uint64_t>[RankStatus::text_words];

void write(Words& words, std::string_view text) {
  std::array<std::uint64_t, RankStatus::text_words> plain{};
  std::memcpy(plain.data(), text.data(), std::min(text.size(), sizeof plain - 1));
  for (std::size_t i = 0; i < plain.size(); ++i)
    words[i].store(plain[i], std::memory_order_relaxed);
}

std::string read(const Words& words) {
  std::array<std::uint64_t, RankStatus::text_words + 1> plain{};
  for (std::size_t i = 0; i < RankStatus::text_words; ++i)
    plain[i] = words[i].load(std::memory_order_relaxed);
  return reinterpret_cast<const char*>(plain.data());
}

}  // namespace

std::string rank_or_group(int rank) {
  return rank == any_of_group ? "its group" : fmt::format("rank {}", rank);
}

Board::Board(int rank, std::vector<RankStatus*> statuses)
    : rank_(rank), statuses_(std::move(statuses)) {}

void Board::set_activity(std::string_view text) {
  write(mine().activity, text);
  mine().progress.fetch_add(1, std::memory_order_relaxed);
}

std::string Board::activity(int rank) const {
  const RankStatus* status = of(rank);
  return status ? read(status->activity) : "on another host";
}

void Board::fail(std::string_view reason) {
  RankState running = mine().state.load();
  if (running == RankState::failed) return;
  write(mine().reason, reason);
  mine().state.store(RankState::failed);
}

std::string Board::reason(int rank) const {
  const RankStatus* status = of(rank);
  return status && status->state.load() == RankState::failed ? read(status->reason) : "";
}

int Board::failed_rank() const {
  for (int rank = 0; rank < size(); ++rank)
    if (of(rank) && of(rank)->state.load(std::memory_order_relaxed) == RankState::failed)
      return rank;
  return -1;
}

std::string Board::waiting(int rank) const {
  const RankStatus* status = of(rank);
  if (!status) return "on another host";
  const auto operation = static_cast<Operation>(status->operation.load(std::memory_order_relaxed));
  const std::uint64_t message = status->sequence.load(std::memory_order_relaxed);
  const std::uint64_t bytes = status->bytes.load(std::memory_order_relaxed);
  const int awaited = status->waiting_for.load(std::memory_order_relaxed);
  if (awaited != nobody)
    return fmt::format("in {}, waiting for {} at message {} ({} bytes)", name(operation),
                       rank_or_group(awaited), message, bytes);
  const bool on_device = status->on_device.load(std::memory_order_relaxed) > 0;
  const std::string now = on_device ? "waiting for its device" : "not waiting";
  const int peer = status->peer.load(std::memory_order_relaxed);
  if (peer == nobody) return now;
  return fmt::format("{}; it was last in {}, with {} at message {} ({} bytes)", now,
                     name(operation), rank_or_group(peer), message, bytes);
}

}  // namespace machine
