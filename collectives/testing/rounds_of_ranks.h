#pragma once
// The rounds of every rank, without a group.

#include <fmt/format.h>

#include <deque>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "collectives/round_search.h"

namespace collectives {

// Numbers that ranks of one thread exchange, by receiver and sender.
struct Numbers {
  std::map<std::pair<int, int>, std::deque<Agreement::Number>> waiting;
  std::size_t sent = 0;
};
class OneThread final : public Agreement {
 public:
  OneThread(Numbers& numbers, int rank) : numbers_(numbers), rank_(rank) {}
  void send(int peer, Number number) override {
    numbers_.waiting[{peer, rank_}].push_back(number);
    ++numbers_.sent;
  }
  std::optional<Number> receive(int peer) override {
    auto& waiting = numbers_.waiting[{rank_, peer}];
    if (waiting.empty()) return std::nullopt;
    const Number number = waiting.front();
    waiting.pop_front();
    return number;
  }

 private:
  Numbers& numbers_;
  int rank_;
};

// Throws std::logic_error that names a step without a round.
inline std::vector<std::vector<Round>> rounds_of_ranks(const Algorithm& algorithm, const Call& call,
                                                       std::int64_t count) {
  std::vector<RoundSearch> ranks;
  for (int rank = 0; rank < call.ranks; ++rank) {
    Call own = call;
    own.rank = rank;
    ranks.emplace_back(algorithm, own, count);
  }
  Numbers numbers;
  for (bool over = false; !over;) {
    const std::size_t sent = numbers.sent;
    std::string waits;
    for (int index = 0; index < call.ranks; ++index) {
      OneThread agreement(numbers, index);
      RoundSearch& rank = ranks[index];
      if (!rank.go_on(agreement)) waits = rank.waits_at();
    }
    over = waits.empty();
    if (!over && numbers.sent == sent)
      throw std::logic_error(fmt::format("no round comes for {}", waits));
  }
  std::vector<std::vector<Round>> result;
  for (const RoundSearch& rank : ranks) result.push_back(rank.rounds());
  return result;
}

}  // namespace collectives
