// A linear layer and its GELU in one kernel, through a header that `normgen tune` wrote, beside float64 on the host.
//
//   normgen tune --op linear_bias_gelu --shape 256x256 --size inner=128 --target h200 --output headers
//   nvcc -std=c++17 -arch=native -I headers examples/linear_bias_gelu.cu -o linear_bias_gelu
//   ./linear_bias_gelu 256 256 128
//
// Any other size is right, too: it takes the header's general kernel, and the program says so.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "linear_bias_gelu_fwd_f32_sm90.cu"

#define MUST(call)                                                      \
  do {                                                                  \
    const cudaError_t status = (call);                                  \
    if (status != cudaSuccess) {                                        \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status)); \
      std::exit(1);                                                     \
    }                                                                   \
  } while (0)

// Numbers of both signs, without a period that a row or a column could share.
std::vector<float> numbers(std::size_t count, unsigned seed, float size) {
  std::vector<float> found(count);
  for (float& value : found) {
    seed = seed * 1664525u + 1013904223u;
    value = size * (static_cast<float>(seed >> 8) / 8388608.0f - 1.0f);
  }
  return found;
}

float* on_device(const std::vector<float>& values) {
  float* found;
  MUST(cudaMalloc(&found, values.size() * sizeof(float)));
  MUST(cudaMemcpy(found, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
  return found;
}

int main(int count, char** arguments) {
  const int rows = count > 1 ? std::atoi(arguments[1]) : 256;
  const int cols = count > 2 ? std::atoi(arguments[2]) : 256;
  const int inner = count > 3 ? std::atoi(arguments[3]) : 128;

  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no CUDA device: the header compiled and linked, and nothing ran\n");
    return 0;
  }

  const std::size_t size = static_cast<std::size_t>(rows) * cols;
  const std::vector<float> x = numbers(static_cast<std::size_t>(rows) * inner, 1, 1.0f);
  const std::vector<float> w = numbers(static_cast<std::size_t>(inner) * cols, 2, 3.0f / std::sqrt(1.0f * inner));
  const std::vector<float> bias = numbers(cols, 3, 1.0f);
  std::vector<float> y(size, NAN);  // what is not written shows
  float *device_x = on_device(x), *device_w = on_device(w), *device_bias = on_device(bias), *device_y = on_device(y);

  cudaStream_t stream;
  MUST(cudaStreamCreate(&stream));
  MUST(normgen::sm90::linear_bias_gelu_fwd_f32(device_y, device_x, device_w, device_bias, rows, cols, inner, stream));
  MUST(cudaStreamSynchronize(stream));
  MUST(cudaMemcpy(y.data(), device_y, size * sizeof(float), cudaMemcpyDeviceToHost));

  double worst = 0.0;
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) {
      double z = bias[c];
      const float* row = x.data() + static_cast<std::size_t>(r) * inner;
      const float* col = w.data() + c;
      for (int k = 0; k < inner; ++k, col += cols) z += static_cast<double>(row[k]) * *col;
      const double want = 0.5 * z * (1.0 + std::erf(z * std::sqrt(0.5)));
      const double error = std::fabs(want - y[static_cast<std::size_t>(r) * cols + c]);
      if (!(error <= worst)) worst = error;  // a NaN is the worst
    }
  }
  const bool is_tuned = normgen::sm90::linear_bias_gelu_fwd_f32_is_tuned(rows, cols, inner);
  std::printf("%d x %d inner %d, %s kernel: largest error %.2e\n", rows, cols, inner,
              is_tuned ? "tuned" : "general", worst);
  return worst < 1e-5 ? 0 : 1;
}
