#pragma once
// The configuration of the virtual GPUs, from the environment:
//
//   SHARDMARK_VIRTUAL_GPUS=4,memory=8GiB,sm=80,peers=none   number, memory of each, capability,
//   peers SHARDMARK_VIRTUAL_STREAMS=lazy                          or eager, or random:SEED
//
// lazy: work runs when the program waits for it, and only the work that the wait requires.
// random: like lazy, but a wait also runs other work, in an order that the seed determines.
// eager: each stream has a thread that runs work at once.

#include <cstddef>
#include <cstdint>

namespace machine::virtual_gpu {

enum class Order { lazy, random, eager };

struct Configuration {
  int devices = 2;
  std::size_t memory = std::size_t{8} << 30;
  int major = 9, minor = 0;
  bool peers = true;
  Order order = Order::lazy;
  std::uint64_t seed = 1;
};

// Returns the configuration. The first call reads the environment, and ends the process with exit
// code 2 if a value is invalid.
const Configuration& configuration();

// Returns the shared memory of a block that cudaFuncSetAttribute can allow.
std::size_t most_shared_memory(const Configuration& configuration);

// Returns the next number of a generator that the seed determines, one per process.
std::uint64_t random_number();

}  // namespace machine::virtual_gpu
