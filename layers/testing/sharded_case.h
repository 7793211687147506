#pragma once
// Common parts of the tests of layers. A case runs on tp ranks (threads). Its inputs are global and
// random. Each rank takes its shard, and the outputs are assembled, so every degree gives the same
// global tensors. Replicas must agree to the bit.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "layers/context.h"
#include "layers/gpt_config.h"
#include "layers/parameter.h"
#include "machine/device/tensor.h"
#include "machine/world/world.h"

namespace layers::testing {

inline constexpr int replicated = -1;  // instead of the extent that tp splits
// Returns the split extent of tensors between tensor-parallel regions.
inline int cut_of_rows(bool sequence_parallel) { return sequence_parallel ? 0 : replicated; }

struct Rank {
  machine::World& world;
  collectives::Communicator& tp;
  Context context;
};

inline void on_ranks(int tp, machine::Dtype dtype, const std::function<void(Rank&)>& body) {
  machine::run_ranks(tp, [&](machine::World& world) {
    world.device().set_threads(1);  // more threads do not speed up such small products
    collectives::Communicator communicator(world, machine::first_ranks("tp", tp, world.rank()),
                                           machine::Transport::shared_memory);
    Rank rank{world, communicator, {world.device(), communicator, dtype}};
    body(rank);
    communicator.barrier();
  });
}

// Normal values that dtype represents exactly, so that every type starts from the same numbers.
inline std::vector<double> random_values(std::int64_t count, unsigned seed, machine::Dtype dtype,
                                         double stddev = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0, stddev);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) {
    const double drawn = normal(generator);
    machine::visit(dtype, [&](auto zero) {
      using T = decltype(zero);
      if constexpr (std::is_same_v<T, double>) {
        value = drawn;
      } else {
        value = static_cast<double>(static_cast<float>(static_cast<T>(static_cast<float>(drawn))));
      }
    });
  }
  return values;
}

inline std::vector<std::int32_t> random_tokens(std::int64_t count, unsigned seed, int vocabulary) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<std::int32_t> uniform(0, vocabulary - 1);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::int32_t& token : tokens) token = uniform(generator);
  return tokens;
}

// The extents around a cut: [before, cut, after].
struct Cut {
  std::int64_t before = 1, extent = 1, after = 1;
  Cut(const machine::Shape& shape, int dim) {
    for (int i = 0; i < shape.rank(); ++i)
      (i < dim ? before : i == dim ? extent : after) *= shape[i];
  }
};

// Returns this rank's shard of a global tensor, under Category::buffers.
inline machine::Tensor scatter(const Rank& rank, const std::vector<double>& global,
                               const machine::Shape& shape, int dim, machine::Dtype dtype) {
  const Cut cut(shape, dim);
  if (dim == replicated) {
    const machine::Tensor whole(rank.world.device(), dtype, shape, machine::Category::buffers);
    machine::from_doubles(whole, global);
    return whole;
  }
  const std::int64_t share = cut.extent / rank.tp.size();
  std::vector<double> values;
  for (std::int64_t i = 0; i < cut.before; ++i) {
    const auto begin = global.begin() + (i * cut.extent + rank.tp.rank() * share) * cut.after;
    values.insert(values.end(), begin, begin + share * cut.after);
  }
  const machine::Shape local =
      dim == 0 ? (shape.rank() == 1 ? machine::Shape{share} : machine::Shape{share, cut.after})
               : machine::Shape{cut.before, share};
  const machine::Tensor shard(rank.world.device(), dtype, local, machine::Category::buffers);
  machine::from_doubles(shard, values);
  return shard;
}

inline machine::Tensor scatter(const Rank& rank, const std::vector<double>& global,
                               const machine::Shape& shape, int dim = replicated) {
  return scatter(rank, global, shape, dim, rank.context.dtype);
}

// Returns the global tensor on every rank, from the shards of all ranks. Replicas must be bitwise
// equal.
inline std::vector<double> gather(const Rank& rank, const machine::Tensor& local,
                                  const machine::Shape& shape, int dim = replicated) {
  const std::vector<double> mine = machine::to_doubles(local);
  const std::vector<std::vector<double>> all = rank.world.all_gather(rank.tp.group(), mine);
  if (dim == replicated) {
    for (const std::vector<double>& other : all)
      EXPECT_EQ(machine::bytes_of(other), machine::bytes_of(all.front())) << "replicas differ";
    return mine;
  }
  const Cut cut(shape, dim);
  const auto line = static_cast<std::size_t>(cut.extent / rank.tp.size() * cut.after);
  std::vector<double> global;
  for (std::int64_t i = 0; i < cut.before; ++i) {
    for (const std::vector<double>& shard : all) {
      const auto begin = shard.begin() + static_cast<std::ptrdiff_t>(line) * i;
      global.insert(global.end(), begin, begin + static_cast<std::ptrdiff_t>(line));
    }
  }
  return global;
}

inline std::vector<double> gather(const Rank& rank, const collectives::Parameter& parameter,
                                  const machine::Tensor& local) {
  const bool sharded = parameter.placement.tp == collectives::Spread::sharded;
  return gather(rank, local, parameter.global_shape,
                sharded ? parameter.placement.dim : replicated);
}

// Rounds values to dtype, so that a double run starts from the same numbers as a narrower run.
inline void round_values(const Rank& rank, const Parameters& parameters, machine::Dtype dtype) {
  for (const collectives::Parameter* parameter : parameters) {
    const machine::Tensor narrow(rank.world.device(), dtype, parameter->value.shape(),
                                 machine::Category::buffers);
    rank.context.kernels().cast(parameter->value, narrow);
    rank.context.kernels().cast(narrow, parameter->value);
  }
}

// Returns the same extents in Llama's shape, with two heads per group.
inline GptConfig llama(GptConfig config) {
  config.normalization = Normalization::rms_norm;
  config.swiglu = true;
  config.ffn_hidden_size = 3 * config.hidden;
  config.position_embedding_type = PositionEmbedding::rope;
  config.group_query_attention = true;
  config.num_query_groups = config.heads / 2;
  config.disable_bias_linear = true;
  config.untie_embeddings_and_output_weights = true;
  return config;
}

inline GptConfig bert(GptConfig config) {
  config.architecture = Architecture::encoder;
  return config;
}

inline GptConfig t5(GptConfig config) {
  config.architecture = Architecture::encoder_decoder;
  config.position_embedding_type = PositionEmbedding::relative;
  return config;
}

inline GptConfig with_experts(GptConfig config) {
  config.moe.num_experts = 4;
  config.moe.aux_loss_coeff = 0.1;
  config.moe.z_loss_coeff = 0.01;
  return config;
}

// For a single layer: random weights large enough that attention is far from uniform.
inline Initializer large_values(unsigned seed) {
  return {.seed = seed,
          .weight_stddev = 0.2,
          .residual_stddev = 0.2,
          .bias_stddev = 0.2,
          .gain_stddev = 0.2};
}

// Global tensors by name: outputs, input gradients, gradients of parameters.
using Observed = std::map<std::string, std::vector<double>>;

// Sums gradients that are partial over tp, as the gradient reduction does.
inline void observe_gradients(const Rank& rank, const Parameters& parameters, Observed& observed) {
  for (const collectives::Parameter* parameter : parameters) {
    machine::Tensor gradient = parameter->gradient;
    if (parameter->placement.gradient_partial_over_tp) {
      gradient = machine::Tensor(rank.world.device(), gradient.dtype(), gradient.shape(),
                                 machine::Category::buffers);
      rank.tp.all_reduce(parameter->gradient, gradient);
    }
    observed["gradient of " + parameter->name] = gather(rank, *parameter, gradient);
  }
}

// Returns the observation of rank 0. Every rank has assembled the same global tensors.
inline Observed observe(int tp, machine::Dtype dtype, const std::function<Observed(Rank&)>& body) {
  Observed result;
  on_ranks(tp, dtype, [&](Rank& rank) {
    Observed seen = body(rank);
    if (rank.world.rank() == 0) result = std::move(seen);
  });
  return result;
}

// Returns the largest relative error of n roundings, each of relative size u (Higham 2002, lemma
// 3.1).
inline double gamma(double n, double u) { return n * u / (1 - n * u); }
// Returns the bound of two successive errors.
inline double then(double first, double second) { return (1 + first) * (1 + second) - 1; }

inline double accumulator_roundoff(machine::Dtype dtype) {
  return machine::unit_roundoff(dtype == machine::Dtype::float64 ? machine::Dtype::float64
                                                                 : machine::Dtype::float32);
}

inline double relative_error(const std::vector<double>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return INFINITY;
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / size);
}

// Returns the bound of |g' - g| / |g|: 4 * 1.03^depth * epsilon (theorem 5.3 of arXiv:2506.09280).
// depth is the number of blocks that the error has passed. The theorem requires residual branches
// that are small compared with the stream, as with GPT-2's initial values. Weights of deviation 0.2
// violate this. There, a change of every parameter in its last bit moves gradients of four blocks
// by up to 16 of these bits, not 4.
//
// epsilon is twice the unit roundoff of stored values, as in the theorem, plus sqrt(n) roundoffs of
// the accumulator. The latter is for sums of n terms (Higham and Mary 2019,
// doi:10.1137/18M1226312). The second part is negligible for bfloat16 and half. It is most of
// epsilon for float and double, which round sums as coarsely as stored values.
inline double norm_bound(machine::Dtype dtype, int depth, double longest_sum) {
  const double epsilon =
      2 * machine::unit_roundoff(dtype) + std::sqrt(longest_sum) * accumulator_roundoff(dtype);
  return 4 * std::pow(1.03, depth) * epsilon;
}
// Returns the bound of the distance of a run in dtype from a run in double.
inline double norm_bound_from_double(machine::Dtype dtype, int depth, double longest_sum) {
  return norm_bound(dtype, depth, longest_sum) +
         norm_bound(machine::Dtype::float64, depth, longest_sum);
}

inline void expect_within(const Observed& got, const Observed& want, double bound) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, values] : want) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_LE(relative_error(got.at(name), values), bound) << name;
  }
}

}  // namespace layers::testing
