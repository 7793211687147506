#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>

#include "machine/base/checksum.h"
#include "machine/base/names.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/checkpoint/checkpoint_index.h"
#include "zero/checkpoint/open_file.h"

namespace zero {

namespace {

// The elements of a tensor that have been read, as ranges that do not touch.
class Elements {
 public:
  bool contain(Range range) const { return first_missing(range) == range.end; }
  // Returns the first element that is missing; range.end: none is.
  std::int64_t first_missing(Range range) const {
    const auto after = ends_.upper_bound(range.begin);
    if (after == ends_.begin()) return range.begin;
    return std::clamp(std::prev(after)->second, range.begin, range.end);
  }
  void add(Range range) {
    auto at = ends_.upper_bound(range.begin);
    if (at != ends_.begin() && std::prev(at)->second >= range.begin) {
      --at;
      range.begin = at->first;
    }
    while (at != ends_.end() && at->first <= range.end) {
      range.end = std::max(range.end, at->second);
      at = ends_.erase(at);
    }
    ends_[range.begin] = range.end;
  }

 private:
  std::map<std::int64_t, std::int64_t> ends_;  // by first element
};

}  // namespace

Checkpoint::Checkpoint(const std::string& folder) : index_(folder + "/index.json") {
  constexpr std::uint64_t longest = std::uint64_t{1} << 30;
  const OpenFile file(index_);
  const std::uint64_t size = file.size();
  if (size > longest) file.refuse(fmt::format("{} bytes are too many for an index", size));
  std::string text(size, '\0');
  file.read(0, text.data(), text.size());
  CheckpointIndex index = parse_index(index_, text);
  facts_ = std::move(index.facts);
  save_ = index.save;
  for (std::size_t rank = 0; rank < index.parts.size(); ++rank) {
    const std::string path = folder + "/" + part_name(index.save, rank, index.parts.size());
    const OpenFile part(path);
    if (const std::uint64_t bytes = part.size(); bytes != index.parts[rank].bytes)
      part.refuse(fmt::format("it has {} bytes, not the {} that were written", bytes,
                              index.parts[rank].bytes));
    if (index.parts[rank].bytes < part_header_bytes) part.refuse("it is too short for its header");
    std::string header(part_header_bytes, '\0');
    part.read(0, header.data(), header.size());
    if (header != part_header(index.save, rank, index.parts.size()))
      part.refuse(fmt::format("it is not the part of rank {} of save {}", rank, index.save));
    paths_.push_back(path);
    bytes_ += index.parts[rank].bytes;
    for (StoredPiece& piece : index.parts[rank].pieces) {
      const std::string name = piece.piece.name;
      tensors_[name].push_back({std::move(piece), rank});
    }
  }
}

std::uint64_t Checkpoint::number(const std::string& name) const {
  const auto found = facts_.numbers.find(name);
  if (found != facts_.numbers.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [other, value] : facts_.numbers) known.push_back(other);
  throw CheckpointError(fmt::format("{}: {}", index_, machine::unknown("number", name, known)));
}

const std::byte* Checkpoint::bytes_of(const Stored& stored) const {
  if (last_ == &stored) return last_bytes_;
  last_ = nullptr;
  const auto& [piece, dtype, offset, checksum] = stored.stored;
  const std::string& path = paths_[stored.part];
  WideChecksum found;
  last_bytes_ =
      reader_.read(path, offset, static_cast<std::size_t>(piece.size()) * machine::size_of(dtype),
                   [&](const void* part, std::size_t bytes) { found.add(part, bytes); });
  if (found.value() != checksum)
    OpenFile(path).refuse(
        fmt::format("tensor {} at {} is not what was written (its checksum is {:08x}, not "
                    "{:08x})",
                    piece.name, offset, found.value(), checksum));
  last_ = &stored;
  return last_bytes_;
}

void Checkpoint::verify() const {
  for (const auto& [name, pieces] : tensors_)
    for (const Stored& piece : pieces) bytes_of(piece);
}

const std::vector<Checkpoint::Stored>& Checkpoint::stored(const Piece& wanted) const {
  const auto found = tensors_.find(wanted.name);
  if (found != tensors_.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [name, pieces] : tensors_) known.push_back(name);
  const std::string near = machine::nearest(wanted.name, known);
  throw CheckpointError(fmt::format("{}: it has no tensor {}{}", index_, wanted.name,
                                    near.empty() ? "" : "; the nearest is " + near));
}

std::int64_t Checkpoint::rows_of(const std::string& tensor) const {
  const auto found = rows_.find(tensor.substr(0, tensor.rfind('/')));
  return found == rows_.end() ? -1 : found->second;
}

void Checkpoint::read(const Piece& wanted, const Tensor& into) const {
  SHARDMARK_CHECK(why_no_piece(wanted), ==, std::string());
  SHARDMARK_CHECK(into.size(), ==, wanted.size());
  const std::vector<Stored>& pieces = stored(wanted);
  const std::int64_t rows = wanted.global.empty() ? -1 : rows_of(wanted.name);
  const std::size_t size = machine::size_of(into.dtype());
  const std::vector<Run> gaps = runs(wanted);
  machine::Device& device = into.device();
  const bool staged = !device.readable_by_host();
  const auto host = staged ? machine::make_host_device_beside(device) : nullptr;
  const machine::Memory whole =
      staged ? host->allocate(into.bytes(), machine::Category::buffers) : machine::Memory();
  auto* const read = static_cast<std::byte*>(staged ? whole.data() : into.data());
  if (staged && rows >= 0) {
    device.stream().copy(read, into.data(), into.bytes());
    device.stream().synchronize();
  }
  Elements there;
  for (const Stored& stored : pieces) {
    const Piece& piece = stored.stored.piece;
    // Without its rows, the global index of an element stays the same.
    bool fits = piece.global.size() == wanted.global.size() && stored.stored.dtype == into.dtype();
    for (std::size_t dim = 0; fits && dim < piece.global.size(); ++dim)
      fits = piece.global[dim] == wanted.global[dim] ||
             (dim == 0 && rows >= 0 && piece.global[dim] >= rows);
    if (!fits)
      throw CheckpointError(
          fmt::format("{}: tensor {} is [{}] of {}, not [{}] of {}", index_, wanted.name,
                      fmt::join(piece.global, ", "), machine::name(stored.stored.dtype),
                      fmt::join(wanted.global, ", "), machine::name(into.dtype())));
    const std::vector<Run> has = runs(piece);
    const std::byte* bytes = nullptr;  // read only if it has missing elements
    auto from = has.begin();
    for (const Run& run : gaps) {
      while (from != has.end() && from->global + from->size <= run.global) ++from;
      for (auto at = from; at != has.end() && at->global < run.global + run.size; ++at) {
        const std::int64_t begin = std::max(run.global, at->global),
                           end = std::min(run.global + run.size, at->global + at->size);
        const std::int64_t to = run.local + begin - run.global,
                           source = at->local + begin - at->global;
        const Range part{to, to + end - begin};
        if (there.contain(part)) continue;
        if (!bytes) bytes = bytes_of(stored);
        std::memcpy(read + static_cast<std::size_t>(to) * size,
                    bytes + static_cast<std::size_t>(source) * size,
                    static_cast<std::size_t>(part.size()) * size);
        there.add(part);
      }
    }
  }
  std::int64_t row_size = 1;
  for (std::size_t dim = 1; dim < wanted.global.size(); ++dim) row_size *= wanted.global[dim];
  for (const Run& run : gaps) {
    const std::int64_t needed =
        rows < 0 ? run.size : std::clamp(rows * row_size - run.global, std::int64_t{0}, run.size);
    const Range all{run.local, run.local + needed};
    if (const std::int64_t missing = there.first_missing(all); missing != all.end)
      throw CheckpointError(fmt::format("{}: no file stores element {} of {} of tensor {}", index_,
                                        missing, wanted.size(), wanted.name));
  }
  if (!staged) return;
  device.stream().copy(into.data(), read, into.bytes());
  device.stream().synchronize();
}

}  // namespace zero
