#include "suite/comparison/library_choice.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "harness/fingerprint/libraries.h"
#include "suite/files/shared_object.h"
#include "suite/testing/file_case.h"

namespace suite::comparison {
namespace {

namespace fs = std::filesystem;
using testing::expect_words;
using testing::Folder;
using testing::write_bytes;

using Loaded = std::optional<std::vector<std::string>>;

// Returns the chosen file, or the error message.
std::string chosen(const std::string& text, const Loaded& loaded) {
  try {
    return choose_library("--b-library", text, "shardmark", loaded).file;
  } catch (const harness::UsageError& error) {
    return error.what();
  }
}

class ChosenLibrary : public ::testing::Test {
 protected:
  ChosenLibrary() {
    folder.put("libdnnl.so.real", testing::read_bytes(harness::onednn_library().file));
    fs::create_symlink("libdnnl.so.real", folder.path(soname));
    file = fs::canonical(folder.path(soname)).string();
  }
  Folder folder;
  std::string soname = soname_of(harness::onednn_library().file), file;
  Loaded loaded{{"libmpich.so.12", soname}};
};

TEST_F(ChosenLibrary, ResolvesSymbolicLinks) {
  EXPECT_EQ(chosen("dnnl=" + folder.path(soname), loaded), file);
  EXPECT_EQ(chosen("dnnl=" + folder.path(), loaded), file);
  EXPECT_EQ(chosen("dnnl=" + folder.path(), {}), file);  // a script: its libraries are unknown
}

TEST_F(ChosenLibrary, RejectsNamesAndPaths) {
  expect_words(chosen("dnl=" + file, loaded), {"unknown library of --b-library 'dnl'", "'dnnl'"});
  expect_words(chosen("dnnl", loaded), {"--b-library is 'dnnl'; expected LIBRARY=PATH"});
  expect_words(chosen("dnnl=", loaded), {"expected LIBRARY=PATH"});
  expect_words(
      chosen("dnnl=" + folder.path("libdnnl.so.reel"), loaded),
      {"--b-library dnnl: cannot read", "libdnnl.so.reel", "did you mean", "libdnnl.so.real"});
  fs::create_directory(folder.path("empty"));
  expect_words(chosen("dnnl=" + folder.path("empty"), loaded),
               {"has no " + soname, "give the folder of the library"});
}

TEST_F(ChosenLibrary, RejectsAnotherVersionOfTheInterface) {
  expect_words(chosen("dnnl=" + folder.path(), {{"libdnnl.so.99"}}),
               {"has no libdnnl.so.99; it has libdnnl.so."});
  expect_words(chosen("dnnl=" + file, {{"libdnnl.so.99"}}),
               {"has the soname '" + soname + "'; shardmark requires libdnnl.so.99"});
  expect_words(chosen("mpi=" + file, loaded), {"shardmark requires libmpich.so.12"});
}

TEST_F(ChosenLibrary, RejectsALibraryNotLoadedByTheProgram) {
  EXPECT_EQ(chosen("nccl=" + file, loaded),
            "--b-library nccl: shardmark does not load libnccl.so; only a build with CUDA and NCCL "
            "links it");
  expect_words(chosen("nccl=" + file, {}), {"requires libnccl.so"});
}

TEST_F(ChosenLibrary, RejectsPathsWithSpacesOrColons) {
  for (const std::string name : {"a b", "a:b"}) {
    folder.put(name + "/" + soname, testing::read_bytes(file));
    expect_words(chosen("dnnl=" + folder.path(name), loaded), {"a space or a colon"});
  }
}

TEST(LoadedSonames, AreReadFromTheLoadersList) {
  EXPECT_EQ(loaded_sonames("\tlinux-vdso.so.1 (0x00007f)\n"
                           "\t/opt/a/libx.so.1 (0x00007f)\n"
                           "\tliby.so.2 => /lib/liby.so.2 (0x00007f)\n"
                           "\tlibz.so.3 => not found\n"),
            (std::vector<std::string>{"linux-vdso.so.1", "libx.so.1", "liby.so.2", "libz.so.3"}));
}

TEST(Preload, HasTheChosenFilesFirst) {
  const std::vector<LibraryChoice> choices{{"nccl", "/n", ""}, {"mpi", "/m", ""}};
  EXPECT_EQ(preload(choices, ""), "/n:/m");
  EXPECT_EQ(preload(choices, "libz.so"), "/n:/m:libz.so");
  EXPECT_NO_THROW(check_once("--a-library", choices));
  EXPECT_THROW(check_once("--a-library", {choices[0], choices[1], choices[0]}),
               harness::UsageError);
}

}  // namespace
}  // namespace suite::comparison
