// The links between CUDA devices in builds without CUDA. No device exists that could call them.

#include <stdexcept>

#include "machine/link/cuda_links.h"

namespace machine::cuda {

bool has_nccl() { return false; }
std::string why_not_peers(std::uint64_t, std::uint64_t) { return "this build has no CUDA"; }
std::unique_ptr<Link> connect_ipc(World&, const Group&, LinkStream) {
  throw std::logic_error("cuda_ipc in a build without CUDA");
}
std::unique_ptr<Link> connect_nccl(World&, const Group&, LinkStream) {
  throw std::logic_error("nccl in a build without CUDA");
}

}  // namespace machine::cuda
