#pragma once
// A file that appears complete or not at all: written under a temporary name, synced, renamed.
//
//   NewFile file("model.safetensors");
//   file.write(header.data(), header.size());
//   file.commit();                    // without it the file is removed
//
// Throws FileError naming the path when it cannot be a file (its folder is not there),
// machine::MachineError when the system refuses (permission, a full disk).

#include <cstddef>
#include <string>
#include <vector>

#include "suite/files/mapped_file.h"

namespace suite {

class NewFile {
 public:
  explicit NewFile(const std::string& path);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();

  void write(const void* data, std::size_t size);
  void sync();    // flushes to the disk; commit also does this
  void commit();  // replaces the file of that name

 private:
  void flush();
  [[noreturn]] void refuse(int error) const;

  std::string path_, beside_;
  int file_ = -1;
  bool synced_ = false;
  std::vector<char> pending_;
};

// Throws what NewFile(path) would throw, and leaves no file: a check before long work.
void check_writable(const std::string& path);

}  // namespace suite
