#pragma once  // mbarrier_init, mbarrier_expect_bytes, mbarrier_wait

__device__ __forceinline__ void mbarrier_init(unsigned long long* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "r"(arrivals) : "memory");
}

// Arrives, and makes the phase wait for that many bytes more.
__device__ __forceinline__ void mbarrier_expect_bytes(unsigned long long* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "r"(bytes) : "memory");
}

// Waits for the end of the barrier's phase of that parity; the first phase has parity 0.
__device__ __forceinline__ void mbarrier_wait(unsigned long long* barrier, unsigned parity) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  unsigned done;
  do {
    asm volatile("{\n.reg .pred done;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n}" : "=r"(done) : "r"(address), "r"(parity) : "memory");
  } while (done == 0);
}
