#pragma once
// A layer on one rank with its inputs and outputs. All are random functions of the global index, so
// the shards of every degree, and the whole layer on one rank, start from the same numbers.
//
// The results in double are the outputs, the raw gradients, and the parameters after one step of
// SGD and one of AdamW. They are compared part by part with the same layer on one rank, in the same
// dtype and in double.

#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "layers/context.h"
#include "layers/parameter.h"
#include "suite/layers/layer_case.h"

namespace suite {

// The input: x, or tokens (indices to look up or targets of a loss).
struct LayerInput {
  Tensor x;
  const std::int32_t* tokens = nullptr;
};

// Seeds of x and d_y. The run's seed is added to them.
enum : std::uint64_t { seed_x = 1, seed_d_y };
// Returns the deviation of weights that gives products of order 1.
inline double weight_stddev(std::int64_t input_size) {
  return 1 / std::sqrt(static_cast<double>(input_size));
}

// The factor of a loss in its gradients. It is not 1, so that a missing factor shows.
inline constexpr double loss_factor = 0.5;

// A layer of a unit. forward keeps tensors as Category::activations. backward_input keeps them as
// buffers, because backward_weights follows immediately and frees them all.
class JudgedLayer {
 public:
  virtual ~JudgedLayer() = default;
  virtual layers::Parameters parameters() = 0;
  virtual void forward(const LayerInput& in, const Tensor& y) = 0;
  virtual void backward_input(const Tensor& d_y, const Tensor& d_x) = 0;
  virtual void backward_weights() = 0;
};

// A layer whose passes share a Saved.
template <class Layer>
class SavingLayer : public JudgedLayer {
 public:
  SavingLayer(const layers::Context& context, const std::string& name, const LayerCase& c)
      : layer_(context, name, c.model()) {}

  layers::Parameters parameters() final { return layer_.parameters(); }
  void forward(const LayerInput& in, const Tensor& y) final {
    layer_.forward(in.x, y, saved_, Category::activations);
  }
  void backward_input(const Tensor& d_y, const Tensor& d_x) final {
    layer_.backward_input(d_y, d_x, saved_, Category::buffers);
  }
  void backward_weights() final { layer_.backward_weights(saved_); }

 private:
  Layer layer_;
  typename Layer::Saved saved_;
};

template <class Layer>
std::unique_ptr<JudgedLayer> make_layer(const layers::Context& context, const std::string& name,
                                        const LayerCase& c) {
  return std::make_unique<Layer>(context, name, c);
}

// Returns `region` of one rank's part of a parameter's gradient of an earlier micro-batch, to which
// a layer must add. The values are odd multiples of 1/16: never zero, and exact in any order of
// additions.
std::vector<double> earlier_gradient(const layers::Context& context, std::uint64_t seed,
                                     const std::string& parameter, int rank, machine::Shape shape,
                                     machine::Region region);

// Returns a whole tensor in double. Its values depend only on the global index, as in the ranks'
// parts: of x (seed_x) or d_y with a key of a seed, or of a parameter with its random_key.
std::vector<double> whole_values(const Context& context, Dtype dtype, machine::Shape shape,
                                 std::uint64_t key, double stddev);

class LayerRun {
 public:
  // tp has c.ranks ranks.
  LayerRun(machine::Device& device, collectives::Communicator& tp, const LayerCase& c,
           const LayerTraits& traits, std::uint64_t seed);

  // Copies the values of another run with the same shapes, of any dtype and device.
  void copy_values(const LayerRun& other);
  void zero_gradients();
  // Adds earlier_gradient to every gradient. If ranks share a sum (names in `partial`), each rank
  // has its own part, and this run has the parts of ranks [first, first + ranks).
  void add_earlier_gradients(const std::set<std::string>& partial, int first, int ranks);
  // Overwrites the results. Old results would hide a pass that writes none.
  void spoil_results();
  void run(Pass pass);
  void run_all() {
    for (const Pass pass : all_passes) run(pass);
  }

  const layers::Context& context() const { return context_; }
  const JudgedLayer& layer() const { return *layer_; }
  layers::Parameters parameters() const { return layer_->parameters(); }
  std::set<std::string> partial_gradients() const;
  const Tensor& y() const { return y_; }
  const Tensor& d_x() const { return d_x_; }  // empty if the layer takes tokens
  // Return whether a rank holds only its columns of y, or of d_x.
  bool y_is_cut() const { return ends_.own_output < ends_.output; }
  bool d_x_is_cut() const { return ends_.own_input < ends_.input; }
  std::uint64_t seed() const { return seed_; }
  std::size_t passed_bytes() const;  // of tensors that the layer's caller holds

 private:
  LayerCase case_;
  LayerEnds ends_;
  layers::Context context_;
  std::uint64_t seed_;
  std::unique_ptr<JudgedLayer> layer_;
  Tensor x_, y_, d_y_, d_x_, tokens_;
};

// The results of a rank's part, or of the whole layer.
struct LayerResults {
  struct OfParameter {
    std::vector<double> value, gradient, after_sgd, after_adamw;
    static auto members(auto& self) {
      return std::tie(self.value, self.gradient, self.after_sgd, self.after_adamw);
    }
  };
  std::vector<double> y, d_x;
  std::vector<OfParameter> parameters;  // in the layer's order
  static auto members(auto& self) { return std::tie(self.y, self.d_x, self.parameters); }
};

// Returns the results of the run's last passes. Sums gradients that are partial over tp. Passes the
// sums, and replicated values after a step, to judge.same_bits.
LayerResults results_of(const LayerRun& run, Judge* judge = nullptr);

// The results of the layer on one rank, which runs it alone.
struct LayerReference {
  LayerResults same, exact;  // in the dtype judged, and in double from the same values
};
// Run on this rank only, `same` on the judged device and `exact` on the host. partial: parameters
// whose earlier gradients are the sum of all ranks' parts. `same` adds to these gradients, as the
// judged layer does. `exact` gets them afterwards, so that a layer that overwrites them fails.
LayerResults same_reference(const Context& context, const LayerCase& c, const LayerTraits& traits,
                            const std::set<std::string>& partial);
LayerResults exact_reference(const Context& context, const LayerCase& c, const LayerTraits& traits,
                             const std::set<std::string>& partial);

// Compares the results. The bound is norm_bound of harness/judge/numerics.h for one layer, plus the
// effect of such an error on a step, plus the step's own roundings.
void judge_results(Judge& judge, const LayerRun& run, const LayerCase& c, const LayerTraits& traits,
                   std::int64_t longest_sum, const LayerResults& got,
                   const LayerReference& reference);

}  // namespace suite
