// Claim: AdamW with its states in host memory (ZeRO-Offload: Ren et al. 2021, arXiv:2101.06840)
// gives the values the same bits as AdamW on the device. It updates piece by piece, and any part of
// the range can stay on the device. It moves the gradient's bytes down and the values' bytes up,
// each once, and holds the bytes of the formulas. If updates are delayed, the values of a step are
// those of the previous step, bit for bit, and the first step changes nothing.
//
// All ranks work at once, on `elements` each. piece_size: elements that move down, are updated and
// move up together. ratio: the fraction that the host updates. gradient_dtype: dtype of the
// gradients that move down (with 16-bit values the paper's 4 bytes per element). On the host,
// device memory is host memory, and memory_GBps counts the bytes that the copies and the update
// read and write. If there are two or more cores, the update leaves one core to the copies, because
// OpenMP's threads spin while they wait. Delayed steps run back to back here, so no backward pass
// hides them.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>

#include "suite/reference/shared_counters.h"
#include "suite/reference/unit.h"
#include "zero/offload/streamed_optimizer.h"

namespace suite {
namespace {

constexpr int steps_judged = 3;
constexpr double gradient_scale = 1.0 / 7;
const zero::Rule rule = zero::AdamW{.learning_rate = 1e-2, .weight_decay = 0.1};

struct OffloadStep {
  static constexpr std::string_view name = "offload_step";
  static constexpr std::string_view about = "AdamW with its states in host memory";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                       Oracle::determinism};
  static constexpr Counter counters[] = {
      {"offload_bytes_per_element", "B", Better::neither, Nature::exact,
       "bytes moved between device and host in a step"},
      {"host_bytes_per_element", "B", Better::neither, Nature::exact,
       "host memory of states and buffers"},
      {"pieces", "", Better::neither, Nature::exact, "pieces of the streamed update"},
      {"elements_per_second", "1/s", Better::higher, Nature::measured,
       "elements updated per second"},
      memory_GBps_counter};
  static constexpr bool equal_work = true;

  struct Case {
    int ranks = 1;
    Dtype dtype{}, gradient_dtype{};
    int piece_size = 0;
    std::string ratio;
    bool delayed_update = false;
    int elements = 0;

    zero::StateOptions options() const {
      return {.device = zero::OffloadDevice::cpu,
              .cpu = {.piece_size = piece_size,
                      .ratio = std::stod(ratio),
                      .delayed_update = delayed_update}};
    }
    std::size_t wide() const { return dtype == Dtype::float64 ? 8 : 4; }
    bool narrow() const { return size_of(dtype) < wide(); }
    // Returns the cost by the formulas, independent of the optimizer's own.
    zero::StateCost cost() const {
      const std::size_t value = size_of(dtype), gradient = size_of(gradient_dtype);
      const auto host = static_cast<std::size_t>(std::llround(std::stod(ratio) * elements));
      const std::size_t device = static_cast<std::size_t>(elements) - host;
      const std::size_t piece = std::min(static_cast<std::size_t>(piece_size), host);
      const std::size_t staged = delayed_update ? host : std::min(2 * piece, host);
      return {.device_optimizer = (narrow() ? 3 : 2) * wide() * device,
              .device_buffers = device,
              .host_optimizer = 3 * wide() * host,
              .host_buffers = staged * (gradient + (narrow() ? value : 0)) + host,
              .moved = {.down = gradient * host, .up = value * host},
              .host_elements = static_cast<std::int64_t>(host),
              .pieces = static_cast<std::int64_t>(host == 0 ? 0 : (host + piece - 1) / piece)};
    }
  };

  static Sweep<Case> sweep() {
    using enum Profile;
    using enum Dtype;
    const std::vector<Dtype> floating{float32, bfloat16, float16, float64};
    const auto dtypes = vary(&Case::dtype, {float32, bfloat16});
    const auto gradients = vary(&Case::gradient_dtype, {float32, bfloat16});
    const auto ratios = vary(&Case::ratio, {"0.5", "1"});
    const auto delays = vary(&Case::delayed_update, {false, true});
    const auto ranks = vary(&Case::ranks, {1, 2});
    const std::vector matrix{dtypes, gradients, vary(&Case::piece_size, {1 << 12, 1 << 18}),
                             ratios, delays,    ranks};
    std::vector larger = matrix;
    larger.push_back(vary(&Case::elements, {1 << 20, 8 << 20}));
    return Sweep<Case>()
        .axis("dtype", &Case::dtype, float32, floating)
        .axis("gradient_dtype", &Case::gradient_dtype, float32, floating)
        .axis("piece_size", &Case::piece_size, 1 << 16)
        .axis("ratio", &Case::ratio, "1", {"0", "0.25", "0.5", "0.75", "1"})
        .axis("delayed_update", &Case::delayed_update, false)
        .axis("ranks", &Case::ranks, 1)
        .axis("elements", &Case::elements, 1 << 20)
        .only([](const Case& c) {
          if (c.elements < 1) return fmt::format("elements is {}; expected at least 1", c.elements);
          try {
            zero::state_cost(rule, c.dtype, {c.elements}, c.options(), {}, c.gradient_dtype);
          } catch (const std::invalid_argument& error) {
            return fmt::format("--{}", error.what());
          }
          return std::string();
        })
        .slice({acceptance}, "matrix", matrix)
        .slice({paper}, "matrix", larger)
        .slice({quick}, "part", {vary(&Case::dtype, {bfloat16}), vary(&Case::ratio, {"0.5"})})
        .slice({quick}, "delayed",
               {dtypes, vary(&Case::delayed_update, {true}), vary(&Case::ranks, {2})})
        // Pieces do not divide the host's part, and this part does not divide the elements.
        .slice({quick, smoke}, "edges",
               {dtypes, gradients, vary(&Case::piece_size, {1009}), vary(&Case::ratio, {"0.25"}),
                vary(&Case::ranks, {3}), vary(&Case::elements, {10007})})
        .slice({smoke}, "smoke",
               {dtypes, gradients, vary(&Case::piece_size, {1 << 12}), ratios, delays, ranks,
                vary(&Case::elements, {1, 10007})});
  }

  OffloadStep(const Case& c, Context& context)
      : case_(c),
        context_(context),
        pinned_(context.device.readable_by_host()
                    ? nullptr
                    : machine::make_host_device_beside(context.device)),
        host_(pinned_ ? *pinned_ : context.device),
        threads_(context.world.host_device().threads()) {
    host_.set_threads(std::max(1, threads_ - 1));
    values_ = Tensor(context.device, c.dtype, {c.elements}, Category::parameters);
    gradient_ = Tensor(context.device, c.gradient_dtype, {c.elements}, Category::gradients);
    const harness::PeakMeter on_host(host_.ledger()), on_device(context.device.ledger());
    start();
    for (const Category category : machine::all_categories) {
      held_[category] = on_host.current(category);
      if (&host_ != &context.device) held_[category] += on_device.current(category);
    }
    fill(gradient_, 1);
  }

  ~OffloadStep() {
    optimizer_.reset();
    host_.set_threads(threads_);
  }
  OffloadStep(const OffloadStep&) = delete;
  OffloadStep& operator=(const OffloadStep&) = delete;

  void prepare() {}
  void run() { optimizer_->update(gradient_, gradient_scale); }

  void judge(Judge& judge) {
    const zero::StateCost cost = case_.cost();
    judge.memory(Category::optimizer, held_[Category::optimizer],
                 cost.host_optimizer + cost.device_optimizer);
    judge.memory(Category::buffers, held_[Category::buffers],
                 cost.host_buffers + cost.device_buffers);

    // Another number of threads gives the same bits.
    const int threads = host_.threads();
    for (const int with : {threads, threads_}) {
      optimizer_.reset();  // it may still be running
      host_.set_threads(with);
      judge_steps(judge, cost);
    }
    host_.set_threads(threads);
  }

  Cost cost() const {
    if (!context_.device.readable_by_host()) return {};
    const std::size_t value = size_of(case_.dtype), gradient = size_of(case_.gradient_dtype);
    const bool narrow = case_.narrow();
    const std::size_t wide = case_.wide();
    const std::size_t update = 6 * wide + gradient + (narrow ? value : 0);
    const auto elements = static_cast<std::size_t>(case_.elements);
    const auto of_host = static_cast<std::size_t>(case_.cost().host_elements);
    return {
        .memory_bytes = static_cast<double>(elements * update + 2 * of_host * (gradient + value)),
        .working_set_bytes = static_cast<double>(elements * (gradient + value + 2 * wide) +
                                                 (narrow ? elements : of_host) * wide),
        .updates_in_place = true};
  }

  void describe(Description& description) {
    const double elements = case_.elements;
    const zero::StateCost offload = case_.cost();
    description.set("offload_bytes_per_element",
                    static_cast<double>(offload.moved.down + offload.moved.up) / elements);
    description.set("host_bytes_per_element",
                    static_cast<double>(offload.host_optimizer + offload.host_buffers) / elements);
    description.set("pieces", static_cast<double>(offload.pieces));
    if (description.seconds <= 0) return;
    description.set("elements_per_second", elements / description.seconds);
    description.set("memory_GBps", cost().memory_bytes / description.seconds / 1e9);
  }

 private:
  // Values use step 0, gradients their own step.
  void fill(const Tensor& tensor, int step) const {
    context_.device.stream().kernels().fill_uniform(
        tensor, context_.seed + static_cast<std::uint64_t>(step), {}, 0.25, 1);
  }
  std::vector<std::uint8_t> mask() const {
    return std::vector<std::uint8_t>(static_cast<std::size_t>(case_.elements), 1);
  }
  void start() {
    optimizer_.reset();
    fill(values_, 0);
    optimizer_.emplace(rule, values_, mask(), host_, case_.options(), case_.gradient_dtype);
  }

  // Compares with an optimizer in device memory. If updates are delayed, that optimizer is a step
  // ahead.
  void judge_steps(Judge& judge, const zero::StateCost& cost) {
    start();
    const Tensor expected(context_.device, case_.dtype, {case_.elements}, Category::parameters);
    fill(expected, 0);
    zero::Optimizer in_memory(rule, expected, mask());
    const Tensor widened(context_.device, in_memory.master().dtype(), {case_.elements},
                         Category::gradients);
    const zero::Range host = optimizer_->host_range();
    const auto compare = [&](const std::string& what, const Tensor& got, const Tensor& reference) {
      judge.exact(what, to_doubles(got), to_doubles(reference));
    };
    const auto part = [](const Tensor& tensor, zero::Range range) {
      return tensor.slice(range.begin, {range.size()});
    };
    for (int step = 1; step <= steps_judged; ++step) {
      fill(gradient_, step);
      context_.device.stream().kernels().cast(gradient_, widened);
      std::vector<double> stale;
      if (case_.delayed_update) stale = to_doubles(part(expected, host));
      in_memory.update(widened, gradient_scale);
      const zero::OffloadTraffic before = optimizer_->moved();
      run();
      if (case_.delayed_update)
        judge.exact(fmt::format("values of step {}, those of the previous step", step),
                    to_doubles(part(values_, host)), stale);
      else
        judge_volume(judge, before, cost, 1);
      compare(fmt::format("values on the device after step {}", step),
              part(values_, {0, host.begin}), part(expected, {0, host.begin}));
    }
    optimizer_->drain();
    // The same number of updates moves up and down, the last one by drain.
    if (case_.delayed_update) judge_volume(judge, {}, cost, steps_judged);
    compare("values", values_, expected);
    const zero::RangeStates states = states_of(host, widened.dtype());
    compare("master", states.master, part(in_memory.master(), host));
    compare("first moment", states.first_moment, part(in_memory.first_moment(), host));
    compare("second moment", states.second_moment, part(in_memory.second_moment(), host));
    judge.same_bits("values", hash(values_));
    judge.same_bits("master", hash(states.master));
  }

  // Returns the states that the optimizer keeps on the host. host: its part of the range.
  zero::RangeStates states_of(zero::Range host, Dtype wide) {
    using States = zero::RangeStates;
    constexpr Tensor States::*states[] = {&States::master, &States::first_moment,
                                          &States::second_moment};
    States all;
    for (const auto state : states)
      all.*state = Tensor(host_, wide, {host.size()}, Category::parameters);
    optimizer_->visit(false, [&](zero::Range at, const States& piece) {
      if (at.begin < host.begin) return;
      for (const auto state : states)
        context_.device.stream().copy((all.*state).slice(at.begin - host.begin, {at.size()}).data(),
                                      (piece.*state).data(), (piece.*state).bytes());
      context_.device.stream().synchronize();
    });
    return all;
  }

  void judge_volume(Judge& judge, const zero::OffloadTraffic& before, const zero::StateCost& cost,
                    std::uint64_t steps) const {
    const zero::OffloadTraffic moved = optimizer_->moved() - before;
    judge.volume("device to host", {Operation::none, case_.gradient_dtype}, moved.down,
                 steps * cost.moved.down);
    judge.volume("host to device", {Operation::none, case_.dtype}, moved.up, steps * cost.moved.up);
  }

  Case case_;
  Context& context_;
  std::unique_ptr<machine::Device> pinned_;  // null: the device is the host
  machine::Device& host_;
  const int threads_;
  Tensor values_, gradient_;
  std::optional<zero::StreamedOptimizer> optimizer_;
  std::map<Category, std::size_t> held_;
};

const bool registered = harness::add<OffloadStep>();

}  // namespace
}  // namespace suite
