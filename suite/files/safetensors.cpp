#include "suite/files/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "machine/base/names.h"

namespace suite {
namespace {

constexpr std::uint64_t length_bytes = 8, longest_header = 100'000'000;
constexpr std::size_t longest_shape = 32;
constexpr std::string_view metadata_key = "__metadata__";
const std::vector<std::string> fields{"dtype", "shape", "data_offsets"};

using machine::Dtype;

struct DtypeRow {
  std::string_view name;
  std::uint64_t bytes;
  std::optional<Dtype> ours;
};
const DtypeRow dtypes[] = {
    {"F32", 4, Dtype::float32},
    {"F16", 2, Dtype::float16},
    {"BF16", 2, Dtype::bfloat16},
    {"F64", 8, Dtype::float64},
    {"I64", 8, Dtype::int64},
    {"U64", 8, Dtype::uint64},
    {"I32", 4, Dtype::int32},
    {"U32", 4, Dtype::uint32},
    {"I16", 2, {}},
    {"U16", 2, {}},
    {"I8", 1, Dtype::int8},
    {"U8", 1, Dtype::uint8},
    {"BOOL", 1, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
    {"F8_E8M0", 1, {}},
    {"C64", 8, {}},
};

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (const DtypeRow& row : dtypes) names.emplace_back(row.name);
  return names;
}

// Returns the bytes of elements of this dtype and shape. Throws FileError with `path` and the
// tensor for an unknown dtype or a product beyond 64 bits.
std::uint64_t bytes_of(const std::string& path, const TensorEntry& entry) {
  for (const DtypeRow& row : dtypes) {
    if (row.name != entry.dtype) continue;
    std::uint64_t bytes = row.bytes;
    bool too_large = false;
    for (const std::uint64_t extent : entry.shape)
      too_large |= __builtin_mul_overflow(bytes, extent, &bytes);
    if (!too_large) return bytes;
    throw FileError("{}: shape of tensor {} is {}, which has too many elements", path,
                    in_quotes(entry.name), entry.shape_text());
  }
  throw FileError("{}: tensor {}: {}", path, in_quotes(entry.name),
                  machine::unknown("dtype", printable(entry.dtype), dtype_names()));
}

struct HeaderEntry : TensorEntry {
  std::uint64_t begin = 0, end = 0;  // data_offsets
};

// Reads the header as a stream, in memory proportional to its length, and checks everything that
// one entry shows, including its size in bytes.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}
  std::vector<HeaderEntry> entries;  // in the order of the header
  std::map<std::string, std::string> metadata;

  bool start_object(std::size_t) override {
    if (place_ == Place::file) {
      place_ = Place::top;
    } else if (place_ != Place::value) {
      wrong("an object");
    } else if (name_ == metadata_key) {
      place_ = Place::metadata;
    } else {
      place_ = Place::tensor;
      entry_ = {};
      entry_.name = name_;
      fields_.clear();
    }
    return true;
  }

  bool key(std::string& text) override {
    if (place_ == Place::top) {
      name_ = text;
      if (!names_.insert(text).second)
        throw FileError("{}: {} is given twice", path_, in_quotes(text));
      place_ = Place::value;
    } else if (place_ == Place::metadata) {
      if (metadata.contains(text))
        throw FileError("{}: __metadata__ has {} twice", path_, in_quotes(text));
      field_ = text;
    } else {
      if (std::ranges::find(fields, text) == fields.end())
        throw FileError("{}: tensor {}: {}", path_, in_quotes(name_),
                        machine::unknown("key", printable(text), fields));
      if (!fields_.insert(text).second)
        throw FileError("{}: tensor {} has two keys '{}'", path_, in_quotes(name_), text);
      field_ = text;
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      for (const std::string& field : fields)
        if (!fields_.contains(field))
          throw FileError("{}: tensor {} has no {}", path_, in_quotes(name_), field);
      check_extent();
      entries.push_back(std::move(entry_));
    }
    place_ = place_ == Place::top ? Place::done : Place::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || field_ == "dtype") wrong("a list");
    place_ = Place::list;
    offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (field_ == "data_offsets" && offsets_ != 2)
      throw FileError("{}: data_offsets of tensor {} has {} numbers; expected 2", path_,
                      in_quotes(name_), offsets_);
    place_ = Place::tensor;
    return true;
  }

  bool number_unsigned(std::uint64_t value) override {
    if (place_ != Place::list) wrong(fmt::format("{}", value));
    if (field_ == "shape") {
      if (entry_.shape.size() == longest_shape)
        throw FileError("{}: tensor {} has more than {} dimensions", path_, in_quotes(name_),
                        longest_shape);
      entry_.shape.push_back(value);
    } else {
      (offsets_ == 0 ? entry_.begin : entry_.end) = value;
      ++offsets_;
    }
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::metadata) {
      metadata.emplace(field_, text);
    } else if (place_ == Place::tensor && field_ == "dtype") {
      entry_.dtype = text;
    } else {
      wrong(in_quotes(text));
    }
    return true;
  }

  bool null() override { wrong("null"); }
  bool boolean(bool value) override { wrong(value ? "true" : "false"); }
  bool number_integer(std::int64_t value) override { wrong(fmt::format("{}", value)); }
  bool number_float(double, const std::string& text) override { wrong(in_quotes(text)); }
  bool binary(nlohmann::json::binary_t&) override { wrong("bytes"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    throw FileError("{}: its header is not valid JSON from byte {}", path_, position);
  }

 private:
  enum class Place : unsigned char { file, top, value, metadata, tensor, list, done };

  [[noreturn]] void wrong(const std::string& found) const {
    std::string what = "its header";
    std::string_view expected = "an object";
    if (place_ == Place::value) {
      what = name_ == metadata_key ? name_ : "tensor " + in_quotes(name_);
    } else if (place_ == Place::metadata) {
      what = fmt::format("{} of __metadata__", in_quotes(field_));
      expected = "text";
    } else if (place_ == Place::tensor || place_ == Place::list) {
      what = fmt::format("{} of tensor {}", field_, in_quotes(name_));
      expected = field_ == "dtype" ? "text such as \"F32\"" : "a list of whole numbers below 2^64";
    }
    throw FileError("{}: {} is {}; expected {}", path_, what, found, expected);
  }

  void check_extent() const {
    const std::uint64_t bytes = bytes_of(path_, entry_);
    if (entry_.end < entry_.begin || entry_.end - entry_.begin != bytes)
      throw FileError("{}: data_offsets of tensor {} are [{}, {}]; {} {} needs {} bytes", path_,
                      in_quotes(name_), entry_.begin, entry_.end, entry_.dtype, entry_.shape_text(),
                      bytes);
  }

  const std::string& path_;
  Place place_ = Place::file;
  std::string name_, field_;
  std::set<std::string> names_, fields_;
  HeaderEntry entry_;
  std::size_t offsets_ = 0;
};

}  // namespace

std::string TensorEntry::shape_text() const { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::optional<Dtype> dtype_of_tensor(std::string_view name) {
  for (const DtypeRow& row : dtypes)
    if (row.name == name) return row.ours;
  return {};
}

std::string_view tensor_dtype_name(Dtype dtype) {
  for (const DtypeRow& row : dtypes)
    if (row.ours == dtype) return row.name;
  throw std::logic_error("tensor_dtype_name: not a dtype");
}

Safetensors::Safetensors(const std::string& path) : file_(path) {
  if (file_.size() < length_bytes)
    throw FileError("{} has {} bytes; expected at least {}, the size of the header's length", path,
                    file_.size(), length_bytes);
  const auto length = file_.at<std::uint64_t>(0);
  if (length > longest_header)
    throw FileError("{}: the length of its header is {}; expected at most {}", path, length,
                    longest_header);
  if (length > file_.size() - length_bytes)
    throw FileError("{}: its header has {} bytes, but only {} follow", path, length,
                    file_.size() - length_bytes);
  const std::string_view json = file_.text().substr(length_bytes, length);
  if (!json.starts_with('{')) throw FileError("{}: its header does not begin with {{", path);
  HeaderReader header(path);
  nlohmann::json::sax_parse(json, &header);
  metadata_ = std::move(header.metadata);

  auto& entries = header.entries;
  std::ranges::stable_sort(entries, {},
                           [](const auto& entry) { return std::pair(entry.begin, entry.end); });
  const std::uint64_t data_at = length_bytes + length, data = file_.size() - data_at;
  std::uint64_t end = 0;
  std::string_view before;
  for (HeaderEntry& entry : entries) {
    if (entry.begin < end)
      throw FileError("{}: tensor {} begins at {}, but {} ends at {}", path, in_quotes(entry.name),
                      entry.begin, in_quotes(before), end);
    if (entry.begin > end)
      throw FileError("{}: no tensor has bytes {} to {}, before tensor {}", path, end, entry.begin,
                      in_quotes(entry.name));
    if (entry.end > data)
      throw FileError("{}: tensor {} ends at {}, but only {} bytes follow the header", path,
                      in_quotes(entry.name), entry.end, data);
    end = entry.end;
    before = entry.name;
  }
  if (end != data)
    throw FileError("{}: {} bytes follow the header, but its tensors end at {}", path, data, end);
  tensors_.reserve(entries.size());
  for (HeaderEntry& entry : entries) {
    const auto bytes = file_.bytes(data_at + entry.begin, entry.end - entry.begin);
    index_.emplace(entry.name, tensors_.size());
    tensors_.push_back({std::move(static_cast<TensorEntry&>(entry)), bytes});
  }
}

const StoredTensor* Safetensors::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorEntry> entries)
    : file_(path), entries_(std::move(entries)) {
  nlohmann::ordered_json header;
  // Hugging Face's libraries load only files that name their framework.
  header[metadata_key] = {{"format", "pt"}};
  std::set<std::string_view> names{metadata_key};
  std::uint64_t begin = 0;
  for (const TensorEntry& entry : entries_) {
    if (!names.insert(entry.name).second)
      throw FileError("{}: tensor {} is given twice", path, in_quotes(entry.name));
    std::uint64_t end = 0;
    if (__builtin_add_overflow(begin, bytes_of(path, entry), &end))
      throw FileError("{}: its tensors have too many bytes", path);
    header[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string json = header.dump();
  json.resize((json.size() + 7) / 8 * 8, ' ');  // aligns the tensors
  const std::uint64_t length = json.size();
  file_.write(&length, sizeof length);
  file_.write(json.data(), json.size());
}

void SafetensorsWriter::add(std::span<const std::byte> bytes) {
  if (added_ == entries_.size())
    throw std::logic_error("SafetensorsWriter: more tensors than entries");
  const TensorEntry& entry = entries_[added_++];
  if (bytes.size() != bytes_of("", entry))
    throw std::logic_error(
        fmt::format("SafetensorsWriter: {} bytes for {}", bytes.size(), entry.name));
  file_.write(bytes.data(), bytes.size());
}

void SafetensorsWriter::finish() {
  if (added_ != entries_.size())
    throw std::logic_error(
        fmt::format("SafetensorsWriter: {} of {} tensors were added", added_, entries_.size()));
  file_.commit();
}

}  // namespace suite
