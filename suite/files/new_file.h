#pragma once
// A file that appears whole or not at all: written beside under a name of its own, synced, renamed.
//
//   NewFile file("model.safetensors");
//   file.write(header.data(), header.size());
//   file.commit();                    // without it nothing of it is left
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
  void sync();    // flushed to the disk; commit does it too
  void commit();  // takes the place of what had the name

 private:
  void flush();
  [[noreturn]] void refuse(int error) const;

  std::string path_, beside_;
  int file_ = -1;
  bool synced_ = false;
  std::vector<char> pending_;
};

// What NewFile(path) would refuse at once, without leaving anything: for a check before long work.
void check_writable(const std::string& path);

}  // namespace suite
