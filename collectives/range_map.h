#pragma once
// A value for every element of a rank's buffers, stored as pieces of equal value. Finds the pieces
// that overlap a range in time proportional to their number. So the cost of binding a plan grows
// with its steps, not with their square.
//
//   RangeMap<std::size_t> writer;
//   writer.assign(layout.site(step.target, in_place), i);
//   writer.visit(layout.site(step.source, in_place), [&](std::size_t last) { … });

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "collectives/layout.h"

namespace collectives {

template <class Value>
class RangeMap {
 public:
  RangeMap() {
    for (Pieces& pieces : buffers_)
      pieces.emplace(std::numeric_limits<std::int64_t>::min(), Value());
  }

  // Calls with the value of each piece that overlaps the site.
  template <class Call>
  void visit(const Layout::Site& site, Call call) const {
    if (site.range.size() == 0) return;
    const Pieces& pieces = of(site);
    for (auto piece = std::prev(pieces.upper_bound(site.range.begin));
         piece != pieces.end() && piece->first < site.range.end; ++piece, ++visited_)
      call(piece->second);
  }
  // Like visit, but `call` may change the values. First splits the pieces at the site's ends.
  template <class Call>
  void update(const Layout::Site& site, Call call) {
    if (site.range.size() == 0) return;
    const auto [first, last] = cut(site);
    for (auto piece = first; piece != last; ++piece, ++visited_) call(piece->second);
  }
  // The site becomes one piece of this value.
  void assign(const Layout::Site& site, Value value) {
    if (site.range.size() == 0) return;
    const auto [first, last] = cut(site);
    first->second = std::move(value);
    of(site).erase(std::next(first), last);
  }

  // Returns the number of pieces visited so far. Tests check it instead of time.
  std::size_t visited() const { return visited_; }

 private:
  using Pieces = std::map<std::int64_t, Value>;  // by begin; each ends where the next begins

  Pieces& of(const Layout::Site& site) { return buffers_[static_cast<std::size_t>(site.buffer)]; }
  const Pieces& of(const Layout::Site& site) const {
    return buffers_[static_cast<std::size_t>(site.buffer)];
  }
  auto cut(const Layout::Site& site) {
    Pieces& pieces = of(site);
    const auto cut_at = [&](std::int64_t at) {
      const auto piece = std::prev(pieces.upper_bound(at));
      return piece->first == at ? piece : pieces.emplace_hint(std::next(piece), at, piece->second);
    };
    const auto first = cut_at(site.range.begin);
    return std::pair(first, cut_at(site.range.end));
  }

  std::array<Pieces, 3> buffers_;
  mutable std::size_t visited_ = 0;
};

}  // namespace collectives
