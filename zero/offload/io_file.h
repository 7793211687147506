#pragma once
// A file for transfers past the page cache (O_DIRECT): offsets, lengths and memory are multiples of
// 4096 bytes (io_alignment), as every block device and file system takes them.
//
// Where the file system refuses O_DIRECT the file is buffered and note() says so; a rate measured
// on it is one of memory.

#include <cstddef>
#include <cstdint>
#include <string>

namespace zero {

inline constexpr std::size_t io_alignment = 4096;

class IoFile {
 public:
  // A new file in `folder` of that many bytes, its blocks reserved, without a name: no other
  // process can open it or take it away, and it is gone with the last process that has it open,
  // however that ends. `rank` is for messages. Throws machine::MachineError naming folder and rank:
  // the folder is not there or can't be written to, less than `bytes` are free.
  static IoFile unnamed(const std::string& folder, std::uint64_t bytes, int rank);
  // One that is there, for reading, or for both.
  static IoFile existing(const std::string& path, bool writable, int rank);

  IoFile(IoFile&& other) noexcept;
  IoFile& operator=(IoFile&& other) noexcept;
  ~IoFile();

  int descriptor() const { return descriptor_; }
  const std::string& name() const { return name_; }  // "the swap file in /nvme of rank 3"
  bool direct() const { return note_.empty(); }
  const std::string& note() const { return note_; }  // empty: past the page cache

 private:
  IoFile(std::string name, const std::string& path, int flags);
  int descriptor_ = -1;
  std::string name_, note_;
};

}  // namespace zero
