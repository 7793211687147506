// Claim: a compressed all-reduce sends exactly the bytes of its closed form, errs by no more than
// its code allows, keeps what it did not send, and gives all ranks the same bits.
//
// Inputs are normal; `density` is the part of the elements that top_k sends, and that the threshold
// is set for. What is timed starts with an empty residual; the yardstick is the ring of floats over
// the same transport, so that speedup_over_library is the speed-up over that ring.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "collectives/compression/compressed_all_reduce.h"
#include "collectives/compression/volume.h"
#include "collectives/cost.h"
#include "harness/unit/unit.h"
#include "machine/link/connect.h"
#include "suite/options/options.h"

namespace suite {
namespace {

using harness::Better, harness::Nature;

using harness::Bytes;
using harness::Oracle;
using harness::Profile;
using harness::vary;
using machine::Category;
using machine::Dtype;
using machine::Tensor;
using machine::Transport;
using Values = std::vector<double>;

constexpr double u = 0x1p-24;

bool is_sparse(std::string_view algorithm) {
  return algorithm == "top_k" || algorithm == "threshold";
}

double number(const std::string& text) { return number_of<double>(text).value_or(NAN); }

// That a standard normal number's magnitude exceeds with this probability.
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
  static constexpr std::string_view about = "the sum over all ranks, of fewer bytes, with an error";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::determinism};
  static constexpr harness::Counter counters[] = {
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

  static harness::Sweep<Case> sweep() {
    using enum Profile;
    std::vector<std::string> names, sparse, dense;
    for (const auto& compression : collectives::compressions()) {
      names.emplace_back(compression.name);
      (is_sparse(names.back()) ? sparse : dense).push_back(names.back());
    }
    const std::vector<Transport> transports{Transport::shared_memory, Transport::mpi};
    harness::Sweep<Case> sweep;
    sweep.axis("algorithm", &Case::algorithm, dense.front(), names)
        .axis("transport", &Case::transport, Transport::shared_memory)
        .axis("density", &Case::density, "1")
        .axis("ranks", &Case::ranks, 2)
        .axis("bytes", &Case::bytes, Bytes{65536})
        .only([](const Case& c) -> std::string {
          if (c.bytes.value % 4 != 0) return "elements are floats, of 4 bytes";
          const double density = number(c.density);
          if (!(density > 0 && density <= 1))
            return fmt::format("density '{}' is no number above 0, up to 1", c.density);
          if (is_sparse(c.algorithm) && density == 1)
            return fmt::format("algorithm {} needs a density below 1", c.algorithm);
          if (!is_sparse(c.algorithm) && density < 1)
            return fmt::format("algorithm {} sends every element: density 1", c.algorithm);
          return {};
        });
    const std::vector<Bytes> sizes = harness::powers(4096, 16 << 20, 16);
    const std::vector<std::string> densities{"0.001", "0.01", "1"};  // `only` has the right ones
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
        // An odd number of elements: half a byte, half a block is left over.
        .slice({quick, smoke}, "edges",
               {vary(&Case::algorithm, names), vary(&Case::density, {"0.01", "1"}),
                vary(&Case::ranks, {3}), vary(&Case::bytes, {{1009 * 4}})})
        .slice({smoke}, "smoke",
               {vary(&Case::algorithm, names), vary(&Case::density, {"0.01", "1"}),
                vary(&Case::ranks, {1, 2}), vary(&Case::bytes, {{0}, {8}, {20000}})});
    return sweep;
  }

  CompressedAllReduceUnit(const Case& c, harness::Context& context)
      : case_(c),
        context_(context),
        communicator_(context.world, context.group, c.transport),
        count_(c.bytes.value / 4) {
    const double density = number(c.density);
    const double k = std::ceil(density * static_cast<double>(count_));
    options_.k = std::max<std::int64_t>(1, static_cast<std::int64_t>(k));
    options_.threshold = normal_threshold(density);
    in_ = Tensor(context.device, Dtype::float32, {count_}, Category::buffers);
    out_ = Tensor(context.device, Dtype::float32, {count_}, Category::buffers);
    context.device.stream().kernels().fill_normal(
        in_, context.seed + static_cast<std::uint64_t>(communicator_.rank()), {0, 0, count_}, 0, 1);
    // Blocks of codes that hold nothing, wherever shares begin.
    if (count_ >= 4096) context.device.stream().kernels().fill(in_.slice(512, {1024}), 0);
    compressed_ =
        collectives::make_compression(c.algorithm, context.world, communicator_, count_, options_);
    ring_ = std::make_unique<collectives::Communicator>(context.world, context.group, c.transport);
  }

  void prepare() { compressed_->reset(); }
  void run() { compressed_->run(in_, out_); }
  void yardstick() { ring_->all_reduce(in_, out_, "ring"); }

  void judge(harness::Judge& judge) {
    seconds_ = compressed_->seconds();
    const Values x = to_doubles(in_);
    judge_volume(judge, x);
    judge_numerics(judge, x);
    for (int repeat = 0; repeat < 2; ++repeat) {  // the second run with what the first left
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

  harness::Cost cost() const {
    harness::Cost cost;
    cost.algorithm_bytes = static_cast<double>(in_.bytes());
    cost.bus_factor = collectives::bus_factor(machine::Operation::all_reduce, case_.ranks);
    cost.memory_bytes = 2 * cost.algorithm_bytes;
    cost.working_set_bytes = cost.memory_bytes;
    return cost;
  }

  void describe(harness::Description& description) const {
    description.set("relative_error", relative_error_);
    if (case_.ranks > 1) {
      description.set("compression_ratio", ring_bytes_sent(call()) / bytes_sent_);
      description.set("bytes_sent_per_rank", bytes_sent_);
    }
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
    return {case_.ranks, count_, options_.k, most_above_threshold_, communicator_.inner()};
  }
  bool has_two_hops() const {
    const int inner = communicator_.inner();
    return case_.algorithm.starts_with("two_hop") && inner > 1 && inner < case_.ranks;
  }
  bool has_two_steps() const { return !is_sparse(case_.algorithm) && !is_int8_gathered(); }
  bool is_int8_gathered() const { return case_.algorithm == "int8_block"; }

  void judge_volume(harness::Judge& judge, const Values& x) {
    const std::int64_t above = std::count_if(x.begin(), x.end(), [&](double value) {
      return std::abs(value) >= static_cast<double>(options_.threshold);
    });
    most_above_threshold_ = std::max(
        most_above_threshold_, std::ranges::max(context_.world.all_gather(context_.group, above)));
    compressed_->reset();
    communicator_.link().reset_traffic();
    run();
    // What was sent under a label that was not expected fails too.
    std::map<machine::TrafficLabel, std::uint64_t> measured, expected;
    for (const auto& [label, traffic] : communicator_.link().traffic())
      if (traffic.bytes_sent > 0) measured[label] = traffic.bytes_sent;
    expected = collectives::bytes_sent(case_.algorithm, call());
    bytes_sent_ = 0;
    for (const auto& [label, bytes] : measured) {
      expected.try_emplace(label, 0);
      bytes_sent_ += static_cast<double>(bytes);
    }
    for (const auto& [label, bytes] : expected)
      judge.volume("world", label, measured[label], bytes);
    if (expected.empty()) judge.volume("world", {}, 0, 0);  // a rank alone sends nothing
  }

  void judge_numerics(harness::Judge& judge, const Values& x) {
    compressed_->reset();
    run();
    const Values result = to_doubles(out_), held = compressed_->held_back();
    if (case_.algorithm == "top_k")
      judge.exact("elements that top_k keeps", to_doubles(compressed_->residual()),
                  kept_by_top_k(x));

    const Values exact = total(x), all_held = total(held);
    const Values magnitudes = total(map(x, [](double value) { return std::abs(value); }));
    const Values held_magnitudes = total(map(held, [](double value) { return std::abs(value); }));
    Values error = total(own_error(x));
    if (has_two_hops()) add_error_of_hop(x, error);
    if (has_two_steps()) add_error_of_sum(exact, error);

    // In float: a rank rounds twice, in + residual and what it takes from that; N - 1 additions and
    // at most five more roundings make the sum. What is sent is no larger than what was given and
    // what is held back, together. Totals here are rounded in double.
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
    judge.numerics("what came out and what is held back", came, exact, bounds);
    judge.numerics("compressed sum", result, exact, error);

    // What the first run held back is given to the second as well.
    run();
    const Values again = to_doubles(out_), later = compressed_->held_back();
    const Values all_later = total(later);
    const Values later_magnitudes = total(map(later, [](double value) { return std::abs(value); }));
    Values twice = exact;
    for (std::size_t i = 0; i < result.size(); ++i) {
      bounds[i] += roundings * (magnitudes[i] + held_magnitudes[i] + 2 * later_magnitudes[i]);
      came[i] = result[i] + again[i] + all_later[i];
      twice[i] *= 2;
    }
    judge.numerics("what came out of two runs and is held back", came, twice, bounds);
  }

  template <class Of>
  static Values map(Values values, const Of& of) {
    for (double& value : values) value = of(value);
    return values;
  }

  // Over all ranks, in double.
  Values total(Values values) {
    constexpr std::int64_t longest = 1 << 18;
    const Tensor buffer(context_.world.host_device(), Dtype::float64, {std::min(longest, count_)},
                        Category::buffers);
    for (std::int64_t begin = 0; begin < count_; begin += longest) {
      const Tensor piece = buffer.slice(0, {std::min(longest, count_ - begin)});
      std::copy_n(values.begin() + begin, piece.size(), piece.as<double>());
      ring_->all_reduce(piece);
      std::copy_n(piece.as<double>(), piece.size(), values.begin() + begin);
    }
    return values;
  }

  // Of a whole sort; of equal magnitudes the later ones are kept.
  Values kept_by_top_k(const Values& x) const {
    Values magnitudes = map(x, [](double value) { return std::abs(value); });
    const std::int64_t k = std::min(options_.k, count_);
    if (k == 0) return {};
    std::nth_element(magnitudes.begin(), magnitudes.begin() + (k - 1), magnitudes.end(),
                     std::greater<>());
    const double least = magnitudes[static_cast<std::size_t>(k - 1)];
    std::int64_t equal_sent = k - std::count_if(x.begin(), x.end(), [&](double value) {
                                return std::abs(value) > least;
                              });
    return map(x, [&](double value) {
      const bool sent = std::abs(value) > least || (std::abs(value) == least && equal_sent-- > 0);
      return sent ? 0 : value;
    });
  }

  // The largest error of blocks of 8 or 4 bits (int_block.h) of these magnitudes.
  static void add_block_errors(const Values& magnitudes, std::size_t begin, std::size_t end,
                               int levels, Values& error) {
    for (; begin < end; begin += 256) {
      const std::size_t stop = std::min(end, begin + 256);
      double largest = 0;
      for (std::size_t i = begin; i < stop; ++i) largest = std::max(largest, magnitudes[i]);
      for (std::size_t i = begin; i < stop; ++i)
        error[i] +=
            std::max(largest / levels * (0.5 + levels * 4 * u), largest < 0x1p-119 ? largest : 0);
    }
  }
  // Where two steps cut the whole: blocks do not reach from one share into the next.
  std::size_t share() const {
    const std::int64_t cuts = has_two_steps() ? case_.ranks : 1;
    return static_cast<std::size_t>((count_ + cuts - 1) / cuts);
  }
  void add_code_errors(const Values& magnitudes, Values& error) const {
    if (case_.algorithm.ends_with("_wire")) {
      const bool half = case_.algorithm == "half_wire";
      const double roundoff = unit_roundoff(half ? Dtype::float16 : Dtype::bfloat16);
      for (std::size_t i = 0; i < magnitudes.size(); ++i)
        error[i] += std::max(roundoff * magnitudes[i], half ? 0x1p-25 : 0x1p-134);
    } else {
      const int levels = case_.algorithm.ends_with("_int4") ? 7 : 127;
      for (std::size_t begin = 0; begin < magnitudes.size(); begin += share())
        add_block_errors(magnitudes, begin, std::min(magnitudes.size(), begin + share()), levels,
                         error);
    }
  }

  // What this rank's code may leave out of each of its elements.
  Values own_error(const Values& x) const {
    const Values magnitudes = map(x, [](double value) { return std::abs(value); });
    if (case_.algorithm == "top_k")
      return map(kept_by_top_k(x), [](double kept) { return std::abs(kept); });
    if (case_.algorithm == "threshold") {
      const auto threshold = static_cast<double>(options_.threshold);
      return map(magnitudes,
                 [&](double value) { return value >= threshold ? value - threshold : value; });
    }
    Values error(x.size(), 0.0);
    add_code_errors(magnitudes, error);
    return error;
  }

  // The sums of hosts are coded on their way: each is as large as the exact one and its error, at
  // most.
  void add_error_of_hop(const Values& x, Values& error) {
    const Values first = own_error(x);
    Values added(x.size(), 0.0);
    for (int host = 0; host < case_.ranks / communicator_.inner(); ++host) {
      const bool mine = communicator_.rank() / communicator_.inner() == host;
      const auto of_host = [&](const Values& values) {
        return total(mine ? values : Values(values.size(), 0.0));
      };
      Values largest = of_host(first);
      const Values exact = of_host(x);
      for (std::size_t i = 0; i < largest.size(); ++i)
        largest[i] = (std::abs(exact[i]) + largest[i]) * (1 + harness::gamma(case_.ranks + 8, u));
      add_code_errors(largest, added);
    }
    for (std::size_t i = 0; i < error.size(); ++i) error[i] += added[i];
  }

  // The sum is coded too: it is as large as the exact one and its error, at most.
  void add_error_of_sum(const Values& exact, Values& error) const {
    Values largest = error;
    for (std::size_t i = 0; i < exact.size(); ++i)
      largest[i] = (std::abs(exact[i]) + error[i]) * (1 + harness::gamma(case_.ranks + 8, u));
    add_code_errors(largest, error);
  }

  Case case_;
  harness::Context& context_;
  collectives::Communicator communicator_;
  std::unique_ptr<collectives::Communicator> ring_;
  std::int64_t count_;
  collectives::CompressionOptions options_;
  Tensor in_, out_;
  std::unique_ptr<collectives::CompressedAllReduce> compressed_;
  collectives::CompressedAllReduce::Seconds seconds_;
  std::int64_t most_above_threshold_ = 0;
  double bytes_sent_ = 0, relative_error_ = 0;
};

const bool registered = harness::add<CompressedAllReduceUnit>();

}  // namespace
}  // namespace suite
