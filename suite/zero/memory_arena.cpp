// Claim: a recomputed training step fragments memory if it allocates checkpoints and gradients when
// it produces them, between short-lived activations. In a budget of exactly the live bytes it fails
// although enough bytes are free, because no hole is long enough. With checkpoints and gradients in
// preallocated arenas (M_D of ZeRO-R: Rajbhandari et al. 2020, arXiv:1910.02054, section 6.3) the
// same step runs in that budget to the last byte, with the same gradient bits.
//
// The step is that of recomputed_chain.h, with real products. The budget is its closed formula. A
// gradient in the place of a checkpoint leaves a hole that is too short for a checkpoint of the
// next micro-batch. This holds for every policy, because a matrix has 12/23 of the bytes of a
// layer's input here. `fit`: the policy of the block (Knuth, The Art of Computer Programming,
// volume 1, section 2.5). The sample times the step with arenas. DeepSpeed's names are
// contiguous_memory_optimization (of activation_checkpointing) and contiguous_gradients.

#include <fmt/format.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "machine/device/arena/memory_block.h"
#include "suite/reference/unit.h"
#include "suite/zero/recomputed_chain.h"

namespace suite {
namespace {

// Memory that records the place and the lifetime of every allocation in its block.
class WatchedMemory final : public machine::HostMemory {
 public:
  WatchedMemory(std::size_t bytes, machine::Fit fit) : block_(bytes, fit) {}

  // Sets the category of the following allocations.
  void next(Category category) { next_ = category; }

  void* allocate(std::size_t bytes) override {
    void* data = nullptr;
    try {
      data = block_.allocate(bytes);
    } catch (const machine::MachineError&) {
      // The map does not record allocations that are freed while this exception propagates.
      map_.asked = bytes;
      map_.free = block_.free_bytes();
      map_.longest = block_.longest_free();
      throw;
    }
    if (map_.asked > 0) return data;
    held_[data] = map_.blocks.size();
    map_.blocks.push_back(
        {std::string(machine::name(next_)), block_.offset(data), bytes, map_.events++, unended});
    return data;
  }
  void free(void* data, std::size_t bytes) override {
    block_.free(data, bytes);
    const auto found = held_.find(data);
    if (map_.asked > 0 || found == held_.end()) return;
    map_.blocks[found->second].end = map_.events++;
    held_.erase(found);
  }

  std::size_t highest() const { return block_.highest(); }
  harness::MemoryMap map(std::string name) const {
    harness::MemoryMap map = map_;
    map.name = std::move(name);
    map.bytes = block_.size();
    for (auto& block : map.blocks)
      if (block.end == unended) block.end = map.events;
    return map;
  }

 private:
  static constexpr std::int64_t unended = -1;
  machine::MemoryBlock block_;
  Category next_ = Category::buffers;
  std::map<void*, std::size_t> held_;  // index of the block
  harness::MemoryMap map_;
};

struct MemoryArena {
  static constexpr std::string_view name = "memory_arena";
  static constexpr std::string_view about =
      "a recomputed step in a memory budget: with fragmentation, and with contiguous arenas";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::memory, Oracle::schedule,
                                       Oracle::determinism};
  static constexpr Counter counters[] = {
      {"budget_bytes", "B", Better::neither, Nature::exact,
       "peak of live bytes, the size of the arenas"},
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
  };

  static Sweep<Case> sweep() {
    using enum Profile;
    const auto fits = vary(&Case::fit, {"first", "best"}), ranks = vary(&Case::ranks, {1, 2});
    return Sweep<Case>()
        .axis("fit", &Case::fit, "first", {"first", "best"})
        .axis("ranks", &Case::ranks, 1)
        .axis("layers", &Case::layers, 12)
        .only([](const Case& c) {
          return c.layers >= 2 ? "" : fmt::format("layers is {}; expected at least 2", c.layers);
        })
        .slice({quick}, "fits", {fits})
        .slice({acceptance}, "matrix", {fits, ranks, vary(&Case::layers, {4, 12})})
        .slice({paper}, "matrix", {fits, ranks, vary(&Case::layers, {4, 12, 24})})
        .slice({smoke}, "smoke", {fits, vary(&Case::layers, {3})});
  }

  static std::string why_not(const Case&, const Context& context) {
    return context.device.readable_by_host() ? "" : "the block is in host memory";
  }

  MemoryArena(const Case& c, Context& context)
      : case_(c), context_(context), timed_(make(c.shape().live_bytes(), true)) {}

  void prepare() {}
  void run() { timed_->chain->step(); }

  void judge(Judge& judge) {
    const ChainShape shape = case_.shape();
    const std::size_t budget = shape.live_bytes();
    run();
    for (const auto& [category, bytes] : shape.peaks())
      judge.memory(category, timed_->device->ledger().peak(category), bytes);
    judge.same_bits("gradients", timed_->chain->hash_of_gradients());

    // Uses a separate chain from the timed one, so that the maps show one step.
    const auto with = make(budget, true);
    const std::string outcome = with->step();
    judge.memory("the block, with arenas", Category::buffers, with->memory.highest(), budget);
    judge.same_bits("gradients", with->chain->hash_of_gradients());

    // With enough room, the peak of live bytes is the same without arenas.
    const auto roomy = make(4 * budget, false);
    roomy->chain->step();
    for (const auto& [category, bytes] : shape.peaks())
      judge.memory(fmt::format("{} without arenas", machine::name(category)), category,
                   roomy->device->ledger().peak(category), bytes);
    judge.memory("all live bytes without arenas", Category::buffers, roomy->device->ledger().peak(),
                 budget);
    needed_ = roomy->memory.highest();
    judge.same_bits("gradients", roomy->chain->hash_of_gradients());
    judge.exact("gradients without arenas", roomy->chain->gradients(), with->chain->gradients());

    const auto fragmenting = make(budget, false);
    const std::string failure = fragmenting->step();
    maps_ = {fragmenting->memory.map("without arenas"), with->memory.map("with arenas")};
    judge.schedule("a step in the budget of the live bytes",
                   fmt::format("without arenas: {}; with: {}", failure, outcome),
                   "without arenas: enough bytes are free, but not contiguous; with: done");
  }

  Cost cost() const { return {.flops = case_.shape().flops()}; }

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
  // A chain on a device in a block of memory.
  struct Place {
    Place(std::size_t bytes, machine::Fit fit) : memory(bytes, fit) {}
    WatchedMemory memory;
    std::unique_ptr<machine::Device> device = machine::make_host_device(memory);
    std::optional<RecomputedChain> chain = {};

    // Returns the outcome of a step.
    std::string step() {
      try {
        chain->step();
        return "done";
      } catch (const machine::MachineError& error) {
        const harness::MemoryMap map = memory.map("");
        return map.asked <= map.free ? "enough bytes are free, but not contiguous" : error.what();
      }
    }
  };
  std::unique_ptr<Place> make(std::size_t bytes, bool arenas) const {
    auto place = std::make_unique<Place>(
        bytes, case_.fit == "first" ? machine::Fit::first : machine::Fit::best);
    place->device->set_threads(context_.world.host_device().threads());
    place->chain.emplace(case_.shape(), *place->device, arenas, context_.seed,
                         [&memory = place->memory](Category category) { memory.next(category); });
    return place;
  }

  Case case_;
  Context& context_;
  std::unique_ptr<Place> timed_;
  std::size_t needed_ = 0;
  std::vector<harness::MemoryMap> maps_;  // without arenas, then with
};

const bool registered = harness::add<MemoryArena>();

}  // namespace
}  // namespace suite
