// Runs the exported functions on the GPU and prints the largest error against float64 sums, relative to the largest
// value: lines of stdin are `rows cols offset pitch null` (forward; null: 1 weight, 2 bias, 4 mean, 8 rstd; offset in
// elements from an aligned address); forward y first, then the backward pass's dbias with contiguous bf16 tensors.
#include <cuda_bf16.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <vector>

#include "layernorm_bwd_bf16_sm90.cu"
#include "layernorm_fwd_f32_sm90.cu"

static void must(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

template <typename T>
static T* device(std::size_t count, std::size_t offset, const std::vector<T>& values) {
  T* memory = nullptr;
  must(cudaMalloc(&memory, (count + offset + 64) * sizeof(T)), "malloc");
  must(cudaMemset(memory, 0xff, (count + offset + 64) * sizeof(T)), "memset");
  if (!values.empty()) {
    must(cudaMemcpy(memory + offset, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  }
  return memory + offset;
}

static double noise(unsigned i) { return ((i * 2654435761u >> 8) % 2001u) / 1000.0 - 1.0; }

static double forward(int rows, int cols, int offset, int pitch, unsigned null) {
  const std::size_t size = static_cast<std::size_t>(rows) * pitch;
  std::vector<float> x(size), weight(cols), bias(cols), y(size);
  for (std::size_t i = 0; i < size; ++i) x[i] = static_cast<float>(noise(static_cast<unsigned>(i)) + 3.0);
  for (int c = 0; c < cols; ++c) weight[c] = static_cast<float>(noise(c + 7)), bias[c] = static_cast<float>(noise(c + 99));
  float* out = device<float>(size, offset, {});
  float* mean = device<float>(rows, 0, {});
  float* rstd = device<float>(rows, 0, {});
  must(normgen::sm90::layernorm_fwd_f32_pitched(
           out, null & 4u ? nullptr : mean, null & 8u ? nullptr : rstd, device(size, offset, x),
           null & 1u ? nullptr : device(cols, 0, weight), null & 2u ? nullptr : device(cols, 0, bias), pitch, pitch,
           rows, cols, 1e-5f), "layernorm_fwd_f32");
  must(cudaDeviceSynchronize(), "synchronise");
  must(cudaMemcpy(y.data(), out, size * sizeof(float), cudaMemcpyDeviceToHost), "copy back");
  double worst = 0.0;
  for (int r = 0; r < rows; ++r) {
    const float* row = x.data() + static_cast<std::size_t>(r) * pitch;
    double sum = 0.0, squares = 0.0;
    for (int c = 0; c < cols; ++c) sum += row[c];
    for (int c = 0; c < cols; ++c) squares += (row[c] - sum / cols) * (row[c] - sum / cols);
    const double scale = 1.0 / std::sqrt(squares / cols + 1e-5);
    for (int c = 0; c < cols; ++c) {
      const double w = null & 1u ? 1.0 : weight[c], b = null & 2u ? 0.0 : bias[c];
      const double error = std::fabs((row[c] - sum / cols) * scale * w + b - y[static_cast<std::size_t>(r) * pitch + c]);
      if (!(error <= worst)) worst = error;  // a NaN is the worst
    }
  }
  return worst / 3.0;
}

static double backward(int rows, int cols) {
  const std::size_t size = static_cast<std::size_t>(rows) * cols;
  std::vector<__nv_bfloat16> x(size), dy(size), weight(cols, __float2bfloat16(1.0f)), dbias(cols);
  for (std::size_t i = 0; i < size; ++i) {
    x[i] = __float2bfloat16(static_cast<float>(noise(static_cast<unsigned>(i))));
    dy[i] = __float2bfloat16(static_cast<float>(std::fabs(noise(static_cast<unsigned>(i + 5)))));
  }
  __nv_bfloat16* sums = device<__nv_bfloat16>(cols, 0, {});
  const std::size_t bytes = normgen::sm90::layernorm_bwd_bf16_workspace_bytes(rows, cols);
  must(normgen::sm90::layernorm_bwd_bf16(
           device<__nv_bfloat16>(size, 0, {}), device<__nv_bfloat16>(cols, 0, {}), sums, device(size, 0, dy),
           device(size, 0, x), device(cols, 0, weight), device(rows, 0, std::vector<float>(rows, 0.0f)),
           device(rows, 0, std::vector<float>(rows, 1.0f)), rows, cols, device<char>(bytes, 0, {})),
       "layernorm_bwd_bf16");
  must(cudaDeviceSynchronize(), "synchronise");
  must(cudaMemcpy(dbias.data(), sums, cols * sizeof(__nv_bfloat16), cudaMemcpyDeviceToHost), "copy back");
  double worst = 0.0;
  for (int c = 0; c < cols; ++c) {
    double sum = 0.0;
    for (int r = 0; r < rows; ++r) sum += __bfloat162float(dy[static_cast<std::size_t>(r) * cols + c]);
    const double error = std::fabs(sum - __bfloat162float(dbias[c])) / (sum + 1e-30);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

int main() {
  int rows, cols, offset, pitch;
  unsigned null;
  while (std::cin >> rows >> cols >> offset >> pitch >> null) {
    std::cout << forward(rows, cols, offset, pitch, null) << " " << backward(rows, cols) << std::endl;
  }
}
