#pragma once
// Faults of the virtual GPUs, for tests: fault=DEVICE:KIND[:NUMBER], DEVICE by its number on the
// host. A kernel or product with this number among those of the process on the device, counted from
// 1 (the default), has the fault:
//
//   launch   it fails
//   ecc      it meets an uncorrectable error of the memory, which NVML counts
//   lost     the device is lost: every later call fails, and NVML does not reach the device
//   bit      its result has one wrong bit, a high one
//   product  a product with this number among the products, and each later one: one wrong bit
//   remap, hot, brake, pcie, nvlink   it works; from now on, NVML reports a remapped row, a clock
//            that is lowered by heat or by the power supply, a narrow PCIe, an inactive NVLink
//
//   memory   the allocation with this number fails, and all later ones
//   link     fault=0-1:link: the transfer between the two devices with this number fails, and all
//            later ones

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace machine::virtual_gpu {

struct Fault {
  enum class Kind {
    launch,
    ecc,
    lost,
    bit,
    product,
    remap,
    hot,
    brake,
    pcie,
    nvlink,
    memory,
    link
  };
  Kind kind;
  int device, peer = -1;
  std::uint64_t number = 1;
};
inline constexpr std::array<std::string_view, 12> fault_names{
    "launch", "ecc",   "lost", "bit",    "product", "remap",
    "hot",    "brake", "pcie", "nvlink", "memory",  "link"};

// Returns how often a device has had a fault of this kind, as its driver counts it.
int strikes(Fault::Kind kind, int device_on_host);
void strike(Fault::Kind kind, int device_on_host);

// Counts a kernel or product of a device of this process.
std::uint64_t count_launch(int device);
// Returns the kernel's words that may be addresses of its memory, or none if no fault is
// configured.
std::vector<std::uint64_t> kept_words(const std::vector<std::uint64_t>& words);
// Runs it with the faults of its number. `name`: of the kernel, or product_name.
inline constexpr const char* product_name = "cublasLtMatmul";
void run_launch(int device, std::uint64_t number, const char* name,
                const std::vector<std::uint64_t>& words, const std::function<void()>& run);

// Counts an allocation. Returns whether it fails.
bool allocation_fails(int device_on_host);
// Counts a transfer between two devices of this host. Returns whether their link is lost.
bool link_is_lost(int device_on_host, int other);

}  // namespace machine::virtual_gpu
