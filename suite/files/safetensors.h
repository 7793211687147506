#pragma once
// The safetensors format (huggingface/safetensors, README.md "Format"): named tensors in a file
// that is mapped and read in place.
//
//   uint64 N, little-endian   N bytes of JSON   the tensors' bytes, row-major, without holes
//   {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …, "__metadata__": {…}}
//
// Offsets count from the first byte after the header. Like the format's own reader, this one
// rejects headers over 100 MB, overlaps, holes and bytes after the last tensor. It also rejects
// duplicate and unknown keys and dtypes of less than a byte.
//
//   Safetensors file("model.safetensors");
//   const StoredTensor* table = file.find("wte.weight");   // null: unknown
//
//   SafetensorsWriter writer("model.safetensors", {{"wte.weight", "F32", {256, 32}}});
//   writer.add(bytes);                                      // for each tensor, in that order
//   writer.finish();                                        // renamed into place

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "machine/device/dtype.h"
#include "suite/files/mapped_file.h"
#include "suite/files/new_file.h"

namespace suite {

struct TensorEntry {
  std::string name;
  std::string dtype;                 // as the format writes it: "F32", "BF16"
  std::vector<std::uint64_t> shape;  // empty: a scalar
  std::string shape_text() const;    // "[2, 3]"
};

struct StoredTensor : TensorEntry {
  std::span<const std::byte> bytes;  // in the mapped file, without alignment
};

// Returns our dtype for these elements, or empty for dtypes without arithmetic here (BOOL, …).
std::optional<machine::Dtype> dtype_of_tensor(std::string_view name);
std::string_view tensor_dtype_name(machine::Dtype dtype);

class Safetensors {
 public:
  // Throws FileError with file, tensor, field, value and the expected value.
  explicit Safetensors(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // in file order
  const StoredTensor* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  MappedFile file_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
};

class SafetensorsWriter {
 public:
  // Throws FileError for a repeated name, an unknown dtype or a shape that is too large.
  SafetensorsWriter(const std::string& path, std::vector<TensorEntry> entries);
  // Throws std::logic_error if the size is not the next entry's, or if there is no next entry.
  void add(std::span<const std::byte> bytes);
  void finish();

 private:
  NewFile file_;
  std::vector<TensorEntry> entries_;
  std::size_t added_ = 0;
};

}  // namespace suite
