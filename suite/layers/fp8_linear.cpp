// Claim: a linear layer in 8 bits, sharded over tp, multiplies the codes that its recipe defines:
// E4M3 inputs and weights, E5M2 gradients (Micikevicius et al. 2022, arXiv:2209.05433), scales by
// delayed or current scaling, for 1 x 128 and 128 x 128 elements (DeepSeek-AI 2024,
// arXiv:2412.19437, section 3.3), or for 32 (OCP Microscaling Formats 1.0). Sequence parallelism
// gathers one byte an element, and the scales of blocks; ranks that share a scale exchange a float.
//
// A layer starts without history and runs some micro-batches, whose magnitudes differ. numerics:
// every operand of every product has the codes and the scales of a second reading of the papers
// (suite/reference/float8/fp8_reference.h), bit for bit, and the products are those of the decoded
// codes in double. volume: each half of each pass. memory: codes, scales and state, and what the
// products need besides.
//
// A GPU's library multiplies the codes if it has the products; otherwise, and on the host, they are
// emulated by decoded floats (layers/fp8/fp8_products.h). A GPU skips a case with emulated
// products, because they would say nothing about it. fp8_library_products counts the products that
// were not emulated. The time of emulated products is shown by fp8_time_over_plain, not judged.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <variant>

#include "collectives/communicator/calls.h"
#include "layers/column_parallel_linear.h"
#include "layers/fp8/fp8_products.h"
#include "layers/row_parallel_linear.h"
#include "machine/base/clock.h"
#include "machine/link/connect.h"
#include "suite/layers/fp8_case.h"
#include "suite/layers/layer_run.h"
#include "suite/reference/product_reference.h"

namespace suite {
namespace {

using Values = std::vector<double>;
using Traffic = std::map<machine::TrafficLabel, machine::Traffic>;
using machine::Shape;

constexpr double magnitudes[] = {1, 8, 0.25, 3};  // of the micro-batches
constexpr int micro_batches = static_cast<int>(std::size(magnitudes));
// Seeds of the parameters, after those of x and d_y. The run's seed is added to them.
enum : std::uint64_t { seed_weight = seed_d_y + 1, seed_bias };

// A rank's part of a whole matrix.
struct Part {
  std::int64_t row = 0, col = 0;  // first row and column of the part
  std::int64_t rows = 0, cols = 0;
};

// Keeps the codes and scales of the last operand of each product, by "product operand".
class Operands final : public layers::Fp8Observer {
 public:
  void operand(std::string_view product, std::string_view what,
               const layers::Quantized& quantized) override {
    Seen& seen = seen_[fmt::format("{} {}", product, what)];
    std::vector<std::uint8_t> bytes(quantized.codes.bytes());
    machine::Stream& stream = quantized.codes.device().stream();
    stream.copy(bytes.data(), quantized.codes.data(), bytes.size());
    stream.synchronize();
    seen.codes.assign(bytes.begin(), bytes.end());
    seen.inverse = to_doubles(quantized.inverse);
  }
  void multiplied(std::string_view product, bool by_library) override {
    if (by_library)
      by_library_.insert(std::string(product));
    else
      by_library_.erase(std::string(product));
  }
  struct Seen {
    Values codes, inverse;
  };
  const Seen& at(const std::string& operand) const { return seen_.at(operand); }
  std::size_t by_library() const { return by_library_.size(); }

 private:
  std::set<std::string> by_library_;  // the last product of each kind
  std::map<std::string, Seen> seen_;
};

class Fp8Linear {
 public:
  using Case = Fp8Case;
  static constexpr std::string_view name = "fp8_linear";
  static constexpr std::string_view about =
      "a linear layer with products and gathers in 8 bits: all three passes";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                       Oracle::determinism};
  static constexpr Counter counters[] = {
      {"fp8_time_over_plain", "", Better::lower, Nature::measured,
       "time of products in 8 bits over that of the dtype"},
      {"fp8_library_products", "", Better::higher, Nature::exact,
       "products of 3 that a GPU's library computes from codes"}};

  static Sweep<Case> sweep() { return fp8_sweep(); }
  static std::string why_not(const Case& c, const Context& context) {
    const std::string emulated =
        fp8_shape(c).why_emulated(c.options().recipe, context.device.compute_capability());
    if (context.device.kind() == machine::Device::Kind::cuda && !machine::cuda::is_virtual() &&
        !emulated.empty())
      return emulated + "; emulated products would say nothing about this GPU's";
    return machine::why_not(context.world, context.group, c.transport);
  }

  Fp8Linear(const Case& c, Context& context);

  void prepare() {}
  void run() { run_all(*layer_, next()); }
  void judge(Judge& judge);
  Cost cost() const;
  void describe(Description& description);

 private:
  // A layer of either kind over the same values.
  class Layer {
   public:
    Layer(Fp8Linear& unit, const layers::Fp8Scheme& scheme);
    void forward(const Tensor& x, const Tensor& y);
    void backward_input(const Tensor& d_y, const Tensor& d_x);
    void backward_weights(const Tensor& x);
    layers::Parameters parameters();

   private:
    std::variant<std::monostate, layers::ColumnParallelLinear, layers::RowParallelLinear> layer_;
    Tensor d_y_;
  };

  bool column() const { return case_.column(); }
  int next() { return passes_++ % micro_batches; }
  void run_pass(Layer& layer, Pass pass, int micro_batch) {
    const auto i = static_cast<std::size_t>(micro_batch);
    switch (pass) {
      case Pass::forward:
        return layer.forward(x_[i], y_);
      case Pass::backward_input:
        return layer.backward_input(d_y_[i], d_x_);
      case Pass::backward_weights:
        return layer.backward_weights(x_[i]);
    }
  }
  void run_all(Layer& layer, int micro_batch) {
    for (const Pass pass : all_passes) run_pass(layer, pass, micro_batch);
  }
  Tensor drawn(std::uint64_t which, Shape whole, Fp8Cut cut, double magnitude) const;
  Values whole_of(std::uint64_t which, Shape whole, double magnitude) const;
  void judge_memory(Judge& judge);
  void judge_volume(Judge& judge, Pass pass);
  void judge_operands(Judge& judge, int micro_batch);
  void judge_products(Judge& judge, int micro_batch);
  void judge_gradients(Judge& judge);
  void judge_bits(Judge& judge, int micro_batch) const;
  double bound(std::int64_t terms, int later, Dtype result) const;
  void check(Judge& judge, std::string_view what, const Tensor& result, Part part,
             const Fp8Terms& terms, double bound) const;

  Case case_;
  Context& context_;
  collectives::Communicator tp_;
  layers::Context layer_context_;
  harness::PeakMeter memory_;
  Fp8LinearReference reference_;
  int passes_ = 0;
  std::array<Tensor, micro_batches> x_, d_y_;
  Tensor y_, d_x_, weight_, bias_, d_weight_, d_bias_;
  Operands seen_;
  std::optional<Layer> layer_;
};

Fp8Linear::Layer::Layer(Fp8Linear& unit, const layers::Fp8Scheme& scheme) {
  layers::Context context = unit.layer_context_;
  context.fp8 = scheme;
  const Case& c = unit.case_;
  if (c.column())
    layer_.emplace<layers::ColumnParallelLinear>(context, std::string(name), c.input_size,
                                                 c.output_size);
  else
    layer_.emplace<layers::RowParallelLinear>(context, std::string(name), c.input_size,
                                              c.output_size);
  const layers::Parameters all = parameters();
  all[0]->value = unit.weight_;
  all[1]->value = unit.bias_;
  all[0]->gradient = unit.d_weight_;
  all[1]->gradient = unit.d_bias_;
}

void Fp8Linear::Layer::forward(const Tensor& x, const Tensor& y) {
  if (auto* column = std::get_if<layers::ColumnParallelLinear>(&layer_))
    column->forward(x, y);
  else
    std::get<layers::RowParallelLinear>(layer_).forward(x, y);
}

void Fp8Linear::Layer::backward_input(const Tensor& d_y, const Tensor& d_x) {
  d_y_ = d_y;
  if (auto* column = std::get_if<layers::ColumnParallelLinear>(&layer_))
    column->backward_input(d_y, d_x);
  else
    d_y_ = std::get<layers::RowParallelLinear>(layer_).backward_input(d_y, d_x);
}

void Fp8Linear::Layer::backward_weights(const Tensor& x) {
  if (auto* column = std::get_if<layers::ColumnParallelLinear>(&layer_))
    column->backward_weights(x, d_y_);
  else
    std::get<layers::RowParallelLinear>(layer_).backward_weights(x, d_y_);
  d_y_ = Tensor();
}

layers::Parameters Fp8Linear::Layer::parameters() {
  if (auto* column = std::get_if<layers::ColumnParallelLinear>(&layer_))
    return column->parameters();
  return std::get<layers::RowParallelLinear>(layer_).parameters();
}

Fp8Linear::Fp8Linear(const Case& c, Context& context)
    : case_(c),
      context_(context),
      tp_(context.world, context.group, c.transport),
      layer_context_{.device = context.device,
                     .tp = tp_,
                     .dtype = c.dtype,
                     .sequence_parallel = c.sequence_parallel},
      memory_(context.device.ledger()),
      reference_(c.question()) {
  const std::int64_t n = c.tokens, in = c.input_size, out = c.output_size;
  const Shape of_x{n, in}, of_y{n, out};
  const auto held = [&](Fp8Cut cut) {  // between tensor-parallel regions
    return cut == Fp8Cut::whole && c.sequence_parallel ? Fp8Cut::rows : cut;
  };
  for (int i = 0; i < micro_batches; ++i) {
    x_[i] = drawn(seed_x, of_x, held(reference_.cut_of_x()), magnitudes[i]);
    d_y_[i] =
        drawn(seed_d_y, of_y, held(reference_.cut_of_d_y()), magnitudes[micro_batches - 1 - i]);
  }
  const auto like = [&](const Tensor& tensor) {
    return layer_context_.tensor(tensor.shape(), Category::buffers);
  };
  y_ = like(d_y_[0]);
  d_x_ = like(x_[0]);
  weight_ = drawn(seed_weight, {out, in}, reference_.cut_of_weight(), weight_stddev(in));
  bias_ = drawn(seed_bias, {1, out}, column() ? Fp8Cut::columns : Fp8Cut::whole, 1);
  const auto gradient = [&](const Tensor& values) {
    const Tensor zeros(context.device, Dtype::float32, values.shape(), Category::buffers);
    layer_context_.kernels().fill(zeros, 0);
    return zeros;
  };
  bias_ = bias_.reshape({bias_.size()});
  d_weight_ = gradient(weight_);
  d_bias_ = gradient(bias_);
  layer_.emplace(*this, layers::Fp8Scheme{c.options()});
  context.device.stream().synchronize();
  memory_ = harness::PeakMeter(context.device.ledger());
  memory_.reset();
}

// Returns a rank's part of a whole tensor, whose values depend only on the global index.
Tensor Fp8Linear::drawn(std::uint64_t which, Shape whole, Fp8Cut cut, double magnitude) const {
  const std::int64_t t = case_.ranks, rank = tp_.rank();
  const std::int64_t rows = whole[0] / (cut == Fp8Cut::rows ? t : 1),
                     cols = whole[1] / (cut == Fp8Cut::columns ? t : 1);
  const Tensor part = layer_context_.tensor({rows, cols}, Category::buffers);
  layer_context_.kernels().fill_normal(
      part, context_.seed + which,
      {cut == Fp8Cut::rows ? rank * rows : 0, cut == Fp8Cut::columns ? rank * cols : 0, whole[1]},
      0, magnitude);
  return part;
}

Values Fp8Linear::whole_of(std::uint64_t which, Shape whole, double magnitude) const {
  const Tensor all = drawn(which, whole, Fp8Cut::whole, magnitude);
  context_.device.stream().synchronize();
  return to_doubles(all);
}

// A fresh layer runs twice, so the first micro-batch has no history, and the passes repeat.
void Fp8Linear::judge(Judge& judge) {
  judge_memory(judge);  // before the judge's own tensors
  const std::int64_t n = case_.tokens, in = case_.input_size, out = case_.output_size;
  for (int repeat = 0; repeat < 2; ++repeat) {
    Layer fresh(*this, layers::Fp8Scheme{case_.options(), nullptr, &seen_});
    for (const Tensor& gradient : {d_weight_, d_bias_}) layer_context_.kernels().fill(gradient, 0);
    if (repeat == 0)
      reference_.start(whole_of(seed_weight, {out, in}, weight_stddev(in)),
                       whole_of(seed_bias, {1, out}, 1));
    for (int i = 0; i < micro_batches; ++i) {
      for (const Tensor& result : {y_, d_x_})  // a pass that writes nothing shows
        layer_context_.kernels().fill(result, std::numeric_limits<double>::quiet_NaN());
      for (const Pass pass : all_passes) {
        tp_.link().reset_traffic();
        run_pass(fresh, pass, i);
        context_.device.stream().synchronize();
        if (repeat == 0) judge_volume(judge, pass);
      }
      judge_bits(judge, i);
      if (repeat > 0) continue;
      reference_.pass(whole_of(seed_x, {n, in}, magnitudes[i]),
                      whole_of(seed_d_y, {n, out}, magnitudes[micro_batches - 1 - i]));
      judge_operands(judge, i);
      judge_products(judge, i);
    }
    if (repeat == 0) judge_gradients(judge);
  }
}

void Fp8Linear::judge_bits(Judge& judge, int micro_batch) const {
  const bool rows_cut = case_.sequence_parallel;
  const auto bits = [&](bool own, std::string_view what, const Tensor& tensor) {
    judge.same_bits(own ? fmt::format("part {} of {} {}", tp_.rank(), what, micro_batch)
                        : fmt::format("{} {}", what, micro_batch),
                    hash(tensor));
  };
  bits(column() || rows_cut, "y", y_);
  bits(!column() || rows_cut, "d_x", d_x_);
  bits(true, "gradient of weight", d_weight_);
  bits(column() || rows_cut, "gradient of bias", d_bias_);
}

void Fp8Linear::judge_memory(Judge& judge) {
  collectives::CallsCost cost;
  for (const Pass pass : all_passes)
    for (const auto& calls : fp8_calls(case_, pass)) cost.add(calls, tp_);
  // Staged collectives hold their scratch in host memory, which this device does not count.
  const std::size_t scratch = tp_.link().stages(context_.device) ? 0 : cost.scratch();
  const Fp8Memory expected = fp8_memory(case_, context_.device.compute_capability());
  judge.memory(Category::activations, memory_.peak(Category::activations), expected.kept);
  judge.memory(Category::buffers, memory_.peak(Category::buffers), expected.buffers + scratch);
}

void Fp8Linear::judge_volume(Judge& judge, Pass pass) {
  collectives::CallsCost cost;
  for (const auto& calls : fp8_calls(case_, pass)) cost.add(calls, tp_);
  Traffic expected = cost.traffic("tp");
  auto measured = tp_.link().traffic();
  for (const auto& [label, traffic] : measured)
    if (traffic != machine::Traffic{}) expected.try_emplace(label);  // unexpected traffic fails too
  if (expected.empty()) return judge.volume(tp_.link(), {});
  for (const auto& [label, traffic] : expected)
    judge.volume(fmt::format("tp, {}", suite::name(pass)), label, measured[label], traffic);
}

void Fp8Linear::judge_operands(Judge& judge, int micro_batch) {
  for (const auto& [operand, want] : reference_.operands(tp_.rank())) {
    const Operands::Seen& got = seen_.at(operand);
    const std::string of = fmt::format("{} of micro-batch {}", operand, micro_batch);
    judge.exact("scales of " + of, got.inverse, want.inverse);
    judge.exact("codes of " + of, got.codes, want.codes);
  }
}

// Compares some rows of this rank's part of a result with the terms of the reference.
void Fp8Linear::check(Judge& judge, std::string_view what, const Tensor& result, Part part,
                      const Fp8Terms& terms, double bound) const {
  context_.device.stream().synchronize();
  const Values got = to_doubles(result);
  Values want, sizes;
  for (std::int64_t row = part.row; row < part.row + part.rows; ++row)
    for (std::int64_t col = part.col; col < part.col + part.cols; ++col) {
      const auto i = static_cast<std::size_t>(row * terms.cols + col);
      want.push_back(terms.values[i]);
      sizes.push_back(bound * terms.sizes[i]);
    }
  judge.numerics(what, got, want, sizes);
}

// A decoded element is rounded once before its product, or sums of products are multiplied by
// rounded factors, so a term has two roundings more. The tensor cores of a GPU add codes up in
// fewer bits than float.
double Fp8Linear::bound(std::int64_t terms, int later, Dtype result) const {
  const bool on_gpu = seen_.by_library() > 0 && !machine::cuda::is_virtual();
  return product_bound(terms + 2, later, result) +
         (on_gpu ? static_cast<double>(terms) * machine::scaled_gemm_roundoff() : 0);
}

void Fp8Linear::judge_products(Judge& judge, int micro_batch) {
  const std::int64_t n = case_.tokens, in = case_.input_size, out = case_.output_size,
                     t = case_.ranks, rank = tp_.rank();
  const int summed = static_cast<int>(t) - 1;
  const std::int64_t own = case_.sequence_parallel ? n / t : n,
                     first = case_.sequence_parallel ? rank * own : 0;
  const std::string of = fmt::format(" of micro-batch {}", micro_batch);
  if (column()) {
    check(judge, "y" + of, y_, {0, rank * out / t, n, out / t}, reference_.y(),
          bound(in, 1, case_.dtype));
    check(judge, "d_x" + of, d_x_, {first, 0, own, in}, reference_.d_x(),
          bound(out / t, summed, case_.dtype));
  } else {
    check(judge, "y" + of, y_, {first, 0, own, out}, reference_.y(),
          bound(in / t, summed + 1, case_.dtype));
    check(judge, "d_x" + of, d_x_, {0, rank * in / t, n, in / t}, reference_.d_x(),
          bound(out, 0, case_.dtype));
  }
}

void Fp8Linear::judge_gradients(Judge& judge) {
  const std::int64_t n = case_.tokens, in = case_.input_size, out = case_.output_size,
                     t = case_.ranks, rank = tp_.rank();
  const Part weight =
      column() ? Part{rank * out / t, 0, out / t, in} : Part{0, rank * in / t, out, in / t};
  check(judge, "gradient of weight", d_weight_, weight, reference_.d_weight(),
        bound(n, micro_batches, Dtype::float32));
  Tensor d_bias = d_bias_;
  int parts = micro_batches;
  if (!column() && case_.sequence_parallel) {  // each rank has the sum of its own rows
    d_bias = Tensor(context_.device, Dtype::float32, d_bias_.shape(), Category::buffers);
    tp_.all_reduce(d_bias_, d_bias);
    parts += static_cast<int>(t) - 1;
  }
  check(judge, "gradient of bias", d_bias,
        column() ? Part{0, rank * out / t, 1, out / t} : Part{0, 0, 1, out}, reference_.d_bias(),
        product_bound(n, parts, Dtype::float32));
}

// Times both layers in turn and shows the ratio of their medians.
void Fp8Linear::describe(Description& description) {
  Layer plain(*this, {});
  std::array<std::array<double, 9>, 2> seconds{};
  for (std::size_t i = 0; i < seconds[0].size(); ++i)
    for (const bool fp8 : {false, true}) {
      tp_.barrier();
      const double begin = machine::steady_s();
      run_all(fp8 ? *layer_ : plain, 0);
      context_.device.stream().synchronize();
      seconds[fp8][i] = machine::steady_s() - begin;
    }
  for (auto& runs : seconds) std::ranges::nth_element(runs, runs.begin() + runs.size() / 2);
  const auto median = [&](bool fp8) { return seconds[fp8][seconds[fp8].size() / 2]; };
  description.set("fp8_library_products", static_cast<double>(seen_.by_library()));
  if (median(false) > 0) description.set("fp8_time_over_plain", median(true) / median(false));
}

// Each operand is read once as values and twice as codes; results are written once.
Cost Fp8Linear::cost() const {
  const double n = case_.tokens, in = case_.input_size, out = case_.output_size, t = case_.ranks;
  const double E = static_cast<double>(size_of(case_.dtype));
  Cost cost;
  cost.flops = 3 * 2 * n * in * out / t;
  const bool emulated =
      !fp8_shape(case_)
           .why_emulated(case_.options().recipe, context_.device.compute_capability())
           .empty();
  cost.flops_dtype = emulated ? Dtype::float32 : Dtype::float8_e4m3;
  cost.memory_bytes = (E + 2) * (n * (in + out) + in * out) / t;
  cost.working_set_bytes = cost.memory_bytes;
  cost.transport = case_.transport;
  for (const Pass pass : all_passes)
    for (const auto& one : fp8_calls(case_, pass))
      cost.wire_bytes += (one.operation == Operation::all_reduce ? 2 : 1) *
                         static_cast<double>(one.calls * one.elements) *
                         static_cast<double>(size_of(one.dtype)) * (t - 1) / t;
  cost.tokens = n;
  return cost;
}

const bool registered = harness::add<Fp8Linear>();

}  // namespace
}  // namespace suite
