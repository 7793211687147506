#include "machine/device/host/kernels.h"

#include <fmt/format.h>

#include <cstdlib>

#include "machine/base/error.h"
#include "machine/device/host/launch.h"
#include "machine/device/kernels/optimizer_kernels.h"

namespace machine {

template class kernel::ElementKernels<HostLaunch>;
template class kernel::RowKernels<HostLaunch>;
template class kernel::ColumnKernels<HostLaunch>;
extern template class kernel::BlockKernels<HostLaunch>;
extern template class kernel::OptimizerKernels<HostLaunch>;

namespace {

class HostKernels final : public kernel::OptimizerKernels<HostLaunch> {
 public:
  explicit HostKernels(const Device& device)
      : OptimizerKernels(HostLaunch(device)), device_(device) {}

 private:
  void do_gemm(const Matrix& a, const Matrix& b, const Matrix& c, float alpha,
               float beta) override {
    host::multiply(a, b, c, alpha, beta, device_.threads(), scratch_);
  }
  void do_attention(const AttentionForward& call) override {
    host::attend(call, device_.threads(), scratch_);
  }
  void do_attention_backward(const AttentionBackward& call) override {
    host::attend_backward(call, device_.threads(), scratch_);
  }
  const Device& device_;
  host::Scratch scratch_;
};

}  // namespace

void host::Scratch::Free::operator()(void* data) const { std::free(data); }

void* host::Scratch::at_least(std::size_t bytes) {
  if (bytes > bytes_) {
    data_.reset();
    bytes_ = 0;
    const std::size_t rounded = (bytes + line_bytes - 1) / line_bytes * line_bytes;
    data_.reset(std::aligned_alloc(line_bytes, rounded));
    if (!data_)
      throw MachineError(
          fmt::format("cannot allocate {} bytes of kernel scratch on the host; use a smaller "
                      "case or fewer ranks",
                      rounded));
    bytes_ = rounded;
  }
  return data_.get();
}

std::unique_ptr<Kernels> host::make_kernels(const Device& device) {
  return std::make_unique<HostKernels>(device);
}

}  // namespace machine
