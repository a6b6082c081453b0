#pragma once  // Plain

#include "default.cuh"
#include "first_rows_first.cuh"
#include "ieee_division.cuh"
#include "in_order.cuh"
#include "in_turn.cuh"

// What a Config names but where it says otherwise. Its sizes are counted in elements, threads, rows or blocks.
struct Plain {
  using Load = Default;           // how rows are read
  using Store = Default;          // how rows are written
  using Chain = InOrder;          // how a kernel overlaps with its neighbours in the stream
  using Params = InTurn;          // whether column parameters are asked for ahead of the rows
  using Division = IeeeDivision;  // of values of rows by the number of columns
  using Order = FirstRowsFirst;   // which tile of rows is the first block's
  // kCluster: blocks that share a row, or add their column sums; kBlocksPerSm: a launch bound, 0 is none
  enum : int { kCluster = 1, kBlocksPerSm = 0 };
};
