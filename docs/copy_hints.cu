// What cache hints are worth to a plain copy x -> y, and what they cost the kernel that reads y next.
//
//   nvcc -O3 -arch=sm_90 -std=c++17 -o copy_hints docs/copy_hints.cu && ./copy_hints
//
// Blocks of 512 threads, four 16-byte vectors a thread, random data, buffers that rotate through at least 1.5 GB. Per
// hint: the median time of the copy alone, and of the copy followed by a kernel that reads y. The output on an H200 is
// generated/evidence/copy_hints_h200.txt.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

using Vector = uint4;
enum class Load { kDefault, kNoAllocate, kEvictLast };

constexpr int kThreads = 512;
constexpr int kSteps = 4;

template <Load kLoad>
__device__ __forceinline__ Vector load(const Vector* address) {
  Vector v;
  if constexpr (kLoad == Load::kDefault) {
    v = *address;
  } else if constexpr (kLoad == Load::kNoAllocate) {
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(address));
  } else {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(address), "l"(policy));
  }
  return v;
}

template <Load kLoad, bool kStreaming>
__global__ void __launch_bounds__(kThreads) copy(const Vector* x, Vector* y) {
  const long long first = static_cast<long long>(blockIdx.x) * kThreads * kSteps + threadIdx.x;
  Vector held[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) held[i] = load<kLoad>(x + first + i * kThreads);
  __syncthreads();  // as a row kernel: all of a row's loads before its stores
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (kStreaming) {
      __stcs(y + first + i * kThreads, held[i]);
    } else {
      y[first + i * kThreads] = held[i];
    }
  }
}

__global__ void __launch_bounds__(kThreads) consume(const Vector* y, unsigned* found) {
  const long long first = static_cast<long long>(blockIdx.x) * kThreads * kSteps + threadIdx.x;
  unsigned mixed = 0;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const Vector v = y[first + i * kThreads];
    mixed |= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (mixed == 0x12345u) *found = mixed;
}

__global__ void fill(unsigned* words, long long count, unsigned seed) {
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count; i += stride) {
    unsigned h = static_cast<unsigned>(i) * 2654435761u + seed;
    h = (h ^ (h >> 15)) * 2246822519u;
    words[i] = h ^ (h >> 13);
  }
}

struct Way {
  std::string name;
  std::function<void(const Vector*, Vector*)> launch;
  std::vector<float> alone, with_reader;
};

float median(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int main() {
  unsigned* found;
  cudaMalloc(&found, sizeof(unsigned));
  cudaEvent_t start, stop;
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  for (const long long megabytes : {4, 8, 16, 32, 64, 128, 256}) {
    const long long bytes = megabytes << 20, vectors = bytes / 16;
    const int blocks = static_cast<int>(vectors / (kThreads * kSteps));
    const int sets = static_cast<int>(std::max(3LL, 768 / megabytes + 1));
    std::vector<std::pair<Vector*, Vector*>> buffers(sets);
    for (auto& [x, y] : buffers) {
      cudaMalloc(&x, bytes);
      cudaMalloc(&y, bytes);
      fill<<<1024, 256>>>(reinterpret_cast<unsigned*>(x), bytes / 4, static_cast<unsigned>(bytes));
    }
    std::vector<Way> ways = {
        {"load default,     store default", [=](const Vector* x, Vector* y) { copy<Load::kDefault, false><<<blocks, kThreads>>>(x, y); }, {}, {}},
        {"load default,     store streaming", [=](const Vector* x, Vector* y) { copy<Load::kDefault, true><<<blocks, kThreads>>>(x, y); }, {}, {}},
        {"load no_allocate, store default", [=](const Vector* x, Vector* y) { copy<Load::kNoAllocate, false><<<blocks, kThreads>>>(x, y); }, {}, {}},
        {"load no_allocate, store streaming", [=](const Vector* x, Vector* y) { copy<Load::kNoAllocate, true><<<blocks, kThreads>>>(x, y); }, {}, {}},
        {"load evict_last,  store default", [=](const Vector* x, Vector* y) { copy<Load::kEvictLast, false><<<blocks, kThreads>>>(x, y); }, {}, {}},
        {"load evict_last,  store streaming", [=](const Vector* x, Vector* y) { copy<Load::kEvictLast, true><<<blocks, kThreads>>>(x, y); }, {}, {}},
    };
    const int repeats = std::max(2 * sets, static_cast<int>(1024 / megabytes));
    for (int sample = 0; sample < 9; ++sample) {  // interleaved; the first one warms up
      for (Way& way : ways) {
        for (const bool reads : {false, true}) {
          for (const auto& [x, y] : buffers) way.launch(x, y);
          cudaEventRecord(start);
          for (int i = 0; i < repeats; ++i) {
            const auto& [x, y] = buffers[i % sets];
            way.launch(x, y);
            if (reads) consume<<<blocks, kThreads>>>(y, found);
          }
          cudaEventRecord(stop);
          cudaEventSynchronize(stop);
          float ms;
          cudaEventElapsedTime(&ms, start, stop);
          if (sample > 0) (reads ? way.with_reader : way.alone).push_back(1000 * ms / repeats);
        }
      }
    }
    std::printf("y of %lld MiB, %s\n", megabytes, cudaGetErrorString(cudaGetLastError()));
    for (const Way& way : ways) {
      std::printf("  copy %8.2f us, copy and reader %8.2f us   %s\n", median(way.alone), median(way.with_reader), way.name.c_str());
    }
    for (const auto& [x, y] : buffers) {
      cudaFree(x);
      cudaFree(y);
    }
  }
}
