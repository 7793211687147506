#include "layers/experts/dispatch/direct_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <thread>
#include <type_traits>

#include "machine/base/clock.h"
#include "machine/device/host/threads.h"
#include "machine/link/faulty_link.h"
#include "machine/world/step_clock.h"

namespace layers {
namespace {

using machine::Operation;

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

// The link copies shorter messages (eager_bytes), so a peer cannot read rows next to them.
constexpr std::size_t least_lent_bytes = 16 << 10;

// A peer that is later gets its rows packed. Longer than all ranks need to plan the same exchange.
constexpr double wait_for_offers_s = 300e-6;
// A busy machine gives a core that is yielded to another program for milliseconds.
constexpr double spin_for_offers_s = 20e-6;

std::size_t place_of(std::int64_t value) { return static_cast<std::size_t>(value); }

// The sent rows of each token, in their order, and those without a token.
struct RowsOfTokens {
  std::vector<std::int32_t> begins, rows, padding;

  RowsOfTokens(const Tensor& token, std::int64_t tokens) : begins(place_of(tokens) + 1) {
    const std::int32_t* const of = token.as<std::int32_t>();
    for (std::int64_t row = 0; row < token.size(); ++row)
      if (of[row] >= 0) ++begins[place_of(of[row]) + 1];
    for (std::size_t t = 1; t < begins.size(); ++t) begins[t] += begins[t - 1];
    rows.resize(place_of(begins.back()));
    std::vector<std::int32_t> next(begins.begin(), begins.end() - 1);
    for (std::int64_t row = 0; row < token.size(); ++row)
      if (of[row] < 0)
        padding.push_back(static_cast<std::int32_t>(row));
      else
        rows[place_of(next[place_of(of[row])]++)] = static_cast<std::int32_t>(row);
  }
  template <class Use>
  void each(std::int64_t token, const Use& use) const {
    const auto t = place_of(token);
    for (auto i = place_of(begins[t]); i < place_of(begins[t + 1]); ++i) use(rows[i]);
  }
};

template <class T>
void copy_row(const T* from, T* to, std::int64_t cols) {
  std::memcpy(to, from, place_of(cols) * sizeof(T));
}

template <class T>
void scale_row(Sum<T> factor, const T* from, T* to, std::int64_t cols) {
#pragma GCC ivdep
  for (std::int64_t c = 0; c < cols; ++c)
    to[c] = static_cast<T>(factor * static_cast<Sum<T>>(from[c]));
}

// Returns the value of T(value). For Bfloat16 without packing 16 bits, which takes longer than all
// other arithmetic of a row.
template <class T>
Sum<T> rounded(Sum<T> value) {
  if constexpr (std::is_same_v<T, machine::Bfloat16>) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t near = (word + 0x7fffu + ((word >> 16) & 1u)) & 0xffff0000u;
    return std::bit_cast<float>(nan ? 0x7fc00000u : near);
  } else {
    return static_cast<Sum<T>>(static_cast<T>(value));
  }
}

// Adds up a token's rows, of `cols` columns, and keeps them. Each is read once.
template <class T>
class RowSum {
 public:
  // factor: of the row. kept: its copy, or null.
  struct Term {
    const T* row;
    T* kept;
    Sum<T> factor;
  };

  RowSum(bool weighs, bool keeps) : weighs_(weighs), keeps_(keeps) {}
  std::vector<Term>& terms() { return terms_; }

  void write(T* to, std::int64_t cols) const {
    if (weighs_ && keeps_) return write_parts<true, true>(to, cols);
    if (weighs_) return write_parts<true, false>(to, cols);
    if (keeps_) return write_parts<false, true>(to, cols);
    write_parts<false, false>(to, cols);
  }

 private:
  static constexpr std::int64_t width = 64;  // columns whose sums stay in registers

  template <bool weighs, bool keeps>
  void write_parts(T* to, std::int64_t cols) const {
    std::int64_t c = 0;
    for (; c + width <= cols; c += width) write_part<weighs, keeps>(to, c, width);
    if (c < cols) write_part<weighs, keeps>(to, c, cols - c);
  }

  template <bool weighs, bool keeps>
  [[gnu::always_inline]] void write_part(T* to, std::int64_t begin, std::int64_t count) const {
    Sum<T> sums[width] = {};
    for (const Term& term : terms_) {
      const T* const row = term.row + begin;
      T* const kept = keeps ? term.kept + begin : nullptr;
#pragma GCC ivdep
      for (std::int64_t c = 0; c < count; ++c) {
        const T value = row[c];
        if constexpr (keeps) kept[c] = value;
        if constexpr (weighs)
          sums[c] += rounded<T>(term.factor * static_cast<Sum<T>>(value));
        else
          sums[c] += static_cast<Sum<T>>(value);
      }
    }
#pragma GCC ivdep
    for (std::int64_t c = 0; c < count; ++c) to[begin + c] = static_cast<T>(sums[c]);
  }

  bool weighs_, keeps_;
  std::vector<Term> terms_;
};

template <class T>
Sum<T> dot_of_rows(const T* a, const T* b, std::int64_t cols) {
  constexpr std::int64_t lanes = 16;  // partial sums, which compilers vectorize
  const auto product = [=](std::int64_t c) {
    return static_cast<Sum<T>>(a[c]) * static_cast<Sum<T>>(b[c]);
  };
  Sum<T> partial[lanes] = {}, sum = 0;
  std::int64_t c = 0;
  for (; c + lanes <= cols; c += lanes)
    for (std::int64_t lane = 0; lane < lanes; ++lane) partial[lane] += product(c + lane);
  for (; c < cols; ++c) sum += product(c);
  for (const Sum<T> part : partial) sum += part;
  return sum;
}

}  // namespace

// The rows between this rank and a peer, which may be itself.
struct DirectRows::Part {
  std::vector<ExpertRun> sent, received;  // for the peer's experts, and for this rank's
  std::int64_t begin = 0;                 // of `sent` among the sent rows
  std::int64_t sent_rows = 0, received_rows = 0;
  std::size_t sent_bytes = 0, received_bytes = 0;

  static std::int64_t rows_of(const std::vector<ExpertRun>& runs) {
    return runs.empty() ? 0 : runs.back().packed + runs.back().rows;
  }
  static std::int64_t first(const std::vector<ExpertRun>& runs) {
    return runs.empty() ? 0 : runs.front().place;
  }
  // Returns whether rows at these places, in this many bytes, are read where they are. Both ranks
  // agree.
  static bool are_lent(const std::vector<ExpertRun>& runs, std::size_t bytes) {
    return runs.size() <= 1 || bytes >= least_lent_bytes;
  }
};

bool DirectRows::available() const {
  if (!context_.device.readable_by_host()) return false;
  if (group_.size() == 1) return true;
  machine::Link& link = group_.link();
  return link.transport() == machine::Transport::shared_memory &&
         &context_.device == &group_.device() && &machine::plain(link) == &link &&
         group_.algorithms().of(Operation::all_to_all_v).empty();
}

std::vector<DirectRows::Part> DirectRows::parts(const Saved& saved) const {
  const std::size_t row_bytes = place_of(config_.hidden) * size_of(context_.dtype);
  std::vector<Part> all;
  std::int64_t begin = 0;
  for (int peer = 0; peer < group_.size(); ++peer) {
    Part part{expert_runs(config_, degrees_, group_.rank(), peer, saved.counts),
              expert_runs(config_, degrees_, peer, group_.rank(), saved.counts)};
    part.begin = begin;
    part.sent_rows = Part::rows_of(part.sent);
    part.received_rows = Part::rows_of(part.received);
    part.sent_bytes = place_of(part.sent_rows) * row_bytes;
    part.received_bytes = place_of(part.received_rows) * row_bytes;
    begin += part.sent_rows;
    all.push_back(std::move(part));
  }
  return all;
}

template <class T>
void DirectRows::write_rows(const Saved& saved, const Tensor& from, const Tensor& weights,
                            const Tensor& packed, const Tensor& rows) {
  const std::int64_t cols = config_.hidden;
  const int ranks = group_.size(), mine = group_.rank();
  machine::Link& link = group_.link();
  const std::vector<Part> parts = this->parts(saved);
  T* const own = rows.as<T>();
  const auto offered_at = [&](const Part& part) { return own + Part::first(part.received) * cols; };
  for (int peer = 0; peer < ranks; ++peer)
    if (const Part& part = parts[place_of(peer)]; peer != mine && part.received_rows > 0)
      link.post(peer, 1, offered_at(part), part.received_bytes);

  // The target of each sent row.
  const RowsOfTokens of_tokens(saved.token, saved.tokens);
  std::vector<T*> targets(place_of(saved.token.size()));
  std::vector<bool> offered(place_of(ranks));
  const double begin_s = machine::steady_s();
  for (int peer = 0; peer < ranks; ++peer) {
    const Part& part = parts[place_of(peer)];
    if (part.sent_rows == 0) continue;
    T* base = peer == mine ? own : nullptr;
    if (peer != mine) {
      void* there = link.posted(peer, part.sent_bytes);
      for (double waited = 0; !there && waited < wait_for_offers_s;
           waited = machine::steady_s() - begin_s) {
        if (waited > spin_for_offers_s) std::this_thread::yield();
        there = link.posted(peer, part.sent_bytes);
      }
      if (there) base = static_cast<T*>(there) - Part::first(part.sent) * cols;
      offered[place_of(peer)] = there != nullptr;
    }
    for (const ExpertRun& run : part.sent)
      for (std::int64_t i = 0; i < run.rows; ++i) {
        const std::int64_t row = part.begin + run.packed + i;
        targets[place_of(row)] = base ? base + (run.place + i) * cols : packed.as<T>() + row * cols;
      }
  }

  const T* const tokens = from.as<T>();
  const T* const factors = weights ? weights.as<T>() : nullptr;
  machine::host::parallel(
      context_.device.threads(), saved.tokens, 4 * cols * std::int64_t{sizeof(T)}, 1,
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t token = begin; token < end; ++token)
          of_tokens.each(token, [&](std::int32_t row) {
            const T* const source = tokens + token * cols;
            T* const target = targets[place_of(row)];
            if (factors)
              scale_row(static_cast<Sum<T>>(factors[row]), source, target, cols);
            else
              copy_row(source, target, cols);
          });
      });
  for (const std::int32_t row : of_tokens.padding)
    std::memset(static_cast<void*>(targets[place_of(row)]), 0, place_of(cols) * sizeof(T));

  std::vector<std::uint64_t> numbers(place_of(ranks));
  for (int i = 1; i < ranks; ++i) {
    const int peer = (mine + i) % ranks;
    const Part& part = parts[place_of(peer)];
    if (offered[place_of(peer)])
      link.deliver(peer, part.sent_bytes);
    else
      numbers[place_of(peer)] =
          link.send(peer, packed.as<T>() + part.begin * cols, part.sent_bytes);
  }
  for (int i = ranks - 1; i > 0; --i) {  // first from the rank that sends here first
    const int peer = (mine + i) % ranks;
    const Part& part = parts[place_of(peer)];
    const T* const data = static_cast<const T*>(link.receive_in_place(peer, part.received_bytes));
    if (part.received_rows > 0 && data != offered_at(part))
      for (const ExpertRun& run : part.received)
        copy_row(data + run.packed * cols, own + run.place * cols, run.rows * cols);
    link.release(peer);
  }
  for (int peer = 0; peer < ranks; ++peer)
    if (numbers[place_of(peer)] > 0) link.wait_sent(peer, numbers[place_of(peer)]);
}

template <class T>
void DirectRows::add_rows(const Saved& saved, const Tensor& rows, const Tensor& weights,
                          const Tensor& packed, const Tensor& kept, const Tensor& sums) {
  const std::int64_t cols = config_.hidden;
  const int ranks = group_.size(), mine = group_.rank();
  machine::Link& link = group_.link();
  const std::vector<Part> parts = this->parts(saved);
  const T* const own = rows.as<T>();
  std::vector<std::uint64_t> numbers(place_of(ranks));
  std::int64_t begin = 0;  // in `packed`
  for (int i = 1; i < ranks; ++i) {
    const int peer = (mine + i) % ranks;
    const Part& part = parts[place_of(peer)];
    const T* data = own + Part::first(part.received) * cols;
    if (!Part::are_lent(part.received, part.received_bytes)) {
      T* const to = packed.as<T>() + begin * cols;
      for (const ExpertRun& run : part.received)
        copy_row(own + run.place * cols, to + run.packed * cols, run.rows * cols);
      data = to;
      begin += part.received_rows;
    }
    numbers[place_of(peer)] = link.send(peer, data, part.received_bytes);
  }

  // The source of each returned row.
  const RowsOfTokens of_tokens(saved.token, saved.tokens);
  std::vector<const T*> sources(place_of(saved.token.size()));
  for (int i = 0; i < ranks; ++i) {
    const int peer = (mine + ranks - i) % ranks;
    const Part& part = parts[place_of(peer)];
    const auto* const data =
        peer == mine ? own : static_cast<const T*>(link.receive_in_place(peer, part.sent_bytes));
    const bool lent = peer == mine || Part::are_lent(part.sent, part.sent_bytes);
    const std::int64_t first = peer == mine ? 0 : Part::first(part.sent);
    for (const ExpertRun& run : part.sent)
      for (std::int64_t row = 0; row < run.rows; ++row)
        sources[place_of(part.begin + run.packed + row)] =
            data + (lent ? run.place - first + row : run.packed + row) * cols;
  }

  const T* const factors = weights ? weights.as<T>() : nullptr;
  T* const outputs = kept ? kept.as<T>() : nullptr;
  machine::host::parallel(
      context_.device.threads(), saved.tokens, 4 * cols * std::int64_t{sizeof(T)}, 1,
      [&](std::int64_t first, std::int64_t last) {
        RowSum<T> sum(factors != nullptr, outputs != nullptr);
        for (std::int64_t token = first; token < last; ++token) {
          sum.terms().clear();
          of_tokens.each(token, [&](std::int32_t row) {
            sum.terms().push_back({sources[place_of(row)], outputs ? outputs + row * cols : nullptr,
                                   factors ? static_cast<Sum<T>>(factors[row]) : 1});
          });
          sum.write(sums.as<T>() + token * cols, cols);
        }
      });

  for (int peer = 0; peer < ranks; ++peer)
    if (peer != mine) link.release(peer);
  for (int peer = 0; peer < ranks; ++peer)
    if (peer != mine) link.wait_sent(peer, numbers[place_of(peer)]);
}

template <class T>
void DirectRows::dot_rows(const Saved& saved, const Tensor& from, const Tensor& dots) {
  const std::int64_t cols = config_.hidden;
  const RowsOfTokens of_tokens(saved.token, saved.tokens);
  const T *const tokens = from.as<T>(), *const outputs = saved.out.as<T>();
  auto* const to = dots.as<Sum<T>>();
  machine::host::parallel(
      context_.device.threads(), saved.tokens, 4 * cols * std::int64_t{sizeof(T)}, 1,
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t token = begin; token < end; ++token)
          of_tokens.each(token, [&](std::int32_t row) {
            to[row] = dot_of_rows(tokens + token * cols, outputs + row * cols, cols);
          });
      });
  for (const std::int32_t row : of_tokens.padding) to[row] = 0;
}

namespace {

// The time of a move is communication, like that of all_to_all_v.
std::optional<machine::During> during_move(collectives::Communicator& group, Dtype dtype) {
  if (group.size() == 1) return std::nullopt;
  group.link().count_as({Operation::all_to_all_v, dtype});
  return std::optional<machine::During>(std::in_place, machine::Part::communication,
                                        group.group().name);
}

}  // namespace

void DirectRows::to_experts(const Saved& saved, const Tensor& from, const Tensor& weights,
                            const Tensor& packed, const Tensor& rows) {
  const auto during = during_move(group_, context_.dtype);
  machine::visit(context_.dtype,
                 [&]<class T>(T) { write_rows<T>(saved, from, weights, packed, rows); });
}

void DirectRows::to_tokens(const Saved& saved, const Tensor& rows, const Tensor& weights,
                           const Tensor& packed, const Tensor& kept, const Tensor& sums) {
  const auto during = during_move(group_, context_.dtype);
  machine::visit(context_.dtype,
                 [&]<class T>(T) { add_rows<T>(saved, rows, weights, packed, kept, sums); });
}

std::vector<double> DirectRows::dots_with_outputs(const Saved& saved, const Tensor& from) {
  const Tensor dots = context_.row_values(saved.token.size(), Category::buffers);
  machine::visit(context_.dtype, [&]<class T>(T) { dot_rows<T>(saved, from, dots); });
  return to_doubles(dots);
}

}  // namespace layers
