#pragma once
// Sums of the virtual NCCL. Every rank adds all inputs in the order of the ranks, in float for
// narrower floating types, and rounds once. So all ranks have the same bits. Like NCCL's, avg
// multiplies floating inputs by 1/n before it adds them, and divides the sum of integers.

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace machine::virtual_gpu::nccl {

std::size_t size_of(ncclDataType_t type);
const char* name(ncclDataType_t type);
const char* name(ncclRedOp_t op);

class Sum {
 public:
  Sum(ncclDataType_t type, ncclRedOp_t op, std::size_t count, int ranks);
  void add(const std::byte* input);  // `count` elements
  std::vector<std::byte> result() const;

 private:
  ncclDataType_t type_;
  ncclRedOp_t op_;
  std::size_t count_;
  int ranks_;
  bool empty_ = true;
  std::vector<std::byte> sums_;  // accumulators
};

}  // namespace machine::virtual_gpu::nccl
