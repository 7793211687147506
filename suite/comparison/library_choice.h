#pragma once
// The dynamic library that one side of `ab` loads in place of the usual one.
//
//   const auto loaded = loaded_sonames(output_of_the_loader);
//   const LibraryChoice nccl = choose_library("--a-library", "nccl=/opt/nccl", program, loaded);
//   // LD_PRELOAD=nccl.file; afterwards environment.json has nccl.file as nccl.field

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace suite::comparison {

struct LibraryChoice {
  std::string name;    // "nccl"
  std::string file;    // without symbolic links
  std::string factor;  // the part of a fingerprint that it changes: "software.nccl"

  std::string field() const { return factor + ".library"; }  // the file that a rank loaded
};

// "mpi, nccl, …", for the help.
std::string library_names();

// Reads the sonames that a program loads from the loader's list (LD_TRACE_LOADED_OBJECTS).
std::vector<std::string> loaded_sonames(const std::string& list);

// Reads "nccl=PATH"; PATH is a file or its folder. `loaded`: the sonames that `program` loads, or
// no value if they are unknown. Throws UsageError for an unknown library, a library that the
// program does not load, a missing file, and a file that is not a shared object or has another
// soname.
LibraryChoice choose_library(std::string_view flag, const std::string& text,
                             const std::string& program,
                             const std::optional<std::vector<std::string>>& loaded);

// Throws UsageError if the choices have one library twice.
void check_once(std::string_view flag, const std::vector<LibraryChoice>& choices);

// Returns the value of LD_PRELOAD that loads the chosen files before those of `given`.
std::string preload(const std::vector<LibraryChoice>& choices, const std::string& given);

}  // namespace suite::comparison
