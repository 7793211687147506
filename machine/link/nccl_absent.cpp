// The nccl transport of a build with CUDA but without NCCL.

#include <stdexcept>

#include "machine/link/cuda_links.h"

namespace machine::cuda {

bool has_nccl() { return false; }
std::unique_ptr<Link> connect_nccl(World&, const Group&, LinkStream) {
  throw std::logic_error("nccl in a build without NCCL");
}

}  // namespace machine::cuda
