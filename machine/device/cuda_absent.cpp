// The CUDA device in builds without CUDA.

#include <fmt/format.h>

#include "machine/base/error.h"
#include "machine/device/cuda/sparse/sparse_attention.h"
#include "machine/device/device.h"

namespace machine::cuda {

bool built() { return false; }
bool is_virtual() { return false; }
Present ask() { return {0, "this program was built without CUDA (preset cuda has it)"}; }

const std::vector<Gpu>& gpus() {
  static const std::vector<Gpu> none;
  return none;
}

std::unique_ptr<Device> make_device(int index) {
  throw MachineError(fmt::format(
      "CUDA device {} does not exist: this build has no CUDA (0 devices); configure with the "
      "preset cuda, or use --device host",
      index));
}

std::unique_ptr<kernel::SparseKernels> make_sparse_kernels(Device&, const kernel::BlockLists&) {
  throw MachineError("this build has no CUDA device");
}

}  // namespace machine::cuda
