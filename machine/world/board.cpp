#include "machine/world/board.h"

#include <fmt/format.h>

#include <array>

#include "machine/base/operation.h"

namespace machine {
namespace {

template <std::size_t words>
using Words = std::atomic<std::uint64_t>[words];

template <std::size_t words>
void write(Words<words>& to, std::string_view text) {
  std::array<std::uint64_t, words> plain{};
  text.copy(reinterpret_cast<char*>(plain.data()), sizeof plain - 1);
  for (std::size_t i = 0; i < plain.size(); ++i) to[i].store(plain[i], std::memory_order_relaxed);
}

template <std::size_t words>
std::string read(const Words<words>& from) {
  std::array<std::uint64_t, words + 1> plain{};
  for (std::size_t i = 0; i < words; ++i) plain[i] = from[i].load(std::memory_order_relaxed);
  return reinterpret_cast<const char*>(plain.data());
}

// "all_reduce", "rank 1 at message 7 (4096 bytes)"
std::string_view operation_of(const RankStatus& status) {
  return name(static_cast<Operation>(status.operation.load(std::memory_order_relaxed)));
}
std::string message_of(const RankStatus& status, int peer) {
  return fmt::format("{} at message {} ({} bytes)", rank_or_group(peer),
                     status.sequence.load(std::memory_order_relaxed),
                     status.bytes.load(std::memory_order_relaxed));
}

}  // namespace

std::string rank_or_group(int rank) {
  return rank == any_of_group ? "its group" : fmt::format("rank {}", rank);
}

Board::Board(int rank, std::vector<RankStatus*> statuses)
    : rank_(rank), statuses_(std::move(statuses)) {}

void Board::set_activity(std::string_view text, std::string_view phase) {
  write(mine().activity, text);
  write(mine().phase, phase);
  if (mine().state.load() != RankState::failed) mine().failure_kind.store(0);
  mine().progress.fetch_add(1, std::memory_order_relaxed);
}

std::string Board::activity(int rank) const {
  const RankStatus* status = of(rank);
  if (!status) return "on another host";
  const std::string phase = read(status->phase);
  return read(status->activity) + (phase.empty() ? "" : fmt::format(" ({})", phase));
}

std::string Board::running_case(int rank) const {
  const RankStatus* status = of(rank);
  return !status || read(status->phase).empty() ? "" : read(status->activity);
}

void Board::note(const Failure& failure) {
  if (mine().failure_kind.load() != 0) return;
  write(mine().failure_text, failure.text);
  mine().failure_peer.store(failure.peer);
  mine().failure_kind.store(1 + static_cast<std::uint32_t>(failure.kind));
}

void Board::fail(const Failure& failure) {
  note(failure);
  mine().state.store(RankState::failed);
}

std::optional<Failure> Board::noted(int rank) const {
  const RankStatus* status = of(rank);
  const std::uint32_t kind = status ? status->failure_kind.load() : 0;
  if (kind == 0) return std::nullopt;
  return Failure{.kind = static_cast<Failure::Kind>(kind - 1),
                 .rank = rank,
                 .peer = status->failure_peer.load(),
                 .text = read(status->failure_text)};
}

std::optional<Failure> Board::failure(int rank) const {
  const RankStatus* status = of(rank);
  return status && status->state.load() == RankState::failed ? noted(rank) : std::nullopt;
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
  const int awaited = status->waiting_for.load(std::memory_order_relaxed);
  if (awaited != nobody)
    return fmt::format("in {}, waiting for {}", operation_of(*status),
                       message_of(*status, awaited));
  const bool on_device = status->on_device.load(std::memory_order_relaxed) > 0;
  const std::string last = last_wait(rank);
  return fmt::format("{}{}{}", on_device ? "waiting for its device" : "not waiting",
                     last.empty() ? "" : "; it was ", last);
}

std::string Board::last_wait(int rank) const {
  const RankStatus* status = of(rank);
  if (!status || status->waiting_for.load(std::memory_order_relaxed) != nobody) return "";
  const int peer = status->peer.load(std::memory_order_relaxed);
  if (peer == nobody) return "";
  return fmt::format("last in {}, with {}", operation_of(*status), message_of(*status, peer));
}

}  // namespace machine
