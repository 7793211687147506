// Claim: a recomputed training step that allocates checkpoints and gradients as they are produced,
// between short-lived activations, fragments memory: in a budget of exactly the live bytes it fails
// although enough bytes are free, because no hole is long enough. With checkpoints and
// gradients in arenas that were allocated before (M_D of ZeRO-R: Rajbhandari et al. 2020,
// arXiv:1910.02054, section 6.3) the same step runs in that budget to the last byte, and its
// gradients have the same bits.
//
// The step is recomputed_chain.h's, of real products; the budget is its closed formula. A gradient
// that comes into the place of a checkpoint leaves a hole that is too short for the next
// micro-batch's, whatever the policy: a matrix takes 12/23 of a layer's input here. `fit`: the
// policy of the block (Knuth, The Art of Computer Programming, volume 1, section 2.5). What is
// timed is the step with arenas. DeepSpeed calls these contiguous_memory_optimization (of
// activation_checkpointing) and contiguous_gradients.

#include <fmt/format.h>

#include <memory>
#include <string>

#include "suite/reference/unit.h"
#include "suite/zero/recomputed_chain.h"
#include "suite/zero/watched_memory.h"

namespace suite {
namespace {

// A block of memory and a device in it.
struct Place {
  Place(std::size_t bytes, machine::Fit fit, int threads)
      : block(bytes, fit), memory(block), device(machine::make_host_device(memory)) {
    device->set_threads(threads);
  }
  machine::MemoryBlock block;
  WatchedMemory memory;
  std::unique_ptr<machine::Device> device;
};

struct MemoryArena {
  static constexpr std::string_view name = "memory_arena";
  static constexpr std::string_view about =
      "a recomputed step in a budget of memory: fragmented, and with contiguous arenas";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::memory, Oracle::schedule,
                                       Oracle::determinism};
  static constexpr Counter counters[] = {
      {"budget_bytes", "B", Better::neither, Nature::exact,
       "bytes that live at once, which the arenas get"},
      {"budget_without_arenas", "B", Better::lower, Nature::exact,
       "bytes that the interleaved allocations need"},
      {"asked_bytes", "B", Better::neither, Nature::measured,
       "size of the allocation that failed without arenas"},
      {"free_bytes", "B", Better::neither, Nature::measured, "bytes that were free when it failed"},
      {"largest_free_block", "B", Better::neither, Nature::measured, "longest hole when it failed"},
      {"external_fragmentation", "", Better::lower, Nature::measured,
       "1 - `largest_free_block` / `free_bytes`"}};

  struct Case {
    int ranks = 1;
    std::string fit;
    int layers = 1;

    ChainShape shape() const {
      return {.layers = layers, .tokens = 368, .hidden = 48, .inner = 192, .micro_batches = 2};
    }
    machine::Fit policy() const {
      return fit == "first" ? machine::Fit::first : machine::Fit::best;
    }
  };

  static Sweep<Case> sweep() {
    using enum Profile;
    Sweep<Case> sweep;
    const auto fits = vary(&Case::fit, {"first", "best"});
    sweep.axis("fit", &Case::fit, "first", {"first", "best"})
        .axis("ranks", &Case::ranks, 1)
        .axis("layers", &Case::layers, 12)
        .only([](const Case& c) {
          return c.layers >= 2 ? "" : fmt::format("{} layers: at least 2", c.layers);
        })
        .slice({quick}, "fits", {fits})
        .slice({acceptance}, "matrix",
               {fits, vary(&Case::ranks, {1, 2}), vary(&Case::layers, {4, 12})})
        .slice({paper}, "matrix",
               {fits, vary(&Case::ranks, {1, 2}), vary(&Case::layers, {4, 12, 24})})
        .slice({smoke}, "smoke", {fits, vary(&Case::layers, {3})});
    return sweep;
  }

  static std::string why_not(const Case&, const Context& context) {
    return context.device.readable_by_host() ? "" : "the block is one of host memory";
  }

  MemoryArena(const Case& c, Context& context)
      : case_(c), context_(context), threads_(context.world.host_device().threads()) {
    in_arenas_ = place(case_.shape().live_bytes());
    chain_ = make(*in_arenas_, true);
  }

  void prepare() {}
  void run() { chain_->step(); }

  void judge(Judge& judge) {
    const ChainShape shape = case_.shape();
    const std::size_t budget = shape.live_bytes();
    const machine::Ledger& ledger = in_arenas_->device->ledger();
    chain_->step();
    for (const auto& [category, bytes] : shape.peaks())
      judge.memory(category, ledger.peak(category), bytes);
    judge.same_bits("gradients", chain_->hash_of_gradients());

    // Separate from the timed one, so that the maps show one step.
    const auto arenas = place(budget);
    const auto with = make(*arenas, true);
    const std::string outcome = step_in(*arenas, *with);
    maps_ = {arenas->memory.map("with arenas")};
    judge.memory("the block, with arenas", Category::buffers, arenas->block.highest(), budget);
    judge.same_bits("gradients", with->hash_of_gradients());

    // With enough room, the same number of bytes live at once without arenas.
    const auto roomy = place(4 * budget);
    const auto without = make(*roomy, false);
    without->step();
    for (const auto& [category, bytes] : shape.peaks())
      judge.memory(fmt::format("{} without arenas", machine::name(category)), category,
                   roomy->device->ledger().peak(category), bytes);
    judge.memory("all that lives at once without arenas", Category::buffers,
                 roomy->device->ledger().peak(), budget);
    needed_ = roomy->block.highest();
    judge.same_bits("gradients", without->hash_of_gradients());
    judge.exact("gradients without arenas", without->gradients(), with->gradients());

    const auto interleaved = place(budget);
    const auto fragmenting = make(*interleaved, false);
    const std::string failure = step_in(*interleaved, *fragmenting);
    maps_.insert(maps_.begin(), interleaved->memory.map("without arenas"));
    judge.schedule("a step in the budget of what lives at once",
                   fmt::format("without arenas: {}; with: {}", failure, outcome),
                   "without arenas: enough is free, but not in one piece; with: done");
  }

  Cost cost() const {
    Cost cost;
    cost.flops = case_.shape().flops();
    return cost;
  }

  void describe(Description& description) {
    if (maps_.size() != 2) return;
    const harness::MemoryMap& failed = maps_.front();
    description.memory_maps = maps_;
    description.set("budget_bytes", static_cast<double>(case_.shape().live_bytes()));
    description.set("budget_without_arenas", static_cast<double>(needed_));
    if (failed.asked == 0) return;
    description.set("asked_bytes", static_cast<double>(failed.asked));
    description.set("free_bytes", static_cast<double>(failed.free));
    description.set("largest_free_block", static_cast<double>(failed.longest));
    description.set("external_fragmentation",
                    machine::external_fragmentation(failed.longest, failed.free));
  }

 private:
  std::unique_ptr<Place> place(std::size_t bytes) const {
    return std::make_unique<Place>(bytes, case_.policy(), threads_);
  }
  std::unique_ptr<RecomputedChain> make(Place& place, bool arenas) const {
    return std::make_unique<RecomputedChain>(
        case_.shape(), *place.device, arenas, context_.seed,
        [&memory = place.memory](Category category) { memory.next(category); });
  }
  // The outcome of a step.
  static std::string step_in(const Place& place, RecomputedChain& chain) {
    try {
      chain.step();
      return "done";
    } catch (const machine::MachineError& error) {
      const harness::MemoryMap map = place.memory.map("");
      return map.asked <= map.free ? "enough is free, but not in one piece" : error.what();
    }
  }

  Case case_;
  Context& context_;
  const int threads_;
  std::unique_ptr<Place> in_arenas_;
  std::unique_ptr<RecomputedChain> chain_;  // in it
  std::size_t needed_ = 0;
  std::vector<harness::MemoryMap> maps_;  // without arenas, then with
};

const bool registered = harness::add<MemoryArena>();

}  // namespace
}  // namespace suite
