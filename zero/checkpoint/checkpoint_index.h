#pragma once
// Functions that write and parse a checkpoint's index (checkpoint.h).

#include <string>
#include <vector>

#include "zero/checkpoint/checkpoint.h"

namespace zero {

struct StoredPart {
  std::uint64_t bytes = 0;
  std::vector<StoredPiece> pieces;
};

struct CheckpointIndex {
  std::string save;
  Facts facts;
  std::vector<StoredPart> parts;  // by rank
};

std::string part_text(const StoredPart& part);  // the result of PartWriter::finish
// Returns the index with its checksum. parts: texts of part_text, in rank order.
std::string index_text(const std::string& save, const Facts& facts,
                       const std::vector<std::string>& parts);
// Throws CheckpointError with a text that begins with `path`.
CheckpointIndex parse_index(const std::string& path, const std::string& text);

inline constexpr std::size_t part_header_bytes = 64, part_alignment = 64;
std::string part_name(const std::string& save, std::size_t rank, std::size_t ranks);
std::string part_header(const std::string& save, std::size_t rank, std::size_t ranks);
bool is_save_name(std::string_view name);

}  // namespace zero
