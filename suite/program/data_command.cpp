// `shardmark data`: a text as Megatron's token files, and the order of samples of such files.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "harness/json/json.h"
#include "harness/run/run.h"
#include "machine/base/names.h"
#include "suite/files/blended_tokens.h"
#include "suite/files/indexed_tokens.h"
#include "suite/options/options.h"
#include "suite/program/commands.h"

namespace suite {
namespace {

harness::Json order_json(const BlendedTokens& tokens) {
  harness::Json sets = harness::Json::array();
  for (const BlendedTokens::Set& set : tokens.sets()) {
    harness::Json samples = harness::Json::array();
    for (const SampleOrder::Start& start : set.order.samples)
      samples.push_back({start.place, start.offset});
    sets.push_back({{"prefix", set.tokens->prefix()},
                    {"epochs", set.order.epochs},
                    {"document_index", set.order.documents},
                    {"sample_index", std::move(samples)},
                    {"shuffle_index", set.order.shuffled}});
  }
  harness::Json positions = harness::Json::array();
  for (const Blended& at : tokens.positions()) positions.push_back({at.set, at.position});
  return {{"schema", "shardmark-sample-order/1"},
          {"sets", std::move(sets)},
          {"positions", std::move(positions)}};
}

}  // namespace

int run_data(int argc, char** argv) {
  std::vector<std::string> texts, data_path;
  std::string prefix, order_file, split = "100", part = "training";
  int length = 1024;
  std::int64_t samples = 0;
  std::uint32_t seed = 1234;
  Options options("data", "TEXT --out PREFIX | --order FILE --data-path [WEIGHT] PREFIX...",
                  "Writes the bytes of a text as Megatron's token files PREFIX.bin and PREFIX.idx; "
                  "each paragraph is a document. Or writes the order of samples of such files.");
  options.arguments("TEXT", texts, "a file of text", 0, 1);
  options.text("--out", "PREFIX", prefix, "beginning of the names of both files");
  options.group("Order of samples, as Megatron-Core builds it");
  options.text("--order", "FILE", order_file, "write the document, sample and shuffle indices");
  options.takes_following("--data-path", "[WEIGHT] PREFIX...", data_path, "token files");
  options.text("--split", "A,B,C", split,
               "documents to train, validate and test on (default: 100)");
  options.text("--part", "NAME", part, "training (default), validation or test");
  const std::vector<std::string> parts{"training", "validation", "test"};
  options.choices([&parts] { return parts; });
  options.number("--seq-length", "N", length, 1, 1 << 24, "tokens of a sample (default: 1024)");
  options.number("--samples", "N", samples, 0, 1'000'000'000, "samples (default: one epoch)");
  options.number("--seed", "N", seed, 0, std::numeric_limits<std::uint32_t>::max(),
                 "seed of the shuffles (default: 1234)");
  if (!options.parse({argv + 2, argv + argc})) return harness::accepted;
  if (!order_file.empty()) {
    if (data_path.empty()) reject("--order requires --data-path");
    const auto at = std::ranges::find(parts, part);
    if (at == parts.end()) throw harness::UsageError(machine::unknown("part", part, parts));
    check_writable(order_file);
    const BlendedTokens tokens(
        parse_data_path(fmt::format("--data-path {} --split {}", fmt::join(data_path, " "), split)),
        static_cast<Split>(at - parts.begin()), length, samples, seed);
    const std::string text = order_json(tokens).dump() + "\n";
    NewFile file(order_file);
    file.write(text.data(), text.size());
    file.commit();
    fmt::print("{}: {} samples of {} token file{}\n", order_file, tokens.size(),
               tokens.sets().size(), tokens.sets().size() == 1 ? "" : "s");
    return harness::accepted;
  }
  if (texts.empty()) reject("data requires TEXT, or --order FILE");
  if (prefix.empty()) reject("data requires --out PREFIX");
  const TokenCounts counts = write_text_tokens(texts[0], prefix);
  fmt::print("{0}.bin, {0}.idx: {1} documents, {2} tokens\n", prefix, counts.documents,
             counts.tokens);
  return harness::accepted;
}

}  // namespace suite
