#pragma once  // griddepcontrol_wait, griddepcontrol_launch_dependents

// Programmatic dependent launch: wait until the kernel before this one has ended and its writes are visible.
__device__ __forceinline__ void griddepcontrol_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Programmatic dependent launch: let the kernel behind this one start as soon as blocks leave room.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;");
}
