#pragma once
// A small model over a grid, for tests of the step: parameters of every placement, gradients of
// each rank, and a reference. The reference is the same step on one rank in double, with running
// error bounds. A value depends only on its parameter and global element. A contribution also
// depends on the rank of dp. It depends on the rank of tp if gradients are partial, and on the
// stage if the parameter is tied.

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "machine/device/random.h"
#include "machine/world/world.h"
#include "zero/stages/step.h"
#include "zero/testing/plain_newton_schulz.h"

namespace zero::testing {

using collectives::Parameter;
using collectives::Placement;
using collectives::Spread;
using machine::Axis;
using machine::Dtype;

struct Declared {
  std::string name;
  machine::Shape shape;
  Placement placement;
  bool decay;
};

// Extents are divisible by tp 1, 2 and 3. Sizes are odd enough to need padding.
inline std::vector<Declared> declare(int stage, int stages) {
  const std::string prefix = "stage" + std::to_string(stage) + ".";
  std::vector<Declared> all;
  if (stage == 0 || stage == stages - 1) {
    all.push_back({"table", {18, 7}, {Spread::sharded, 0, false, true}, true});
  }
  all.push_back({prefix + "gain", {7}, {Spread::replicated, 0, true, false}, false});
  all.push_back({prefix + "up", {12, 7}, {Spread::sharded, 0}, true});
  all.push_back({prefix + "up.bias", {12}, {Spread::sharded, 0}, false});
  all.push_back({prefix + "down", {7, 12}, {Spread::sharded, 1}, true});
  all.push_back({prefix + "bias", {7}, {Spread::replicated}, false});
  return all;
}

// Returns whether Muon orthogonalizes the parameter: "up", whose rows alternate between two
// matrices, and "down".
inline bool is_matrix(const Declared& declared) {
  return declared.name.ends_with(".up") || declared.name.ends_with(".down");
}
inline std::vector<std::int64_t> parts_of(const Declared& declared) {
  return declared.name.ends_with(".up") ? std::vector<std::int64_t>{1, 1}
                                        : std::vector<std::int64_t>{declared.shape[0]};
}
// Sets what of the plan's rows Muon orthogonalizes; all: the matrices of Adafactor.
inline GradientPlan with_matrices(GradientPlan plan, const std::vector<Declared>& declared,
                                  bool all = false) {
  for (std::size_t i = 0; i < declared.size(); ++i) {
    if (all ? declared[i].shape.rank() < 2 : !is_matrix(declared[i])) continue;
    const bool columns = declared[i].placement.dim == 1;
    MatrixRow& matrix = plan.rows[i].matrix;
    matrix.columns = declared[i].shape[1] / (columns ? plan.tp : 1);
    matrix.cut = columns ? MatrixRow::Cut::columns : MatrixRow::Cut::rows;
    if (!columns && !all) matrix.parts = {1, 1};
  }
  return plan;
}

inline std::uint64_t key(const std::string& name, int salt) {
  std::uint64_t hash =
      14695981039346656037u + static_cast<std::uint64_t>(salt) * 0x9E3779B97F4A7C15u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

// Returns a value that is exact in every dtype: 7 bits and a sign.
inline double random_value(const std::string& name, int salt, std::int64_t index) {
  const double bits =
      std::floor(128 * machine::uniform(key(name, salt), static_cast<std::uint64_t>(index)));
  return (bits - 64 + (bits >= 64)) / 64;  // never zero
}
inline double initial(const std::string& name, std::int64_t index) {
  return random_value(name, 0, index);
}
// A float of 24 bits, so that sums round. All contributions to an element of one step have one
// sign, because a sum of zero would leave Adam's quotient without a bound.
inline double contribution(const std::string& name, std::int64_t index, int step, int dp, int tp,
                           int stage) {
  const int salt = 1 + ((step * 16 + dp) * 16 + tp) * 16 + stage;
  const double sign = random_value(name, -1 - step, index) > 0 ? 1 : -1;
  return static_cast<float>(sign * std::abs(random_value(name, salt, index)) * 10 / 3);
}

// One rank's part of the model, on its own group communicators.
struct RankModel {
  machine::Grid grid;
  std::vector<Parameter> parameters;
  std::unique_ptr<collectives::Communicator> tp, pp, dp, embedding;

  RankModel(machine::World& world, machine::Degrees degrees) : grid(degrees, world.rank()) {
    for (const Declared& d : declare(stage(), degrees.pp)) {
      Parameter p;
      p.name = d.name;
      p.global_shape = d.shape;
      p.placement = d.placement;
      p.weight_decay = d.decay;
      parameters.push_back(std::move(p));
    }
    const auto connect = [&](auto& communicator, const machine::Group& group) {
      if (group.index < 0 || group.size() == 1) return;
      communicator = std::make_unique<collectives::Communicator>(world, group,
                                                                 machine::Transport::shared_memory);
    };
    connect(tp, grid.group(Axis::tp));
    connect(pp, grid.group(Axis::pp));
    connect(dp, grid.group(Axis::dp));
    if (degrees.pp > 1) connect(embedding, grid.embedding_group());
  }

  int stage() const { return grid.coordinate(Axis::pp); }
  std::vector<Parameter*> list() {
    std::vector<Parameter*> all;
    for (Parameter& p : parameters) all.push_back(&p);
    return all;
  }
  Communicators communicators() const { return {tp.get(), pp.get(), dp.get(), embedding.get()}; }

  // Returns the global index of every local element of a parameter.
  std::vector<std::int64_t> global_indices(const Parameter& p) const {
    const machine::Region region = p.region(grid.coordinate(Axis::tp));
    std::vector<std::int64_t> indices;
    for (std::int64_t i = 0; i < p.value.rows(); ++i) {
      for (std::int64_t j = 0; j < p.value.cols(); ++j) {
        indices.push_back((region.row + i) * region.global_cols + region.col + j);
      }
    }
    return indices;
  }
  void set_values() {
    for (const Parameter& p : parameters) {
      std::vector<double> values;
      for (const std::int64_t index : global_indices(p)) values.push_back(initial(p.name, index));
      from_doubles(p.value, values);
    }
  }
  void set_gradients(int step) {
    for (const Parameter& p : parameters) {
      const int by_tp = p.placement.gradient_partial_over_tp ? grid.coordinate(Axis::tp) : 0;
      const int by_stage = p.placement.tied_over_pp ? stage() : 0;
      std::vector<double> values;
      for (const std::int64_t index : global_indices(p)) {
        values.push_back(
            contribution(p.name, index, step, grid.coordinate(Axis::dp), by_tp, by_stage));
      }
      from_doubles(p.gradient, values);
    }
  }
};

// A value in almost exact arithmetic (double), and a bound of the error of the same computation in
// a narrower dtype. The method is running error analysis (Higham 2002, "Accuracy and Stability of
// Numerical Algorithms", section 3.3). Every operation adds its inputs' errors and one rounding.
struct Bounded {
  double value = 0, error = 0;
  double roundoff = 0;  // of the narrower dtype

  Bounded rounded() const {
    return {value, error + (std::abs(value) + error) * (roundoff + 0x1p-52), roundoff};
  }
  friend Bounded operator+(Bounded a, Bounded b) {
    return Bounded{a.value + b.value, a.error + b.error, coarser(a, b)}.rounded();
  }
  friend Bounded operator-(Bounded a, Bounded b) {
    return Bounded{a.value - b.value, a.error + b.error, coarser(a, b)}.rounded();
  }
  friend Bounded operator*(Bounded a, Bounded b) {
    const double error =
        std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error;
    return Bounded{a.value * b.value, error, coarser(a, b)}.rounded();
  }
  friend Bounded operator/(Bounded a, Bounded b) {
    const double quotient = a.value / b.value;
    const double error = (a.error + std::abs(quotient) * b.error) / (std::abs(b.value) - b.error);
    return Bounded{quotient, error, coarser(a, b)}.rounded();
  }
  friend Bounded sqrt(Bounded a) {
    const double root = std::sqrt(a.value);
    return Bounded{root, root > 0 ? a.error / root : std::sqrt(a.error), a.roundoff}.rounded();
  }

  static double coarser(Bounded a, Bounded b) { return std::max(a.roundoff, b.roundoff); }
};

// The whole model on one rank.
class Reference {
 public:
  Reference(machine::Degrees degrees, double divisor, Dtype gradient_dtype)
      : degrees_(degrees), divisor_(divisor), roundoff_(machine::unit_roundoff(gradient_dtype)) {
    for (int stage = 0; stage < degrees.pp; ++stage) {
      for (const Declared& d : declare(stage, degrees.pp)) {
        if (!states_.emplace(d.name, State{d, {}, {}, {}, {}}).second) continue;
        State& state = states_.at(d.name);
        for (std::int64_t i = 0; i < d.shape.size(); ++i)
          state.master.push_back({initial(d.name, i), 0, roundoff_});
        state.first.resize(state.master.size());
        state.second.resize(state.master.size());
      }
    }
  }

  // Sums the contributions, and returns the norm of their sum over the divisor.
  Bounded reduce(int step) {
    Bounded squares;
    double error_squares = 0;
    for (auto& [name, state] : states_) {
      state.gradient.clear();
      for (std::int64_t i = 0; i < state.declared.shape.size(); ++i) {
        const Bounded sum = sum_contributions(name, state.declared.placement, i, step);
        state.gradient.push_back(sum);
        squares.value += sum.value * sum.value;
        error_squares += sum.error * sum.error;
        ++elements_;
      }
    }
    // The norm of the errors, plus the error of the double sums of the squares.
    const double norm = std::sqrt(squares.value);
    return {norm / divisor_, (std::sqrt(error_squares) + norm * elements_ * 0x1p-52) / divisor_,
            roundoff_};
  }

  void update(const Rule& rule, int step_number, Bounded clip) {
    const Bounded scale = constant(clip.value / divisor_) + Bounded{0, clip.error / divisor_};
    for (auto& [name, state] : states_) {
      if (const auto* lamb = std::get_if<Lamb>(&rule)) {
        update_whole(*lamb, step_number, scale, state);
        continue;
      }
      if (const auto* adafactor = std::get_if<Adafactor>(&rule)) {
        update_factored(*adafactor, step_number, scale, state);
        continue;
      }
      if (const auto* muon = std::get_if<Muon>(&rule); muon && is_matrix(state.declared)) {
        update_matrix(*muon, scale, state);
        continue;
      }
      for (std::size_t i = 0; i < state.master.size(); ++i) {
        const Bounded g = state.gradient[i] * scale;
        Bounded& master = state.master[i];
        if (const auto* sgd = std::get_if<Sgd>(&rule)) {
          master = master - constant(sgd->learning_rate) * g;
          continue;
        }
        const auto* const muon = std::get_if<Muon>(&rule);
        const AdamW o = muon ? muon->adamw() : std::get<AdamW>(rule);
        Bounded &m = state.first[i], &v = state.second[i];
        m = constant(o.beta1) * m + constant(1 - o.beta1) * g;
        v = constant(o.beta2) * v + constant(1 - o.beta2) * (g * g);
        const Bounded corrected = m / constant(1 - std::pow(o.beta1, step_number));
        const Bounded root = sqrt(v / constant(1 - std::pow(o.beta2, step_number)));
        const Bounded shrink = state.declared.decay ? constant(o.weight_decay) * master : Bounded{};
        master = master -
                 constant(o.learning_rate) * (corrected / (root + constant(o.epsilon)) + shrink);
      }
    }
  }

  const Bounded& master(const std::string& name, std::int64_t index) const {
    return states_.at(name).master[static_cast<std::size_t>(index)];
  }
  const Bounded& gradient(const std::string& name, std::int64_t index) const {
    return states_.at(name).gradient[static_cast<std::size_t>(index)];
  }

 private:
  Bounded constant(double value) const { return Bounded{value, 0, roundoff_}.rounded(); }

  struct State {
    Declared declared;
    std::vector<Bounded> master, first, second, gradient;
  };

  // LAMB: the step of a whole parameter.
  void update_whole(const Lamb& o, int step_number, Bounded scale, State& state) const {
    std::vector<Bounded> update;
    for (std::size_t i = 0; i < state.master.size(); ++i) {
      const Bounded g = state.gradient[i] * scale;
      Bounded &m = state.first[i], &v = state.second[i];
      m = constant(o.beta1) * m + constant(1 - o.beta1) * g;
      v = constant(o.beta2) * v + constant(1 - o.beta2) * (g * g);
      const Bounded corrected = m / constant(1 - std::pow(o.beta1, step_number));
      const Bounded root = sqrt(v / constant(1 - std::pow(o.beta2, step_number)));
      const Bounded shrink =
          state.declared.decay ? constant(o.weight_decay) * state.master[i] : Bounded{};
      update.push_back(corrected / (root + constant(o.epsilon)) + shrink);
    }
    const Bounded quotient = norm_of(state.master) / norm_of(update);
    const Bounded ratio{std::clamp(quotient.value, o.min_coeff, o.max_coeff), quotient.error,
                        roundoff_};
    for (std::size_t i = 0; i < update.size(); ++i)
      state.master[i] = state.master[i] - constant(o.learning_rate) * ratio * update[i];
  }
  // Adafactor. The mean of averaged squares is the average of their means.
  void update_factored(const Adafactor& o, int step_number, Bounded scale, State& state) const {
    const machine::Shape& shape = state.declared.shape;
    const auto columns = static_cast<std::size_t>(shape.rank() < 2 ? 1 : shape[1]);
    const std::size_t rows = state.master.size() / columns;
    const double decay = 1 - std::pow(step_number, -o.decay_rate);
    std::vector<Bounded> gradient, of_rows(rows), of_columns(columns);
    Bounded all;
    // In any order, a sum of n positive terms has a relative error of n roundoffs.
    const auto mean_of = [&](Bounded sum, std::size_t n) {
      const auto count = static_cast<double>(n);
      return Bounded{sum.value / count,
                     sum.error / count + sum.value / count * (count + 4) * roundoff_, roundoff_};
    };
    const auto add = [](Bounded& sum, Bounded term) {
      sum.value += term.value;
      sum.error += term.error;
    };
    for (std::size_t i = 0; i < state.master.size(); ++i) {
      const Bounded g = state.gradient[i] * scale;
      gradient.push_back(g);
      Bounded& v = state.second[i];
      v = constant(decay) * v + constant(1 - decay) * (g * g);
      add(of_rows[i / columns], v);
      add(of_columns[i % columns], v);
      add(all, v);
    }
    std::vector<Bounded> update;
    double squares = 0, errors = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const Bounded second = shape.rank() < 2 ? state.second[i]
                                              : mean_of(of_rows[i / columns], columns) *
                                                    mean_of(of_columns[i % columns], rows) /
                                                    mean_of(all, gradient.size());
      update.push_back(gradient[i] / (sqrt(second) + constant(1e-15)));
      squares += update.back().value * update.back().value;
      errors += update.back().error * update.back().error;
    }
    const auto count = static_cast<double>(update.size());
    const double rms = std::sqrt(squares / count) / o.clip_threshold;
    const Bounded clip{std::max(1.0, rms), std::sqrt(errors / count) / o.clip_threshold, roundoff_};
    for (std::size_t i = 0; i < update.size(); ++i) {
      Bounded& master = state.master[i];
      if (state.declared.decay) master = constant(1 - o.learning_rate * o.weight_decay) * master;
      master = master - constant(o.learning_rate) / clip.rounded() * update[i];
    }
  }

  // Muon: the step of a matrix. The rounding of a sum's order is that of the iteration.
  void update_matrix(const Muon& o, Bounded scale, State& state) const {
    const auto rows = static_cast<std::size_t>(state.declared.shape[0]),
               columns = static_cast<std::size_t>(state.declared.shape[1]);
    std::vector<Bounded> direction;
    for (std::size_t i = 0; i < state.master.size(); ++i) {
      const Bounded g = constant(1 - o.momentum) * (state.gradient[i] * scale);
      Bounded& m = state.first[i];
      m = constant(o.momentum) * m + g;
      direction.push_back(o.nesterov ? constant(o.momentum) * m + g : m);
    }
    // The queries, keys and values of the periods.
    std::size_t first = 0;
    const std::vector<std::int64_t> parts = parts_of(state.declared);
    std::size_t period = 0;
    for (const std::int64_t part : parts) period += static_cast<std::size_t>(part);
    for (const std::int64_t part : parts) {
      std::vector<std::size_t> elements;
      for (std::size_t row = 0; row < rows; ++row)
        for (std::size_t j = 0; j < columns; ++j)
          if (row % period >= first && row % period < first + static_cast<std::size_t>(part))
            elements.push_back(row * columns + j);
      PlainMatrix x{elements.size() / columns, columns, {}};
      double errors = 0;
      for (const std::size_t at : elements) {
        x.at.push_back(direction[at].value);
        errors += direction[at].error * direction[at].error;
      }
      const std::vector<PlainQuintic> steps = jordans(o.num_ns_steps);
      const double error =
          orthogonalized_error(x, steps, std::sqrt(errors) / testing::norm(x), roundoff_);
      const double factor =
          o.extra_scale_factor * std::sqrt(static_cast<double>(std::max(x.rows, x.columns)));
      const PlainMatrix result = orthogonalized(x, steps);
      for (std::size_t i = 0; i < elements.size(); ++i) {
        Bounded& master = state.master[elements[i]];
        if (state.declared.decay) master = constant(1 - o.learning_rate * o.weight_decay) * master;
        const Bounded change{factor * result.at[i], factor * error, roundoff_};
        master = master - constant(o.learning_rate) * change.rounded();
      }
      first += static_cast<std::size_t>(part);
    }
  }

  Bounded norm_of(const std::vector<Bounded>& values) const {
    double squares = 0, errors = 0;
    for (const Bounded& value : values) {
      squares += value.value * value.value;
      errors += value.error * value.error;
    }
    return Bounded{std::sqrt(squares), std::sqrt(errors), roundoff_}.rounded();
  }

  // In any order and grouping, a term passes at most n - 1 additions.
  Bounded sum_contributions(const std::string& name, const Placement& placement, std::int64_t index,
                            int step) const {
    Bounded sum{.roundoff = roundoff_};
    double magnitude = 0;
    int terms = 0;
    for (int dp = 0; dp < degrees_.dp; ++dp) {
      for (int tp = 0; tp < (placement.gradient_partial_over_tp ? degrees_.tp : 1); ++tp) {
        for (int stage = 0; stage < degrees_.pp; ++stage) {
          const bool holds =
              placement.tied_over_pp ? stage == 0 || stage == degrees_.pp - 1 : stage == 0;
          if (!holds) continue;
          const double term = contribution(name, index, step, dp, tp, stage);
          sum.value += term;
          magnitude += std::abs(term);
          ++terms;
        }
      }
    }
    const double nu = (terms - 1) * roundoff_;
    sum.error = nu / (1 - nu) * magnitude;
    return sum;
  }

  machine::Degrees degrees_;
  double divisor_, roundoff_;
  double elements_ = 0;
  std::map<std::string, State> states_;
};

}  // namespace zero::testing
