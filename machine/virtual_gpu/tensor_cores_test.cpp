// Fragments of the matrix instructions, compared with literal rows of the PTX ISA's figures.

#include "machine/virtual_gpu/tensor_cores.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "machine/virtual_gpu/kernel_language.h"

namespace machine::virtual_gpu {
namespace {

template <class T>
unsigned pair(T low, T high) {
  unsigned word;
  const T both[] = {low, high};
  std::memcpy(&word, both, sizeof word);
  return word;
}

// The place in A of each lane's elements a0 … a7, as the figures show it: lane 0 has (0, 0), (0,
// 1), (8, 0), (8, 1), (0, 8), (0, 9), (8, 8), (8, 9), and lane 31 ends with (15, 15).
struct Element {
  int row, col;
};
Element element_of_a(int lane, int i) {
  static constexpr Element of_lane_0[] = {{0, 0}, {0, 1}, {8, 0}, {8, 1},
                                          {0, 8}, {0, 9}, {8, 8}, {8, 9}};
  return {of_lane_0[i].row + lane / 4, of_lane_0[i].col + lane % 4 * 2};
}
Element element_of_b(int lane, int i) {
  static constexpr Element of_lane_0[] = {{0, 0}, {1, 0}, {8, 0}, {9, 0}};
  return {of_lane_0[i].row + lane % 4 * 2, of_lane_0[i].col + lane / 4};
}
Element element_of_c(int lane, int i) {
  static constexpr Element of_lane_0[] = {{0, 0}, {0, 1}, {8, 0}, {8, 1}};
  return {of_lane_0[i].row + lane / 4, of_lane_0[i].col + lane % 4 * 2};
}

template <class T>
void expect_product(Narrow type) {
  std::mt19937 generator(7);
  std::uniform_int_distribution<int> small(-8, 8);  // exact in every type and sum
  int a[16][16], b[16][8], c[16][8];
  for (auto& row : a)
    for (int& x : row) x = small(generator);
  for (auto& row : b)
    for (int& x : row) x = small(generator);
  for (auto& row : c)
    for (int& x : row) x = small(generator);
  float d[16][8] = {};
  const Outcome outcome = run_grid({"mma", 1, 32, 0}, [&] {
    const int lane = static_cast<int>(threadIdx.x);
    const auto of_a = [&](int i) {
      const Element at = element_of_a(lane, i);
      return T(static_cast<float>(a[at.row][at.col]));
    };
    const auto of_b = [&](int i) {
      const Element at = element_of_b(lane, i);
      return T(static_cast<float>(b[at.row][at.col]));
    };
    const unsigned left[] = {pair(of_a(0), of_a(1)), pair(of_a(2), of_a(3)), pair(of_a(4), of_a(5)),
                             pair(of_a(6), of_a(7))};
    const unsigned right[] = {pair(of_b(0), of_b(1)), pair(of_b(2), of_b(3))};
    float sums[4];
    for (int i = 0; i < 4; ++i) {
      const Element at = element_of_c(lane, i);
      sums[i] = static_cast<float>(c[at.row][at.col]);
    }
    mma_m16n8k16(type, sums, left, right);
    for (int i = 0; i < 4; ++i) {
      const Element at = element_of_c(lane, i);
      d[at.row][at.col] = sums[i];
    }
  });
  ASSERT_EQ(outcome.status, cudaSuccess) << outcome.text;
  for (int row = 0; row < 16; ++row)
    for (int col = 0; col < 8; ++col) {
      int sum = c[row][col];
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][col];
      EXPECT_EQ(d[row][col], static_cast<float>(sum)) << row << ", " << col;
    }
}

TEST(TensorCores, MultiplyBfloat16) { expect_product<__nv_bfloat16>(Narrow::bfloat16); }
TEST(TensorCores, MultiplyHalf) { expect_product<__half>(Narrow::half); }

// Without .trans, lane 0 has row 0, elements 0 and 1. With .trans it has column 0, rows 0 and 1.
TEST(TensorCores, LoadMatricesTransposed) {
  unsigned words[32][2];
  const Outcome outcome = run_grid({"ldmatrix", 1, 32, 512}, [&] {
    auto* memory = reinterpret_cast<std::uint16_t*>(dynamic_shared_memory());
    // Element [row][col] of matrix m is 100 m + 10 row + col. A row takes 32 bytes.
    for (int i = 0; i < 8; ++i)
      if (threadIdx.x < 16)
        memory[threadIdx.x * 16 + i] =
            static_cast<std::uint16_t>(threadIdx.x / 8 * 100 + threadIdx.x % 8 * 10 + i);
    __syncthreads();
    // The addresses of lanes 16 to 31 are ignored.
    ldmatrix_m8n8_x2_trans(words[threadIdx.x],
                           threadIdx.x < 16 ? memory + threadIdx.x * 16 : nullptr);
  });
  ASSERT_EQ(outcome.status, cudaSuccess) << outcome.text;
  const auto expected = [](int matrix, int row, int col) {
    return static_cast<std::uint16_t>(matrix * 100 + row * 10 + col);
  };
  for (int matrix = 0; matrix < 2; ++matrix) {
    EXPECT_EQ(words[0][matrix], pair(expected(matrix, 0, 0), expected(matrix, 1, 0)));
    EXPECT_EQ(words[1][matrix], pair(expected(matrix, 2, 0), expected(matrix, 3, 0)));
    EXPECT_EQ(words[4][matrix], pair(expected(matrix, 0, 1), expected(matrix, 1, 1)));
    EXPECT_EQ(words[31][matrix], pair(expected(matrix, 6, 7), expected(matrix, 7, 7)));
  }
}

TEST(TensorCores, RowsOfMatricesMustBeAlignedSharedMemory) {
  const auto load = [](auto address) {
    return run_grid({"ldmatrix", 1, 32, 1024},
                    [=] {
                      unsigned words[2];
                      ldmatrix_m8n8_x2_trans(words, address(dynamic_shared_memory()));
                    })
        .status;
  };
  EXPECT_EQ(load([](unsigned char* memory) { return memory + 16; }), cudaSuccess);
  EXPECT_EQ(load([](unsigned char* memory) { return memory + 8; }), cudaErrorMisalignedAddress);
  EXPECT_EQ(load([](unsigned char* memory) { return memory + 1024; }),
            cudaErrorInvalidAddressSpace);
}

}  // namespace
}  // namespace machine::virtual_gpu
