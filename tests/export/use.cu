// Asks the headers of test_headers.py what they would do, line by line: what is asked on stdin, the answer on stdout.
//   select  rows cols align absent alike -> index in kTuned
//   blocks  rows_per_block cluster persistent blocks period min_blocks rows sm_count -> blocks
//   align   bits -> alignment
//   call    rows cols null -> error code of a call that may not reach the GPU; null: bit i = argument i is null
//   pitched rows cols y_pitch x_pitch -> the same
#include "layernorm_fwd_f32_sm90.cu"
#include "layernorm_bwd_bf16_sm90.cu"

#include <iostream>
#include <string>

#include "layernorm_fwd_f32_sm90.cu"

namespace fwd = normgen::sm90::layernorm_fwd_f32_detail;

std::size_t from_another_file(int rows, int cols);

int main() {
  std::string what;
  while (std::cin >> what) {
    if (what == "select") {
      int rows, cols, align, alike;
      unsigned absent;
      std::cin >> rows >> cols >> align >> absent >> alike;
      std::cout << fwd::select(rows, cols, align, absent, alike != 0) << "\n";
    } else if (what == "blocks") {
      fwd::Launch s{};
      int rows, sm_count;
      std::cin >> s.rows_per_block >> s.cluster >> s.persistent >> s.blocks >> s.period >> s.min_blocks;
      std::cin >> rows >> sm_count;
      std::cout << fwd::blocks_for(s, rows, sm_count) << "\n";
    } else if (what == "align") {
      unsigned long long bits;
      std::cin >> bits;
      std::cout << fwd::alignment(bits) << "\n";
    } else if (what == "call") {
      int rows, cols;
      unsigned null;
      std::cin >> rows >> cols >> null;
      alignas(16) float a[6] = {};
      float* p[6];
      for (int i = 0; i < 6; ++i) p[i] = null >> i & 1u ? nullptr : a;
      std::cout << normgen::sm90::layernorm_fwd_f32(p[0], p[1], p[2], p[3], p[4], p[5], rows, cols, 1e-5f) << "\n";
    } else if (what == "pitched") {
      int rows, cols;
      long long y_pitch, x_pitch;
      std::cin >> rows >> cols >> y_pitch >> x_pitch;
      alignas(16) float a[1] = {};
      std::cout << normgen::sm90::layernorm_fwd_f32_pitched(a, a, a, a, a, a, y_pitch, x_pitch, rows, cols, 1e-5f) << "\n";
    } else if (what == "workspace") {
      int rows, cols;
      std::cin >> rows >> cols;
      std::cout << from_another_file(rows, cols) << "\n";
    }
  }
}
