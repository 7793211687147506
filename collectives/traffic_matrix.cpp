#include "collectives/traffic_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace collectives {

TrafficMatrix::TrafficMatrix(int ranks, const std::vector<std::int64_t>& elements) : ranks_(ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  if (ranks < 1 || elements.size() != n * n)
    throw std::invalid_argument(
        fmt::format("a traffic matrix of {} ranks has {} entries; expected ranks * ranks", ranks,
                    elements.size()));
  if (const auto least = std::min_element(elements.begin(), elements.end()); *least < 0)
    throw std::invalid_argument(
        fmt::format("an entry of a traffic matrix is {}; expected 0 or more", *least));
  input_begins_.resize(n * (n + 1));
  output_begins_.resize(n * (n + 1));
  const auto at = [&](int from, int to) {
    return elements[static_cast<std::size_t>(from) * n + static_cast<std::size_t>(to)];
  };
  for (int rank = 0; rank < ranks; ++rank) {
    for (int peer = 0; peer < ranks; ++peer) {
      input_begins_[index(rank, peer + 1)] = input_begin(rank, peer) + at(rank, peer);
      output_begins_[index(rank, peer + 1)] = output_begin(rank, peer) + at(peer, rank);
    }
    busiest_ = std::max({busiest_, sent_by(rank), received_by(rank)});
  }
}

std::int64_t TrafficMatrix::total() const {
  std::int64_t sum = 0;
  for (int rank = 0; rank < ranks_; ++rank) sum += sent_by(rank);
  return sum;
}

}  // namespace collectives
