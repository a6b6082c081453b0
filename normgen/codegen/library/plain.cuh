#pragma once  // Plain

#include "default.cuh"
#include "in_order.cuh"
#include "in_turn.cuh"

// What a Config names but where it says otherwise. Its sizes are counted in elements, threads, rows or blocks.
struct Plain {
  using Load = Default;   // how rows are read
  using Store = Default;  // how rows are written
  using Chain = InOrder;  // how a kernel overlaps with its neighbours in the stream
  using Params = InTurn;  // whether column parameters are asked for ahead of the rows
  enum : int { kCluster = 1 };  // blocks that share a row, or add their column sums
};
