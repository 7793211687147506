// libFuzzer's entry point for the reader $SHARDMARK_FUZZ_READER. If $SHARDMARK_FUZZ_SEEDS is set,
// writes the reader's seeds into that folder instead. Without a reader, lists all readers.

#include <fmt/format.h>

#include <cstdlib>

#include "suite/testing/inputs/readers.h"

namespace {

const suite::inputs::Reader* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* name = std::getenv("SHARDMARK_FUZZ_READER");
  for (const auto& reader : suite::inputs::readers()) {
    if (!name) fmt::print("{}\n", reader.name);
    if (name && reader.name == name) chosen = &reader;
  }
  if (!chosen) std::exit(name ? 2 : 0);
  if (const char* folder = std::getenv("SHARDMARK_FUZZ_SEEDS")) {
    int number = 0;
    for (const std::string& seed : chosen->seeds())
      suite::testing::write_bytes(fmt::format("{}/seed{}", folder, number++), seed);
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  suite::inputs::accepts(*chosen, {reinterpret_cast<const char*>(data), size});
  return 0;
}
