#pragma once

#include "default.cuh"
#include "in_order.cuh"

// What a Config names but where it says otherwise. Its sizes are counted in elements, threads, rows or blocks.
struct Plain {
  using Load = Default;   // how rows are read
  using Store = Default;  // how rows are written
  using Chain = InOrder;  // how a kernel overlaps with its neighbours in the stream
};
