// Proves plans on small matrices: a product is a set of pairs of elements. Every element of a
// result is the sum of its pairs, each once, on the rank that owns the element, and every rank
// computes the same number of pairs. The interpreter here shares no code with the executor.

#include "layers/tensor_grids/plans/grid_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace layers {
namespace {

using enum GridStep::Action;
using enum TensorParallelMode;

using Pair = std::pair<std::int64_t, std::int64_t>;  // elements of the left and the right matrix
template <class Value>
struct Values {
  std::int64_t rows = 0, cols = 0;
  std::vector<Value> all;
  const Value& at(std::int64_t i, std::int64_t j) const {
    return all.at(static_cast<std::size_t>(i * cols + j));
  }
};
using Elements = Values<std::int64_t>;
using Sums = Values<std::vector<Pair>>;

Elements elements(const GridBlock& block, std::int64_t columns) {
  Elements own{block.rows, block.cols, {}};
  for (std::int64_t i = 0; i < block.rows; ++i)
    for (std::int64_t j = 0; j < block.cols; ++j)
      own.all.push_back((block.row + i) * columns + block.col + j);
  return own;
}

Elements transposed(const Elements& matrix) {
  Elements result{matrix.cols, matrix.rows, {}};
  for (std::int64_t j = 0; j < matrix.cols; ++j)
    for (std::int64_t i = 0; i < matrix.rows; ++i) result.all.push_back(matrix.at(i, j));
  return result;
}

Sums product_of(const Elements& left, const Elements& right) {
  EXPECT_EQ(left.cols, right.rows);
  Sums sums{left.rows, right.cols, {}};
  for (std::int64_t i = 0; i < left.rows; ++i)
    for (std::int64_t j = 0; j < right.cols; ++j) {
      std::vector<Pair>& terms = sums.all.emplace_back();
      for (std::int64_t k = 0; k < left.cols; ++k)
        terms.emplace_back(left.at(i, k), right.at(k, j));
    }
  return sums;
}

void add(Sums& to, const Sums& from) {
  ASSERT_EQ(to.all.size(), from.all.size());
  for (std::size_t i = 0; i < to.all.size(); ++i)
    to.all[i].insert(to.all[i].end(), from.all[i].begin(), from.all[i].end());
}

struct RankState {
  Elements own[2], now[2];
  Sums sum, result;  // the sum of the rank's products; the block that it owns
  std::size_t pairs = 0;
};

class Interpreter {
 public:
  Interpreter(const TensorGrid& grid, GridProduct product, std::vector<RankState> ranks)
      : grid_(grid), product_(product), ranks_(std::move(ranks)) {}

  const std::vector<RankState>& run(const GridPlan& plan) {
    for (const GridStep& step : plan) {
      const std::vector<RankState> before = ranks_;
      for (int rank = 0; rank < grid_.ranks(); ++rank)
        run(step, rank, before, ranks_[static_cast<std::size_t>(rank)]);
    }
    for (RankState& rank : ranks_)
      if (rank.result.all.empty()) rank.result = rank.sum;  // no step moved the sums
    return ranks_;
  }

 private:
  void run(const GridStep& step, int rank, const std::vector<RankState>& before, RankState& mine) {
    const std::vector<int> members = grid_.members(rank, step.along);
    const int n = static_cast<int>(members.size()), own = grid_.place(rank).along(step.along);
    const auto operand = static_cast<std::size_t>(step.operand);
    const auto other = [&](int index) -> const RankState& {
      return before[static_cast<std::size_t>(members[static_cast<std::size_t>((index + n) % n)])];
    };
    const auto total = [&](auto of) {
      Sums sum = of(other(0));
      for (int i = 1; i < n; ++i) add(sum, of(other(i)));
      return sum;
    };
    switch (step.action) {
      case multiply: {
        const Sums terms =
            product_of(product_ == GridProduct::atb ? transposed(mine.now[0]) : mine.now[0],
                       product_ == GridProduct::abt ? transposed(mine.now[1]) : mine.now[1]);
        for (const auto& one : terms.all) mine.pairs += one.size();
        if (step.adds)
          add(mine.sum, terms);
        else
          mine.sum = terms;
        return;
      }
      case broadcast:
        mine.now[operand] = other(step.root).own[operand];
        return;
      case reduce:
        if (own == step.root) mine.result = total([](const RankState& one) { return one.sum; });
        return;
      case all_gather:
        mine.now[operand] = {0, mine.own[operand].cols, {}};
        for (int i = 0; i < n; ++i) {
          const Elements& part = other(i).own[operand];
          mine.now[operand].rows += part.rows;
          mine.now[operand].all.insert(mine.now[operand].all.end(), part.all.begin(),
                                       part.all.end());
        }
        return;
      case reduce_scatter: {
        const Sums sum = total([](const RankState& one) { return one.sum; });
        const auto share = static_cast<std::ptrdiff_t>(sum.all.size()) / n;
        mine.result = {sum.rows / n,
                       sum.cols,
                       {sum.all.begin() + own * share, sum.all.begin() + (own + 1) * share}};
        return;
      }
      case all_reduce:
        mine.result = total(
            [](const RankState& one) { return one.result.all.empty() ? one.sum : one.result; });
        return;
      case shift:
        if (step.operand == GridOperand::result)
          mine.sum = other(own - 1).sum;
        else
          mine.now[operand] = other(own - 1).now[operand];
        return;
      case skew:
        for (int sender = 0; sender < n; ++sender) {
          const int rank_of_sender = members[static_cast<std::size_t>(sender)];
          const int to = ((sender - step.distance(grid_.place(rank_of_sender))) % n + n) % n;
          if (to != own) continue;
          if (step.operand == GridOperand::result)
            mine.result = other(sender).sum;
          else
            mine.now[operand] = other(sender).own[operand];
        }
        return;
    }
  }

  TensorGrid grid_;
  GridProduct product_;
  std::vector<RankState> ranks_;
};

void expect_product(const TensorGrid& grid, PairPlace layer, GridProduct product,
                    GridMethod method) {
  const int q = grid.columns;
  const GridSizes sizes{std::int64_t{grid.depth} * q * q, std::int64_t{q} * q, 2LL * q * q};
  const std::int64_t M = sizes.tokens, K = sizes.in, F = sizes.out;
  const auto x = [&](int rank) { return input_block(grid, rank, layer, sizes); };
  const auto w = [&](int rank) { return weight_block(grid, rank, layer, sizes); };
  const auto y = [&](int rank) { return output_block(grid, rank, layer, sizes); };
  std::vector<RankState> ranks(static_cast<std::size_t>(grid.ranks()));
  for (int rank = 0; rank < grid.ranks(); ++rank) {
    RankState& one = ranks[static_cast<std::size_t>(rank)];
    one.own[0] = product == GridProduct::abt ? elements(y(rank), F) : elements(x(rank), K);
    one.own[1] = product == GridProduct::atb ? elements(y(rank), F) : elements(w(rank), F);
    one.now[0] = one.own[0];
    one.now[1] = one.own[1];
  }
  Interpreter interpreter(grid, product, std::move(ranks));
  const auto& after = interpreter.run(grid_plan(grid, layer, product, method));
  for (int rank = 0; rank < grid.ranks(); ++rank) {
    SCOPED_TRACE(fmt::format("rank {}", rank));
    const RankState& one = after[static_cast<std::size_t>(rank)];
    EXPECT_EQ(one.pairs, static_cast<std::size_t>(M * K * F / grid.ranks()));
    const GridBlock own = product == GridProduct::ab    ? y(rank)
                          : product == GridProduct::abt ? x(rank)
                                                        : w(rank);
    ASSERT_EQ(one.result.rows, own.rows);
    ASSERT_EQ(one.result.cols, own.cols);
    for (std::int64_t i = 0; i < own.rows; ++i)
      for (std::int64_t j = 0; j < own.cols; ++j) {
        const std::int64_t row = own.row + i, col = own.col + j;
        std::vector<Pair> want, got = one.result.at(i, j);
        if (product == GridProduct::ab)
          for (std::int64_t k = 0; k < K; ++k) want.emplace_back(row * K + k, k * F + col);
        if (product == GridProduct::abt)
          for (std::int64_t f = 0; f < F; ++f) want.emplace_back(row * F + f, col * F + f);
        if (product == GridProduct::atb)
          for (std::int64_t m = 0; m < M; ++m) want.emplace_back(m * K + row, m * F + col);
        std::ranges::sort(got);
        ASSERT_EQ(got, want) << "element " << row << ", " << col;
      }
  }
}

TEST(GridPlan, AddsEveryPartialProductOnce) {
  for (const TensorGrid& grid :
       {tensor_grid(one_d, 1, 1), tensor_grid(one_d, 4, 1), tensor_grid(two_d, 1, 1),
        tensor_grid(two_d, 4, 1), tensor_grid(two_d, 9, 1), tensor_grid(two_and_a_half_d, 8, 2),
        tensor_grid(two_and_a_half_d, 3, 3), tensor_grid(two_and_a_half_d, 18, 2),
        tensor_grid(three_d, 1, 1), tensor_grid(three_d, 8, 1), tensor_grid(three_d, 27, 1)})
    for (const PairPlace layer : {PairPlace::first, PairPlace::second})
      for (const GridProduct product : all_grid_products) {
        SCOPED_TRACE(fmt::format("{} of {} ranks, layer {}, product {}", name(grid.mode),
                                 grid.ranks(), static_cast<int>(layer), static_cast<int>(product)));
        expect_product(grid, layer, product, GridMethod::summa);
      }
}

TEST(GridPlan, CannonAddsEveryPartialProductOnce) {
  for (const int ranks : {1, 4, 9, 16})
    for (const GridProduct product : all_grid_products) {
      SCOPED_TRACE(fmt::format("{} ranks, product {}", ranks, static_cast<int>(product)));
      expect_product(tensor_grid(two_d, ranks, 1), PairPlace::first, product, GridMethod::cannon);
    }
  EXPECT_THROW(
      grid_plan(tensor_grid(three_d, 8, 1), PairPlace::first, GridProduct::ab, GridMethod::cannon),
      std::invalid_argument);
}

}  // namespace
}  // namespace layers
