#pragma once
// Samples of several of Megatron-LM's token files, in the order of Megatron-Core (sample_order.h).
//
//   const DataPath path = parse_data_path("--data-path 0.3 wiki 0.7 books --split 949,50,1");
//   const BlendedTokens training(path, Split::training, 1024, 500'000, seed);
//   training.read(0, buffer);                     // 1025 tokens

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "suite/files/indexed_tokens.h"
#include "suite/files/sample_order.h"

namespace suite {

enum class Split : unsigned char { training, validation, test };

struct DataPath {
  struct Set {
    double weight = 1;
    std::string prefix;
  };
  std::vector<Set> sets;
  std::string split = "100";
};
// Returns whether a text has Megatron-LM's words for data, rather than the name of a file.
bool is_data_path(const std::string& text);
// Reads "--data-path [WEIGHT] PREFIX ... [--split 949,50,1]". Throws FileError.
DataPath parse_data_path(const std::string& text);

class BlendedTokens {
 public:
  // samples: at least this number; 0: one epoch of every file. Throws FileError if a file's
  // documents of the split are fewer than one sample.
  BlendedTokens(const DataPath& path, Split split, int length, std::int64_t samples,
                std::uint32_t seed);

  std::int64_t size() const { return static_cast<std::int64_t>(positions_.size()); }
  std::uint64_t tokens() const;  // of all files
  // Writes length + 1 tokens of the sample at a position.
  void read(std::int64_t position, std::int64_t* to) const;
  // Returns the text of what a position reads, for error messages.
  const std::string& prefix(std::int64_t position) const;

  struct Set {
    std::unique_ptr<const IndexedTokens> tokens;
    SampleOrder order;
  };
  const std::vector<Set>& sets() const { return sets_; }
  const std::vector<Blended>& positions() const { return positions_; }

 private:
  int length_;
  std::vector<Set> sets_;
  std::vector<Blended> positions_;
};

}  // namespace suite
