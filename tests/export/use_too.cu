// A second translation unit with the same headers.
#include "layernorm_bwd_bf16_sm90.cu"
#include "layernorm_fwd_f32_sm90.cu"

std::size_t from_another_file(int rows, int cols) {
  return normgen::sm90::layernorm_bwd_bf16_workspace_bytes(rows, cols);
}
