#include "zero/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "machine/base/checksum.h"
#include "zero/checkpoint/checkpoint_index.h"

namespace zero {

namespace {

[[noreturn]] void refuse(std::string_view doing, const std::string& path) {
  throw CheckpointError(fmt::format("cannot {} {}: {}", doing, path, std::strerror(errno)));
}

void write_all(int file, const std::string& path, const void* data, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t wrote = ::write(file, static_cast<const char*>(data) + done, bytes - done);
    if (wrote > 0)
      done += static_cast<std::size_t>(wrote);
    else if (wrote == 0 || errno != EINTR)
      refuse("write", path);
  }
}

int open_new(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) refuse("create", path);
  return file;
}

void sync(int file, const std::string& path) {
  if (::fsync(file) != 0) refuse("sync", path);
}

// Syncs the names of files. Some file systems cannot sync a folder (EINVAL).
void sync_folder(const std::string& folder) {
  const int opened = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) refuse("open", folder);
  const bool failed = ::fsync(opened) != 0 && errno != EINVAL;
  ::close(opened);
  if (failed) refuse("sync", folder);
}

// Removes files of other saves. Ignores files that cannot be removed.
void remove_other_saves(const std::string& folder, const std::string& save) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool is_part = name.size() > 16 && is_save_name(name.substr(0, 16)) &&
                         name.substr(16).starts_with("-rank-") && name.ends_with(".part");
    if (is_part && !name.starts_with(save)) std::filesystem::remove(entry.path(), ignored);
  }
}

const Reached nobody = [](std::string_view) {};

std::string path_of(const std::string& folder, const std::string& save, int rank, int ranks) {
  SHARDMARK_CHECK(is_save_name(save), ==, true);
  return folder + "/" +
         part_name(save, static_cast<std::size_t>(rank), static_cast<std::size_t>(ranks));
}

constexpr std::size_t staged_bytes = std::size_t{8} << 20;  // a part of a tensor of a GPU

}  // namespace

PartWriter::PartWriter(const std::string& folder, const std::string& save, int rank, int ranks,
                       const Reached& reached)
    : reached_(reached ? reached : nobody), file_(path_of(folder, save, rank, ranks), rank) {
  const std::string header =
      part_header(save, static_cast<std::size_t>(rank), static_cast<std::size_t>(ranks));
  file_.write(header.data(), header.size());
  reached_("part begun");
}

void PartWriter::add(const Piece& piece, const Tensor& elements) {
  SHARDMARK_CHECK(why_no_piece(piece), ==, std::string());
  SHARDMARK_CHECK(elements.size(), ==, piece.size());
  const char zeros[part_alignment] = {};
  file_.write(zeros, (part_alignment - file_.bytes() % part_alignment) % part_alignment);
  const std::uint64_t offset = file_.bytes();
  WideChecksum checksum;
  each_part(elements, [&](const void* data, std::size_t bytes) {
    // The copy to the writer finds in a cache what the checksum has read.
    constexpr std::size_t tile_bytes = std::size_t{64} << 10;
    const auto* const from = static_cast<const std::byte*>(data);
    for (std::size_t at = 0; at < bytes; at += tile_bytes) {
      const std::size_t tile = std::min(tile_bytes, bytes - at);
      checksum.add(from + at, tile);
      file_.write(from + at, tile);
    }
  });
  stored_.push_back({piece, elements.dtype(), offset, checksum.value()});
}

void PartWriter::each_part(const Tensor& elements,
                           const std::function<void(const void*, std::size_t)>& use) {
  if (elements.device().readable_by_host()) return use(elements.data(), elements.bytes());
  if (staged_ != &elements.device()) {
    parts_ = {};
    staged_ = &elements.device();
    host_ = machine::make_host_device_beside(*staged_);
    for (machine::Memory& part : parts_)
      part = host_->allocate(staged_bytes, machine::Category::buffers);
  }
  machine::Stream& stream = staged_->stream();
  const auto* const from = static_cast<const std::byte*>(elements.data());
  const std::size_t count = (elements.bytes() + staged_bytes - 1) / staged_bytes;
  const auto bytes_of = [&](std::size_t part) {
    return std::min(staged_bytes, elements.bytes() - part * staged_bytes);
  };
  std::array<std::unique_ptr<machine::Event>, 2> copied;
  const auto start = [&](std::size_t part) {
    if (part >= count) return;
    stream.copy(parts_[part % 2].data(), from + part * staged_bytes, bytes_of(part));
    copied[part % 2] = stream.record();
  };
  start(0);
  for (std::size_t part = 0; part < count; ++part) {
    start(part + 1);
    copied[part % 2]->synchronize();
    use(parts_[part % 2].data(), bytes_of(part));
  }
}

std::string PartWriter::finish() {
  reached_("part written");
  file_.finish();
  reached_("part synced");
  return part_text({file_.bytes(), stored_});
}

void commit(const std::string& folder, const std::string& save,
            const std::vector<std::string>& parts, const Facts& facts, const Reached& given) {
  const Reached& reached = given ? given : nobody;
  const std::string text = index_text(save, facts, parts);
  const std::string path = folder + "/index.json", beside = path + ".new";
  const int file = open_new(beside);
  try {
    write_all(file, beside, text.data(), text.size());
    reached("index written");
    sync(file, beside);
  } catch (...) {
    ::close(file);
    ::unlink(beside.c_str());
    throw;
  }
  ::close(file);
  sync_folder(folder);  // the parts' names
  reached("index synced");
  if (::rename(beside.c_str(), path.c_str()) != 0) refuse("rename", beside);
  reached("index renamed");
  sync_folder(folder);
  remove_other_saves(folder, save);
  reached("others removed");
}

}  // namespace zero
