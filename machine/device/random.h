#pragma once
// Counter-based random numbers: Philox 4x32-10 (Salmon et al. 2011, doi:10.1145/2063384.2063405).
// A value is a pure function of (seed, index), so it does not depend on rank, sharding or order.

#include <array>
#include <cstdint>
#include <string_view>

#include "machine/device/dtype.h"

namespace machine {

SHARDMARK_BOTH constexpr std::array<std::uint32_t, 4> philox(std::uint64_t seed,
                                                             std::uint64_t index) {
  std::uint32_t counter[4] = {static_cast<std::uint32_t>(index),
                              static_cast<std::uint32_t>(index >> 32), 0, 0};
  std::uint32_t key[2] = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    const std::uint32_t next[4] = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
                                   static_cast<std::uint32_t>(product1),
                                   static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
                                   static_cast<std::uint32_t>(product0)};
    for (int i = 0; i < 4; ++i) counter[i] = next[i];
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return {counter[0], counter[1], counter[2], counter[3]};
}

// Uniform in [0, 1), 32 random bits.
SHARDMARK_BOTH constexpr double uniform(std::uint64_t seed, std::uint64_t index) {
  return philox(seed, index)[0] * 0x1p-32;
}

// Returns the seed of a tensor's numbers: 64-bit FNV-1a of its name, mixed with the run's seed.
constexpr std::uint64_t random_key(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char letter : name) {
    hash ^= static_cast<unsigned char>(letter);
    hash *= 0x100000001b3u;
  }
  // The finalizer of SplitMix64, so that neighbouring seeds give unrelated keys.
  std::uint64_t key = hash + seed * 0x9e3779b97f4a7c15u;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
  return key ^ (key >> 31);
}

// Known answer of Random123 (kat_vectors: philox4x32 10, counter and key zero).
static_assert(philox(0, 0) ==
              std::array<std::uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});

}  // namespace machine
