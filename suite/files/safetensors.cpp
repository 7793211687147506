#include "suite/files/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "suite/files/safetensors_header.h"

namespace suite {
namespace {

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t longest_header = 100'000'000;

}  // namespace

Safetensors::Safetensors(const std::string& path) : file_(path) {
  if (file_.size() < length_bytes)
    throw FileError(fmt::format("{} has {} bytes; the length of its header alone has {}", path,
                                file_.size(), length_bytes));
  const auto length = file_.at<std::uint64_t>(0);
  if (length > longest_header)
    throw FileError(fmt::format("{}: the length of its header is {}; at most {} is read", path,
                                length, longest_header));
  if (length > file_.size() - length_bytes)
    throw FileError(fmt::format("{}: its header has {} bytes, but only {} follow", path, length,
                                file_.size() - length_bytes));
  const auto json = file_.bytes(length_bytes, length);
  if (json.empty() || json[0] != std::byte{'{'})
    throw FileError(fmt::format("{}: its header does not begin with {{", path));
  SafetensorsHeader header = read_safetensors_header(
      path, {reinterpret_cast<const char*>(json.data()), static_cast<std::size_t>(length)});
  metadata_ = std::move(header.metadata);

  auto& entries = header.entries;
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  const std::uint64_t data_at = length_bytes + length, data = file_.size() - data_at;
  std::uint64_t end = 0;
  std::string_view before;
  for (HeaderEntry& entry : entries) {
    if (entry.begin < end)
      throw FileError(fmt::format("{}: tensor {} begins at {}, but {} ends at {}", path,
                                  in_quotes(entry.name), entry.begin, in_quotes(before), end));
    if (entry.begin > end)
      throw FileError(fmt::format("{}: nothing has bytes {} to {}, before tensor {}", path, end,
                                  entry.begin, in_quotes(entry.name)));
    if (entry.end > data)
      throw FileError(fmt::format("{}: tensor {} ends at {}, but only {} bytes follow the header",
                                  path, in_quotes(entry.name), entry.end, data));
    end = entry.end;
    before = entry.name;
  }
  if (end != data)
    throw FileError(
        fmt::format("{}: {} bytes follow the header, but its tensors end at {}", path, data, end));
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
  // Hugging Face's libraries load only what says which framework wrote it.
  header["__metadata__"] = {{"format", "pt"}};
  std::set<std::string_view> names{"__metadata__"};
  std::uint64_t begin = 0;
  for (const TensorEntry& entry : entries_) {
    if (!names.insert(entry.name).second)
      throw FileError(fmt::format("{}: tensor {} is there twice", path, in_quotes(entry.name)));
    std::uint64_t end = 0;
    if (__builtin_add_overflow(begin, bytes_of(path, entry), &end))
      throw FileError(fmt::format("{}: its tensors have more bytes than can be", path));
    header[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string json = header.dump();
  json.resize((json.size() + 7) / 8 * 8, ' ');  // the tensors' bytes begin aligned
  const std::uint64_t length = json.size();
  file_.write(&length, sizeof length);
  file_.write(json.data(), json.size());
}

void SafetensorsWriter::add(std::span<const std::byte> bytes) {
  if (added_ == entries_.size()) throw std::logic_error("SafetensorsWriter: one tensor too many");
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
