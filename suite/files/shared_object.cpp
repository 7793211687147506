#include "suite/files/shared_object.h"

#include <elf.h>

#include <optional>
#include <vector>

#include "suite/files/mapped_file.h"

namespace suite {
namespace {

bool has_magic(const MappedFile& file) {
  return file.text().starts_with(std::string_view(ELFMAG, SELFMAG));
}

// Returns `count` entries at the offset. Throws FileError if the file ends earlier.
template <class T>
std::vector<T> table(const MappedFile& file, std::uint64_t offset, std::uint64_t count) {
  if (offset > file.size() || count > (file.size() - offset) / sizeof(T))
    throw FileError("{} is truncated: {} bytes", file.path(), file.size());
  std::vector<T> entries;
  for (std::uint64_t i = 0; i < count; ++i) entries.push_back(file.at<T>(offset + i * sizeof(T)));
  return entries;
}

Elf64_Ehdr header_of(const MappedFile& file) {
  if (!has_magic(file)) throw FileError("{} is not an ELF shared object", file.path());
  return table<Elf64_Ehdr>(file, 0, 1)[0];
}

}  // namespace

bool is_elf(const std::string& path) {
  try {
    return has_magic(MappedFile(path));
  } catch (const FileError&) {
    return false;
  }
}

std::string soname_of(const std::string& path) {
  const MappedFile file(path);
  const Elf64_Ehdr header = header_of(file), own = header_of(MappedFile("/proc/self/exe"));
  if (header.e_ident[EI_CLASS] != own.e_ident[EI_CLASS] || header.e_machine != own.e_machine)
    throw FileError("{} is built for another kind of machine", path);
  if (header.e_type != ET_DYN || header.e_phentsize != sizeof(Elf64_Phdr))
    throw FileError("{} is an ELF file, but not a shared object", path);
  const auto segments = table<Elf64_Phdr>(file, header.e_phoff, header.e_phnum);
  std::optional<std::uint64_t> name, strings;
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_DYNAMIC) continue;
    for (const Elf64_Dyn& entry :
         table<Elf64_Dyn>(file, segment.p_offset, segment.p_filesz / sizeof(Elf64_Dyn))) {
      if (entry.d_tag == DT_NULL) break;
      if (entry.d_tag == DT_SONAME) name = entry.d_un.d_val;
      if (entry.d_tag == DT_STRTAB) strings = entry.d_un.d_ptr;
    }
  }
  if (!name || !strings) throw FileError("{} has no soname", path);
  for (const Elf64_Phdr& segment : segments) {  // the table's address in memory -> in the file
    if (segment.p_type != PT_LOAD || *strings < segment.p_vaddr ||
        *strings - segment.p_vaddr >= segment.p_filesz)
      continue;
    const std::uint64_t begin = segment.p_offset + (*strings - segment.p_vaddr) + *name;
    const std::size_t end = file.text().find('\0', begin);
    if (begin < file.size() && end != std::string_view::npos)
      return std::string(file.text().substr(begin, end - begin));
  }
  throw FileError("{} is truncated: its soname lies beyond its {} bytes", path, file.size());
}

}  // namespace suite
