// Claim: a compressed all-reduce sends exactly the bytes of its closed form, and its error is
// within the bound of its code. It keeps the values that it did not send, and all ranks get the
// same bits.
//
// Inputs are normal. `density` is the fraction of the elements that top_k sends, and sets the
// threshold and the number of standard deviations. Timed runs start with an empty residual. The
// yardstick is the ring of floats over the same transport, so speedup_over_library is the speedup
// over that ring.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "collectives/compression/compressed_all_reduce.h"
#include "collectives/compression/volume.h"
#include "collectives/cost.h"
#include "suite/options/options.h"
#include "suite/reference/compression_reference.h"
#include "suite/reference/unit.h"

namespace suite {
namespace {

using harness::Bytes;
using Values = std::vector<double>;

constexpr double u = 0x1p-24;

bool is_sparse(std::string_view algorithm) {
  return algorithm == "top_k" || algorithm == "threshold" || algorithm == "deviation";
}

double number(const std::string& text) { return number_of<double>(text).value_or(NAN); }

// Returns the magnitude that a standard normal number exceeds with this probability.
float normal_threshold(double probability) {
  double low = 0, high = 40;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(middle / std::sqrt(2.0)) > probability ? low : high) = middle;
  }
  return static_cast<float>(high);
}

struct CompressedAllReduceUnit {
  static constexpr std::string_view name = "compressed_all_reduce";
  static constexpr std::string_view about = "the approximate sum over all ranks, from fewer bytes";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::determinism};
  static constexpr Counter counters[] = {
      {"relative_error", "", Better::lower, Nature::exact,
       "error of the compressed sum, relative to the sum"},
      {"compression_ratio", "", Better::higher, Nature::exact,
       "bytes of a ring all-reduce over the bytes sent"},
      {"bytes_sent_per_rank", "B", Better::lower, Nature::exact, "mean over ranks"},
      {"compress_GBps", "GB/s", Better::higher, Nature::measured,
       "input bytes over the time of compressing them"},
      {"decompress_GBps", "GB/s", Better::higher, Nature::measured,
       "input bytes over the time of decompressing the result"}};
  static constexpr bool repeatable = false;  // a residual grows

  struct Case {
    int ranks = 2;
    Transport transport{};
    std::string algorithm, density;
    Bytes bytes;
  };

  static Sweep<Case> sweep() {
    using enum Profile;
    const std::vector<std::string> names = collectives::compression_names();
    const std::vector<Transport> transports{Transport::shared_memory, Transport::mpi};
    Sweep<Case> sweep;
    sweep.axis("algorithm", &Case::algorithm, *std::ranges::find_if_not(names, is_sparse), names)
        .axis("transport", &Case::transport, Transport::shared_memory)
        .axis("density", &Case::density, "1")
        .axis("ranks", &Case::ranks, 2)
        .axis("bytes", &Case::bytes, Bytes{65536})
        .only([](const Case& c) -> std::string {
          if (c.bytes.value % 4 != 0) return "bytes must be a multiple of 4, the size of a float";
          const double density = number(c.density);
          if (!(density > 0 && density <= 1))
            return fmt::format("density is '{}'; expected a number above 0, up to 1", c.density);
          if (is_sparse(c.algorithm) && density == 1)
            return fmt::format("algorithm {} requires a density below 1", c.algorithm);
          if (!is_sparse(c.algorithm) && density < 1)
            return fmt::format("algorithm {} requires density 1, because it sends every element",
                               c.algorithm);
          return {};
        });
    const std::vector<Bytes> sizes = harness::powers(4096, 16 << 20, 16);
    const std::vector<std::string> densities{"0.001", "0.01", "1"};  // only() drops invalid pairs
    sweep
        .slice({acceptance, paper}, "matrix",
               {vary(&Case::algorithm, names), vary(&Case::transport, transports),
                vary(&Case::density, densities), vary(&Case::ranks, {2, 3, 4, 8}),
                vary(&Case::bytes, sizes)})
        .slice({acceptance, paper}, "one rank",
               {vary(&Case::algorithm, names), vary(&Case::density, densities),
                vary(&Case::ranks, {1}), vary(&Case::bytes, sizes)})
        .slice({quick}, "large",
               {vary(&Case::algorithm, names), vary(&Case::density, {"0.01", "1"}),
                vary(&Case::bytes, {{4 << 20}})})
        .slice({quick}, "two hops",
               {vary(&Case::algorithm, {"two_hop_reduce_scatter", "two_hop_reduce_scatter_int4"}),
                vary(&Case::ranks, {4})})
        .slice({quick}, "transports",
               {vary(&Case::algorithm, {"int8_block", "two_hop_reduce_scatter"}),
                vary(&Case::transport, {Transport::mpi})})
        // An odd number of elements leaves a partial byte and a partial block.
        .slice({quick, smoke}, "edges",
               {vary(&Case::algorithm, names), vary(&Case::density, {"0.01", "1"}),
                vary(&Case::ranks, {3}), vary(&Case::bytes, {{1009 * 4}})})
        .slice({smoke}, "smoke",
               {vary(&Case::algorithm, names), vary(&Case::density, {"0.01", "1"}),
                vary(&Case::ranks, {1, 2}), vary(&Case::bytes, {{0}, {8}, {20000}})});
    return sweep;
  }

  CompressedAllReduceUnit(const Case& c, Context& context)
      : case_(c),
        context_(context),
        communicator_(context.world, context.group, c.transport),
        ring_(context.world, context.group, c.transport),
        count_(c.bytes.value / 4),
        in_(context.device, Dtype::float32, {count_}, Category::buffers),
        out_(context.device, Dtype::float32, {count_}, Category::buffers) {
    const double density = number(c.density);
    const double k = std::ceil(density * static_cast<double>(count_));
    options_.k = std::max<std::int64_t>(1, static_cast<std::int64_t>(k));
    options_.threshold = normal_threshold(density);
    if (density < 1) options_.deviations = static_cast<double>(options_.threshold);
    context.device.stream().kernels().fill_normal(
        in_, context.seed + static_cast<std::uint64_t>(communicator_.rank()), {0, 0, count_}, 0, 1);
    // Some whole blocks are zero, wherever shares begin.
    if (count_ >= 4096) context.device.stream().kernels().fill(in_.slice(512, {1024}), 0);
    compressed_ = collectives::make_compression(
        c.algorithm,
        machine::between_devices(c.transport) ? context.device : context.world.host_device(),
        communicator_, count_, options_);
  }

  void prepare() { compressed_->reset(); }
  void run() { compressed_->run(in_, out_); }
  void yardstick() { ring_.all_reduce(in_, out_, "ring"); }
  bool only_queues() const {
    return communicator_.link().stream() != nullptr && compressed_->only_queues();
  }

  void judge(Judge& judge) {
    seconds_ = compressed_->seconds();
    const Values x = to_doubles(in_);
    judge_volume(judge, x);
    judge_numerics(judge, x);
    for (int repeat = 0; repeat < 2; ++repeat) {  // the second turn starts with a residual
      compressed_->reset();
      for (int turn = 0; turn < 2; ++turn) {
        run();
        context_.device.stream().synchronize();
        judge.same_bits(fmt::format("result of run {}", turn), hash(out_));
      }
      judge.same_bits(fmt::format("residual of rank {}", communicator_.rank()),
                      hash(compressed_->residual()));
    }
  }

  Cost cost() const {
    Cost cost;
    cost.algorithm_bytes = static_cast<double>(in_.bytes());
    cost.bus_factor = collectives::bus_factor(machine::Operation::all_reduce, case_.ranks);
    cost.memory_bytes = 2 * cost.algorithm_bytes;
    cost.working_set_bytes = cost.memory_bytes;
    return cost;
  }

  void describe(Description& description) const {
    description.set("relative_error", relative_error_);
    if (case_.ranks > 1) {
      description.set("compression_ratio", ring_bytes_sent(call()) / bytes_sent_);
      description.set("bytes_sent_per_rank", bytes_sent_);
    }
    if (seconds_.compress > 0)
      description.breakdown = {{"compress", seconds_.compress},
                               {"exchange", seconds_.exchange},
                               {"decompress", seconds_.decompress}};
    const auto bytes = static_cast<double>(in_.bytes());
    if (seconds_.compress > 0) description.set("compress_GBps", bytes / seconds_.compress / 1e9);
    if (seconds_.decompress > 0)
      description.set("decompress_GBps", bytes / seconds_.decompress / 1e9);
  }

 private:
  collectives::CompressedCall call() const {
    return {case_.ranks, count_, options_.k, most_sent_, communicator_.inner()};
  }
  bool has_two_hops() const {
    const int inner = communicator_.inner();
    return case_.algorithm.starts_with("two_hop") && inner > 1 && inner < case_.ranks;
  }
  bool has_two_steps() const {
    return !is_sparse(case_.algorithm) && case_.algorithm != "int8_block";
  }

  void judge_volume(Judge& judge, const Values& x) {
    std::int64_t sent = std::count_if(x.begin(), x.end(), [&](double value) {
      return std::abs(value) >= static_cast<double>(options_.threshold);
    });
    if (case_.algorithm == "deviation" && count_ > 0)
      sent = std::ranges::count(kept(x), 0) - std::ranges::count(x, 0);
    most_sent_ =
        std::max(most_sent_, std::ranges::max(context_.world.all_gather(context_.group, sent)));
    compressed_->reset();
    communicator_.link().reset_traffic();
    run();
    // Bytes under an unexpected label fail too.
    auto expected = collectives::bytes_sent(case_.algorithm, call());
    auto measured = communicator_.link().traffic();
    bytes_sent_ = 0;
    for (const auto& [label, traffic] : measured) {
      if (traffic.bytes_sent > 0) expected.try_emplace(label, 0);
      bytes_sent_ += static_cast<double>(traffic.bytes_sent);
    }
    for (const auto& [label, bytes] : expected)
      judge.volume("world", label, measured[label].bytes_sent, bytes);
    if (expected.empty()) judge.volume("world", {}, 0, 0);  // one rank sends nothing
  }

  void judge_numerics(Judge& judge, const Values& x) {
    compressed_->reset();
    run();
    const Values result = to_doubles(out_), held = compressed_->held_back();
    if (case_.algorithm == "top_k" || case_.algorithm == "deviation")
      judge.exact("elements that a rank keeps", to_doubles(compressed_->residual()), kept(x));

    const Values exact = total(x), all_held = total(held);
    const Values magnitudes = total(absolute(x)), held_magnitudes = total(absolute(held));
    Values error = total(own_error(x));
    if (has_two_hops()) add_error_of_hop(x, error);
    if (has_two_steps()) add_error_of_sum(exact, error, error);

    // Bounds the float roundings. A rank rounds in + residual and the subtraction of the sent
    // value. The sum has N - 1 additions and at most five more roundings. The sent value is at most
    // the input plus the value held back. The totals here are rounded in double.
    const double roundings = harness::gamma(case_.ranks + 8, u);
    Values came = result, bounds = result;
    double squared_error = 0, squared = 0;
    for (std::size_t i = 0; i < result.size(); ++i) {
      bounds[i] = roundings * (magnitudes[i] + 2 * held_magnitudes[i]);
      came[i] += all_held[i];
      error[i] += roundings * (magnitudes[i] + error[i]);
      squared_error += (result[i] - exact[i]) * (result[i] - exact[i]);
      squared += exact[i] * exact[i];
    }
    relative_error_ = squared > 0 ? std::sqrt(squared_error / squared) : 0;
    judge.numerics("result plus values held back", came, exact, bounds);
    judge.numerics("compressed sum", result, exact, error);

    // The second run also gets the residual of the first.
    run();
    const Values again = to_doubles(out_), later = compressed_->held_back();
    const Values all_later = total(later), later_magnitudes = total(absolute(later));
    Values twice = exact;
    for (std::size_t i = 0; i < result.size(); ++i) {
      bounds[i] += roundings * (magnitudes[i] + held_magnitudes[i] + 2 * later_magnitudes[i]);
      came[i] = result[i] + again[i] + all_later[i];
      twice[i] *= 2;
    }
    judge.numerics("results of two runs plus values held back", came, twice, bounds);
  }

  template <class Of>
  static Values map(Values values, const Of& of) {
    for (double& value : values) value = of(value);
    return values;
  }
  static Values absolute(const Values& values) {
    return map(values, [](double value) { return std::abs(value); });
  }

  // Returns the sum over all ranks, in double.
  Values total(Values values) {
    constexpr std::int64_t longest = 1 << 18;
    const Tensor buffer(context_.device, Dtype::float64, {std::min(longest, count_)},
                        Category::buffers);
    for (std::int64_t begin = 0; begin < count_; begin += longest) {
      const Tensor piece = buffer.slice(0, {std::min(longest, count_ - begin)});
      const auto part = values.begin() + begin;
      machine::from_doubles(piece, {part, part + piece.size()});
      ring_.all_reduce(piece);
      std::ranges::copy(to_doubles(piece), part);
    }
    return values;
  }

  void add_code_errors(const Values& magnitudes, Values& error) const {
    suite::add_code_errors(case_.algorithm, has_two_steps() ? case_.ranks : 1, magnitudes, error);
  }

  // Returns the elements that an exact sparse code does not send.
  Values kept(const Values& x) const {
    return case_.algorithm == "top_k" ? kept_by_top_k(x, options_.k)
                                      : kept_by_deviation(x, options_.deviations);
  }

  // Returns the largest error that this rank's code makes in each element.
  Values own_error(const Values& x) const {
    const Values magnitudes = absolute(x);
    if (case_.algorithm == "top_k" || case_.algorithm == "deviation") return absolute(kept(x));
    if (case_.algorithm == "threshold") {
      const auto threshold = static_cast<double>(options_.threshold);
      return map(magnitudes,
                 [&](double value) { return value >= threshold ? value - threshold : value; });
    }
    Values error(x.size(), 0.0);
    add_code_errors(magnitudes, error);
    return error;
  }

  // An algorithm with two hops also codes the sums of the hosts.
  void add_error_of_hop(const Values& x, Values& error) {
    const Values first = own_error(x);
    Values added(x.size(), 0.0);
    for (int host = 0; host < case_.ranks / communicator_.inner(); ++host) {
      const bool mine = communicator_.rank() / communicator_.inner() == host;
      const auto of_host = [&](const Values& values) {
        return total(mine ? values : Values(values.size(), 0.0));
      };
      const Values largest = of_host(first), exact = of_host(x);
      add_error_of_sum(exact, largest, added);
    }
    for (std::size_t i = 0; i < error.size(); ++i) error[i] += added[i];
  }

  // Adds the error of coding a sum, which is at most as large as the exact sum and its error.
  void add_error_of_sum(const Values& exact, Values largest, Values& error) const {
    for (std::size_t i = 0; i < exact.size(); ++i)
      largest[i] = (std::abs(exact[i]) + largest[i]) * (1 + harness::gamma(case_.ranks + 8, u));
    add_code_errors(largest, error);
  }

  Case case_;
  Context& context_;
  collectives::Communicator communicator_, ring_;
  std::int64_t count_;
  collectives::CompressionOptions options_;
  Tensor in_, out_;
  std::unique_ptr<collectives::CompressedAllReduce> compressed_;
  collectives::CompressedAllReduce::Seconds seconds_;
  std::int64_t most_sent_ = 0;
  double bytes_sent_ = 0, relative_error_ = 0;
};

const bool registered = harness::add<CompressedAllReduceUnit>();

}  // namespace
}  // namespace suite
