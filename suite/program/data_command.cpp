// `shardmark data`: a text as Megatron's token files.

#include <fmt/format.h>

#include "harness/run/run.h"
#include "suite/files/indexed_tokens.h"
#include "suite/options/options.h"
#include "suite/program/commands.h"

namespace suite {

int run_data(int argc, char** argv) {
  std::vector<std::string> texts;
  std::string prefix;
  Options options("data", "TEXT --out PREFIX",
                  "Writes the bytes of a text as Megatron's token files PREFIX.bin and PREFIX.idx; "
                  "each paragraph is a document.");
  options.arguments("TEXT", texts, "a file of text", 1, 1);
  options.text("--out", "PREFIX", prefix, "beginning of the names of both files");
  if (!options.parse({argv + 2, argv + argc})) return harness::accepted;
  if (prefix.empty()) reject("data requires --out PREFIX");
  const TokenCounts counts = write_text_tokens(texts[0], prefix);
  fmt::print("{0}.bin, {0}.idx: {1} documents, {2} tokens\n", prefix, counts.documents,
             counts.tokens);
  return harness::accepted;
}

}  // namespace suite
