#pragma once  // mbarrier_arrive

// What the thread has done before is known to whoever waits for the end of the barrier's phase.
__device__ __forceinline__ void mbarrier_arrive(unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))) : "memory");
}
