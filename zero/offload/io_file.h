#pragma once
// A file for transfers that bypass the page cache (O_DIRECT). Offsets, lengths and memory are
// multiples of 4096 bytes (io_alignment), which every block device and file system accepts.
//
// If the file system rejects O_DIRECT the file is buffered and note() reports it. A rate measured
// on it is the rate of memory.

#include <cstddef>
#include <cstdint>
#include <string>

namespace zero {

inline constexpr std::size_t io_alignment = 4096;

class IoFile {
 public:
  // Creates a file of `bytes` bytes in `folder`, with reserved blocks and without a name. No other
  // process can open or remove it. It disappears with the last process that has it open. `rank` is
  // for messages. Throws machine::MachineError that names folder and rank if the folder is missing
  // or not writable, or has fewer than `bytes` bytes free.
  static IoFile unnamed(const std::string& folder, std::uint64_t bytes, int rank);
  // Creates a file for writing, or empties an existing one.
  static IoFile created(const std::string& path, int rank);
  // Opens a file for reading, or for reading and writing.
  static IoFile existing(const std::string& path, bool writable, int rank);

  IoFile(IoFile&& other) noexcept;
  IoFile& operator=(IoFile&& other) noexcept;
  ~IoFile();

  int descriptor() const { return descriptor_; }
  const std::string& name() const { return name_; }  // "the swap file in /nvme of rank 3"
  bool direct() const { return note_.empty(); }
  const std::string& note() const { return note_; }  // empty: the file bypasses the page cache

 private:
  IoFile(std::string name, const std::string& path, int flags, unsigned mode = 0600);
  int descriptor_ = -1;
  std::string name_, note_;
};

}  // namespace zero
