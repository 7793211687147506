#pragma once
// The warp-level matrix instructions, lane by lane. Source: PTX ISA, "Warp-level matrix
// instructions": "Matrix Fragments for mma.m16n8k16 with floating point type" and "ldmatrix".

namespace machine::virtual_gpu {

enum class Narrow { bfloat16, half };

// mma.sync.aligned.m16n8k16.row.col.f32.TYPE.TYPE.f32 with d also as the third operand.
void mma_m16n8k16(Narrow type, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]);

// ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16. Lanes 0 to 15 give the addresses of rows.
void ldmatrix_m8n8_x2_trans(unsigned (&words)[2], const void* row);

}  // namespace machine::virtual_gpu
