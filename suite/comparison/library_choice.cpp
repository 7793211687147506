#include "suite/comparison/library_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "machine/base/names.h"
#include "suite/files/mapped_file.h"
#include "suite/files/shared_object.h"
#include "suite/options/options.h"

namespace suite::comparison {
namespace {

namespace fs = std::filesystem;

struct Known {
  std::string_view name, factor;
  std::vector<std::string_view> stems;  // parts of sonames before ".so"
  std::string_view when_missing;
};

const std::vector<Known>& known_libraries() {
  static const std::vector<Known> all{
      {"mpi", "software.mpi", {"libmpich", "libmpi"}, "it is linked statically"},
      {"nccl", "software.nccl", {"libnccl"}, "only a build with CUDA and NCCL links it"},
      {"cudart", "software.cuda", {"libcudart"}, "only a build with CUDA links it"},
      {"cublasLt", "software.cublasLt", {"libcublasLt"}, "only a build with CUDA links it"},
      {"dnnl", "software.onednn", {"libdnnl"}, "it is linked statically"},
  };
  return all;
}

bool is_of(const Known& library, std::string_view soname) {
  return std::ranges::any_of(library.stems, [&](std::string_view stem) {
    return soname.starts_with(stem) && soname.substr(stem.size()).starts_with(".so");
  });
}

// Returns the library's file in the folder: the one named as its soname.
std::string file_in(const std::string& folder, const Known& library,
                    const std::optional<std::string>& wanted) {
  std::vector<std::string> found, others;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename().string();
    if (!is_of(library, name)) continue;
    others.push_back(name);
    if (wanted ? name == *wanted : is_elf(entry.path()) && soname_of(entry.path()) == name)
      found.push_back(entry.path().string());
  }
  if (failed) throw FileError("cannot read {}: {}", folder, failed.message());
  if (found.size() == 1) return found[0];
  std::ranges::sort(others);
  throw FileError("the folder {} has {} {}{}", folder, found.empty() ? "no" : "more than one",
                  wanted.value_or(fmt::format("{}.so", library.stems[0])),
                  others.empty() ? "; give the folder of the library or its file"
                                 : fmt::format("; it has {}", fmt::join(others, ", ")));
}

std::string file_of(const std::string& path, const Known& library, const std::string& program,
                    const std::optional<std::string>& wanted) {
  std::error_code failed;
  const std::string file = fs::is_directory(path, failed) ? file_in(path, library, wanted) : path;
  const std::string soname = soname_of(file);
  if (wanted ? soname != *wanted : !is_of(library, soname))
    throw FileError("{} has the soname {}; {} requires {}", file, in_quotes(soname), program,
                    wanted.value_or(fmt::format("{}.so", library.stems[0])));
  const std::string real = fs::canonical(file).string();
  if (real.find_first_of(": ") != std::string::npos)
    throw FileError("{} has a space or a colon, which LD_PRELOAD cannot hold; copy it", real);
  return real;
}

}  // namespace

std::string library_names() {
  std::vector<std::string_view> names;
  for (const Known& library : known_libraries()) names.push_back(library.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<std::string> loaded_sonames(const std::string& list) {
  std::vector<std::string> sonames;
  std::istringstream lines(list);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string soname;
    if (words >> soname) sonames.push_back(fs::path(soname).filename().string());
  }
  return sonames;
}

LibraryChoice choose_library(std::string_view flag, const std::string& text,
                             const std::string& program,
                             const std::optional<std::vector<std::string>>& loaded) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals + 1 == text.size())
    reject("{} is {}; expected LIBRARY=PATH (example: nccl=/opt/nccl/lib)", flag, in_quotes(text));
  const std::string name = text.substr(0, equals);
  const auto library = std::ranges::find(known_libraries(), name, &Known::name);
  if (library == known_libraries().end()) {
    std::vector<std::string> names;
    for (const Known& one : known_libraries()) names.emplace_back(one.name);
    throw harness::UsageError(machine::unknown(fmt::format("library of {}", flag), name, names));
  }
  std::optional<std::string> wanted;
  if (loaded) {
    const auto at = std::ranges::find_if(
        *loaded, [&](const std::string& soname) { return is_of(*library, soname); });
    if (at == loaded->end())
      reject("{} {}: {} does not load {}; {}", flag, name, program,
             fmt::format("{}.so", fmt::join(library->stems, ".so or ")), library->when_missing);
    wanted = *at;
  }
  try {
    return {name, file_of(text.substr(equals + 1), *library, program, wanted),
            std::string(library->factor)};
  } catch (const FileError& error) {
    throw FileError("{} {}: {}", flag, name, error.what());
  }
}

void check_once(std::string_view flag, const std::vector<LibraryChoice>& choices) {
  for (auto choice = choices.begin(); choice != choices.end(); ++choice)
    if (std::ranges::find(choices.begin(), choice, choice->name, &LibraryChoice::name) != choice)
      reject("{} {} is given twice", flag, choice->name);
}

std::string preload(const std::vector<LibraryChoice>& choices, const std::string& given) {
  std::vector<std::string> files;
  for (const LibraryChoice& choice : choices) files.push_back(choice.file);
  if (!given.empty()) files.push_back(given);
  return fmt::format("{}", fmt::join(files, ":"));
}

}  // namespace suite::comparison
