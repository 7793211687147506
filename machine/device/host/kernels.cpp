#include "machine/device/host/kernels.h"

#include "machine/device/host/launch.h"
#include "machine/device/kernels/block_kernels.h"

namespace machine {

template class kernel::ElementKernels<HostLaunch>;
template class kernel::RowKernels<HostLaunch>;
template class kernel::ColumnKernels<HostLaunch>;
extern template class kernel::BlockKernels<HostLaunch>;

namespace {

class HostKernels final : public kernel::BlockKernels<HostLaunch> {
 public:
  explicit HostKernels(const Device& device) : BlockKernels(HostLaunch(device)), device_(device) {}

 private:
  void do_gemm(const Matrix& a, const Matrix& b, const Matrix& c, float alpha,
               float beta) override {
    host::multiply(a, b, c, alpha, beta, device_.threads());
  }
  const Device& device_;
};

}  // namespace

std::unique_ptr<Kernels> host::make_kernels(const Device& device) {
  return std::make_unique<HostKernels>(device);
}

}  // namespace machine
