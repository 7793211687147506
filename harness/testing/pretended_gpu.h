#pragma once
// A GPU for tests of code that only asks a device what it is.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "machine/device/device.h"

namespace harness {

// A device with host memory that claims to be a GPU.
class PretendedGpu final : public machine::Device {
 public:
  explicit PretendedGpu(std::uint64_t identity, bool broken = false)
      : Device(Kind::cuda),
        inner_(machine::make_host_device()),
        identity_(identity),
        broken_(broken) {
    stream_ = inner_->make_stream();
  }
  std::string description() const override { return "pretended"; }
  std::uint64_t identity() const override { return identity_; }
  std::string why_broken() override { return broken_ ? "an illegal memory access" : ""; }
  std::unique_ptr<machine::Stream> make_stream() override { return inner_->make_stream(); }

 private:
  void* do_allocate(std::size_t bytes) override { return std::malloc(bytes); }
  void do_free(void* data, std::size_t) override { std::free(data); }
  std::unique_ptr<machine::Device> inner_;
  std::uint64_t identity_;
  bool broken_;
};

}  // namespace harness
