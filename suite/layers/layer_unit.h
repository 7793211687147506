#pragma once
// A layer as a unit: forward, backward_input and backward_weights over tp ranks, judged by every
// oracle. This is the common part. Each layer adds an adapter:
//
//   LayerClaims claims(const LayerCase& c);   // from the paper, not from the code
//   class Mlp final : public JudgedLayer { … };
//   constexpr LayerTraits traits{
//       .name = "mlp", .about = "…", .claims = claims, .make = make_layer<Mlp>};
//   const bool registered = harness::add<LayerUnit<traits>>();
//
// numerics: layer_run.h. volume: bytes and messages of each pass by operation and dtype,
// exactly. memory: peaks by category, and activations held after each pass, exactly. determinism:
// replicas, and a second run.

#include <memory>
#include <string>
#include <string_view>

#include "collectives/communicator/calls.h"
#include "collectives/communicator/communicator.h"
#include "machine/link/connect.h"
#include "suite/layers/layer_run.h"

namespace suite {

class LayerShell {
 public:
  using Case = LayerCase;
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                       Oracle::determinism};
  LayerShell(const Case& c, Context& context, const LayerTraits& traits);
  static std::string why_not(const Case& c, const Context& context);

  void prepare() {}  // gradients grow from run to run, as over micro-batches
  void run() { run_.run_all(); }
  void judge(Judge& judge);
  Cost cost() const;
  void describe(Description& description);

 private:
  void judge_memory(Judge& judge);
  void judge_volume(Judge& judge, Pass pass);
  void add_calls(collectives::CallsCost& cost, Pass pass);
  void judge_saved(Judge& judge, Pass pass) const;
  void judge_bits(Judge& judge) const;
  LayerReference shared_reference() const;

  Case case_;
  Context& context_;
  LayerTraits traits_;
  LayerClaims claims_;
  collectives::Communicator tp_;
  harness::PeakMeter memory_;  // without the memory of the link itself
  LayerRun run_;
};

template <const LayerTraits& traits>
struct LayerUnit : LayerShell {
  static constexpr std::string_view name = traits.name, about = traits.about;
  static constexpr bool limit_applies = traits.limit_applies;
  static Sweep<LayerCase> sweep() { return layer_sweep(traits); }
  LayerUnit(const LayerCase& c, Context& context) : LayerShell(c, context, traits) {}
};

}  // namespace suite
