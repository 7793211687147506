#include "suite/layers/layer_run.h"

#include <limits>

#include "machine/device/random.h"

namespace suite {

using collectives::Parameter;

namespace {

// Seeds of what is random, added to the run's.
enum : std::uint64_t { seed_tokens = seed_d_y + 1, seed_gradients };

}  // namespace

std::vector<double> earlier_gradient(const layers::Context& context, std::uint64_t seed,
                                     const std::string& parameter, int rank, machine::Shape shape,
                                     machine::Region region) {
  const Tensor part(context.device, Dtype::float64, shape, Category::buffers);
  context.kernels().fill_normal(
      part, layers::random_key(seed + seed_gradients + static_cast<std::uint64_t>(rank), parameter),
      region, 0, 1);
  std::vector<double> drawn = to_doubles(part);
  for (double& value : drawn) value = (2 * std::floor(value * 8) + 1) / 16;
  return drawn;
}

LayerRun::LayerRun(machine::Device& device, collectives::Communicator& tp, const LayerCase& c,
                   const LayerTraits& traits, MakeLayer make, std::uint64_t seed)
    : case_(c),
      ends_(traits.ends(c)),
      context_{device, tp, c.dtype, c.sequence_parallel, c.recomputes_core(), c.use_flash_attn},
      seed_(seed),
      layer_(make(context_, c)) {
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

}  // namespace suite
