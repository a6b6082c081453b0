// The whole runtime as one translation unit, so that the checks inline into the hooks.
#include "runtime.h"

#include "order.cpp"
#include "faults.cpp"
#include "memory.cpp"
#include "fiber.cpp"
#include "warp.cpp"
#include "barriers.cpp"
#include "async.cpp"
#include "hooks.cpp"
#include "guards.cpp"
#include "scheduler.cpp"
