// Claim: one pass of each optimizer updates every element by its paper's formula in double, within
// a bound derived from the dtypes. It keeps the states of its table, and is bound only by memory.
// In units of 32-bit weights, including the weights: SGD 1, with momentum 2, RMSProp 2, Lion 2,
// Adam and AdamW 3; in units of 16-bit weights 2, 4, 4, 4 and 6 (Rajbhandari et al. 2020,
// arXiv:1910.02054, section 3.1: 12 bytes per parameter for Adam).
//
// All ranks work at once, on `elements` each. decay `everywhere` needs no mask: AdamW over 16-bit
// values then moves 30 bytes per element, 16 read and 14 written, like the host's optimizer of
// ZeRO-Offload (Ren et al. 2021, arXiv:2101.06840). decay `mask` reads one more byte. memory_GBps
// counts bytes read and written, as memory_bandwidth does, without the lines that a cache fetches
// before 16-bit values are written.
//
// 8-bit AdamW (Dettmers et al. 2022, arXiv:2110.02861) keeps 2 + 8/256 bytes an element. Each step
// is judged by its own codes and scales (eight_bit_update.h).
//
// All tensors repeat a pattern of 4099 elements (4352 with blocks of codes). Its first copy is
// compared with the reference, and every other copy must have the same bits.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "suite/reference/shared_counters.h"
#include "suite/reference/unit.h"
#include "suite/zero/eight_bit_update.h"
#include "suite/zero/optimizer_reference.h"
#include "zero/optimizers/optimizer.h"

namespace suite {
namespace {

constexpr std::int64_t prime = 4099,  // every copy begins at a different alignment
    of_blocks = 17 * machine::moment_block;
constexpr int steps_judged = 4;
constexpr double gradient_scale = 1.0 / 7;

constexpr const char* coded_rule = "adamw_8bit";

std::vector<std::string> all_rules() {
  std::vector<std::string> all = zero::rule_names();
  all.emplace_back(coded_rule);
  return all;
}

zero::Rule make_rule(const std::string& name) {
  zero::Rule rule = name == coded_rule ? zero::Rule(zero::AdamW8Bit()) : zero::find_rule(name);
  std::visit(
      [](auto& options) {
        options.learning_rate = 1e-2;
        if constexpr (requires { options.weight_decay; }) options.weight_decay = 0.1;
      },
      rule);
  return rule;
}

struct OptimizerStep {
  static constexpr std::string_view name = "optimizer_step";
  static constexpr std::string_view about =
      "one pass of SGD, momentum, RMSProp, Adam, AdamW, Lion or 8-bit AdamW";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::memory, Oracle::determinism};
  static constexpr Counter counters[] = {
      memory_bytes_counter,
      memory_GBps_counter,
      {"memory_bytes_per_element", "B", Better::neither, Nature::exact,
       "`memory_bytes` over the elements"},
      {"state_bytes_per_element", "B", Better::neither, Nature::exact,
       "bytes of optimizer states, and of values without a master copy"},
      {"state_per_32bit_weight", "", Better::neither, Nature::exact,
       "`state_bytes_per_element` over 4 bytes"},
      {"state_per_16bit_weight", "", Better::neither, Nature::exact,
       "`state_bytes_per_element` over 2 bytes"}};
  static constexpr bool equal_work = true;

  struct Case {
    int ranks = 1;
    std::string optimizer;
    Dtype dtype{};
    std::string decay;
    int elements = 0;

    // Returns the number of states in addition to the master.
    std::size_t states() const {
      return optimizer == "sgd" ? 0 : optimizer.starts_with("adam") ? 2 : 1;
    }
    bool coded() const { return optimizer == coded_rule; }
    std::int64_t period() const { return coded() ? of_blocks : prime; }
    std::size_t moment_bytes() const {
      const auto blocks = static_cast<std::size_t>(machine::moment_blocks(elements));
      return coded() ? 2 * count() + 2 * sizeof(float) * blocks
                     : states() * master_bytes() * count();
    }
    bool masked() const { return decay == "mask"; }
    std::size_t value_bytes() const { return size_of(dtype); }
    Dtype wide() const { return dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32; }
    std::size_t master_bytes() const { return size_of(wide()); }
    bool narrow() const { return value_bytes() < master_bytes(); }
    std::size_t count() const { return static_cast<std::size_t>(elements); }
  };

  static Sweep<Case> sweep(const harness::PlanRequest& request) {
    using enum Profile;
    using enum Dtype;
    const std::vector<Dtype> floating{float32, bfloat16, float16, float64};
    const std::vector<std::string> decays{"mask", "everywhere"};
    Sweep<Case> sweep;
    sweep.axis("optimizer", &Case::optimizer, "adamw", all_rules())
        .axis("dtype", &Case::dtype, bfloat16, floating)
        .axis("decay", &Case::decay, "mask", decays)
        .axis("ranks", &Case::ranks, 1)
        .axis("elements", &Case::elements, 1 << 20)
        .only([](const Case& c) {
          if (c.elements < 1) return fmt::format("elements is {}; expected at least 1", c.elements);
          return std::string(
              c.optimizer == "sgd" && !c.masked()
                  ? "decay must be mask, because plain sgd has no decay"
              : c.coded() && c.dtype == float64
                  ? "dtype must be float, bfloat16 or half, because adamw_8bit computes in float"
                  : "");
        });
    const auto product = [&](Profile profile, const char* name, const std::vector<int>& ranks,
                             const std::vector<int>& elements) {
      sweep.slice(
          {profile}, name,
          {vary(&Case::optimizer, zero::rule_names()), vary(&Case::dtype, floating),
           vary(&Case::decay, decays), vary(&Case::ranks, ranks), vary(&Case::elements, elements)});
    };
    product(acceptance, "matrix", {1, 2}, {1 << 20, 8 << 20});
    product(paper, "matrix", {1, 2}, {1 << 16, 1 << 20, 32 << 20});
    product(smoke, "smoke", {1}, {1, 10007});
    const auto codes = vary(&Case::optimizer, {coded_rule});
    const auto coded_dtypes = vary(&Case::dtype, {float32, bfloat16, float16});
    sweep
        .slice({acceptance, paper}, "codes",
               {codes, coded_dtypes, vary(&Case::decay, decays),
                vary(&Case::elements, {1 << 16, 1 << 20})})
        .slice({smoke}, "codes", {codes, coded_dtypes, vary(&Case::elements, {1, 10007})})
        .slice({quick}, "codes", {codes, vary(&Case::dtype, {float32, bfloat16})});
    sweep.launch_slice(request, {quick, acceptance, paper},
                       {vary(&Case::dtype, {float32, bfloat16})});
    return sweep.slice({quick}, "rules", {vary(&Case::optimizer, {"sgd"})})
        .slice({quick}, "rules",
               {vary(&Case::optimizer, {"adam", "lion"}), vary(&Case::decay, {"everywhere"})})
        .slice({quick}, "two ranks",
               {vary(&Case::dtype, {float32, bfloat16}), vary(&Case::ranks, {2})})
        .slice({quick}, "edges",
               {vary(&Case::optimizer, {"momentum"}), vary(&Case::ranks, {3}),
                vary(&Case::elements, {100'003})})
        .slice({quick}, "edges",
               {vary(&Case::optimizer, {"rmsprop"}), vary(&Case::dtype, {float16}),
                vary(&Case::elements, {1})});
  }

  OptimizerStep(const Case& c, Context& context)
      : case_(c), context_(context), rule_(make_rule(c.optimizer)) {
    const harness::PeakMeter memory(context.device.ledger());
    values_ = Tensor(context.device, c.dtype, {c.elements}, Category::parameters);
    gradient_ = Tensor(context.device, c.wide(), {c.elements}, Category::gradients);
    start();
    for (const Category category : machine::all_categories)
      held_[category] = memory.current(category);
    set(gradient_, 1);
  }

  void prepare() {}
  bool only_queues() const { return !context_.device.readable_by_host(); }
  void run() { optimizer_->update(gradient_, gradient_scale); }

  void judge(Judge& judge) {
    judge_memory(judge);
    if (case_.coded()) return judge_codes(judge);
    std::vector<std::uint8_t> decays = mask();
    decays.resize(std::min(decays.size(), static_cast<std::size_t>(case_.period())));
    OptimizerReference reference(rule_, to_doubles(pattern(case_.dtype, 0)), decays,
                                 machine::unit_roundoff(case_.wide()));
    for (int step = 1; step <= steps_judged; ++step)
      reference.step(to_doubles(pattern(case_.wide(), step)), gradient_scale);

    // Another number of threads gives the same bits.
    const int threads = context_.device.threads();
    for (const int with : {threads, std::max(1, threads - 1)}) {
      context_.device.set_threads(with);
      start();
      for (int step = 1; step <= steps_judged; ++step) {
        set(gradient_, step);
        run();
      }
      context_.device.set_threads(threads);
      for (const Result& result : results()) judge.same_bits(result.what, hash(result.tensor));
    }
    for (const Result& result : results()) {
      compare(judge, result, reference.elements());
      judge.numerics(result.what + ", copies of the pattern that differ",
                     copies_that_differ(result.tensor), 0);
    }
  }

  Cost cost() const {
    const std::size_t masters = case_.master_bytes() * case_.count(),
                      narrow_values = case_.narrow() ? case_.value_bytes() * case_.count() : 0;
    const std::size_t read = 2 * masters + case_.moment_bytes() +
                             (case_.masked() && case_.states() > 0 ? case_.count() : 0);
    const std::size_t written = masters + case_.moment_bytes() + narrow_values;
    return {.memory_bytes = static_cast<double>(read + written),
            .working_set_bytes = static_cast<double>(read + narrow_values),
            .updates_in_place = true};
  }

  void describe(Description& description) {
    const double elements = case_.elements;
    description.set("memory_bytes", cost().memory_bytes);
    description.set("memory_bytes_per_element", cost().memory_bytes / elements);
    if (description.seconds > 0)
      description.set("memory_GBps", cost().memory_bytes / description.seconds / 1e9);
    // Without a master copy, the values are the weights that the table counts.
    const auto state_bytes = static_cast<double>(
        held_[Category::optimizer] + (case_.narrow() ? 0 : held_[Category::parameters]));
    description.set("state_bytes_per_element", state_bytes / elements);
    description.set("state_per_32bit_weight", state_bytes / elements / 4);
    description.set("state_per_16bit_weight", state_bytes / elements / 2);
  }

 private:
  // Returns the pattern of values (step 0) or of a step's gradients. All are positive, because a
  // decay that cancels a gradient leaves Adam's quotient without a bound.
  Tensor pattern(Dtype dtype, int step) const {
    const Tensor pattern(context_.device, dtype,
                         {std::min<std::int64_t>(case_.period(), case_.elements)},
                         Category::buffers);
    context_.device.stream().kernels().fill_uniform(
        pattern, context_.seed + static_cast<std::uint64_t>(step), {}, 0.25, 1);
    return pattern;
  }
  void set(const Tensor& tensor, int step) const {
    const Tensor once = pattern(tensor.dtype(), step);
    machine::Stream& stream = context_.device.stream();
    const std::int64_t period = case_.period();
    for (std::int64_t begin = 0; begin < tensor.size(); begin += period) {
      const Tensor part = tensor.slice(begin, {std::min(period, tensor.size() - begin)});
      stream.copy(part.data(), once.data(), part.bytes());
    }
    stream.synchronize();
  }
  std::vector<std::uint8_t> mask() const {
    std::vector<std::uint8_t> mask(case_.count(), 1);
    if (case_.masked())
      for (std::size_t i = 0; i < mask.size(); ++i)
        mask[i] = i % static_cast<std::size_t>(case_.period()) % 3 == 0;
    return mask;
  }

  // Starts from the initial values, without moments.
  void start() {
    optimizer_.reset();
    set(values_, 0);
    optimizer_.emplace(rule_, values_, mask());
  }

  using Element = OptimizerReference::Element;
  struct Result {
    std::string what;
    Tensor tensor;
    Bounded Element::*reference;
  };
  std::vector<Result> results() const {
    std::vector<Result> results{
        {"values", values_, &Element::master},
        {"master", case_.narrow() ? optimizer_->master() : Tensor(), &Element::master},
        {"first moment", optimizer_->first_moment(), &Element::first},
        {"second moment", optimizer_->second_moment(), &Element::second}};
    std::erase_if(results, [](const Result& result) { return !result.tensor; });
    return results;
  }

  void compare(Judge& judge, const Result& result, const std::vector<Element>& reference) const {
    std::vector<double> expected, bounds;
    const Dtype dtype = result.tensor.dtype();
    const double again = dtype == case_.wide() ? 0 : machine::unit_roundoff(dtype);
    for (const Element& element : reference) {
      const Bounded& x = element.*result.reference;
      expected.push_back(x.value);
      bounds.push_back(x.error + again * (std::abs(x.value) + x.error));
    }
    const machine::Shape once{static_cast<std::int64_t>(expected.size())};
    judge.numerics(result.what, to_doubles(result.tensor.slice(0, once)), expected, bounds);
  }
  // The last block of codes may be shorter than its copy.
  double copies_that_differ(const Tensor& tensor) const {
    double differ = 0;
    const std::int64_t period = case_.period(),
                       end = case_.coded() ? tensor.size() - tensor.size() % machine::moment_block
                                           : tensor.size();
    for (std::int64_t begin = period; begin < end; begin += period) {
      const machine::Shape shape{std::min(period, end - begin)};
      differ += hash(tensor.slice(begin, shape)) != hash(tensor.slice(0, shape));
    }
    return differ;
  }

  // Every step of the first copy, then the bits of another number of threads.
  void judge_codes(Judge& judge) {
    const auto first =
        static_cast<std::size_t>(std::min<std::int64_t>(case_.period(), case_.elements));
    std::vector<std::uint8_t> decays = mask();
    decays.resize(first);
    const int threads = context_.device.threads();
    for (const int with : {threads, std::max(1, threads - 1)}) {
      context_.device.set_threads(with);
      start();
      for (int step = 1; step <= steps_judged; ++step) {
        set(gradient_, step);
        const EightBitStates before = eight_bit_states(optimizer_->states());
        run();
        if (with == threads)
          judge_eight_bit_update(judge, fmt::format("step {}", step),
                                 {std::get<zero::AdamW8Bit>(rule_), step, gradient_scale,
                                  to_doubles(pattern(case_.wide(), step)), decays},
                                 first_elements(before, first),
                                 first_elements(eight_bit_states(optimizer_->states()), first));
      }
      context_.device.set_threads(threads);
      for (const Result& result : results()) judge.same_bits(result.what, hash(result.tensor));
      judge.same_bits("scales", hash(optimizer_->states().scales));
    }
    for (const Result& result : results())
      judge.numerics(result.what + ", copies of the pattern that differ",
                     copies_that_differ(result.tensor), 0);
    if (!case_.narrow()) return;
    std::vector<double> bounds;
    const std::vector<double> master = to_doubles(optimizer_->master());
    for (const double value : master)
      bounds.push_back(machine::unit_roundoff(case_.dtype) * std::abs(value));
    judge.numerics("values against the master", to_doubles(values_), master, bounds);
  }

  void judge_memory(Judge& judge) const {
    const std::size_t kept =
        case_.moment_bytes() + (case_.narrow() ? case_.master_bytes() * case_.count() : 0);
    const std::size_t mask_bytes = case_.optimizer == "sgd" ? 0 : 1;
    const std::size_t count = case_.count();
    for (const auto& [category, bytes] :
         {std::pair(Category::parameters, case_.value_bytes() * count),
          {Category::gradients, case_.master_bytes() * count},
          {Category::optimizer, kept},
          {Category::buffers, mask_bytes * count}})
      judge.memory(category, held_.at(category), bytes);
  }

  Case case_;
  Context& context_;
  zero::Rule rule_;
  Tensor values_, gradient_;
  std::optional<zero::Optimizer> optimizer_;
  std::map<Category, std::size_t> held_;
};

const bool registered = harness::add<OptimizerStep>();

}  // namespace
}  // namespace suite
