#pragma once
// The passes of flash_attention (flash_attention.h) by cuDNN, as a yardstick.
//
//   const CudnnAttention theirs = cudnn_attention(stream, call);
//   if (theirs.why_not.empty()) theirs.forward();
//
// cuDNN is loaded when it is first asked for. A build has it if NVIDIA's header library
// cudnn_frontend was found.

#include <functional>
#include <string>

#include "machine/device/device.h"
#include "machine/device/flash_attention.h"

namespace machine {

struct CudnnAttention {
  // Queue a pass on the stream. forward writes out and log_sum_exp; backward reads them and writes
  // d_q, d_k and d_v. Without dropout, and all sequences have all keys.
  std::function<void()> forward, backward;
  std::string why_not;  // if there are none
};
// The call's memory must exist while a pass runs.
CudnnAttention cudnn_attention(Stream& stream, const AttentionBackward& call);

// Returns why cuDNN has no kernels for the call on a GPU with these properties, or empty. In
// cuDNN's form (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION), so it needs no GPU.
std::string why_not_cudnn_attention(const AttentionBackward& call, int compute_capability,
                                    const std::string& properties);

}  // namespace machine
