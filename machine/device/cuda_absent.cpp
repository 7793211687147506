// The CUDA device in builds without CUDA.

#include <fmt/format.h>

#include <stdexcept>

#include "machine/base/error.h"
#include "machine/device/device.h"
#include "machine/device/dynamic_codes/adamw_8bit_cuda.h"
#include "machine/device/float8/scaled_codes_cuda.h"
#include "machine/device/float8/scaled_gemm_cuda.h"
#include "machine/device/float_codes/float_codes_cuda.h"
#include "machine/device/int_blocks/block_codes_cuda.h"
#include "machine/device/selection/selection.h"
#include "machine/device/sparse/sparse_attention_cuda.h"
#include "machine/device/split_norm.h"

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

std::unique_ptr<Selection> make_selection(Device&, std::int64_t, Choice, Category) {
  throw MachineError("this build has no CUDA device");
}

std::unique_ptr<SplitNorm> make_split_norm(Device& device) {
  throw MachineError(fmt::format("{} is not a device of this build", device.description()));
}

// No stream exists that could call these.
namespace {
[[noreturn]] void refuse() { throw std::logic_error("a CUDA kernel in a build without CUDA"); }
}  // namespace
void largest_magnitudes(Stream&, const Tensor&, Blocks, const Tensor&) { refuse(); }
void choose_scales(Stream&, const Tensor&, Dtype, const ScaleRule&, const Tensor&, const Tensor&) {
  refuse();
}
void choose_exponents(Stream&, const Tensor&, Dtype, const Tensor&) { refuse(); }
void encode(Stream&, const Tensor&, Blocks, const Tensor&, const Tensor&) { refuse(); }
void decode(Stream&, const Tensor&, Blocks, const Tensor&, const Tensor&) { refuse(); }
void scaled_gemm(Stream&, const ScaledProduct&, const ScaledMatrix&, const ScaledMatrix&,
                 const Tensor&, bool) {
  refuse();
}
void encode_blocks(Stream&, const Tensor&, std::int64_t, int, const Tensor&, std::int64_t) {
  refuse();
}
void decode_blocks(Stream&, const Tensor&, std::int64_t, int, const Tensor&, std::int64_t) {
  refuse();
}
void encode_floats(Stream&, FloatCode, const Tensor&, const Tensor&, const Tensor&) { refuse(); }
void decode_floats(Stream&, FloatCode, const Tensor&, std::int64_t, std::int64_t, const Tensor&) {
  refuse();
}
void adamw_8bit(Stream&, const Tensor&, const kernel::AdamwStep<float>&, const std::uint8_t*,
                const Tensor&, const Moments8Bit&, const Tensor&) {
  refuse();
}

}  // namespace machine::cuda
