#pragma once
// The libraries that this process has loaded, with the versions that they report.

#include <string>

namespace harness {

struct Library {
  std::string version;  // "4.0.2"; "absent" if not available; empty: not reported
  std::string file;     // as loaded; empty: no file
};

// MPI need not be initialized.
Library mpi_library();
Library onednn_library();
Library cuda_library();  // the runtime
Library cublas_lt_library();
Library nccl_library();  // absent in a build without NCCL, even if a preloaded file has it
// Returns the newest CUDA version that the driver supports, or "absent".
std::string cuda_of_driver();

}  // namespace harness
