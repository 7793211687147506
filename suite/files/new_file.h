#pragma once
// A file that appears complete or not at all: written under a temporary name, synced, renamed.
//
//   NewFile file("model.safetensors");
//   file.write(header.data(), header.size());
//   file.commit();                    // without it the file is removed
//
// Throws FileError with the path if it cannot be a file (its folder is missing), and
// machine::MachineError if the system fails (permission, a full disk).

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

// Throws the errors of NewFile(path) and leaves no file. Call it before long work.
void check_writable(const std::string& path);

}  // namespace suite
