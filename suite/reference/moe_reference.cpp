#include "suite/reference/moe_reference.h"

#include <cmath>
#include <cstddef>

namespace suite {
namespace {

using Values = std::vector<double>;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Returns whether entry i is one of the `count` largest; of equal ones the first.
bool is_among(const Values& values, std::size_t i, std::int64_t count) {
  std::int64_t better = 0;
  for (std::size_t j = 0; j < values.size(); ++j)
    better += values[j] > values[i] || (values[j] == values[i] && j < i);
  return better < count;
}

Values softmax(const Values& logits) {
  Values result;
  for (const double one : logits) {
    double sum = 0;
    for (const double other : logits) sum += std::exp(other - one);
    result.push_back(1 / sum);
  }
  return result;
}

double log_sum_exp(const Values& logits) {
  double sum = 0;
  for (const double one : logits) sum += std::exp(one);
  return std::log(sum);
}

Values row(const Values& matrix, std::int64_t index, std::int64_t columns) {
  const auto begin = matrix.begin() + index * columns;
  return {begin, begin + columns};
}

// Megatron-LM's loop (megatron/core/transformer/moe/moe_utils.py, sinkhorn), one rank's tokens.
Values sinkhorn(const MoeSizes& z, const Values& logits, std::int64_t first) {
  Values cost, d0(at(z.tokens), 1), d1(at(z.experts), 1);
  for (std::int64_t i = 0; i < z.tokens * z.experts; ++i)
    cost.push_back(std::exp(logits[at(first * z.experts + i)]));
  for (double error = 1; error > 1e-4;) {
    const Values old = d1;
    for (std::int64_t t = 0; t < z.tokens; ++t) {
      double sum = 0;
      for (std::int64_t e = 0; e < z.experts; ++e) sum += d1[at(e)] * cost[at(t * z.experts + e)];
      d0[at(t)] = 1 / static_cast<double>(z.tokens) / (sum + 1e-8);
    }
    error = 0;
    for (std::int64_t e = 0; e < z.experts; ++e) {
      double sum = 0;
      for (std::int64_t t = 0; t < z.tokens; ++t) sum += d0[at(t)] * cost[at(t * z.experts + e)];
      d1[at(e)] = 1 / static_cast<double>(z.experts) / (sum + 1e-8);
      error += std::abs(d1[at(e)] - old[at(e)]) / static_cast<double>(z.experts);
    }
  }
  for (std::int64_t t = 0; t < z.tokens; ++t)
    for (std::int64_t e = 0; e < z.experts; ++e)
      cost[at(t * z.experts + e)] *= d0[at(t)] * d1[at(e)];
  return cost;
}

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double gelu_slope(double x) {
  const double inside = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), t = std::tanh(inside);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}
double logistic(double x) { return 1 / (1 + std::exp(-x)); }

// A perceptron for one token.
struct OneToken {
  const MoePerceptron& weights;
  std::int64_t hidden, ffn;
  bool swiglu, bias;
  const double* x;
  Values inner{}, active{}, out{};

  void forward() {
    const std::int64_t rows = swiglu ? 2 * ffn : ffn;
    for (std::int64_t i = 0; i < rows; ++i) {
      double sum = bias ? weights.bias1[at(i)] : 0;
      for (std::int64_t c = 0; c < hidden; ++c) sum += weights.weight1[at(i * hidden + c)] * x[c];
      inner.push_back(sum);
    }
    for (std::int64_t i = 0; i < ffn; ++i)
      active.push_back(swiglu ? inner[at(i)] * logistic(inner[at(i)]) * inner[at(ffn + i)]
                              : gelu(inner[at(i)]));
    for (std::int64_t c = 0; c < hidden; ++c) {
      double sum = bias ? weights.bias2[at(c)] : 0;
      for (std::int64_t i = 0; i < ffn; ++i)
        sum += weights.weight2[at(c * ffn + i)] * active[at(i)];
      out.push_back(sum);
    }
  }

  void backward(const Values& d_out, double* d_x, MoePerceptron& gradient) const {
    Values d_inner(inner.size());
    for (std::int64_t i = 0; i < ffn; ++i) {
      double d_active = 0;
      for (std::int64_t c = 0; c < hidden; ++c) {
        d_active += weights.weight2[at(c * ffn + i)] * d_out[at(c)];
        gradient.weight2[at(c * ffn + i)] += d_out[at(c)] * active[at(i)];
      }
      const double gate = inner[at(i)];
      if (swiglu) {
        const double s = logistic(gate);
        d_inner[at(i)] = d_active * inner[at(ffn + i)] * (s + gate * s * (1 - s));
        d_inner[at(ffn + i)] = d_active * gate * s;
      } else {
        d_inner[at(i)] = d_active * gelu_slope(gate);
      }
    }
    for (std::size_t i = 0; i < d_inner.size(); ++i) {
      for (std::int64_t c = 0; c < hidden; ++c) {
        const std::size_t place = i * at(hidden) + at(c);
        d_x[c] += weights.weight1[place] * d_inner[i];
        gradient.weight1[place] += d_inner[i] * x[c];
      }
      if (bias) gradient.bias1[i] += d_inner[i];
    }
    if (bias)
      for (std::int64_t c = 0; c < hidden; ++c) gradient.bias2[at(c)] += d_out[at(c)];
  }
};

MoePerceptron zeros(const MoePerceptron& like) {
  return {Values(like.weight1.size()), Values(like.bias1.size()), Values(like.weight2.size()),
          Values(like.bias2.size())};
}

// Sets y and the gradients of a token, except those through the logits. Returns the gradients of
// its weights, and their sizes.
struct OfWeights {
  Values gradient, size;
};
OfWeights run_token(const MoeSizes& z, const MoeValues& v, std::int64_t t, MoeReference& r) {
  const auto ffn_of = [&](bool shared) { return shared ? z.shared : z.ffn; };
  const auto token = [&](const MoePerceptron& weights, bool shared) {
    OneToken one{weights, z.hidden, ffn_of(shared), z.swiglu, z.bias, &v.x[at(t * z.hidden)]};
    one.forward();
    return one;
  };
  double* d_x = &r.d_x[at(t * z.hidden)];
  const Values d_y = row(v.d_y, t, z.hidden);
  OfWeights of_weights;
  for (std::int64_t k = 0; k < z.topk; ++k) {
    const std::int32_t expert = r.choices[at(t * z.topk + k)];
    of_weights.gradient.push_back(0);
    of_weights.size.push_back(0);
    if (expert < 0) continue;
    const double weight = r.weights[at(t * z.topk + k)];
    const OneToken one = token(v.experts[at(expert)], false);
    Values d_out;
    double squares = 0, squares_d = 0;
    for (std::int64_t c = 0; c < z.hidden; ++c) {
      r.y[at(t * z.hidden + c)] += weight * one.out[at(c)];
      d_out.push_back(weight * d_y[at(c)]);
      of_weights.gradient.back() += d_y[at(c)] * one.out[at(c)];
      squares += one.out[at(c)] * one.out[at(c)];
      squares_d += d_y[at(c)] * d_y[at(c)];
    }
    // The size of a sum of h products of random sign.
    of_weights.size.back() = std::sqrt(squares * squares_d / static_cast<double>(z.hidden));
    one.backward(d_out, d_x, r.d_experts[at(expert)]);
  }
  if (z.shared > 0) {
    const OneToken one = token(v.shared, true);
    for (std::int64_t c = 0; c < z.hidden; ++c) r.y[at(t * z.hidden + c)] += one.out[at(c)];
    one.backward(d_y, d_x, r.d_shared);
  }
  return of_weights;
}

// Adds the gradients through the logits of a token. load: of its rank's experts.
void run_logits(const MoeSizes& z, const MoeValues& v, std::int64_t t, const OfWeights& of_weights,
                const Values& load, MoeReference& r) {
  const Values logits = row(v.logits, t, z.experts), p = softmax(logits);
  const double T = static_cast<double>(z.tokens), lse = log_sum_exp(logits);
  Values d_logits(at(z.experts)), squares(at(z.experts));
  // d softmax_i / d logit_e = softmax_i (δ_ie - softmax_e), term by term.
  for (std::int64_t k = 0; k < z.topk; ++k) {
    const auto i = at(r.chosen[at(t * z.topk + k)]);
    const double g = of_weights.gradient[at(k)], size = of_weights.size[at(k)];
    const auto add = [&](std::size_t e, double slope) {
      d_logits[e] += g * slope;
      squares[e] += size * size * slope * slope;
    };
    if (z.sinkhorn && z.topk == 1) {
      add(i, logistic(logits[i]) * (1 - logistic(logits[i])));
    } else if (z.softmax_over_all || z.sinkhorn) {
      for (std::size_t e = 0; e < p.size(); ++e) add(e, p[i] * ((e == i ? 1 : 0) - p[e]));
    } else {
      for (std::int64_t j = 0; j < z.topk; ++j)
        add(at(r.chosen[at(t * z.topk + j)]),
            r.chosen_weights[at(t * z.topk + k)] *
                ((j == k ? 1 : 0) - r.chosen_weights[at(t * z.topk + j)]));
    }
  }
  for (std::size_t e = 0; e < p.size(); ++e) {
    for (std::size_t i = 0; i < p.size(); ++i)
      d_logits[e] += z.loss_factor * z.aux * static_cast<double>(z.experts) * load[i] /
                     (static_cast<double>(z.topk) * T * T) * p[i] * ((e == i ? 1 : 0) - p[e]);
    d_logits[e] += z.loss_factor * z.z / T * 2 * lse * p[e];
  }
  for (std::size_t e = 0; e < p.size(); ++e)
    for (std::int64_t c = 0; c < z.hidden; ++c) {
      const double x = v.x[at(t * z.hidden + c)], weight = v.router[e * at(z.hidden) + at(c)];
      const double square = squares[e] + d_logits[e] * d_logits[e];
      r.d_x[at(t * z.hidden + c)] += d_logits[e] * weight;
      r.d_x_sizes[at(t * z.hidden + c)] += square * weight * weight;
      r.d_router[e * at(z.hidden) + at(c)] += d_logits[e] * x;
      r.d_router_sizes[e * at(z.hidden) + at(c)] += square * x * x;
    }
}

}  // namespace

namespace {

// Sets chosen_weights from chosen.
void weigh(const MoeSizes& z, const Values& logits, MoeReference& r) {
  for (std::int64_t t = 0; t < z.ranks * z.tokens; ++t) {
    const Values of_token = row(logits, t, z.experts), over_all = softmax(of_token);
    Values of_chosen;
    for (std::int64_t k = 0; k < z.topk; ++k)
      of_chosen.push_back(of_token[at(r.chosen[at(t * z.topk + k)])]);
    const Values over_chosen = softmax(of_chosen);
    for (std::int64_t k = 0; k < z.topk; ++k) {
      const auto e = at(r.chosen[at(t * z.topk + k)]);
      r.chosen_weights.push_back(z.sinkhorn && z.topk == 1          ? logistic(of_token[e])
                                 : z.softmax_over_all || z.sinkhorn ? over_all[e]
                                                                    : over_chosen[at(k)]);
    }
  }
}

// Returns decisions that are given, with their weights.
MoeReference given_decisions(const MoeSizes& z, const MoeValues& v) {
  MoeReference r;
  r.chosen = v.given_chosen;
  r.choices = v.given_choices;
  weigh(z, v.logits, r);
  r.weights = r.chosen_weights;
  for (std::size_t i = 0; i < r.choices.size(); ++i)
    if (r.choices[i] < 0) r.weights[i] = 0;
  return r;
}

}  // namespace

MoeReference moe_decisions(const MoeSizes& z, const Values& logits) {
  MoeReference r;
  for (std::int64_t t = 0; t < z.ranks * z.tokens; ++t) {
    const Values of_token = row(logits, t, z.experts);
    Values ranking = of_token;
    if (z.sinkhorn)
      ranking = row(sinkhorn(z, logits, t / z.tokens * z.tokens), t % z.tokens, z.experts);
    for (std::int64_t k = 0; k < z.topk; ++k)
      for (std::size_t e = 0; e < ranking.size(); ++e)
        if (is_among(ranking, e, k + 1) && !is_among(ranking, e, k))
          r.chosen.push_back(static_cast<std::int32_t>(e));
  }
  weigh(z, logits, r);
  r.choices = r.chosen;
  r.weights = r.chosen_weights;
  if (z.capacity == 0) return r;
  for (std::int64_t rank = 0; rank < z.ranks; ++rank)
    for (std::int64_t expert = 0; expert < z.experts; ++expert) {
      std::vector<std::size_t> slots;
      Values importance;
      for (std::int64_t i = 0; i < z.tokens * z.topk; ++i) {
        const std::size_t slot = at(rank * z.tokens * z.topk + i);
        if (r.chosen[slot] != expert) continue;
        slots.push_back(slot);
        importance.push_back(z.drops_last ? 0 : r.chosen_weights[slot]);
      }
      for (std::size_t i = 0; i < slots.size(); ++i)
        if (!is_among(importance, i, z.capacity)) {
          r.choices[slots[i]] = -1;
          r.weights[slots[i]] = 0;
        }
    }
  return r;
}

MoeReference moe_reference(const MoeSizes& z, const MoeValues& v) {
  MoeReference r = v.given_chosen.empty() ? moe_decisions(z, v.logits) : given_decisions(z, v);
  for (std::int64_t t = 0; t < z.ranks * z.tokens; ++t)
    for (std::int64_t e = 0; e < z.experts; ++e) {
      double sum = 0, size = 0;
      for (std::int64_t c = 0; c < z.hidden; ++c) {
        const double term = v.x[at(t * z.hidden + c)] * v.router[at(e * z.hidden + c)];
        sum += term;
        size += std::abs(term);
      }
      r.logits.push_back(sum);
      r.logit_sizes.push_back(size);
    }
  for (Values* values : {&r.y, &r.d_x, &r.d_x_sizes}) values->resize(v.x.size());
  for (Values* values : {&r.d_router, &r.d_router_sizes}) values->resize(v.router.size());
  for (const MoePerceptron& expert : v.experts) r.d_experts.push_back(zeros(expert));
  r.d_shared = zeros(v.shared);
  for (std::int64_t rank = 0; rank < z.ranks; ++rank) {
    Values load(at(z.experts));
    for (std::int64_t i = 0; i < z.tokens * z.topk; ++i)
      ++load[at(r.chosen[at(rank * z.tokens * z.topk + i)])];
    double aux = 0, squares = 0;
    const double T = static_cast<double>(z.tokens);
    for (std::int64_t t = rank * z.tokens; t < (rank + 1) * z.tokens; ++t) {
      run_logits(z, v, t, run_token(z, v, t, r), load, r);
      const Values logits = row(v.logits, t, z.experts), p = softmax(logits);
      for (std::size_t e = 0; e < p.size(); ++e)
        aux += load[e] / (static_cast<double>(z.topk) * T) * p[e] / T;
      squares += log_sum_exp(logits) * log_sum_exp(logits);
    }
    r.aux_loss.push_back(z.aux * static_cast<double>(z.experts) * aux);
    r.z_loss.push_back(z.z * squares / T);
  }
  for (Values* values : {&r.d_x_sizes, &r.d_router_sizes})
    for (double& value : *values) value = std::sqrt(value);
  return r;
}

}  // namespace suite
