// Claim: with bounded buckets a ZeRO step's buffers have one size for any model, to the byte: C_B
// of ZeRO-R (Rajbhandari et al. 2020, arXiv:1910.02054, section 6.2). If one bucket fuses all
// elements, the buffers grow with the model: in ZeRO stages 2 and 3 as 4 Psi, the paper's float
// buffer of all gradients. The buckets do not change a bit of the values.
//
// Each case takes a step of a model of `layers` equal layers and of a model of four times the
// layers, in bfloat16 with float gradients. A model has Psi elements over d ranks. A bucket that is
// reduced has b elements, a bucket that is gathered has a elements (`buckets` constant: one layer
// and half a layer; fused: all). In addition to the states of section 5, a step holds
//   gradients   4 b in stages 2 and 3: the bucket that backward fills; and a bucket on the wire, 2
//   b
//               (with communication_data_type bfloat16; by default gradients are sent in place)
//   parameters  2 b in stage 3: the bucket that is gathered
//   buffers     in stages 1 and 2, if a < b, the staging of values, 2 a; and the memory of the
//               collectives' plans
// The buffers also have one byte for each owned element, whether it decays, and eight bytes per
// bucket for the norm.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "collectives/cost.h"
#include "machine/device/kernels.h"
#include "machine/link/connect.h"
#include "suite/reference/unit.h"
#include "zero/stages/step.h"

namespace suite {
namespace {

using collectives::Parameter;

constexpr std::int64_t rows = 48, cols = 64;          // of a matrix; a layer has two matrices
constexpr std::int64_t of_a_layer = 2 * rows * cols;  // elements, a multiple of 64 d
constexpr int times = 4;  // layers of the larger model over those of the smaller
constexpr std::string_view algorithm = "direct";  // has one order of sums for every bucket
constexpr Category categories[] = {Category::parameters, Category::gradients, Category::optimizer,
                                   Category::buffers};
using Bytes = std::array<std::size_t, std::size(categories)>;

struct Shape {
  int stage = 1, ranks = 2, rank = 0, layers = 1;
  bool fused = false, narrow_wire = false;

  std::int64_t elements() const { return layers * of_a_layer; }
  std::int64_t reduce_bucket() const { return fused ? elements() : of_a_layer; }
  std::int64_t gather_bucket() const { return fused ? elements() : of_a_layer / 2; }
  Dtype wire() const { return narrow_wire ? Dtype::bfloat16 : Dtype::float32; }

  // Returns the states of ZeRO's section 5, the mask and the norm.
  Bytes states() const {
    const auto all = static_cast<std::size_t>(elements()), d = static_cast<std::size_t>(ranks);
    const auto buckets = static_cast<std::size_t>(elements() / reduce_bucket());
    return {2 * all / (stage == 3 ? d : 1), 4 * all / (stage >= 2 ? d : 1), 12 * all / d,
            all / d + 8 * (buckets + 1 + (d > 1 ? d : 0))};
  }
  Bytes beyond() const {
    const auto b = static_cast<std::size_t>(reduce_bucket()),
               a = static_cast<std::size_t>(gather_bucket());
    const std::size_t on_the_wire = narrow_wire && ranks > 1 ? 2 * b : 0,
                      staged = stage < 3 && a < b && ranks > 1 ? 2 * a : 0;
    return {stage == 3 ? 2 * b : 0, (stage >= 2 ? 4 * b : 0) + on_the_wire, 0, staged + scratch()};
  }
  // Returns the scratch of each size of collective.
  std::size_t scratch() const {
    if (ranks == 1) return 0;
    const std::int64_t gathered = stage == 3 ? reduce_bucket() : gather_bucket();
    const std::set<std::tuple<Operation, Dtype, std::int64_t>> calls = {
        {Operation::reduce_scatter, wire(), reduce_bucket() / ranks},
        {Operation::all_gather, Dtype::bfloat16, gathered / ranks},
        {Operation::all_gather, Dtype::float64, 1}};
    std::size_t bytes = 0;
    for (const auto& [operation, dtype, count] : calls)
      bytes += collectives::scratch_bytes(collectives::find_algorithm(operation, algorithm),
                                          {rank, ranks}, count, dtype);
    return bytes;
  }
};

// A model of this shape and its step.
class Model {
 public:
  Model(const Shape& shape, Context& context, Transport transport)
      : shape_(shape),
        context_(context),
        memory_(context.device.ledger()),
        dp_(context.world, context.group, transport) {
    for (int layer = 0; layer < shape.layers; ++layer)
      for (const char* matrix : {"up", "down"}) {
        Parameter& parameter = parameters_.emplace_back();
        parameter.name = fmt::format("layers.{}.{}", layer, matrix);
        parameter.global_shape = {rows, cols};
        all_.push_back(&parameter);
      }
    const zero::GradientPlan plan = zero::gradient_plan(
        all_, Dtype::bfloat16, machine::Grid({.dp = shape.ranks}, shape.rank), shape.ranks);
    states_ = std::make_unique<zero::FlatStates>(
        context.device, plan, all_,
        zero::LayoutOptions{.reduce_bucket_size = shape.reduce_bucket()});
    for (std::size_t i = 0; i < all_.size(); ++i)
      kernels().fill_uniform(all_[i]->value, context.seed + i, {}, -1, 1);
    zero::StepOptions options;
    options.all_reduce = options.reduce_scatter = options.all_gather = algorithm;
    options.allgather_bucket_size = shape.gather_bucket();
    options.stage3_prefetch_bucket_size = 0;
    if (shape.narrow_wire) options.communication_data_type = shape.wire();
    step_ = zero::make_step(shape.stage, *states_, plan, {.dp = &dp_}, options);
  }

  void step() {
    const std::uint64_t gradient_seed =
        context_.seed + 1'000'000 * static_cast<std::uint64_t>(shape_.rank + 1);
    step_->begin_micro_batch(true);
    for (std::size_t layer = 0; layer < all_.size(); layer += 2) {
      step_->before_use(part(layer));
      step_->after_use(part(layer));
    }
    for (std::size_t layer = all_.size(); layer > 0;) {
      const zero::Step::Part used = part(layer -= 2);
      step_->before_use(used);
      step_->before_gradients(used);
      for (std::size_t i = layer; i < layer + 2; ++i)
        kernels().fill_uniform(all_[i]->gradient, gradient_seed + i, {}, 0.25, 1);
      step_->after_use(used);
      step_->gradients_ready(used);
    }
    step_->end_micro_batch();
    step_->step();
  }

  // Returns the peaks by category over a step after the first.
  Bytes peaks() {
    step();
    memory_.reset();
    step();
    Bytes bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = memory_.peak(categories[i]);
    return bytes;
  }

  void fingerprint(Judge& judge) {
    step_->before_use(all_);
    for (const Parameter* parameter : all_)
      judge.same_bits(fmt::format("{} of {} layers", parameter->name, shape_.layers),
                      hash(parameter->value));
    step_->after_use(all_);
  }

 private:
  machine::Kernels& kernels() const { return context_.device.stream().kernels(); }
  zero::Step::Part part(std::size_t first) const { return {all_[first], all_[first + 1]}; }

  Shape shape_;
  Context& context_;
  harness::PeakMeter memory_;
  collectives::Communicator dp_;
  std::deque<Parameter> parameters_;
  std::vector<Parameter*> all_;
  std::unique_ptr<zero::FlatStates> states_;
  std::unique_ptr<zero::Step> step_;
};

struct ConstantBuffers {
  static constexpr std::string_view name = "constant_buffers";
  static constexpr std::string_view about =
      "bytes that a ZeRO step holds in addition to its states, at two sizes of the model";
  static constexpr Oracle oracles[] = {Oracle::memory, Oracle::determinism};
  static constexpr Counter counters[] = {
      {"parameters", "", Better::neither, Nature::exact, "elements of the larger model"},
      {"buffer_bytes", "B", Better::lower, Nature::exact,
       "bytes of the larger model in addition to its states"},
      {"buffer_bytes_of_quarter", "B", Better::lower, Nature::exact,
       "bytes of a quarter of the model in addition to its states"},
      {"fused_buffer_bytes", "B", Better::neither, Nature::exact,
       "4 bytes per element, the size of one fused buffer"}};
  static constexpr bool repeatable = false;

  struct Case {
    int ranks = 2;
    Transport transport{};
    int stage = 1;
    std::string buckets, wire;
    int layers = 1;

    bool fused() const { return buckets == "fused"; }
  };

  static Sweep<Case> sweep() {
    using enum Profile;
    const auto stages = vary(&Case::stage, {1, 2, 3});
    const auto buckets = vary(&Case::buckets, {"constant", "fused"});
    const auto wires = vary(&Case::wire, {"default", "bfloat16"});
    const auto layers = vary(&Case::layers, {3, 8});
    return Sweep<Case>()
        .axis("transport", &Case::transport, Transport::shared_memory)
        .axis("zero-stage", &Case::stage, 1, {1, 2, 3})
        .axis("buckets", &Case::buckets, "constant", {"constant", "fused"})
        .axis("communication_data_type", &Case::wire, "default", {"default", "bfloat16"})
        .axis("ranks", &Case::ranks, 2)
        .axis("layers", &Case::layers, 3)
        .only([](const Case& c) -> std::string {
          if (c.layers < 2) return fmt::format("layers is {}; expected at least 2", c.layers);
          if (of_a_layer / 2 % (64 * c.ranks) != 0)
            return fmt::format("{} ranks cannot shard a matrix of {} elements into multiples of 64",
                               c.ranks, of_a_layer / 2);
          return "";
        })
        .slice({acceptance, paper}, "matrix",
               {vary(&Case::transport, {Transport::shared_memory, Transport::mpi}), stages, buckets,
                wires, vary(&Case::ranks, {2, 3, 4, 8}), layers})
        .slice({acceptance, paper}, "one rank",
               {stages, buckets, wires, vary(&Case::ranks, {1}), layers})
        // Stage 1 has buffers only if the wire is narrower. The other stages always have buffers.
        .slice({quick}, "narrow wire", {buckets, vary(&Case::wire, {"bfloat16"})})
        .slice({quick}, "edges", {vary(&Case::stage, {2, 3}), buckets, vary(&Case::ranks, {3})})
        .slice({smoke}, "smoke", {stages, buckets, wires, vary(&Case::ranks, {1, 3})});
  }

  static std::string why_not(const Case& c, const Context& context) {
    if (!context.device.readable_by_host() && !machine::between_devices(c.transport))
      return fmt::format(
          "transport {} stages CUDA tensors through host memory, which the peaks lack",
          machine::name(c.transport));
    return machine::why_not(context.world, context.group, c.transport);
  }

  ConstantBuffers(const Case& c, Context& context)
      : case_(c), context_(context), model_(make(shape(times * c.layers, c.fused()))) {}

  void prepare() {}
  void run() { model_->step(); }

  void judge(Judge& judge) {
    model_.reset();
    for (const int layers : {case_.layers, times * case_.layers}) {
      const bool small = layers == case_.layers;
      const Shape shape = this->shape(layers, case_.fused());
      const auto model = make(shape);
      const Bytes peaks = model->peaks(), states = shape.states(), beyond = shape.beyond();
      std::size_t& sum = small ? beyond_ : beyond_of_larger_;
      sum = 0;
      for (std::size_t i = 0; i < peaks.size(); ++i) {
        sum += peaks[i] - states[i];
        const std::size_t formula = states[i] + beyond[i];
        if (small)
          judge.memory(fmt::format("{} of {} layers", machine::name(categories[i]), layers),
                       categories[i], peaks[i], formula);
        else
          judge.memory(categories[i], peaks[i], formula);
      }
      model->fingerprint(judge);
    }
    if (!case_.fused())
      judge.memory(fmt::format("in addition to the states, of {} times the parameters", times),
                   Category::buffers, beyond_of_larger_, beyond_);
    // Takes the same number of steps with the other kind of buckets.
    const auto other = make(shape(case_.layers, !case_.fused()));
    other->step();
    other->step();
    other->fingerprint(judge);
  }

  Cost cost() const { return {}; }

  void describe(Description& description) {
    const auto elements = static_cast<double>(times * case_.layers * of_a_layer);
    description.set("parameters", elements);
    description.set("buffer_bytes", static_cast<double>(beyond_of_larger_));
    description.set("buffer_bytes_of_quarter", static_cast<double>(beyond_));
    description.set("fused_buffer_bytes", 4 * elements);
  }

 private:
  Shape shape(int layers, bool fused) const {
    return {case_.stage, case_.ranks, context_.group.index, layers, fused, case_.wire != "default"};
  }
  std::unique_ptr<Model> make(const Shape& shape) const {
    return std::make_unique<Model>(shape, context_, case_.transport);
  }

  Case case_;
  Context& context_;
  std::unique_ptr<Model> model_;
  std::size_t beyond_ = 0, beyond_of_larger_ = 0;
};

const bool registered = harness::add<ConstantBuffers>();

}  // namespace
}  // namespace suite
