// The CUDA device in builds without CUDA.

#include <fmt/format.h>

#include "machine/base/error.h"
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

}  // namespace machine::cuda
