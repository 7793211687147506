#pragma once
// A layer as a unit: forward, backward_input and backward_weights over tp ranks, judged by every
// oracle. What is the same for all layers is here; a layer adds an adapter of its own:
//
//   class Mlp final : public JudgedLayer {
//    public:
//     static constexpr std::string_view name = "mlp", about = "…";
//     static constexpr LayerTraits traits{};
//     static LayerClaims claims(const LayerCase& c);           // from the paper, not from the code
//     Mlp(const layers::Context& context, const LayerCase& c);
//     …                                                        // JudgedLayer's
//   };
//   const bool registered = harness::add<LayerUnit<Mlp>>();
//
// A layer may bring its own `static harness::Sweep<LayerCase> sweep()`, and its own
// reference, `static void judge_numerics(harness::Judge&, const harness::Context&, const LayerRun&,
// const LayerCase&)`, of the last passes.
//
// numerics: layer_results.h. volume: bytes and messages of each pass by operation and dtype,
// exactly. memory: peaks by category, and activations held after each pass, exactly. determinism:
// replicas, and a second run.

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "collectives/communicator/calls.h"
#include "collectives/communicator/communicator.h"
#include "harness/unit/unit.h"
#include "machine/link/connect.h"
#include "suite/layers/layer_results.h"
#include "suite/layers/layer_sweep.h"

namespace suite {

class LayerShell {
 public:
  using Case = LayerCase;
  static constexpr harness::Oracle oracles[] = {harness::Oracle::numerics, harness::Oracle::volume,
                                                harness::Oracle::memory,
                                                harness::Oracle::determinism};
  using JudgeNumerics = void (*)(harness::Judge& judge, const harness::Context& context,
                                 const LayerRun& run, const LayerCase& c);
  // judge_numerics: null for the layer on one rank.
  LayerShell(const Case& c, harness::Context& context, const LayerTraits& traits,
             LayerClaims claims, MakeLayer make, JudgeNumerics judge_numerics);

  void prepare() {}  // gradients grow from run to run, as over micro-batches
  void run() { run_.run_all(); }
  void judge(harness::Judge& judge);
  harness::Cost cost() const;
  void describe(harness::Description& description);

 private:
  void judge_memory(harness::Judge& judge) const;
  void judge_volume(harness::Judge& judge, Pass pass) const;
  void add_calls(collectives::CallsCost& cost, Pass pass) const;
  void judge_saved(harness::Judge& judge, Pass pass) const;
  void judge_bits(harness::Judge& judge) const;
  LayerReference shared_reference() const;

  Case case_;
  harness::Context& context_;
  LayerTraits traits_;
  LayerClaims claims_;
  MakeLayer make_;
  JudgeNumerics judge_numerics_;
  harness::PeakMeter memory_;
  collectives::Communicator tp_;
  LayerRun run_;
};

template <class Layer>
struct LayerUnit : LayerShell {
  static constexpr std::string_view name = Layer::name, about = Layer::about;
  static constexpr bool limit_applies = Layer::traits.limit_applies;
  static harness::Sweep<LayerCase> sweep() {
    if constexpr (requires { Layer::sweep(); })
      return Layer::sweep();
    else
      return layer_sweep(Layer::traits, Layer::claims);
  }
  LayerUnit(const LayerCase& c, harness::Context& context)
      : LayerShell(
            c, context, Layer::traits, Layer::claims(c),
            [](const layers::Context& on, const LayerCase& the_case)
                -> std::unique_ptr<JudgedLayer> { return std::make_unique<Layer>(on, the_case); },
            own_numerics()) {}

 private:
  static constexpr JudgeNumerics own_numerics() {
    if constexpr (requires { &Layer::judge_numerics; })
      return &Layer::judge_numerics;
    else
      return nullptr;
  }
};

}  // namespace suite
