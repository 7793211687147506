// Claim: the reader of token files delivers the tokens of a plain reading, every sample exactly
// once an epoch, and faster than a training step needs them.
//
// Each rank reads its own part of every batch from two blended pairs of token files
// (files/blended_tokens.h), which it writes first: on the thread that takes the batch (direct), or
// one batch ahead on a thread of its own (ahead). The plain reading concatenates the documents in
// their order and divides them into samples.
//
// Limits: limit_s is the copy of the tokens at the measured rate of memory. disk_GBps is a plain
// reading of the files without the page cache; on a file system without a disk it is the rate of
// memory. needed_tokens_per_second is the rate of the model's step if every rank only multiplied
// matrices, at the measured rate: no step needs more.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "harness/measure/rates.h"
#include "layers/models/gpt_cost.h"
#include "machine/base/clock.h"
#include "machine/device/random.h"
#include "suite/configuration/models.h"
#include "suite/files/ahead_reader.h"
#include "suite/files/blended_tokens.h"
#include "suite/reference/unit.h"

namespace suite {
namespace {

constexpr int token_bytes = 2;  // uint16
constexpr std::array weights{0.3, 0.7};
constexpr std::uint32_t order_seed = 1234;

class Files {
 public:
  // documents: of each of the two pairs. Their sizes and tokens depend on the seed.
  Files(std::uint64_t seed, int documents, int longest) {
    std::string name = (std::filesystem::temp_directory_path() / "shardmark-data-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("cannot make a temporary folder");
    folder_ = name;
    for (std::size_t set = 0; set < weights.size(); ++set) {
      IndexedTokensWriter writer(prefix(set), TokenType::uint16);
      std::vector<std::int64_t>& all = tokens_[set];
      for (int document = 0; document < documents; ++document) {
        const auto key = static_cast<std::uint64_t>(document) + (set << 32);
        const auto size = 1 + machine::philox(seed, key)[0] % static_cast<unsigned>(longest);
        std::vector<std::int64_t> text(size);
        for (std::size_t i = 0; i < size; ++i)
          text[i] =
              static_cast<std::int64_t>(machine::philox(seed + 1, (key << 24) + i)[0] % 50257);
        writer.add_document(text);
        begins_[set].push_back(all.size());
        all.insert(all.end(), text.begin(), text.end());
      }
      begins_[set].push_back(all.size());
      writer.finish();
    }
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  ~Files() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string prefix(std::size_t set) const { return fmt::format("{}/{}", folder_, set); }
  DataPath path() const {
    return {.sets = {{weights[0], prefix(0)}, {weights[1], prefix(1)}}, .split = "90,10"};
  }
  // Returns the tokens of documents, one after another.
  std::vector<std::int64_t> flat(std::size_t set, const std::vector<std::int32_t>& order) const {
    std::vector<std::int64_t> all;
    for (const std::int32_t document : order) {
      const auto at = static_cast<std::size_t>(document);
      all.insert(all.end(), tokens_[set].begin() + static_cast<std::ptrdiff_t>(begins_[set][at]),
                 tokens_[set].begin() + static_cast<std::ptrdiff_t>(begins_[set][at + 1]));
    }
    return all;
  }

 private:
  std::string folder_;
  std::array<std::vector<std::int64_t>, 2> tokens_;
  std::array<std::vector<std::size_t>, 2> begins_;
};

// Returns the bytes per second of a plain reading of a file that the page cache does not hold.
double disk_rate(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  ::fdatasync(file);
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  std::vector<char> buffer(1 << 20);
  double bytes = 0;
  const double begin = machine::steady_s();
  for (ssize_t got = 0; (got = ::read(file, buffer.data(), buffer.size())) > 0;)
    bytes += static_cast<double>(got);
  const double seconds = machine::steady_s() - begin;
  ::close(file);
  return seconds > 0 ? bytes / seconds : 0;
}

struct DataLoading {
  static constexpr std::string_view name = "data_loading";
  static constexpr std::string_view about =
      "blended token files, read by every rank: tokens per second, and the rate that a step needs";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::determinism};
  static constexpr Counter counters[] = {
      {"needed_tokens_per_second", "1/s", Better::neither, Nature::speed,
       "tokens that a step of all ranks takes at the measured matrix rate"},
      {"need_fraction", "", Better::lower, Nature::speed,
       "needed over delivered tokens per second; above 1: data limits the step"},
      {"disk_GBps", "GB/s", Better::higher, Nature::speed,
       "plain reading of a rank's token file without the page cache"}};

  struct Case {
    int ranks = 1;
    std::string reader, model;
    int sequences = 8, length = 1024;  // of a rank's batch
  };

  static Sweep<Case> sweep() {
    using enum Profile;
    const std::vector<std::string> readers{"direct", "ahead"};
    return Sweep<Case>()
        .axis("reader", &Case::reader, "ahead", readers)
        .axis("model", &Case::model, "gpt2_124m", model_names())
        .axis("ranks", &Case::ranks, 2)
        .axis("sequences", &Case::sequences, 8)
        .axis("seq-length", &Case::length, 1024)
        .only([](const Case& c) -> std::string {
          if (c.sequences < 1 || c.length < 1) return "sequences and seq-length must be at least 1";
          return c.length > 65536 ? "seq-length is at most 65536" : "";
        })
        .slice({quick}, "readers", {vary(&Case::reader, readers)})
        .slice({acceptance, paper}, "matrix",
               {vary(&Case::reader, readers), vary(&Case::ranks, {1, 2, 4}),
                vary(&Case::length, {128, 1024, 8192})})
        .slice(
            {smoke}, "smoke",
            {vary(&Case::reader, readers), vary(&Case::length, {33}), vary(&Case::ranks, {1, 3})});
  }

  DataLoading(const Case& c, Context& context)
      : case_(c),
        context_(context),
        files_(context.seed + static_cast<std::uint64_t>(context.group.index), 64, 16 * c.length),
        tokens_(files_.path(), Split::training, c.length, 0, order_seed) {
    if (c.reader == "ahead")
      reader_ = std::make_unique<AheadReader<std::vector<std::int64_t>>>(
          [this](std::int64_t step) { return batch(step); });
    take();
  }

  void prepare() {}
  void run() { take(); }

  void judge(Judge& judge) {
    judge_plain(judge);
    judge_epochs(judge);
    // A replay has the same bits, read in order or not.
    const std::string key = fmt::format("rank {}, batches", context_.group.index);
    const BlendedTokens again(files_.path(), Split::training, case_.length, 0, order_seed);
    std::uint64_t hash = 0, replayed = 0;
    for (std::int64_t step = 0; step < 4; ++step) {
      for (const std::int64_t token : reader_ ? reader_->take(step, patience_s) : batch(step))
        hash = hash * 1099511628211u + static_cast<std::uint64_t>(token);
      for (const std::int64_t token : batch_of(again, step))
        replayed = replayed * 1099511628211u + static_cast<std::uint64_t>(token);
    }
    judge.same_bits(key, hash);
    judge.same_bits(key, replayed);
  }

  Cost cost() const {
    const double tokens = case_.sequences * static_cast<double>(case_.length + 1);
    return {.memory_bytes = tokens * (token_bytes + sizeof(std::int64_t)),
            .working_set_bytes = tokens * (token_bytes + sizeof(std::int64_t)),
            .tokens = case_.ranks * static_cast<double>(case_.sequences) * case_.length};
  }

  void describe(Description& description) {
    if (const double rate = disk_rate(files_.prefix(1) + ".bin"); rate > 0)
      description.set("disk_GBps", rate / 1e9);
    const double flops = context_.rates.flops_per_second(Dtype::float32, case_.ranks);
    if (description.seconds <= 0 || flops <= 0) return;
    const layers::GptConfig model = named_model(case_.model);
    const double needed =
        case_.ranks * flops /
        (layers::model_flops(model, model.sequence) / static_cast<double>(model.sequence));
    description.set("needed_tokens_per_second", needed);
    description.set("need_fraction", needed * description.seconds / cost().tokens);
  }

 private:
  static constexpr double patience_s = 60;

  std::vector<std::int64_t> batch_of(const BlendedTokens& tokens, std::int64_t step) const {
    const auto width = static_cast<std::size_t>(case_.length + 1);
    std::vector<std::int64_t> all(static_cast<std::size_t>(case_.sequences) * width);
    for (std::int64_t i = 0; i < case_.sequences; ++i)
      tokens.read((step * case_.sequences + i) % tokens.size(),
                  all.data() + static_cast<std::size_t>(i) * width);
    return all;
  }
  std::vector<std::int64_t> batch(std::int64_t step) const { return batch_of(tokens_, step); }
  void take() {
    last_ = reader_ ? reader_->take(step_, patience_s) : batch(step_);
    ++step_;
  }

  // Compares every sample with the documents, concatenated.
  void judge_plain(Judge& judge) {
    const auto width = static_cast<std::size_t>(case_.length + 1);
    std::array<std::vector<std::int64_t>, 2> flat;
    for (std::size_t set = 0; set < flat.size(); ++set)
      flat[set] = files_.flat(set, tokens_.sets()[set].order.documents);
    std::vector<std::int64_t> sample(width);
    for (std::int64_t position = 0; position < tokens_.size(); ++position) {
      const Blended& at = tokens_.positions()[static_cast<std::size_t>(position)];
      const SampleOrder& order = tokens_.sets()[static_cast<std::size_t>(at.set)].order;
      const std::int64_t first =
          order.shuffled[static_cast<std::size_t>(at.position % order.size())] * case_.length;
      tokens_.read(position, sample.data());
      const auto* want = flat[static_cast<std::size_t>(at.set)].data() + first;
      if (position % 16 != 0 && std::equal(sample.begin(), sample.end(), want)) continue;
      judge.exact(fmt::format("sample {}", position),
                  std::vector<double>(sample.begin(), sample.end()),
                  std::vector<double>(want, want + width));
    }
  }

  // Every sample occurs exactly once in an epoch, and sets occur by their weights.
  void judge_epochs(Judge& judge) {
    for (const BlendedTokens::Set& set : tokens_.sets()) {
      std::vector<double> times(set.order.shuffled.size());
      for (const std::int64_t sample : set.order.shuffled)
        times[static_cast<std::size_t>(sample)] += 1;
      judge.exact("times that each sample occurs", times, std::vector<double>(times.size(), 1));
    }
    std::array<double, 2> drawn{};
    for (const Blended& at : tokens_.positions()) drawn[static_cast<std::size_t>(at.set)] += 1;
    const auto all = static_cast<double>(tokens_.size());
    judge.numerics("share of the second file", std::abs(drawn[1] - weights[1] * all), 1);
  }

  const Case case_;
  Context& context_;
  const Files files_;
  const BlendedTokens tokens_;
  std::int64_t step_ = 0;
  std::vector<std::int64_t> last_;
  std::unique_ptr<AheadReader<std::vector<std::int64_t>>> reader_;  // last: reads the others
};

const bool registered = harness::add<DataLoading>();

}  // namespace
}  // namespace suite
