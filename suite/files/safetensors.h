#pragma once
// The safetensors format (huggingface/safetensors, README.md "Format"): named tensors in a file
// that is mapped and read in place.
//
//   uint64 N, little-endian   N bytes of JSON   the tensors' bytes, row-major, without holes
//   {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …, "__metadata__": {…}}
//
// Offsets count from the first byte after the header. As the format's own reader does, this one
// refuses headers over 100 MB, overlaps, holes and bytes after the last tensor; beyond it,
// duplicate and unknown keys and dtypes of less than a byte.
//
//   Safetensors file("model.safetensors");
//   const StoredTensor* table = file.find("wte.weight");   // null: not there
//
//   SafetensorsWriter writer("model.safetensors", {{"wte.weight", "F32", {256, 32}}});
//   writer.add(bytes);                                      // of each tensor, in that order
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
  std::span<const std::byte> bytes;  // of the mapped file; aligned to nothing
};

// The dtype of ours with these elements; none for what we don't compute with (BOOL, F8_E4M3, …).
std::optional<machine::Dtype> dtype_of_tensor(std::string_view name);
std::string_view tensor_dtype_name(machine::Dtype dtype);

class Safetensors {
 public:
  // Throws FileError naming file, tensor, field, value and what was expected.
  explicit Safetensors(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // as their bytes lie
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
  // Throws FileError for a name that is there twice, an unknown dtype or a shape too large.
  SafetensorsWriter(const std::string& path, std::vector<TensorEntry> entries);
  // Throws std::logic_error when it is not as many bytes as the entry says, or one too many.
  void add(std::span<const std::byte> bytes);
  void finish();

 private:
  NewFile file_;
  std::vector<TensorEntry> entries_;
  std::size_t added_ = 0;
};

}  // namespace suite
