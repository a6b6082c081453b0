// cg::reduce over a tile: every lane gets the combination of all values.
#pragma once

#include <cooperative_groups.h>

namespace cooperative_groups {

template <typename Value>
struct plus {
  __attribute__((always_inline)) inline Value operator()(const Value& a, const Value& b) const { return a + b; }
};
template <typename Value>
struct less {
  __attribute__((always_inline)) inline Value operator()(const Value& a, const Value& b) const { return b < a ? b : a; }
};
template <typename Value>
struct greater {
  __attribute__((always_inline)) inline Value operator()(const Value& a, const Value& b) const { return a < b ? b : a; }
};

template <unsigned Size, typename Parent, typename Value, typename Combine>
NORMGEN_INLINE Value reduce(const thread_block_tile<Size, Parent>& tile, const Value& value, const Combine& combine) {
  Value result = value;
  for (unsigned offset = Size / 2; offset > 0; offset /= 2) {
    const Value other = tile.shfl_xor(result, static_cast<int>(offset));
    // The lower lane's value comes first in both partners, so that all lanes end with the same bits.
    result = (tile.thread_rank() & offset) == 0 ? combine(result, other) : combine(other, result);
  }
  return result;
}

}  // namespace cooperative_groups
