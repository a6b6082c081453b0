#pragma once  // mbarrier_arrive_for

// As so many arrivals: what the thread has done before is known to whoever waits for the end of the barrier's phase.
__device__ __forceinline__ void mbarrier_arrive_for(unsigned long long* barrier, unsigned arrivals) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "r"(arrivals) : "memory");
}
