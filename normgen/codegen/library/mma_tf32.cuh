#pragma once  // mma_tf32

// Adds the product of 16 x 8 and 8 x 8 factors in TF32, which the lanes of a warp have in registers, to 16 x 8 sums.
// Of these a lane has two side by side, from 2 (lane % 4) on, of line lane / 4 and of line lane / 4 + 8.
__device__ __forceinline__ void mma_tf32(const unsigned* left, const unsigned* right, float* upper, float* lower) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};" : "+f"(upper[0]), "+f"(upper[1]), "+f"(lower[0]), "+f"(lower[1])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}
