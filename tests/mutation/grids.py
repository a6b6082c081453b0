"""Wrong lines of kernels whose blocks share rows through memory: counters, fences, turns, sets, parts, groups.

Their kernels are changed by these classes alone.
"""

from __future__ import annotations

from normgen.knobs import ColumnWay
from tests.codegen.kernels import Named, named
from tests.mutation.classes import MutationClass

THREE: dict[str, object] = {"threads_per_row": 64, "parts": 3, "persistent": 1, "vector": 4}
HELD: dict[str, object] = {**THREE, "hold": "registers", "unroll": 0}

GRID_CASES: dict[str, Named] = {
    "grid_softmax": named("softmax", "4096x1536", "f32", THREE),
    "grid_online": named("softmax", "4096x1500", "bf16", {**THREE, "softmax": "online", "parts": 2}),
    "grid_guarded": named("layernorm", "4096x1536", "f32", {**HELD, "variance": "guarded"}),
    "grid_peeled": named("layernorm", "4096x1531", "f32", {**THREE, "edges": "peel"}),
    "grid_ring": named("rmsnorm", "4096x1536", "f32", {**THREE, "hold": "shared", "copy": "cp_async", "stages": 2}),
    "grid_bulk": named("rmsnorm", "4096x1536", "f32", {**HELD, "copy": "bulk", "stages": 2, "params": "kept"}),
    "grid_loss": named("cross_entropy", "4096x1500", "f32", {**THREE, "softmax": "online", "threads_per_row": 32}),
    "grid_max_sum": named("row_max_sum", "4096x1500", "f32", {**THREE, "parts": 5, "threads_per_row": 32}),
    "grid_softmax_backward": named("softmax", "4096x1536", "f32", THREE, direction="backward"),
    "grid_backward": named("layernorm", "4096x1536", "f32", {**HELD, "params": "kept"}, direction="backward"),
    "grid_last_tile": named(
        "rmsnorm", "4096x1536", "f32", {**HELD, "columns": "partials_last_tile"}, direction="backward"
    ),
    "grid_atomic": named(
        "rmsnorm", "4096x1536", "f32", {**HELD, "columns": "register_atomic"}, direction="backward"
    ),
}  # fmt: skip


def has_rounds(kernel: Named) -> bool:
    """An odd number of exchanges a row, so that some calls end with the counter's top bit set."""
    return kernel.problem.spec.name not in ("softmax", "layernorm") or kernel.schedule.softmax == "online"


def has_warps(kernel: Named) -> bool:
    return kernel.schedule.threads_per_row > 32


def reads_again(kernel: Named) -> bool:
    return kernel.schedule.hold == "reload"


def has_partial_rows(kernel: Named) -> bool:
    return kernel.problem.sums_rows and kernel.schedule.columns.is_deterministic


def has_two_kernels(kernel: Named) -> bool:
    return kernel.problem.sums_rows and kernel.schedule.columns is ColumnWay.PARTIALS_TWO_KERNELS


ARRIVES = r"atomicAdd\(counter, arrival<kParts>\(part\)\);\n(\s+)await_turn"
ALL_PARTS = r"reduce_lanes<lanes_for\(kParts\)>\(share_of_slots<kParts>\(set\)\)"
SET = r"exchanges % 2 \* kParts \* kStateWords"

C = MutationClass
GRIDS: tuple[MutationClass, ...] = (
    # Arriving and waiting.
    C("grid_no_arrival", "a block waits and does not come", ARRIVES, r"\n\1await_turn"),
    C("grid_no_arrival_of_last", "the last part does not come", ARRIVES,
      r"if (part < kParts - 1) atomicAdd(counter, arrival<kParts>(part));\n\1await_turn"),
    C("grid_arrives_twice", "a block comes twice", ARRIVES,
      r"atomicAdd(counter, arrival<kParts>(part));\n\1atomicAdd(counter, 1u);\n\1await_turn"),
    C("grid_arrives_by_warp", "every lane comes", r"if \(threadIdx\.x == 0\) \{(\s+set\[part\])", r"{\1"),
    C("grid_counts_one_more", "a block more is waited for", r"0x80000000u - \(kParts - 1\)", "0x80000000u - kParts"),
    C("grid_counts_one_less", "a block less is waited for", r"0x80000000u - \(kParts - 1\)",
      "0x80000000u - (kParts - 2)"),
    C("grid_counts_alike", "no block turns the counter", r"part == 0 \? 0x80000000u - \(kParts - 1\) : 1u", "1u"),
    C("grid_first_turns", "the first part turns the counter alone", r"0x80000000u - \(kParts - 1\) : 1u",
      "0x80000000u : 0u"),
    C("grid_no_wait", "nobody waits", r"await_turn\(counter, exchange % 2\);", ""),
    C("grid_waits_before", "the wait in front of the arrival",
      r"(atomicAdd\(counter, arrival<kParts>\(part\)\);)\n(\s+)(await_turn[^;]*;)", r"\3\n\2\1"),
    C("grid_waits_for_next", "the turn of the exchange behind", r"await_turn\(counter, exchange % 2\)",
      "await_turn(counter, (exchange + 1) % 2)"),
    C("grid_waits_for_first", "always the first turn", r"await_turn\(counter, exchange % 2\)",
      "await_turn(counter, 0)"),
    C("grid_turn_stays", "exchanges that are not counted", r"\n\s+\+\+exchanges;", ""),
    C("grid_turn_twice", "exchanges that count twice", r"\+\+exchanges;", "exchanges += 2;"),
    C("grid_turn_starts_odd", "the first exchange is the second", r"unsigned exchanges = 0;",
      "unsigned exchanges = 1;"),
    # What is seen.
    C("grid_no_release", "a state that may come behind its arrival",
      r"fence_device\(\);\s+(atomicAdd\(counter)", r"\1"),
    C("grid_release_behind", "the fence behind the arrival",
      r"(fence_device\(\);)\s+(atomicAdd\(counter[^;]*;)", r"\2\n      \1"),
    C("grid_no_acquire", "states that may be read before they come", r"(await_turn[^;]*;)\s+fence_device\(\);", r"\1"),
    C("grid_acquire_before", "the fence in front of the wait",
      r"(await_turn\(counter, exchange % 2\);)\s+(fence_device\(\);)", r"\2\n      \1"),
    C("grid_state_behind", "the state behind the arrival",
      r"(set\[part\] = s;)(\s+fence_device\(\);\s+atomicAdd\(counter[^;]*;)", r"\2\n      \1"),
    C("grid_no_warp_barrier", "lanes that read before the first one has waited",
      r"__syncwarp\(\);(\s+s = reduce_lanes<lanes_for\(kParts)", r"\1"),
    C("grid_no_barrier_of_warps", "warps that have not left their states",
      r"__syncthreads\(\);(\s+if \(threadIdx\.x < 32\))", r"\1", has_warps),
    C("grid_no_barrier_of_state", "the row's state read before it is there",
      r"__syncthreads\(\);(\s+return slots\[kWarps\])", r"\1", has_warps),
    # Which states.
    C("grid_part_left_out", "the last part is left out", ALL_PARTS,
      "reduce_lanes<lanes_for(kParts - 1)>(share_of_slots<kParts - 1>(set))"),
    C("grid_part_too_many", "a part too many", ALL_PARTS,
      "reduce_lanes<lanes_for(kParts + 1)>(share_of_slots<kParts + 1>(set))"),
    C("grid_first_part_only", "the first part alone", ALL_PARTS, "set[0]"),
    C("grid_own_part_only", "a block's own part alone", ALL_PARTS, "set[part]"),
    C("grid_lanes_of_parts", "lanes fewer than states", r"lanes_for\(kParts\)", "lanes_for(kParts / 2)"),
    C("grid_one_place", "all parts at the first place", r"set\[part\] = s;", "set[0] = s;"),
    C("grid_place_behind", "places that end behind the set", r"set\[part\] = s;", "set[part + 1] = s;"),
    C("grid_first_warp_only", "the first warp's state alone",
      r"s = reduce_lanes<lanes_for\(kWarps\)>\(share_of_slots<kWarps>\(slots\)\);", "", has_warps),
    C("grid_warp_left_out", "the last warp is left out", r"share_of_slots<kWarps>\(slots\)",
      "share_of_slots<kWarps - 1>(slots)", has_warps),
    C("grid_state_over_warp", "the row's state over the first warp's", r"(slots\[)kWarps(\] = s;)(.|\n)*?slots\[kWarps",
      lambda m: m[0].replace("slots[kWarps", "slots[0"), has_warps),
    C("grid_state_of_warp", "the first warp's state for the row's", r"return slots\[kWarps\];", "return slots[0];"),
    C("grid_state_of_thread", "a thread's own state for the row's", r"return slots\[kWarps\];", "return s;", has_warps),
    # Sets and groups.
    C("grid_one_set", "one set of states for all exchanges", rf"sets \+ {SET}", "sets"),
    C("grid_sets_overlap", "sets that overlap", SET, "exchanges % 2 * kStateWords"),
    C("grid_set_of_next", "sets by the exchange's number", SET, "exchanges * kParts * kStateWords"),
    C("grid_groups_overlap", "groups whose sets overlap", r"group \* 2 \* kParts", "group * kParts"),
    C("grid_groups_share_sets", "groups with the same sets", r" \+ group \* 2 \* kParts \* kStateWords", ""),
    C("grid_groups_share_counter", "groups with one counter", r"arrivals \+ group \* kCounterWords", "arrivals"),
    C("grid_groups_side_by_side", "a counter among a group's states", r"arrivals \+ group \* kCounterWords",
      "reinterpret_cast<unsigned*>(states) + group"),
    C("grid_part_by_group", "parts by groups", r"part = blockIdx\.x % kParts", "part = blockIdx.x / kParts"),
    C("grid_group_by_part", "groups by parts", r"group = blockIdx\.x / kParts", "group = blockIdx.x % kParts"),
    C("grid_states_before_sums", "states where partial sums lie",
      r"static_cast<long long>\(gridDim\.x\) \* kSummedWords \+ ", "", has_partial_rows),
    C("grid_state_of_one_word", "states of one number", r"kStateWords = [2-9]", "kStateWords = 1",
      lambda kernel: kernel.problem.spec.name == "row_max_sum" or kernel.schedule.softmax == "online"),
    # Leaving.
    C("grid_not_left", "a counter that is not zero again", r"leave_grid<kParts>\(counter, part, exchanges\);", "",
      has_rounds),
    C("grid_left_even", "a counter turned where it was zero", r"exchanges % 2 == 1", "exchanges % 2 == 0"),
    C("grid_left_always", "a counter turned once too often", r" && exchanges % 2 == 1", ""),
    C("grid_left_by_first", "the first part leaves alone", r"(threadIdx\.x == 0)( && exchanges % 2 == 1)",
      r"\1 && part == 0\2", has_rounds),
    C("grid_left_by_all", "all threads leave", r"threadIdx\.x == 0( && exchanges % 2 == 1)", r"true\1", has_rounds),
    # Rows and columns.
    C("grid_row_of_block", "a row for each block", r"= blockIdx\.x / kParts; row < rows", "= blockIdx.x; row < rows"),
    C("grid_rows_skipped", "rows as far apart as the grid is long", r"row \+= gridDim\.x / kParts", "row += gridDim.x"),
    C("grid_rows_by_one", "rows that other groups have", r"row \+= gridDim\.x / kParts", "row += 1"),
    C("grid_last_row", "the last row is left out", r"; row < rows; row \+=", "; row < rows - 1; row +="),
    C("grid_lane_of_block", "every part reads the first columns",
      r"blockIdx\.x % kParts \* kThreads \+ threadIdx\.x", "threadIdx.x"),
    C("grid_lane_of_grid", "lanes by the number in the grid", r"blockIdx\.x % kParts \* kThreads",
      "blockIdx.x * kThreads"),
    C("grid_lanes_overlap", "parts that overlap", r"blockIdx\.x % kParts \* kThreads",
      "blockIdx.x % kParts * (kThreads / 2)"),
    C("grid_row_of_part", "a row's number by each part", r"if \(row_thread == 0\)", "if (threadIdx.x == 0)"),
    C("grid_row_of_no_part", "a row's number by no part", r"if \(row_thread == 0\)", "if (row_thread < 0)"),
    C("grid_last_vector", "the last vector is left out", r"vector < kVectors\)", "vector < kVectors - 1)"),
    C("grid_back_without_first", "a look back that leaves the first step out", r"step >= 0; --step", "step > 0; --step",
      reads_again),
    C("grid_back_without_last", "a look back that leaves the last step out", r"step = kSteps - 1;",
      "step = kSteps - 2;", reads_again),
    C("grid_partial_row_of_block", "a partial row for each block",
      r"partials \+ static_cast<long long>\(blockIdx\.x / kParts\)",
      "partials + static_cast<long long>(blockIdx.x)", has_partial_rows),
    C("grid_partial_rows_of_blocks", "as many partial rows as blocks", r"partial_rows = blocks / kCluster",
      "partial_rows = blocks", has_two_kernels),
)  # fmt: skip
