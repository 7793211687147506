#include "machine/virtual_gpu/tensor_cores.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "machine/virtual_gpu/block.h"

namespace machine::virtual_gpu {
namespace {

constexpr int rows = 16, cols = 8, depth = 16;
constexpr unsigned every_lane = 0xffffffffu;

// The operands of one lane. A register holds two elements, the first in its lower half.
struct Fragments {
  std::uint16_t a[8], b[4];
  float c[4];
};

struct Place {
  int row, col;
};

// "groupID = %laneid >> 2, threadID_in_group = %laneid % 4"
//
// A: "row = groupID for ai where 0 <= i < 2 || 4 <= i < 6, groupID + 8 otherwise;
//     col = (threadID_in_group * 2) + (i & 0x1) for ai where i < 4, that + 8 for ai where i >= 4"
Place place_in_a(int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  const bool upper = (0 <= i && i < 2) || (4 <= i && i < 6);
  const int col = thread * 2 + (i & 1);
  return {upper ? group : group + 8, i < 4 ? col : col + 8};
}

// B: "row = (threadID_in_group * 2) + (i & 0x1) for bi where i < 2, that + 8 for bi where i >= 2;
//     col = groupID"
Place place_in_b(int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  const int row = thread * 2 + (i & 1);
  return {i < 2 ? row : row + 8, group};
}

// C and D: "row = groupID for ci where i < 2, groupID + 8 for ci where i >= 2;
//           col = (threadID_in_group * 2) + (i & 0x1)"
Place place_in_c(int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  return {i < 2 ? group : group + 8, thread * 2 + (i & 1)};
}

float widen_bfloat16(std::uint16_t bits) {
  __nv_bfloat16_raw raw{};
  raw.x = bits;
  return __bfloat162float(__nv_bfloat16(raw));
}
float widen_half(std::uint16_t bits) {
  __half_raw raw{};
  raw.x = bits;
  return __half2float(__half(raw));
}

// The products are exact in float. The order of the sum is not documented.
template <float (*widen)(std::uint16_t)>
void multiply(Meeting& meeting, unsigned /*mask*/) {
  float a[rows][depth], b[depth][cols], c[rows][cols];
  for (int lane = 0; lane < warp_lanes; ++lane) {
    Fragments mine;
    std::memcpy(&mine, meeting.in[lane], sizeof mine);
    for (int i = 0; i < 8; ++i) {
      const Place at = place_in_a(lane, i);
      a[at.row][at.col] = widen(mine.a[i]);
    }
    for (int i = 0; i < 4; ++i) {
      const Place of_b = place_in_b(lane, i), of_c = place_in_c(lane, i);
      b[of_b.row][of_b.col] = widen(mine.b[i]);
      c[of_c.row][of_c.col] = mine.c[i];
    }
  }
  for (int row = 0; row < rows; ++row)
    for (int k = 0; k < depth; ++k)
      for (int col = 0; col < cols; ++col) c[row][col] += a[row][k] * b[k][col];
  for (int lane = 0; lane < warp_lanes; ++lane) {
    float d[4];
    for (int i = 0; i < 4; ++i) {
      const Place at = place_in_c(lane, i);
      d[i] = c[at.row][at.col];
    }
    std::memcpy(meeting.out[lane], d, sizeof d);
  }
}

// "Threads 0-7 give the addresses of the first matrix's rows, 8-15 those of the second." Each row
// has 8 elements and is aligned to 16 bytes. Without .trans, the lane with groupID = row has the
// elements 2 * threadID_in_group and the next one. With .trans, that row is a column.
void load_transposed(Meeting& meeting, unsigned /*mask*/) {
  std::uint16_t matrices[2][8][8];
  for (int lane = 0; lane < 16; ++lane) {
    const void* row = nullptr;
    std::memcpy(static_cast<void*>(&row), meeting.in[lane], sizeof row);
    if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0)
      fail_kernel(cudaErrorMisalignedAddress, "ldmatrix of a row that is not aligned to 16 bytes");
    check_shared("ldmatrix", row, 16);
    std::memcpy(matrices[lane / 8][lane % 8], row, 16);
  }
  for (int lane = 0; lane < warp_lanes; ++lane) {
    const int group = lane >> 2, thread = lane % 4;
    std::uint16_t words[2][2];
    for (int matrix = 0; matrix < 2; ++matrix)
      for (int i = 0; i < 2; ++i) words[matrix][i] = matrices[matrix][thread * 2 + i][group];
    std::memcpy(meeting.out[lane], words, sizeof words);
  }
}

}  // namespace

void mma_m16n8k16(Narrow type, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  Fragments mine;
  std::memcpy(mine.a, a, sizeof mine.a);
  std::memcpy(mine.b, b, sizeof mine.b);
  std::memcpy(mine.c, d, sizeof mine.c);
  const bool wide = type == Narrow::bfloat16;
  const std::byte* result = meet(wide ? "mma.bf16" : "mma.f16", every_lane, &mine, sizeof mine,
                                 wide ? multiply<widen_bfloat16> : multiply<widen_half>);
  std::memcpy(d, result, sizeof d);
}

void ldmatrix_m8n8_x2_trans(unsigned (&words)[2], const void* row) {
  std::memcpy(words, meet("ldmatrix", every_lane, &row, sizeof row, load_transposed), sizeof words);
}

}  // namespace machine::virtual_gpu
