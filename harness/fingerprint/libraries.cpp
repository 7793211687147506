#include "harness/fingerprint/libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <mpi.h>

#include <cstddef>
#include <string_view>

#include "harness/fingerprint/build_info.h"

// Functions of libraries that a build may lack: null then.
extern "C" {
__attribute__((weak)) int cudaRuntimeGetVersion(int* version);
__attribute__((weak)) int cudaDriverGetVersion(int* version);
__attribute__((weak)) int ncclGetVersion(int* version);
}

namespace harness {
namespace {

// Returns the file of the library that has this function.
std::string file_of(const char* function) {
  Dl_info info{};
  const void* address = ::dlsym(RTLD_DEFAULT, function);
  return address && ::dladdr(address, &info) != 0 && info.dli_fname ? info.dli_fname : "";
}

std::string cuda_version(int (*ask)(int*)) {
  int version = 0;
  return ask && ask(&version) == 0 && version > 0
             ? fmt::format("{}.{}", version / 1000, version % 1000 / 10)
             : "absent";
}

}  // namespace

Library mpi_library() {
  Library library{"", file_of("MPI_Get_library_version")};
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  if (MPI_Get_library_version(text, &length) == MPI_SUCCESS) {
    const std::string_view whole(text);
    library.version = whole.substr(0, whole.find('\n'));  // MPICH appends its build flags
  }
  return library;
}

Library onednn_library() {
  // dnnl_version_t begins with these three numbers. Its header is too large to include for them.
  struct Version {
    int major, minor, patch;
  };
  Library library{"", file_of("dnnl_version")};
  if (const auto ask =
          reinterpret_cast<const Version* (*)()>(::dlsym(RTLD_DEFAULT, "dnnl_version")))
    library.version = fmt::format("{}.{}.{}", ask()->major, ask()->minor, ask()->patch);
  return library;
}

Library cuda_library() {
  return {cuda_version(cudaRuntimeGetVersion), file_of("cudaRuntimeGetVersion")};
}

std::string cuda_of_driver() { return cuda_version(cudaDriverGetVersion); }

Library cublas_lt_library() {
  Library library{"absent", file_of("cublasLtGetVersion")};
  if (const auto ask =
          reinterpret_cast<std::size_t (*)()>(::dlsym(RTLD_DEFAULT, "cublasLtGetVersion")))
    library.version = fmt::format("{}.{}.{}", ask() / 10000, ask() % 10000 / 100, ask() % 100);
  return library;
}

Library nccl_library() {
  if (build_info().nccl_header == "absent") return {"absent", ""};
  Library library{"absent", file_of("ncclGetVersion")};
  int version = 0;
  if (ncclGetVersion && ncclGetVersion(&version) == 0)
    library.version =
        fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
  return library;
}

}  // namespace harness
