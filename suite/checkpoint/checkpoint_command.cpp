#include "suite/checkpoint/checkpoint_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/run/run.h"
#include "harness/unit/sweep.h"
#include "machine/base/names.h"
#include "suite/checkpoint/hugging_face.h"
#include "suite/checkpoint/training_checkpoint.h"
#include "suite/files/mapped_file.h"
#include "suite/options/options.h"

namespace suite {
namespace {

const std::vector<std::string> known{"show", "convert"};

// Prints the facts and tensors of a checkpoint after reading all of its bytes.
void show(const std::string& folder) {
  const zero::Checkpoint checkpoint = open_checkpoint(folder);
  try {
    checkpoint.verify();
  } catch (const zero::CheckpointError& error) {
    throw FileError("{}", error.what());
  }
  fmt::print("{}: save {} of {} ranks, {} bytes; all checksums are right\n\n", folder,
             checkpoint.save_name(), checkpoint.parts(), checkpoint.bytes());
  for (const auto& [name, number] : checkpoint.facts().numbers)
    if (name == "loss_scale")
      fmt::print("{:<28} {}\n", name, std::bit_cast<double>(number));
    else
      fmt::print("{:<28} {}\n", name, number);
  for (const auto& [key, text] : checkpoint.facts().texts) fmt::print("{:<28} {}\n", key, text);
  // By parameter: its shape, and the dtype of each state.
  std::map<std::string, std::string> lines;
  for (const auto& [name, pieces] : checkpoint.tensors()) {
    const std::size_t slash = name.rfind('/');
    std::string& line = lines[name.substr(0, slash)];
    const zero::StoredPiece& first = pieces.front().stored;
    if (line.empty()) line = fmt::format("[{}]", fmt::join(first.piece.global, ", "));
    if (slash != std::string::npos)
      line += fmt::format(" {} {}", name.substr(slash + 1), machine::name(first.dtype));
  }
  fmt::print("\n");
  for (const auto& [name, line] : lines) fmt::print("{:<34} {}\n", name, line);
}

}  // namespace

int run_checkpoint(int argc, char** argv) {
  std::vector<std::string> words;
  std::string dtype;
  Options options(
      "checkpoint", "show DIR | convert SOURCE TARGET",
      "show: prints steps, model and tensors of a checkpoint that `run --save DIR` has "
      "written, and compares the checksums of all bytes. convert: a checkpoint to a "
      "folder of Hugging Face's transformers (config.json, model.safetensors), or back. "
      "GPT-2's and Llama's models.");
  options.arguments("WORD", words, "show or convert, and the folders", 2, 3);
  options.argument_choices([] { return known; });
  options.text("--dtype", "NAME", dtype, "dtype of the converted tensors (default: unchanged)");
  if (!options.parse({argv + 2, argv + argc})) return harness::accepted;
  if (std::ranges::find(known, words[0]) == known.end())
    throw harness::UsageError(machine::unknown("checkpoint command", words[0], known));
  const bool shows = words[0] == "show";
  if (words.size() != (shows ? 2 : 3))
    reject("checkpoint {} requires {} (got {} folders)", words[0],
           shows ? "one folder" : "SOURCE and TARGET", words.size() - 1);
  if (shows) {
    show(words[1]);
    return harness::accepted;
  }
  std::optional<machine::Dtype> target;
  if (!dtype.empty()) target = harness::AxisText<machine::Dtype>::parse("--dtype", dtype);
  if (std::filesystem::exists(words[1] + "/config.json"))
    from_hugging_face(words[1], words[2], target);
  else
    to_hugging_face(words[1], words[2], target);
  fmt::print("{} is written\n", words[2]);
  return harness::accepted;
}

}  // namespace suite
