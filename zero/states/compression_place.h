#pragma once
// Where the residuals and codes of compressed sums over dp are: in the memory of the GPU if the
// link connects GPUs, else in host memory, which this owns.

#include <memory>

#include "machine/device/device.h"
#include "machine/link/link.h"

namespace zero {

class CompressionPlace {
 public:
  // device: of the gradients.
  CompressionPlace(machine::Device& device, machine::Transport transport) {
    if (machine::between_devices(transport)) {
      device_ = &device;
      return;
    }
    host_ = machine::make_host_device_beside(device, machine::Pages::pageable);
    device_ = host_.get();
    if (!device.readable_by_host())  // staging pins its pages itself
      pages_ = machine::make_host_device_beside(device, machine::Pages::pageable);
  }

  machine::Device& device() const { return *device_; }
  machine::Device* pages() const { return pages_.get(); }      // of staging; null: none
  const machine::Device* host() const { return host_.get(); }  // without staging; null: on the GPU

 private:
  std::unique_ptr<machine::Device> host_, pages_;
  machine::Device* device_ = nullptr;
};

}  // namespace zero
