#pragma once
// The JSON header of a safetensors file, read as a stream: memory as the header is long, and no
// nesting deeper than the format has. safetensors.h says what is refused.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "suite/files/safetensors.h"

namespace suite {

struct HeaderEntry : TensorEntry {
  std::uint64_t begin = 0, end = 0;  // data_offsets
};
struct SafetensorsHeader {
  std::vector<HeaderEntry> entries;  // in the order of the header
  std::map<std::string, std::string> metadata;
};

// Checks everything that one entry alone can be checked for, its extent in bytes included. Throws
// FileError, naming `path`.
SafetensorsHeader read_safetensors_header(const std::string& path, std::string_view json);

// Bytes of elements of this dtype and shape. Throws FileError naming `path` and the tensor for an
// unknown dtype or a product beyond 64 bits.
std::uint64_t bytes_of(const std::string& path, const TensorEntry& entry);

}  // namespace suite
