#pragma once
// A layer as a unit: forward, backward_input and backward_weights over tp ranks, judged by every
// oracle. This is the common part; each layer adds an adapter:
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
// numerics: layer_results.h. volume: bytes and messages of each pass by operation and dtype,
// exactly. memory: peaks by category, and activations held after each pass, exactly. determinism:
// replicas, and a second run.

#include <memory>
#include <string_view>

#include "collectives/communicator/calls.h"
#include "collectives/communicator/communicator.h"
#include "machine/link/connect.h"
#include "suite/layers/layer_results.h"

namespace suite {

class LayerShell {
 public:
  using Case = LayerCase;
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                       Oracle::determinism};
  LayerShell(const Case& c, Context& context, const LayerTraits& traits, LayerClaims claims,
             MakeLayer make);

  void prepare() {}  // gradients grow from run to run, as over micro-batches
  void run() { run_.run_all(); }
  void judge(Judge& judge);
  Cost cost() const;
  void describe(Description& description);

 private:
  void judge_memory(Judge& judge) const;
  void judge_volume(Judge& judge, Pass pass) const;
  void add_calls(collectives::CallsCost& cost, Pass pass) const;
  void judge_saved(Judge& judge, Pass pass) const;
  void judge_bits(Judge& judge) const;
  LayerReference shared_reference() const;

  Case case_;
  Context& context_;
  LayerTraits traits_;
  LayerClaims claims_;
  MakeLayer make_;
  harness::PeakMeter memory_;
  collectives::Communicator tp_;
  LayerRun run_;
};

template <class Layer>
struct LayerUnit : LayerShell {
  static constexpr std::string_view name = Layer::name, about = Layer::about;
  static constexpr bool limit_applies = Layer::traits.limit_applies;
  static Sweep<LayerCase> sweep() {
    const LayerTraits traits = Layer::traits;
    return traits.sweep ? traits.sweep() : layer_sweep(traits, Layer::claims);
  }
  LayerUnit(const LayerCase& c, Context& context)
      : LayerShell(c, context, Layer::traits, Layer::claims(c),
                   [](const layers::Context& on,
                      const LayerCase& the_case) -> std::unique_ptr<JudgedLayer> {
                     return std::make_unique<Layer>(on, the_case);
                   }) {}
};

}  // namespace suite
