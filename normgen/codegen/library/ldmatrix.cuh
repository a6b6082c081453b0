#pragma once  // read_matrices

// Four matrices of 8 x 8 elements of 16 bits, of shared memory: lanes 8 i to 8 i + 7 point at the lines of matrix i.
// Of each a lane gets two elements in a register: 2 (lane % 4) and the next one of line lane / 4, or of that column.
template <bool kColumns, typename T>
__device__ __forceinline__ void read_matrices(const T* line, unsigned* parts) {
  const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(line));
  if (kColumns) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3]) : "r"(from) : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3]) : "r"(from) : "memory");
  }
}
