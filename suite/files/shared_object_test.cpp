#include "suite/files/shared_object.h"

#include <elf.h>

#include <cstddef>
#include <fstream>

#include "harness/fingerprint/libraries.h"
#include "suite/testing/file_case.h"

namespace suite {
namespace {

using testing::append;
using testing::damaged;
using testing::expect_words;
using testing::Folder;
using testing::read_bytes;
using testing::refusal;
using testing::write_bytes;

// Returns a library with only a soname: header, two segments, dynamic entries, strings.
std::string library(const std::string& soname) {
  constexpr std::uint64_t segments = sizeof(Elf64_Ehdr);
  constexpr std::uint64_t dynamic = segments + 2 * sizeof(Elf64_Phdr);
  constexpr std::uint64_t strings = dynamic + 3 * sizeof(Elf64_Dyn), address = 0x10000;
  Elf64_Ehdr header{};
  std::ifstream("/proc/self/exe").read(reinterpret_cast<char*>(&header), sizeof header);
  header.e_type = ET_DYN;
  header.e_phoff = segments;
  header.e_phnum = 2;
  header.e_phentsize = sizeof(Elf64_Phdr);
  const Elf64_Phdr loaded{PT_LOAD, 0, 0, address, 0, 0x1000, 0x1000, 0};
  const Elf64_Phdr listed{PT_DYNAMIC, 0, dynamic, 0, 0, 3 * sizeof(Elf64_Dyn), 0, 0};
  const Elf64_Dyn entries[] = {{DT_STRTAB, {address + strings}}, {DT_SONAME, {1}}, {DT_NULL, {0}}};
  std::string bytes;
  append(bytes, header);
  append(bytes, loaded);
  append(bytes, listed);
  append(bytes, entries);
  return bytes + '\0' + soname + '\0';
}

TEST(SharedObject, ReportsTheSonameForTheLoader) {
  const std::string soname = soname_of(harness::mpi_library().file);
  EXPECT_TRUE(soname.starts_with("libmp")) << soname;
  EXPECT_NE(soname.find(".so."), std::string::npos) << soname;
  Folder folder;
  write_bytes(folder.path("other_name.so"), library("libnccl.so.2"));
  EXPECT_EQ(soname_of(folder.path("other_name.so")), "libnccl.so.2");
}

TEST(SharedObject, RejectsOtherFiles) {
  Folder folder;
  const auto reason = [&](const std::string& bytes) {
    write_bytes(folder.path("x.so"), bytes);
    return refusal([&] { soname_of(folder.path("x.so")); });
  };
  expect_words(refusal([&] { soname_of(folder.path("y.so")); }), {"cannot read", "y.so"});
  expect_words(reason("GROUP ( libnccl.so.2 )"), {"x.so is not an ELF shared object"});
  const std::string good = library("libx.so.1");
  expect_words(reason(good.substr(0, 30)), {"is truncated: 30 bytes"});
  std::string other = good;
  other[offsetof(Elf64_Ehdr, e_machine)] ^= 1;
  expect_words(reason(other), {"another kind of machine"});
  other = good;
  other[offsetof(Elf64_Ehdr, e_type)] = ET_REL;
  expect_words(reason(other), {"not a shared object"});
  other = good;
  other[offsetof(Elf64_Ehdr, e_phnum)] = 1;  // without its dynamic entries
  expect_words(reason(other), {"has no soname"});
  EXPECT_FALSE(is_elf(folder.path("y.so")));
  EXPECT_TRUE(is_elf("/proc/self/exe"));
}

TEST(SharedObject, DamagedFilesAreRejectedOrRead) {
  Folder folder;
  const std::string good = library("libx.so.1");
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    write_bytes(folder.path("x.so"), damaged(good, random));
    refusal([&] { soname_of(folder.path("x.so")); });
  }
}

}  // namespace
}  // namespace suite
