#include "suite/plan/declared_stage.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "suite/trainer/model_chunks.h"
#include "zero/stages/compressed_reduction.h"

namespace suite::configuration {
namespace {

// A link that has a number of ranks but no transport, for declaring a model.
class NoLink final : public machine::Link {
 public:
  explicit NoLink(int ranks) : Link(machine::first_ranks("tp", ranks, 0)) {}
  machine::Transport transport() const override { return machine::Transport::shared_memory; }

 private:
  [[noreturn]] static void moved() { throw std::logic_error("NoLink: nothing can be moved"); }
  std::uint64_t do_send(int, const void*, std::size_t) override { moved(); }
  void do_wait_sent(int, std::uint64_t) override { moved(); }
  std::uint64_t last_sent(int) const override { moved(); }
  void do_receive(int, void*, std::size_t, machine::Store) override { moved(); }
  const void* do_receive_in_place(int, std::size_t) override { moved(); }
  void do_release(int) override { moved(); }
};

}  // namespace

DeclaredStage declare_stage(const TrainingConfig& config, int stage, int most_micro_batches) {
  TrainingConfig shortened = config;
  const int micro_batches = std::min(config.micro_batches(), most_micro_batches);
  shortened.batch.global_batch_size =
      micro_batches * config.degrees.dp * config.batch.micro_batch_size;
  DeclaredStage declared;
  declared.schedules = schedules(shortened);
  const machine::Grid first(config.degrees, 0);
  const machine::Grid grid(config.degrees, first.rank_at(machine::Axis::pp, stage));
  machine::run_ranks(1, [&](machine::World& world) {  // has as many hosts as the grid needs
    collectives::Communicator tp(world, std::make_unique<NoLink>(config.degrees.tp)),
        ep(world, std::make_unique<NoLink>(expert_degrees(config).ranks()));
    const layers::GridGroups of_grid(config.over_grid() ? config.grid() : layers::TensorGrid{}, 0,
                                     {});
    const layers::GridContext over_grid{world.host_device(), of_grid, config.precision.dtype};
    ModelChunks model(config, declared.schedules.placement, stage, world.host_device(), tp,
                      &world.host_device(), {},
                      layers::MoeCommunicators{ep, expert_degrees(config).etp}, nullptr,
                      config.over_grid() ? &over_grid : nullptr);
    declared.plan = zero::gradient_plan(model.parameters(), config.precision.dtype, grid,
                                        static_cast<double>(config.tokens()),
                                        frozen_parameters(config, model.parameters()),
                                        config.gradient_dtype(), zero_experts(config));
    name_matrices(declared.plan, model.parameters(), config);
    declared.parts = model_parts(model);
  });
  declared.layout = zero::layout(declared.plan, layout_options(config, declared.parts));
  for (const zero::Segment& segment : declared.layout.segments)
    declared.selected.push_back(
        zero::selected_if_normal(config.zero.options.gradient_compression, segment.range.size()));
  declared.passes = model_passes(shortened, declared.parts, declared.schedules.of(stage));
  return declared;
}

}  // namespace suite::configuration
