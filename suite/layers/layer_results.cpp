#include "suite/layers/layer_results.h"

#include <fmt/format.h>

#include <cmath>

#include "suite/reference/first_step.h"
#include "suite/reference/whole_values.h"

namespace suite {

using collectives::Parameter;

namespace {

constexpr double sgd_learning_rate = 0.1;  // moves weights by as much as they are
constexpr machine::AdamW adamw;

// Values after one step of an optimizer. The master copy starts from the values.
struct Step {
  const layers::Context& context;
  const Parameter& parameter;
  const Tensor& gradient;
  Tensor master = like(gradient.dtype()), weight = like(parameter.value.dtype());

  Tensor like(Dtype dtype) const {
    return Tensor(context.device, dtype, parameter.value.shape(), Category::buffers);
  }
  Tensor sgd() {
    context.kernels().cast(parameter.value, master);
    context.kernels().sgd(gradient, 1, sgd_learning_rate, master, weight);
    return weight;
  }
  Tensor adamw_first() {
    const Tensor first = like(gradient.dtype()), second = like(gradient.dtype()),
                 decays = like(Dtype::uint8);
    for (const Tensor& moment : {first, second}) context.kernels().fill(moment, 0);
    context.kernels().fill(decays, parameter.weight_decay ? 1 : 0);
    context.kernels().cast(parameter.value, master);
    context.kernels().adamw(gradient, 1, adamw, 1, decays.as<std::uint8_t>(), master, first, second,
                            weight);
    return weight;
  }
};

// The rows between tensor-parallel regions that it holds.
std::vector<double> own_rows(const std::vector<double>& whole, const LayerCase& c, int tp_rank) {
  if (c.sequence_parallel == 0) return whole;
  const auto size = static_cast<std::ptrdiff_t>(c.own_rows() * c.hidden_size);
  return {whole.begin() + tp_rank * size, whole.begin() + (tp_rank + 1) * size};
}

// Comparisons with one reference. relative: what rounding may make of a gradient, or of an output;
// other: the dtype that the reference rounds to.
struct Comparison {
  Judge& judge;
  Dtype dtype, other;
  double relative;
  std::string_view with;
  bool same_bits;

  void norms(std::string_view what, const std::vector<double>& got, const std::vector<double>& want,
             bool summed_over_ranks = false) const {
    const std::string text = fmt::format("{} against {}", what, with);
    if (same_bits && !summed_over_ranks)
      judge.exact(text, got, want);
    else
      judge.numerics_norm(text, got, want, relative);
  }

  // A step rounds the master copy some `roundings` times on its way and once at the end; and then
  // once more where values are narrower. Both runs do.
  double rounding(int roundings, double moved, double size) const {
    double sum = 0;
    for (const Dtype one : {dtype, other}) {
      const double master = machine::unit_roundoff(collectives::gradient_dtype(one));
      sum +=
          harness::gamma(roundings, master) * moved + (machine::unit_roundoff(one) + master) * size;
    }
    return sum;
  }

  void steps(const Parameter& parameter, const LayerResults::OfParameter& got,
             const LayerResults::OfParameter& want) const {
    const double gradient = norm(want.gradient);
    // Casts of the rate and of the scale, their product with the gradient: 4.
    const double sgd = sgd_learning_rate * gradient;
    judge.numerics(fmt::format("{} after SGD against {}", parameter.name, with),
                   distance(got.after_sgd, want.after_sgd),
                   sgd * relative + rounding(4, sgd, norm(want.after_sgd)));
    // The direction 14, decay and rate 3 (suite/zero/update_reference.cpp); it is below 1 for each
    // element.
    const double adam = adamw.learning_rate *
                        (std::sqrt(static_cast<double>(want.gradient.size())) +
                         (parameter.weight_decay ? adamw.weight_decay * norm(want.value) : 0));
    judge.numerics(fmt::format("{} after AdamW against {}", parameter.name, with),
                   distance(got.after_adamw, want.after_adamw),
                   first_step_bound(machine::AdamW(), want.gradient, relative, 0) +
                       rounding(17, adam, norm(want.after_adamw)));
  }
};

}  // namespace

LayerResults results_of(const LayerRun& run, Judge* judge) {
  const layers::Context& context = run.context();
  LayerResults results;
  results.y = to_doubles(run.y());
  if (run.d_x()) results.d_x = to_doubles(run.d_x());
  for (const Parameter* parameter : run.parameters()) {
    const bool replicated = parameter->placement.tp == collectives::Spread::replicated;
    Tensor gradient = parameter->gradient;
    if (parameter->placement.gradient_partial_over_tp) {
      gradient = Tensor(context.device, gradient.dtype(), gradient.shape(), Category::buffers);
      context.tp.all_reduce(parameter->gradient, gradient);
    }
    const auto seen = [&](const Tensor& tensor, std::string_view what) {
      if (judge && replicated)
        judge->same_bits(fmt::format("{} {}", parameter->name, what), hash(tensor));
      return to_doubles(tensor);
    };
    results.parameters.push_back(
        {to_doubles(parameter->value), seen(gradient, "gradient, summed over tp"),
         seen(Step{context, *parameter, gradient}.sgd(), "after SGD"),
         seen(Step{context, *parameter, gradient}.adamw_first(), "after AdamW")});
  }
  return results;
}

LayerReference make_reference(const Context& context, const LayerCase& c, const LayerTraits& traits,
                              MakeLayer make, const std::set<std::string>& partial) {
  machine::World& world = context.world;
  collectives::Communicator alone(world, machine::Group{"reference", {world.rank()}, 0},
                                  Transport::shared_memory);
  const auto computed = [&](LayerRun& run, bool added_by_the_layer) {
    if (added_by_the_layer) run.add_earlier_gradients(partial, 0, c.ranks);
    run.run_all();
    if (!added_by_the_layer) run.add_earlier_gradients(partial, 0, c.ranks);
    world.board().mine().progress.fetch_add(1);  // works while the others wait, does not hang
    return results_of(run);
  };
  LayerCase whole = c.whole();
  LayerRun same(context.device, alone, whole, traits, make, context.seed);
  whole.dtype = Dtype::float64;
  LayerRun exact(world.host_device(), alone, whole, traits, make, context.seed);
  exact.copy_values(same);
  return {computed(same, true), computed(exact, false)};
}

void judge_results(Judge& judge, const LayerRun& run, const LayerCase& c, const LayerTraits& traits,
                   std::int64_t longest_sum, const LayerResults& got,
                   const LayerReference& reference) {
  const int rank = run.context().tp.rank();
  const auto bound = [longest_sum](Dtype dtype) {
    return harness::norm_bound(dtype, 1, static_cast<double>(longest_sum));
  };
  const double relative = bound(c.dtype);
  const Comparison exact{judge,    c.dtype, Dtype::float64, relative + bound(Dtype::float64),
                         "double", false},
      same{judge, c.dtype, c.dtype, 2 * relative, "degree 1", traits.same_bits_at_every_degree};
  for (const auto& [compare, want] :
       {std::pair(&exact, &reference.exact), {&same, &reference.same}}) {
    compare->norms("y", got.y, traits.gives_loss ? want->y : own_rows(want->y, c, rank));
    if (!traits.takes_tokens) compare->norms("d_x", got.d_x, own_rows(want->d_x, c, rank));
    const layers::Parameters parameters = run.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = *parameters[i];
      LayerResults::OfParameter part = want->parameters[i];
      for (auto* values : {&part.value, &part.gradient, &part.after_sgd, &part.after_adamw})
        *values = shard(*values, parameter, rank);
      judge.exact(fmt::format("{} before the pass", parameter.name), got.parameters[i].value,
                  part.value);
      compare->norms("gradient of " + parameter.name, got.parameters[i].gradient, part.gradient,
                     parameter.placement.gradient_partial_over_tp);
      compare->steps(parameter, got.parameters[i], part);
    }
  }
}

}  // namespace suite
