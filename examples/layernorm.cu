// A layer normalisation through an exported header, beside float64 on the host.
//
//   nvcc -std=c++17 -arch=native -I generated examples/layernorm.cu -o layernorm && ./layernorm 8192 768
//
// The header needs the CUDA headers and nothing else. In an installed package it lies in normgen/generated/:
//   -I "$(python -c 'import normgen, pathlib; print(pathlib.Path(normgen.__file__).parent / "generated")')"
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "layernorm_fwd_f32_sm90.cu"

#define MUST(call)                                                      \
  do {                                                                  \
    const cudaError_t status = (call);                                  \
    if (status != cudaSuccess) {                                        \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status)); \
      std::exit(1);                                                     \
    }                                                                   \
  } while (0)

int main(int count, char** arguments) {
  const int rows = count > 1 ? std::atoi(arguments[1]) : 8192;
  const int cols = count > 2 ? std::atoi(arguments[2]) : 768;
  const float eps = 1e-5f;
  const std::size_t size = static_cast<std::size_t>(rows) * cols;

  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no CUDA device: the header compiled and linked, and nothing ran\n");
    return 0;
  }

  std::vector<float> x(size), weight(cols), bias(cols), y(size);
  for (std::size_t i = 0; i < size; ++i) x[i] = static_cast<float>(i * 2654435761u % 1000u) / 500.0f + 9.0f;
  for (int c = 0; c < cols; ++c) {
    weight[c] = 1.0f + static_cast<float>(c % 7) / 8.0f;
    bias[c] = static_cast<float>(c % 5) / 4.0f;
  }

  float *device_x, *device_weight, *device_bias, *device_y, *mean, *rstd;
  MUST(cudaMalloc(&device_x, size * sizeof(float)));
  MUST(cudaMalloc(&device_y, size * sizeof(float)));
  MUST(cudaMalloc(&device_weight, cols * sizeof(float)));
  MUST(cudaMalloc(&device_bias, cols * sizeof(float)));
  MUST(cudaMalloc(&mean, rows * sizeof(float)));
  MUST(cudaMalloc(&rstd, rows * sizeof(float)));
  MUST(cudaMemcpy(device_x, x.data(), size * sizeof(float), cudaMemcpyHostToDevice));
  MUST(cudaMemcpy(device_weight, weight.data(), cols * sizeof(float), cudaMemcpyHostToDevice));
  MUST(cudaMemcpy(device_bias, bias.data(), cols * sizeof(float), cudaMemcpyHostToDevice));

  cudaStream_t stream;
  MUST(cudaStreamCreate(&stream));
  // Null statistics are not written; null weight and bias stand for 1 and 0.
  MUST(normgen::sm90::layernorm_fwd_f32(device_y, mean, rstd, device_x, device_weight, device_bias, rows, cols, eps,
                                        stream));
  MUST(cudaStreamSynchronize(stream));
  MUST(cudaMemcpy(y.data(), device_y, size * sizeof(float), cudaMemcpyDeviceToHost));

  double worst = 0.0;
  for (int r = 0; r < rows; ++r) {
    const float* row = x.data() + static_cast<std::size_t>(r) * cols;
    double sum = 0.0, squares = 0.0;
    for (int c = 0; c < cols; ++c) sum += row[c];
    for (int c = 0; c < cols; ++c) squares += (row[c] - sum / cols) * (row[c] - sum / cols);
    const double scale = 1.0 / std::sqrt(squares / cols + eps);
    for (int c = 0; c < cols; ++c) {
      const double want = (row[c] - sum / cols) * scale * weight[c] + bias[c];
      const double error = std::fabs(want - y[static_cast<std::size_t>(r) * cols + c]);
      if (!(error <= worst)) worst = error;  // a NaN is the worst
    }
  }
  std::printf("%d x %d: largest error %.2e\n", rows, cols, worst);
  return worst < 1e-4 ? 0 : 1;
}
