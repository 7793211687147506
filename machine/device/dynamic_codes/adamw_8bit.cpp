#include "machine/device/dynamic_codes/adamw_8bit.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "machine/base/error.h"
#include "machine/device/dynamic_codes/adamw_8bit_cuda.h"
#include "machine/device/dynamic_codes/adamw_8bit_host.h"
#include "machine/device/host/launch.h"
#include "machine/device/kernels/checks.h"

namespace machine {

Moments8Bit zero_moments(Device& device, std::int64_t elements, Category category) {
  Stream& stream = device.stream();
  Moments8Bit moments{Tensor(device, Dtype::uint8, {elements}, category),
                      Tensor(device, Dtype::uint8, {elements}, category),
                      Tensor(device, Dtype::float32, {2, moment_blocks(elements)}, category)};
  for (const auto& [codes, zero] : {std::pair(moments.first, kernel::DynamicMap<true>::zero_code),
                                    {moments.second, kernel::DynamicMap<false>::zero_code}}) {
    const std::vector<std::uint8_t> all(codes.bytes(), static_cast<std::uint8_t>(zero));
    stream.copy(codes.data(), all.data(), all.size());
    stream.synchronize();
  }
  stream.kernels().fill(moments.scales, 0);
  return moments;
}

void adamw_8bit(Stream& stream, const Tensor& gradient, double gradient_scale, const AdamW& options,
                std::int64_t step, const std::uint8_t* decay_mask, const Tensor& master,
                const Moments8Bit& moments, const Tensor& weight) {
  kernel::check_kind(stream.device().kind(), {&gradient, &master, &moments.first, &moments.second,
                                              &moments.scales, &weight});
  kernel::check_dtypes(Dtype::uint8, {&moments.first, &moments.second});
  kernel::check_dtypes(Dtype::float32, {&master, &moments.scales});
  kernel::check_sizes(master.size(), {&gradient, &moments.first, &moments.second, &weight});
  kernel::check_sizes(2 * moment_blocks(master.size()), {&moments.scales});
  const Dtype of_weight = weight.dtype();
  if (of_weight != Dtype::float32 && of_weight != Dtype::bfloat16 && of_weight != Dtype::float16)
    throw std::logic_error("weights of moments in 8 bits must be float, bfloat16 or half, not " +
                           std::string(name(of_weight)));
  if (gradient.dtype() != Dtype::float32 && gradient.dtype() != of_weight)
    throw std::logic_error("gradients must be float or of the weights' dtype, not " +
                           std::string(name(gradient.dtype())));
  if (of_weight == Dtype::float32 && weight.data() != master.data())
    throw std::logic_error("weights of float are their own master");
  const kernel::AdamwStep<float> update(options, gradient_scale, step);
  if (stream.device().kind() != Device::Kind::host)
    return cuda::adamw_8bit(stream, gradient, update, decay_mask, master, moments, weight);
  kernel::run_adamw_8bit<kernel::AdamwOfHostBlock>(HostLaunch(stream.device()), gradient, update,
                                                   decay_mask, master, moments, weight);
}

}  // namespace machine
