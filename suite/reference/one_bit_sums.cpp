#include "suite/reference/one_bit_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace suite {
namespace {

// Returns the values of the codes of all shares, and leaves the errors in `values`.
std::vector<float> coded(std::vector<float>& values, std::size_t share) {
  std::vector<float> sent(values.size());
  for (std::size_t begin = 0; begin < values.size(); begin += share) {
    const std::size_t end = std::min(values.size(), begin + share);
    double squares = 0;
    for (std::size_t i = begin; i < end; ++i)
      squares += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    const auto scale = static_cast<float>(std::sqrt(squares / static_cast<double>(end - begin)));
    for (std::size_t i = begin; i < end; ++i) {
      sent[i] = values[i] < 0 ? -scale : scale;
      values[i] -= sent[i];
    }
  }
  return sent;
}

std::vector<double> doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

OneBitSums::OneBitSums(harness::Judge& judge, machine::World& world, machine::Group dp)
    : judge_(judge), world_(world), dp_(std::move(dp)) {}

void OneBitSums::before(std::size_t segment, const machine::Tensor& momenta) {
  segments_[segment].momenta = to_doubles(momenta);
}

void OneBitSums::after(std::size_t index, const machine::Tensor& sums,
                       const collectives::CompressedAllReduce& sum) {
  Segment& segment = segments_[index];
  const auto momenta = world_.all_gather(dp_, segment.momenta);
  const std::size_t size = segment.momenta.size(), ranks = momenta.size(),
                    share = (size + ranks - 1) / ranks;
  segment.of_workers.resize(ranks, std::vector<float>(size));
  segment.of_server.resize(size);
  std::vector<float> arrived(size);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::vector<float>& values = segment.of_workers[rank];
    for (std::size_t i = 0; i < size; ++i) values[i] += static_cast<float>(momenta[rank][i]);
    const std::vector<float> sent = coded(values, share);
    for (std::size_t i = 0; i < size; ++i) arrived[i] = rank == 0 ? sent[i] : arrived[i] + sent[i];
  }
  for (std::size_t i = 0; i < size; ++i) segment.of_server[i] += arrived[i];
  const std::vector<float> expected = coded(segment.of_server, share);

  const std::string what = fmt::format("sum {} of momenta, segment {}", ++segment.sums, index);
  const auto own = static_cast<std::size_t>(dp_.index);
  const std::vector<double> error = doubles(segment.of_workers[own]);
  judge_.exact(what, to_doubles(sums), doubles(expected));
  judge_.exact(what + ", error of the worker", to_doubles(sum.residual()), error);
  std::vector<double> held = error;
  for (std::size_t i = own * share; i < std::min(size, (own + 1) * share); ++i)
    held[i] += static_cast<double>(segment.of_server[i]);
  judge_.exact(what + ", errors of worker and server", sum.held_back(), held);
}

}  // namespace suite
