#pragma once
// The configuration of the virtual GPUs, from the environment:
//
//   SHARDMARK_VIRTUAL_GPUS=4,memory=8GiB,sm=80,peers=none   number on this host, memory of each,
//                                                           capability, peers
//   SHARDMARK_VIRTUAL_GPUS=2,fault=1:ecc:20,fault=0-1:link  faults (faults.h)
//   SHARDMARK_VIRTUAL_STREAMS=lazy          or eager, or random:SEED
//   SHARDMARK_VIRTUAL_NCCL=wait=30,ranks=shared   seconds that an operation waits for its peers;
//                                           several ranks of a communicator may have one device
//   CUDA_VISIBLE_DEVICES=1,0                the devices that a process sees, in its order
//
//   SHARDMARK_VIRTUAL_GPUS=2,host=b         the process is on host b; else on that of its hostname
//
// Each host has its own GPUs: a process does not reach the memory of another host's.
//
// lazy: work runs when the program waits for it, and only the work that the wait requires.
// random: like lazy, but a wait also runs other work, in an order that the seed determines.
// eager: each stream has a thread that runs work at once.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "machine/virtual_gpu/faults.h"

namespace machine::virtual_gpu {

inline constexpr int most_devices = 64;  // of a host

enum class Order { lazy, random, eager };

struct Configuration {
  int devices = 2;           // that the process sees
  std::vector<int> visible;  // their numbers on the host; empty: 0, 1, …
  std::size_t memory = std::size_t{8} << 30;
  int major = 9, minor = 0;
  bool peers = true;
  std::string host;  // empty: the name of this host
  std::vector<Fault> faults;
  Order order = Order::lazy;
  std::uint64_t seed = 1;
  double nccl_wait_s = 30;
  bool ranks_share_devices = false;
};

// Returns the configuration. The first call reads the environment, and ends the process with exit
// code 2 if a value is invalid.
const Configuration& configuration();

// Returns the number of a device on the host, and a number that no other host has (a hash).
int on_host(int device);
std::uint32_t host_number();

// Returns the shared memory of a block that cudaFuncSetAttribute can allow.
std::size_t most_shared_memory(const Configuration& configuration);

// Returns the next number of a generator that the seed determines, one per process.
std::uint64_t random_number();

}  // namespace machine::virtual_gpu
