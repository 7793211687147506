#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "machine/base/checksum.h"
#include "machine/base/names.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/checkpoint/checkpoint_index.h"

namespace zero {

namespace {

class OpenFile {
 public:
  explicit OpenFile(const std::string& path)
      : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (file_ < 0) refuse(std::strerror(errno));
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { ::close(file_); }

  [[noreturn]] void refuse(std::string_view why) const {
    throw CheckpointError(fmt::format("{}: {}", path_, why));
  }
  std::uint64_t size() const {
    struct stat status {};
    if (::fstat(file_, &status) != 0) refuse(std::strerror(errno));
    if (!S_ISREG(status.st_mode)) refuse("it is not a regular file");
    return static_cast<std::uint64_t>(status.st_size);
  }
  void read(std::uint64_t offset, void* into, std::size_t bytes) const {
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t got = ::pread(file_, static_cast<char*>(into) + done, bytes - done,
                                  static_cast<off_t>(offset + done));
      if (got == 0) refuse("it is truncated");
      if (got < 0 && errno != EINTR) refuse(std::strerror(errno));
      if (got > 0) done += static_cast<std::size_t>(got);
    }
  }

 private:
  std::string path_;
  int file_;
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

const std::vector<std::byte>& Checkpoint::bytes_of(const Stored& stored) const {
  if (last_ == &stored) return last_bytes_;
  last_ = nullptr;
  const auto& [piece, dtype, offset, checksum] = stored.stored;
  const OpenFile file(paths_[stored.part]);
  std::vector<std::byte>& bytes = last_bytes_;
  bytes.resize(static_cast<std::size_t>(piece.size()) * machine::size_of(dtype));
  file.read(offset, bytes.data(), bytes.size());
  if (const std::uint32_t found = wide_checksum(bytes.data(), bytes.size()); found != checksum)
    file.refuse(
        fmt::format("tensor {} at {} is not what was written (its checksum is {:08x}, not "
                    "{:08x})",
                    piece.name, offset, found, checksum));
  last_ = &stored;
  return bytes;
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
  const auto host = machine::make_host_device_beside(device);
  const machine::Memory whole = host->allocate(into.bytes(), machine::Category::buffers);
  auto* const read = static_cast<std::byte*>(whole.data());
  if (rows >= 0) {
    device.stream().copy(read, into.data(), into.bytes());
    device.stream().synchronize();
  }
  std::vector<bool> there(static_cast<std::size_t>(wanted.size()));
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
    const std::vector<std::byte>* bytes = nullptr;  // read only if it has missing elements
    auto from = has.begin();
    for (const Run& run : gaps) {
      while (from != has.end() && from->global + from->size <= run.global) ++from;
      for (auto at = from; at != has.end() && at->global < run.global + run.size; ++at) {
        const std::int64_t begin = std::max(run.global, at->global),
                           end = std::min(run.global + run.size, at->global + at->size);
        const auto to = static_cast<std::size_t>(run.local + begin - run.global),
                   source = static_cast<std::size_t>(at->local + begin - at->global),
                   count = static_cast<std::size_t>(end - begin);
        const auto first = there.begin() + static_cast<std::ptrdiff_t>(to),
                   last = first + static_cast<std::ptrdiff_t>(count);
        if (std::find(first, last, false) == last) continue;
        if (!bytes) bytes = &bytes_of(stored);
        std::memcpy(read + to * size, bytes->data() + source * size, count * size);
        std::fill(first, last, true);
      }
    }
  }
  std::int64_t row_size = 1;
  for (std::size_t dim = 1; dim < wanted.global.size(); ++dim) row_size *= wanted.global[dim];
  for (const Run& run : gaps) {
    const std::int64_t needed =
        rows < 0 ? run.size : std::clamp(rows * row_size - run.global, std::int64_t{0}, run.size);
    const auto begin = there.begin() + run.local, end = begin + needed;
    if (const auto gap = std::find(begin, end, false); gap != end)
      throw CheckpointError(fmt::format("{}: no file stores element {} of {} of tensor {}", index_,
                                        gap - there.begin(), wanted.size(), wanted.name));
  }
  device.stream().copy(into.data(), read, into.bytes());
  device.stream().synchronize();
}

}  // namespace zero
