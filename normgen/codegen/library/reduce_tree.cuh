#pragma once  // reduce_tree

// Halving tree in shared memory, one slot a thread.
template <int kThreads, typename State>
__device__ __forceinline__ State reduce_tree(State s, State* slots) {
  const int lane = threadIdx.x % kThreads;
  slots[lane] = s;
  __syncthreads();
  for (int active = kThreads, stride; active > 1; active = stride) {
    stride = (active + 1) / 2;
    if (lane < active - stride) slots[lane] = State::combine(slots[lane], slots[lane + stride]);
    __syncthreads();
  }
  s = slots[0];
  __syncthreads();  // the next reduction reuses the slots
  return s;
}
