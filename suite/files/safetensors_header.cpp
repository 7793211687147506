#include "suite/files/safetensors_header.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "machine/base/names.h"

namespace suite {
namespace {

using machine::Dtype;

struct DtypeRow {
  std::string_view name;
  std::uint64_t bytes;
  std::optional<Dtype> ours;
};
const std::array dtypes{DtypeRow{"F32", 4, Dtype::float32},
                        DtypeRow{"F16", 2, Dtype::float16},
                        DtypeRow{"BF16", 2, Dtype::bfloat16},
                        DtypeRow{"F64", 8, Dtype::float64},
                        DtypeRow{"I64", 8, Dtype::int64},
                        DtypeRow{"U64", 8, Dtype::uint64},
                        DtypeRow{"I32", 4, Dtype::int32},
                        DtypeRow{"U32", 4, Dtype::uint32},
                        DtypeRow{"I16", 2, {}},
                        DtypeRow{"U16", 2, {}},
                        DtypeRow{"I8", 1, Dtype::int8},
                        DtypeRow{"U8", 1, Dtype::uint8},
                        DtypeRow{"BOOL", 1, {}},
                        DtypeRow{"F8_E4M3", 1, {}},
                        DtypeRow{"F8_E5M2", 1, {}},
                        DtypeRow{"F8_E8M0", 1, {}},
                        DtypeRow{"C64", 8, {}}};

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (const DtypeRow& row : dtypes) names.emplace_back(row.name);
  return names;
}

constexpr std::size_t longest_shape = 32;

// What the parser reports, checked against the one shape a header has.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}
  SafetensorsHeader header;

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::file:
        place_ = Place::top;
        return true;
      case Place::value:
        if (name_ == "__metadata__") {
          place_ = Place::metadata;
        } else {
          place_ = Place::tensor;
          entry_ = {};
          entry_.name = name_;
          fields_.clear();
        }
        return true;
      default:
        wrong("an object");
    }
  }

  bool key(std::string& text) override {
    if (place_ == Place::top) {
      name_ = text;
      if (!names_.insert(text).second)
        throw FileError(fmt::format("{}: {} is there twice", path_, in_quotes(text)));
      place_ = Place::value;
    } else if (place_ == Place::metadata) {
      if (header.metadata.contains(text))
        throw FileError(fmt::format("{}: __metadata__ has {} twice", path_, in_quotes(text)));
      field_ = text;
    } else {
      static const std::vector<std::string> known{"dtype", "shape", "data_offsets"};
      if (text != known[0] && text != known[1] && text != known[2])
        throw FileError(fmt::format("{}: tensor {}: {}", path_, in_quotes(name_),
                                    machine::unknown("key", printable(text), known)));
      if (!fields_.insert(text).second)
        throw FileError(
            fmt::format("{}: tensor {} has two keys '{}'", path_, in_quotes(name_), text));
      field_ = text;
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"})
        if (!fields_.contains(field))
          throw FileError(fmt::format("{}: tensor {} has no {}", path_, in_quotes(name_), field));
      check_extent();
      header.entries.push_back(std::move(entry_));
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
      throw FileError(fmt::format("{}: data_offsets of tensor {} has {} numbers; expected 2", path_,
                                  in_quotes(name_), offsets_));
    place_ = Place::tensor;
    return true;
  }

  bool number_unsigned(std::uint64_t value) override {
    if (place_ != Place::list) wrong(fmt::format("{}", value));
    if (field_ == "shape") {
      if (entry_.shape.size() == longest_shape)
        throw FileError(fmt::format("{}: tensor {} has more than {} dimensions", path_,
                                    in_quotes(name_), longest_shape));
      entry_.shape.push_back(value);
    } else {
      (offsets_ == 0 ? entry_.begin : entry_.end) = value;
      ++offsets_;
    }
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::metadata) {
      header.metadata.emplace(field_, text);
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
    throw FileError(
        fmt::format("{}: its header is no JSON, from byte {} of it on", path_, position));
  }

 private:
  enum class Place : unsigned char { file, top, value, metadata, tensor, list, done };

  [[noreturn]] void wrong(const std::string& found) const {
    const auto refuse = [&](const std::string& what, std::string_view expected) {
      throw FileError(fmt::format("{}: {} is {}; expected {}", path_, what, found, expected));
    };
    switch (place_) {
      case Place::value:
        refuse(name_ == "__metadata__" ? name_ : "tensor " + in_quotes(name_), "an object");
        break;
      case Place::metadata:
        refuse(fmt::format("{} of __metadata__", in_quotes(field_)), "text");
        break;
      case Place::tensor:
      case Place::list:
        refuse(fmt::format("{} of tensor {}", field_, in_quotes(name_)),
               field_ == "dtype" ? "text such as \"F32\"" : "a list of whole numbers below 2^64");
        break;
      default:
        refuse("its header", "an object");
    }
    throw FileError(path_);  // not reached
  }

  void check_extent() const {
    const std::uint64_t bytes = bytes_of(path_, entry_);
    if (entry_.end < entry_.begin || entry_.end - entry_.begin != bytes)
      throw FileError(fmt::format(
          "{}: data_offsets of tensor {} are [{}, {}]; {} {} needs {} bytes", path_,
          in_quotes(name_), entry_.begin, entry_.end, entry_.dtype, entry_.shape_text(), bytes));
  }

  const std::string& path_;
  Place place_ = Place::file;
  std::string name_, field_;
  std::set<std::string> names_, fields_;
  HeaderEntry entry_;
  std::size_t offsets_ = 0;
};

}  // namespace

std::string TensorEntry::shape_text() const {
  std::string text = "[";
  for (const std::uint64_t extent : shape)
    text += fmt::format("{}{}", text.size() > 1 ? ", " : "", extent);
  return text + "]";
}

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

std::uint64_t bytes_of(const std::string& path, const TensorEntry& entry) {
  for (const DtypeRow& row : dtypes) {
    if (row.name != entry.dtype) continue;
    std::uint64_t bytes = row.bytes;
    bool too_large = false;
    for (const std::uint64_t extent : entry.shape)
      too_large |= __builtin_mul_overflow(bytes, extent, &bytes);
    if (!too_large) return bytes;
    throw FileError(fmt::format("{}: shape of tensor {} is {}: more elements than can be", path,
                                in_quotes(entry.name), entry.shape_text()));
  }
  throw FileError(fmt::format("{}: tensor {}: {}", path, in_quotes(entry.name),
                              machine::unknown("dtype", printable(entry.dtype), dtype_names())));
}

SafetensorsHeader read_safetensors_header(const std::string& path, std::string_view json) {
  HeaderReader reader(path);
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  return std::move(reader.header);
}

}  // namespace suite
