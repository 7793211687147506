// A model over a grid gives the loss, the values and the gradients of one rank, and needs the
// memory and messages of its formulas.

#include "layers/models/grids/grid_gpt.h"

#include <map>
#include <mutex>

#include "layers/models/gpt_memory.h"
#include "layers/models/grids/grid_gpt_cost.h"
#include "layers/testing/gpt_case.h"

namespace layers::testing {
namespace {

using machine::Category, machine::Dtype;
using enum TensorParallelMode;

const GptConfig config{.layers = 2, .hidden = 16, .heads = 4, .vocabulary = 32, .sequence = 8};

// A whole parameter by name, and its elements that some rank has.
struct Whole {
  std::vector<double> values;
  std::vector<bool> seen;
};
using Wholes = std::map<std::string, Whole>;

// Adds a rank's block. Copies have the same bits.
void add(Wholes& all, const Parameter& parameter, const Tensor& own) {
  const auto& block = *parameter.placement.block;
  const machine::Region region = parameter.region(0);
  Whole& whole = all[parameter.name];
  whole.values.resize(static_cast<std::size_t>(parameter.global_shape.size()));
  whole.seen.resize(whole.values.size());
  const std::vector<double> part = machine::to_doubles(own);
  ASSERT_EQ(std::ssize(part), block.rows * block.cols);
  for (std::int64_t row = 0; row < block.rows; ++row)
    for (std::int64_t col = 0; col < block.cols; ++col) {
      const auto at =
          static_cast<std::size_t>((region.row + row) * region.global_cols + region.col + col);
      const double value = part[static_cast<std::size_t>(
          block.transposed ? col * block.rows + row : row * block.cols + col)];
      EXPECT_TRUE(!whole.seen[at] || whole.values[at] == value)
          << "copies of " << parameter.name << " differ";
      whole.values[at] = value;
      whole.seen[at] = true;
    }
}

struct Result {
  double loss = 0;
  Wholes values, gradients;
};

struct GridRun {
  TensorGrid grid;
  int stages = 1;
  bool halves_apart = false;
  GptConfig shape = config;
};

constexpr int sequences = 4, micro_batches = 2;

GptCase case_of(const GridRun& run) {
  return {.config = run.shape,
          .stages = run.stages,
          .sequences = sequences,
          .micro_batches = micro_batches,
          .halves_apart = run.halves_apart,
          .loss_scale = 2};
}

// The categories of a stage's passes, in memory that the caller does not own.
void expect_memory(machine::Device& device, const StageMemory& memory, const GridRun& run,
                   ModelStage& stage, const TokenBatch& batch, const Tensor& loss) {
  machine::Ledger& ledger = device.ledger();
  const std::size_t buffers = ledger.current(Category::buffers),
                    activations = ledger.current(Category::activations);
  const auto peak = [&](Category category, const auto& work) {
    ledger.reset_peaks();
    work();
    return ledger.peak(category) - (category == Category::buffers ? buffers : activations);
  };
  EXPECT_EQ(peak(Category::buffers, [&] { stage.forward(0, batch, {}, loss); }),
            memory.forward_buffers);
  EXPECT_EQ(ledger.current(Category::activations) - activations, memory.saved);
  if (run.halves_apart) {
    EXPECT_EQ(peak(Category::buffers, [&] { stage.backward_input(0, {}, {}); }),
              memory.input_half_buffers);
    EXPECT_EQ(ledger.peak(Category::activations) - activations, memory.input_half_peak);
    EXPECT_EQ(ledger.current(Category::activations) - activations, memory.input_half_saved);
    EXPECT_EQ(peak(Category::buffers, [&] { stage.backward_weights(0); }),
              memory.weight_half_buffers);
  } else {
    EXPECT_EQ(peak(Category::buffers, [&] { stage.backward(0, {}, {}); }), memory.backward_buffers);
  }
  EXPECT_EQ(ledger.current(Category::activations), activations);
  EXPECT_EQ(ledger.current(Category::buffers), buffers);
}

Result run(const GridRun& run) {
  Result all;
  std::mutex mutex;
  const GptCase the_case = case_of(run);
  machine::run_ranks(run.grid.ranks(), [&](machine::World& world) {
    machine::Device& device = world.device();
    device.set_threads(1);
    GridGroups groups(world, world.group(), run.grid, machine::Transport::shared_memory);
    const GridContext context{device, groups, Dtype::float64};
    std::vector<std::unique_ptr<GridGptStage>> stages;
    for (int i = 0; i < run.stages; ++i) {
      stages.push_back(
          std::make_unique<GridGptStage>(run.shape, context, sequences, StageIndex{i, run.stages}));
      stages.back()->initialize(the_case.initializer);
      stages.back()->zero_gradients();
      stages.back()->set_loss_scale(the_case.loss_scale);
    }
    std::vector<std::vector<std::int32_t>> tokens, targets;
    for (int m = 0; m < micro_batches; ++m) {
      tokens.push_back(the_case.tokens(m));
      targets.push_back(the_case.targets(m));
    }
    const auto boundary = [&] {
      return context.tensor(stages.front()->boundary(sequences), Category::optimizer);
    };
    const auto batch = [&](int m) {
      const auto at = static_cast<std::size_t>(m);
      return TokenBatch{tokens[at].data(), targets[at].data(), sequences};
    };
    const Tensor loss(device, Dtype::float64, {1}, Category::optimizer);
    double sum = 0;
    for (int m = 0; m < micro_batches; ++m) {
      Tensor in;
      for (const auto& stage : stages) {
        const Tensor out = stage->stage().last() ? loss : boundary();
        stage->forward(m, batch(m), in, out);
        in = out;
      }
      sum += machine::to_doubles(loss).front();
    }
    for (int m = 0; m < micro_batches; ++m) {
      Tensor d_out;
      for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
        const Tensor d_in = (*stage)->stage().first() ? Tensor() : boundary();
        if (run.halves_apart)
          (*stage)->backward_input(m, d_out, d_in);
        else
          (*stage)->backward(m, d_out, d_in);
        d_out = d_in;
      }
      if (run.halves_apart)
        for (const auto& stage : stages) stage->backward_weights(m);
    }
    {
      const std::lock_guard lock(mutex);
      if (groups.place().along(vocabulary_axis(run.grid)) == 0) all.loss += sum;
      for (const auto& stage : stages)
        for (const Parameter* parameter : stage->parameters()) {
          const bool tied = run.stages > 1 && parameter->placement.tied_over_pp;
          Wholes mine;
          add(mine, *parameter, parameter->gradient);
          add(all.values, *parameter, parameter->value);
          if (!tied || stage->stage().first()) add(all.gradients, *parameter, parameter->gradient);
          if (!tied || stage->stage().first()) continue;
          Whole& sum_of_table = all.gradients.at(parameter->name);
          for (std::size_t i = 0; i < mine.at(parameter->name).values.size(); ++i)
            if (mine.at(parameter->name).seen[i] && groups.place().k == 0)
              sum_of_table.values[i] += mine.at(parameter->name).values[i];
        }
    }
    // All calls have run, so the communicators keep their scratch.
    if (run.stages == 1) {
      const StageCase stage{.tp = run.grid.ranks(),
                            .stage = {},
                            .sequences = sequences,
                            .dtype = Dtype::float64,
                            .grid = {run.grid, groups.rank()}};
      expect_memory(device, stage_memory(run.shape, stage), run, *stages.front(), batch(0), loss);
      std::int64_t parameters = 0;
      for (const Parameter* parameter : stages.front()->parameters())
        parameters += parameter->value.size();
      EXPECT_EQ(parameters, stage_parameters_count(run.shape, stage));
    }
  });
  return all;
}

Result on_one_rank(const GridRun& run) {
  Result one;
  on_ranks(1, Dtype::float64, [&](Rank& rank) {
    GptCase alone = case_of(run);
    alone.stages = 1;
    GptRanks ranks(rank, alone);
    one.loss = ranks.step();
    for (const Parameter* parameter : ranks.stage(0).parameters()) {
      one.values[parameter->name].values = machine::to_doubles(parameter->value);
      one.gradients[parameter->name].values = machine::to_doubles(parameter->gradient);
    }
  });
  return one;
}

void expect_equal(const GridRun& run, const Result& got, const Result& want) {
  SCOPED_TRACE(name(run.grid.mode));
  EXPECT_LE(std::abs(got.loss - want.loss), 1e-13 * want.loss);
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (const auto& [name, whole] : want.gradients) {
    SCOPED_TRACE(name);
    for (const bool seen : got.gradients.at(name).seen) ASSERT_TRUE(seen);
    EXPECT_EQ(got.values.at(name).values, want.values.at(name).values);
    EXPECT_LE(relative_error(got.gradients.at(name).values, whole.values), 1e-12);
  }
}

TEST(GridGpt, GivesTheGradientsOfOneRank) {
  GptConfig untied = config;
  untied.untie_embeddings_and_output_weights = true;
  const Result want = on_one_rank({.grid = {}}),
               want_untied = on_one_rank({.grid = {}, .shape = untied});
  for (const GridRun& grid :
       {GridRun{tensor_grid(two_d, 4, 1)}, GridRun{tensor_grid(two_d, 4, 1), 2, true},
        GridRun{tensor_grid(two_and_a_half_d, 2, 2), 1, true},
        GridRun{tensor_grid(two_and_a_half_d, 8, 2)}, GridRun{tensor_grid(three_d, 8, 1)},
        GridRun{tensor_grid(three_d, 8, 1), 1, true}})
    expect_equal(grid, run(grid), want);
  const GridRun apart{tensor_grid(two_d, 4, 1), 1, true, untied};
  expect_equal(apart, run(apart), want_untied);
}

TEST(GridGpt, NamesWhatItDoesNotSupport) {
  const TensorGrid square = tensor_grid(two_d, 4, 1), cube = tensor_grid(three_d, 8, 1);
  EXPECT_EQ(why_no_grid_gpt(config, square, 2), "");
  EXPECT_EQ(why_no_grid_gpt(config, square, 3),
            "tensor-parallel-mode 2d: micro-batch-size is 3; expected a multiple of 2, so that a "
            "rank has whole sequences");
  EXPECT_EQ(why_no_grid_gpt(config, cube, 2),
            "tensor-parallel-mode 3d: micro-batch-size is 2; expected a multiple of 4, so that a "
            "rank has whole sequences");
  GptConfig other = config;
  other.swiglu = true;
  EXPECT_EQ(why_no_grid_gpt(other, square, 2),
            "tensor-parallel-mode 2d requires GELU (got swiglu)");
  other = config;
  other.hidden_dropout = 0.1;
  EXPECT_EQ(why_no_grid_gpt(other, square, 2),
            "tensor-parallel-mode 2d requires hidden-dropout 0 (got 0.1)");
  other = config;
  other.vocabulary = 33;
  EXPECT_EQ(
      why_no_grid_gpt(other, square, 2),
      "tensor-parallel-mode 2d: vocab-size is 33; expected a multiple of 2 in the grid 2 x 2 x "
      "1 (example: 34)");
}

}  // namespace
}  // namespace layers::testing
