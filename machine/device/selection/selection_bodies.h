#pragma once
// The bodies of selection.h and their launches, for host and CUDA. A row of a launch is a block of
// elements, or one count of all blocks.
//
// A choice counts each block's elements above the bound and of its magnitude. The counts of the
// blocks before it are then its place in the list, so no block waits for another one.

#include <cmath>
#include <cstdint>
#include <limits>

#include "machine/base/error.h"
#include "machine/device/int_blocks/block_bodies.h"
#include "machine/device/kernels.h"
#include "machine/device/kernels/checks.h"
#include "machine/device/kernels/fields.h"
#include "machine/device/selection/selection.h"

namespace machine::kernel {

inline constexpr std::int64_t selection_block = 1024;
inline constexpr std::int32_t largest_magnitude = 0x7fffffff;

// Elements of a block.
SHARDMARK_BOTH inline std::int64_t size_of_part(std::int64_t count, std::int64_t block) {
  const std::int64_t left = count - block * selection_block;
  return left < selection_block ? left : selection_block;
}

// What a selection knows, in the memory of the device.
struct ChoiceState {
  std::int32_t chosen;   // the first, for Selection::chosen
  std::int32_t bound;    // bits of a magnitude; all elements above it are chosen
  std::int32_t k;        // chosen in total, the rest from the bound's magnitude; 0: no rest
  std::int32_t above;    // elements above the bound
  std::int32_t refused;  // 1: chosen is not_finite
};

// Counts of each block. PlaceBlocks replaces above and equal by those of all blocks before; their
// last one is of all blocks.
struct BlockCounts {
  std::int32_t *above, *equal, *not_finite;
};

struct SetBound {
  ChoiceState* state;
  std::int32_t bound, k;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t /*row*/, const Lanes& lanes) const {
    if (lanes.leads()) *state = {0, bound, k, 0, 0};
  }
};

struct SetBoundOfDeviations {
  ChoiceState* state;
  const double* squares;
  std::int64_t count;
  double deviations;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t /*row*/, const Lanes& lanes) const {
    if (!lanes.leads()) return;
    const auto least =
        static_cast<float>(deviations * std::sqrt(*squares / static_cast<double>(count)));
    const std::int32_t bits = magnitude_bits(least);
    *state = {0, bits > 0 ? bits - 1 : largest_magnitude, 0, 0, is_finite(least) ? 0 : 1};
  }
};

struct CountChosen {
  const float* values;
  std::int64_t count;
  const ChoiceState* state;
  BlockCounts counts;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t block, const Lanes& lanes) const {
    const float* const from = values + block * selection_block;
    const std::int64_t size = size_of_part(count, block);
    const std::int32_t bound = state->bound;
    const auto number = [&](const auto& is) {
      return lanes.template sum<std::int32_t>(
          size, [=](std::int64_t i) { return is(magnitude_bits(from[i])) ? 1 : 0; });
    };
    const std::int32_t above = number([=](std::int32_t bits) { return bits > bound; });
    const std::int32_t equal = number([=](std::int32_t bits) { return bits == bound; });
    const std::int32_t bad = number([](std::int32_t bits) { return bits >= infinite_magnitude; });
    if (!lanes.leads()) return;
    counts.above[block] = above;
    counts.equal[block] = equal;
    counts.not_finite[block] = bad;
  }
};

struct PlaceBlocks {
  BlockCounts counts;
  std::int64_t blocks;
  ChoiceState* state;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t /*row*/, const Lanes& lanes) const {
    const auto place = [&](std::int32_t* of) {
      return lanes.sums_before(
          blocks, [=](std::int64_t i) { return of[i]; },
          [=](std::int64_t i, std::int32_t before) { of[i] = before; });
    };
    const std::int32_t above = place(counts.above), equal = place(counts.equal);
    const std::int32_t* const not_finite = counts.not_finite;
    const std::int32_t bad =
        lanes.template sum<std::int32_t>(blocks, [=](std::int64_t i) { return not_finite[i]; });
    if (!lanes.leads()) return;
    counts.above[blocks] = above;
    counts.equal[blocks] = equal;
    const std::int32_t k = state->k, left = k - above;
    if (k == 0 && bad > 0) state->refused = 1;
    state->above = above;
    state->chosen = state->refused != 0 ? Selection::not_finite
                    : k > 0             ? above + (left < equal ? left : equal)
                                        : above;
  }
};

// Calls put(j, i) for each chosen element i, whose place in the list is j: of the bound's
// magnitude, or above it.
template <bool equal, class Put>
struct TakeChosen {
  const float* values;
  std::int64_t count;
  const ChoiceState* state;
  BlockCounts counts;
  Put put;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t block, const Lanes& lanes) const {
    const std::int32_t chosen = state->chosen, bound = state->bound;
    const std::int32_t* const before = (equal ? counts.equal : counts.above) + block;
    const std::int32_t first = before[0] + (equal ? state->above : 0);
    const bool takes = before[1] > before[0] && first < chosen;
    const std::int64_t begin = block * selection_block;
    const float* const from = values + begin;
    const Put to = put;
    lanes.list(
        takes ? size_of_part(count, block) : 0,
        [=](std::int64_t i) {
          const std::int32_t bits = magnitude_bits(from[i]);
          return equal ? bits == bound : bits > bound;
        },
        [=](std::int64_t j, std::int64_t i) {
          if (!equal || first + j < chosen) to(first + j, begin + i);
        });
  }
};

struct PutValue {
  float* values;
  std::uint32_t *indices, *taken;
  SHARDMARK_BOTH void operator()(std::int64_t j, std::int64_t i) const {
    indices[j] = static_cast<std::uint32_t>(i);
    taken[j] = detail::bits_as<std::uint32_t>(values[i]);
    values[i] = 0;
  }
};

struct PutSign {
  float* values;
  float step;
  std::uint32_t* words;
  SHARDMARK_BOTH void operator()(std::int64_t j, std::int64_t i) const {
    const bool negative = values[i] < 0;
    words[j] = static_cast<std::uint32_t>(i) << 1 | (negative ? 1u : 0u);
    values[i] += negative ? step : -step;
  }
};

struct DropNotFinite {
  float* values;
  std::int64_t count;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t block, const Lanes& lanes) const {
    float* const at = values + block * selection_block;
    lanes.each(size_of_part(count, block),
               [=](std::int64_t i) { at[i] = is_finite(at[i]) ? at[i] : 0.0f; });
  }
};

struct AddTaken {
  const std::uint32_t *indices, *taken;
  std::int64_t count;
  float* out;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t block, const Lanes& lanes) const {
    const std::uint32_t* const index = indices + block * selection_block;
    const std::uint32_t* const bits = taken + block * selection_block;
    float* const to = out;
    lanes.each(size_of_part(count, block),
               [=](std::int64_t j) { to[index[j]] += detail::bits_as<float>(bits[j]); });
  }
};

struct AddSigns {
  const std::uint32_t* words;
  float step;
  std::int64_t count;
  float* out;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t block, const Lanes& lanes) const {
    const std::uint32_t* const from = words + block * selection_block;
    float *const to = out, by = step;
    lanes.each(size_of_part(count, block),
               [=](std::int64_t j) { to[from[j] >> 1] += (from[j] & 1) ? -by : by; });
  }
};

template <class Launch>
class SelectionKernels : public Selection {
 public:
  SelectionKernels(Device& device, std::int64_t count, Choice choice, Category category,
                   Launch launch)
      : SelectionKernels(
            device, count, choice, category, std::move(launch),
            Tensor(device, Dtype::int32, {sizeof(ChoiceState) / sizeof(std::int32_t)}, category)) {}

  void choose_largest(const Tensor& values, std::int64_t k) override {
    check(values, Choice::largest);
    SHARDMARK_CHECK(k, >=, 1);
    SHARDMARK_CHECK(k, <=, count_);
    set_bound(0, static_cast<std::int32_t>(k));
    find_bound(values, k);
    count_chosen(values);
  }
  void choose_at_least(const Tensor& values, float least) override {
    check(values, Choice::above);
    SHARDMARK_CHECK(magnitude_bits(least), >, 0);
    SHARDMARK_CHECK(magnitude_bits(least), <, infinite_magnitude);
    set_bound(magnitude_bits(least) - 1, 0);
    count_chosen(values);
  }
  void choose_deviations(const Tensor& values, double deviations) override {
    check(values, Choice::above);
    values.device().stream().kernels().sum_of_squares(values, squares_);
    launch_.rows(1, 1, SetBoundOfDeviations{state(), squares_.as<double>(), count_, deviations});
    count_chosen(values);
  }

  void take(const Tensor& values, const Tensor& indices, const Tensor& taken) override {
    check(values);
    check_lists({&indices, &taken});
    take_chosen(values, PutValue{values.as<float>(), indices.as<std::uint32_t>(),
                                 taken.as<std::uint32_t>()});
  }
  void take_signs(const Tensor& values, float step, const Tensor& words) override {
    check(values);
    check_lists({&words});
    take_chosen(values, PutSign{values.as<float>(), step, words.as<std::uint32_t>()});
  }
  void drop_not_finite(const Tensor& values) override {
    check(values);
    by_block(count_, DropNotFinite{values.as<float>(), count_});
  }
  void add(const Tensor& indices, const Tensor& taken, const Tensor& out) override {
    check(out);
    check_lists({&indices, &taken});
    check_sizes(indices.size(), {&taken});
    by_block(indices.size(), AddTaken{indices.as<std::uint32_t>(), taken.as<std::uint32_t>(),
                                      indices.size(), out.as<float>()});
  }
  void add_signs(const Tensor& words, float step, const Tensor& out) override {
    check(out);
    check_lists({&words});
    by_block(words.size(),
             AddSigns{words.as<std::uint32_t>(), step, words.size(), out.as<float>()});
  }

 protected:
  // Sets the bound to the k-th largest magnitude. May use the counts.
  virtual void find_bound(const Tensor& values, std::int64_t k) = 0;

  ChoiceState* state() const { return reinterpret_cast<ChoiceState*>(state_.as<std::int32_t>()); }
  std::int64_t count() const { return count_; }
  std::int64_t blocks() const { return blocks_of(count_); }
  BlockCounts counts() const {
    auto* const first = counts_.as<std::int32_t>();
    const std::int64_t each = blocks() + 1;
    return {first, first + each, first + 2 * each};
  }
  template <class Body>
  void by_block(std::int64_t count, const Body& body) const {
    launch_.rows(blocks_of(count), selection_block, body);
  }
  const Launch& launch() const { return launch_; }

 private:
  SelectionKernels(Device& device, std::int64_t count, Choice choice, Category category,
                   Launch launch, Tensor state)
      : Selection(state.slice(0, {1})),
        count_(count),
        choice_(choice),
        launch_(std::move(launch)),
        state_(std::move(state)),
        counts_(device, Dtype::int32, {3 * (blocks_of(count) + 1)}, category) {
    SHARDMARK_CHECK(count, <=, std::int64_t{std::numeric_limits<std::int32_t>::max()});
    if (choice == Choice::above) squares_ = Tensor(device, Dtype::float64, {1}, category);
  }

  static std::int64_t blocks_of(std::int64_t count) {
    return (count + selection_block - 1) / selection_block;
  }

  void check(const Tensor& values) const {
    check_kind(Launch::kind, {&values});
    check_dtypes(Dtype::float32, {&values});
    check_sizes(count_, {&values});
  }
  void check(const Tensor& values, Choice choice) const {
    check(values);
    check_equal("the choice of a selection", static_cast<int>(choice_), static_cast<int>(choice));
  }
  static void check_lists(std::initializer_list<const Tensor*> lists) {
    check_kind(Launch::kind, lists);
    check_dtypes(Dtype::uint32, lists);
  }

  void set_bound(std::int32_t bound, std::int32_t k) {
    launch_.rows(1, 1, SetBound{state(), bound, k});
  }
  void count_chosen(const Tensor& values) {
    by_block(count_, CountChosen{values.as<float>(), count_, state(), counts()});
    launch_.rows(1, blocks(), PlaceBlocks{counts(), blocks(), state()});
  }
  template <class Put>
  void take_chosen(const Tensor& values, const Put& put) {
    // Those of the bound's magnitude first: the others are zero then, which may be that magnitude.
    if (choice_ == Choice::largest) take_part<true>(values, put);
    take_part<false>(values, put);
  }
  template <bool equal, class Put>
  void take_part(const Tensor& values, const Put& put) {
    by_block(count_, TakeChosen<equal, Put>{values.as<float>(), count_, state(), counts(), put});
  }

  std::int64_t count_;
  Choice choice_;
  Launch launch_;
  Tensor state_, counts_, squares_;
};

}  // namespace machine::kernel
