#include "suite/layers/layer_run.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "machine/device/random.h"
#include "suite/reference/first_step.h"
#include "suite/reference/whole_values.h"

namespace suite {

using collectives::Parameter;

namespace {

// Seeds of tokens and earlier gradients. The run's seed is added to them.
enum : std::uint64_t { seed_tokens = seed_d_y + 1, seed_gradients };

}  // namespace

std::vector<double> earlier_gradient(const layers::Context& context, std::uint64_t seed,
                                     const std::string& parameter, int rank, machine::Shape shape,
                                     machine::Region region) {
  const Tensor part(context.device, Dtype::float64, shape, Category::buffers);
  context.kernels().fill_uniform(
      part, layers::random_key(seed + seed_gradients + static_cast<std::uint64_t>(rank), parameter),
      region, -2, 2);
  std::vector<double> drawn = to_doubles(part);
  for (double& value : drawn) value = (2 * std::floor(value * 8) + 1) / 16;
  return drawn;
}

std::vector<double> whole_values(const Context& context, Dtype dtype, machine::Shape shape,
                                 std::uint64_t key, double stddev) {
  const Tensor tensor(context.device, dtype, shape, Category::buffers);
  context.device.stream().kernels().fill_normal(tensor, key, {}, 0, stddev);
  return to_doubles(tensor);
}

LayerRun::LayerRun(machine::Device& device, collectives::Communicator& tp, const LayerCase& c,
                   const LayerTraits& traits, std::uint64_t seed)
    : case_(c),
      ends_(traits.ends(c)),
      context_{.device = device,
               .tp = tp,
               .dtype = c.dtype,
               .sequence_parallel = c.sequence_parallel,
               .recompute_core_attention = c.recomputes_core(),
               .flash_attention = c.use_flash_attn,
               .overlap = {.enabled = c.tp_comm_overlap}},
      seed_(seed),
      layer_(traits.make(context_, std::string(traits.name), c)) {
  const auto random_rows = [&](std::uint64_t which, std::int64_t columns, std::int64_t own) {
    Tensor rows = context_.tensor({c.own_rows(), own}, Category::buffers);
    context_.kernels().fill_normal(
        rows, seed + which,
        {context_.first_row(c.own_rows()), own < columns ? tp.rank() * own : 0, columns}, 0, 1);
    return rows;
  };
  if (!traits.takes_tokens) {
    x_ = random_rows(seed_x, ends_.input, ends_.own_input);
    d_x_ = context_.tensor(x_.shape(), Category::buffers);
  }
  if (traits.takes_tokens || traits.gives_loss) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(c.tokens()));
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::int32_t>(machine::uniform(seed + seed_tokens, i) * c.vocab_size);
    if (traits.gives_loss)  // some tokens do not count
      for (std::size_t i = 3; i < tokens.size(); i += 7) tokens[i] = -1;
    tokens_ = Tensor(device, Dtype::int32, {c.tokens()}, Category::buffers);
    device.stream().copy(tokens_.data(), tokens.data(), tokens_.bytes());
    device.stream().synchronize();
  }
  if (traits.gives_loss) {
    y_ = Tensor(device, Dtype::float64, {1}, Category::buffers);
  } else {
    d_y_ = random_rows(seed_d_y, ends_.output, ends_.own_output);
    y_ = context_.tensor(d_y_.shape(), Category::buffers);
  }
  const double stddev = weight_stddev(ends_.input);  // sums of order 1
  const layers::Initializer initializer{seed, stddev, stddev, traits.bias_stddev, 0.2};
  initializer.fill(context_, parameters());
  zero_gradients();
}

void LayerRun::copy_values(const LayerRun& other) {
  const layers::Parameters mine = parameters(), theirs = other.parameters();
  for (std::size_t i = 0; i < mine.size(); ++i)
    from_doubles(mine[i]->value, to_doubles(theirs[i]->value));
  for (const auto& [from, to] : {std::pair(other.x_, x_), {other.d_y_, d_y_}})
    if (from) from_doubles(to, to_doubles(from));
}

void LayerRun::zero_gradients() {
  for (Parameter* parameter : parameters()) zero_gradient(context_, *parameter);
}

void LayerRun::add_earlier_gradients(const std::set<std::string>& partial, int first, int ranks) {
  for (Parameter* parameter : parameters()) {
    const bool shared = partial.contains(parameter->name);
    const Tensor& gradient = parameter->gradient;
    std::vector<double> sum = to_doubles(gradient);
    for (int rank = shared ? first : 0; rank < (shared ? first + ranks : 1); ++rank) {
      const std::vector<double> part =
          earlier_gradient(context_, seed_, parameter->name, rank, gradient.shape(),
                           parameter->region(context_.tp.rank()));
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    from_doubles(gradient, sum);
  }
}

void LayerRun::spoil_results() {
  for (const Tensor& result : {y_, d_x_})
    if (result) context_.kernels().fill(result, std::numeric_limits<double>::quiet_NaN());
}

void LayerRun::run(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return layer_->forward({x_, tokens_ ? tokens_.as<std::int32_t>() : nullptr}, y_);
    case Pass::backward_input:
      return layer_->backward_input(d_y_, d_x_);
    case Pass::backward_weights:
      return layer_->backward_weights();
  }
}

std::set<std::string> LayerRun::partial_gradients() const {
  std::set<std::string> names;
  for (const Parameter* parameter : parameters())
    if (parameter->placement.gradient_partial_over_tp) names.insert(parameter->name);
  return names;
}

std::size_t LayerRun::passed_bytes() const {
  std::size_t bytes = 0;
  for (const Tensor& tensor : {x_, y_, d_y_, d_x_, tokens_}) bytes += tensor.bytes();
  return bytes;
}

namespace {

constexpr double sgd_learning_rate = 0.1;  // the update has the size of the weights
constexpr machine::AdamW adamw;

// Returns the values after the first step of AdamW or SGD. The master copy starts from the values.
Tensor after_step(const layers::Context& context, const Parameter& parameter,
                  const Tensor& gradient, bool with_adamw) {
  const auto like = [&](Dtype dtype) {
    return Tensor(context.device, dtype, parameter.value.shape(), Category::buffers);
  };
  const Tensor master = like(gradient.dtype()), weight = like(parameter.value.dtype());
  context.kernels().cast(parameter.value, master);
  if (!with_adamw) {
    context.kernels().sgd(gradient, 1, sgd_learning_rate, master, weight);
    return weight;
  }
  const Tensor first = like(gradient.dtype()), second = like(gradient.dtype()),
               decays = like(Dtype::uint8);
  for (const Tensor& moment : {first, second}) context.kernels().fill(moment, 0);
  context.kernels().fill(decays, parameter.weight_decay ? 1 : 0);
  context.kernels().adamw(gradient, 1, adamw, 1, decays.as<std::uint8_t>(), master, first, second,
                          weight);
  return weight;
}

// Returns the rank's rows between tensor-parallel regions.
std::vector<double> own_rows(const std::vector<double>& whole, const LayerCase& c, int tp_rank) {
  if (!c.sequence_parallel) return whole;
  const auto size = static_cast<std::ptrdiff_t>(c.own_rows() * c.hidden_size);
  return {whole.begin() + tp_rank * size, whole.begin() + (tp_rank + 1) * size};
}

// Comparisons with one reference. relative: the bound on the rounding of a gradient or an output.
// other: the dtype to which the reference rounds.
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

  // Bounds the rounding of a step in both runs. A step rounds the master copy `roundings` times and
  // once more when it stores it. A narrower dtype of values adds one rounding.
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
    // 4 roundings: casts of the rate and of the scale, and their products with the gradient.
    const double sgd = sgd_learning_rate * gradient;
    judge.numerics(fmt::format("{} after SGD against {}", parameter.name, with),
                   distance(got.after_sgd, want.after_sgd),
                   sgd * relative + rounding(4, sgd, norm(want.after_sgd)));
    // 14 roundings of the direction, 3 of decay and rate (suite/zero/update_reference.h). The
    // direction of each element is below 1.
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
         seen(after_step(context, *parameter, gradient, false), "after SGD"),
         seen(after_step(context, *parameter, gradient, true), "after AdamW")});
  }
  return results;
}

namespace {

collectives::Communicator alone(machine::World& world) {
  return {world, machine::Group{"reference", {world.rank()}, 0}, Transport::shared_memory};
}

// Progress: this rank does not hang while other ranks wait.
void show_progress(machine::World& world) { world.board().mine().progress.fetch_add(1); }

}  // namespace

LayerResults same_reference(const Context& context, const LayerCase& c, const LayerTraits& traits,
                            const std::set<std::string>& partial) {
  collectives::Communicator tp = alone(context.world);
  LayerRun run(context.device, tp, c.whole(), traits, context.seed);
  run.add_earlier_gradients(partial, 0, c.ranks);
  run.run_all();
  show_progress(context.world);
  return results_of(run);
}

LayerResults exact_reference(const Context& context, const LayerCase& c, const LayerTraits& traits,
                             const std::set<std::string>& partial) {
  collectives::Communicator tp = alone(context.world);
  LayerCase whole = c.whole();
  const LayerRun same(context.device, tp, whole, traits, context.seed);
  whole.dtype = Dtype::float64;
  LayerRun run(context.world.host_device(), tp, whole, traits, context.seed);
  run.copy_values(same);
  run.run_all();
  run.add_earlier_gradients(partial, 0, c.ranks);
  show_progress(context.world);
  return results_of(run);
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
