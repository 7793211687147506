#pragma once
// The soname of an ELF shared object, by which the loader of a program finds it.
//
//   soname_of("/opt/nccl/lib/libnccl.so.2.29.2")  // "libnccl.so.2"

#include <string>

namespace suite {

// Returns whether this is a readable ELF file; false for a script.
bool is_elf(const std::string& path);

// Throws FileError if the file is unreadable, not an ELF shared object of this machine, truncated,
// or without a soname.
std::string soname_of(const std::string& path);

}  // namespace suite
