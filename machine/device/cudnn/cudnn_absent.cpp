// Builds without cuDNN.

#include "machine/device/cudnn/cudnn_attention.h"

namespace machine {
namespace {

std::string why() {
  return cuda::is_virtual()
             ? "virtual GPUs have no cuDNN"
             : "the program was built without cuDNN's header library, cudnn_frontend";
}

}  // namespace

CudnnAttention cudnn_attention(Stream&, const AttentionBackward&) { return {{}, {}, why()}; }

std::string why_not_cudnn_attention(const AttentionBackward&, int, const std::string&) {
  return why();
}

}  // namespace machine
