"""The ways in which a kernel is made wrong: one row each, a rewrite of a match of a regular expression."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from normgen.knobs import DependentLaunch
from normgen.spec.spec import Kind
from tests.codegen.kernels import Named

Rewrite = Callable[["re.Match[str]"], str]


@dataclass(frozen=True)
class MutationClass:
    """`rewrite` is a template for `Match.expand`, or a function of the match, whose `string` is the whole text.

    The pattern never sees comments. A rewrite that gives back what it was given makes no mutant. One text serves many
    Configs: `where` leaves out kernels whose Config turns off what the class changes, and whose mutant would be the
    same program.
    """

    name: str
    meaning: str
    pattern: str
    rewrite: str | Rewrite
    where: Callable[[Named], bool] = lambda _: True

    def replacement(self, match: re.Match[str]) -> str:
        return match.expand(self.rewrite) if isinstance(self.rewrite, str) else self.rewrite(match)


C = MutationClass
TWELVE_BITS = r"\1 __uint_as_float(__float_as_uint(\2) & 0xfffff000u);"
UPPER_HALVES = r"((__float_as_uint(\1) >> 16) | (__float_as_uint(\2) & 0xffff0000u))"
SPARED = r"(kThreadsPerRow < 32 \?) __any_sync\(0xffffffffu, !\((row_\w+_margin >= 0\.0f)\)\) : !\(\2\)"
LEAST = r"(?<=\{)(?:__int_as_float\(0xff800000\)|-3\.402823466e\+38f)"  # where a maximum starts


def several_rows(kernel: Named) -> bool:
    """A block holds several rows, of which some may lie behind the last."""
    return kernel.schedule.rows_per_block > 1


def uneven(kernel: Named) -> bool:
    """Some threads of a row own a vector less than others."""
    threads = kernel.schedule.threads_per_row * kernel.schedule.cluster
    return kernel.problem.any_cols or kernel.problem.cols % (kernel.schedule.vector * threads) != 0


def ahead(kernel: Named) -> bool:
    return kernel.schedule.stages > 1


def chained(kernel: Named) -> bool:
    """The kernel starts before the one in front of it ends."""
    return kernel.schedule.dependent_launch is not DependentLaunch.OFF


def slots_of_trips(kernel: Named) -> bool:
    """A team of several warps meets in shared memory, in each trip of a loop over rows."""
    return kernel.schedule.persistent > 0 and kernel.schedule.threads_per_row * kernel.schedule.cluster > 32


def accesses(least: int, *, written: bool) -> Callable[[Named], bool]:
    """A thread's elements of some tensor that is read, or written, have so many bytes."""

    def matches(kernel: Named) -> bool:
        used = [t for t in kernel.problem.tensors if t.is_written is written and t.kind is not Kind.ROW]
        return any(kernel.schedule.vector * tensor.dtype.bytes >= least for tensor in used)

    return matches


def sum_from_one(match: re.Match[str]) -> str:
    """A start that something reads: that of running sums, where there are some."""
    if match[1] and "sum_in_pairs(pass" in match.string:
        return match[0]
    return f"{match[1] or match[2]}1.0f"


def other_pitch(match: re.Match[str]) -> str:
    """The pitch of the next tensor of the kernel."""
    names = list(dict.fromkeys(re.findall(r"long long (\w+_pitch)\b", match.string)))
    return names[(names.index(match[0]) + 1) % len(names)] if match[0] in names else match[0]


def other_parameter(match: re.Match[str]) -> str:
    """The other column parameter, where a kernel reads two."""
    other = {"weight": "bias", "bias": "weight"}[match[1]]
    return match[0].replace(match[1], other) if f"> {other}," in match.string else match[0]


def cols_of(match: re.Match[str]) -> str:
    """The number of columns, which some kernels know only at run time."""
    return "kCols" if "constexpr int kCols" in match.string else "cols"


def half(match: re.Match[str]) -> str:
    return f"{match[1]}{int(match[2]) // 2}" if int(match[2]) > 1 else match[0]


def one_less(match: re.Match[str]) -> str:
    return f"{match[1]}{int(match[2]) - 1}" if int(match[2]) > 1 else match[0]


def other_operand(match: re.Match[str]) -> str:
    """dy instead of x, or x instead of dy, where a kernel holds both."""
    other = {"x": "dy", "dy": "x"}[match[1]]
    return match[0].replace(f"= {match[1]}_", f"= {other}_") if f"{other}_{match[2]}" in match.string else match[0]


def other_statistic(match: re.Match[str]) -> str:
    """What the kernel stores as the other statistic."""
    others = [m[2] for m in re.finditer(r"\b(mean|rstd)\[row\] = ([\w.]+);", match.string) if m[1] != match[1]]
    return f"{match[1]}[row] = {others[0]};" if others else match[0]


ROWS = (
    C("pitch_of_another", "the pitch of another tensor", r"(?<=\* )\w+_pitch\b", other_pitch),
    C("pitch_is_cols", "rows are taken to lie side by side", r"(?<=\* )\w+_pitch\b", cols_of),
    C("rows_plus_one", "one row too many is active", r"\|\| row < rows\b", "|| row < (rows + 1)", several_rows),
    C("idle_row_read", "an idle row reads past the end", r"active \? row : rows - 1", "row", several_rows),
    C("fetched_row_read", "a fetched row may lie past the end",
      r"min\((first \+ block_row\(\)), rows - 1\)", r"(\1)", several_rows),
    C("fetched_row_plus", "the last row that is fetched is one too far",
      r"(block_row\(\), rows) - 1\)", r"\1 + 1)", several_rows),
    C("active_ignored", "idle rows store", r"if \(active\) (?=write)", "", several_rows),
    C("active_statistic", "idle rows store their statistics",
      r"row_thread == 0 && active", "row_thread == 0", several_rows),
    C("row_stride_doubled", "every other row tile is left out", r"\b((?:first_)?row) \+= ", r"\1 += 2 * "),
    C("row_start", "the first row tile is left out", r"(for \(int (?:first_)?row =) (blockIdx\.x)\b", r"\1 (\2 + 1)"),
    C("row_bound", "the last row tile is left out", r"; ((?:first_)?row) < rows;", r"; \1 < rows - 1;"),
    C("fetch_bound", "a row tile is not fetched", r"< rows\) fetch", "< rows - 1) fetch", ahead),
    C("slot_of_thread", "the row of another thread",
      r"threadIdx\.x / (kThreadsPerRow)", r"(threadIdx.x + 1) / \1", several_rows),
    C("slot_ignored", "all row groups take one row",
      r"\b(first_row|first|\w+\(\) \* kRowsPerBlock) \+ block_row", r"\1", several_rows),
    C("lane_of_thread", "quotient instead of remainder",
      r"threadIdx\.x % (kThreadsPerRow)", r"threadIdx.x / \1", several_rows),
    C("lane_modulo", "one lane too few",
      r"threadIdx\.x % kThreadsPerRow", "threadIdx.x % (kThreadsPerRow - 1)", several_rows),
    C("narrow_index", "an index of 32 bits", r"\b(\w+) \* (\w+_pitch)", r"int(\1 * \2)"),
    C("null_test", "a statistic is stored unasked", r"if \((mean|rstd) != nullptr\)", "if (true)"),
    C("null_test_inverted", "a statistic is stored only if it is absent", r"(mean|rstd) != nullptr", r"\1 == nullptr"),
    C("statistic_of_row_0", "all rows take the statistic of row 0", r"= (mean|rstd)\[\w+\];", r"= \1[0];"),
)  # fmt: skip

COLUMNS_OF_A_ROW = (
    C("step_stride", "steps overlap", r"step \* kThreadsPerRow\b", "step * (kThreadsPerRow - 1)"),
    C("step_bound", "one step too many", r"step < (kSteps|steps|kHeldSteps);", r"step <= \1;"),
    C("step_last", "the last step is left out", r"step < (kSteps|steps|kHeldSteps);", r"step < \1 - 1;"),
    C("step_first", "the first step is left out", r"int step = 0;", "int step = 1;"),
    C("step_doubled", "every other step is left out", r"\+\+step", "step += 2"),
    C("element_last", "the last element of a vector is left out", r"i < kVector;", "i < kVector - 1;"),
    C("element_bound", "one element too many", r"i < kVector;", "i <= kVector;"),
    C("element_neighbour", "the neighbour's element", r"\b(element\((?:weight|bias|dy)_[^,]+, )i\)", r"\1i ^ 1)"),
    C("element_first", "one element for all", r"\b(element\(\w+(?:\[\w+\])?, )i\)", r"\g<1>0)"),
    C("kept_of_first", "what was kept of a vector's first element stands for all",
      r"= (\w+_kept|\w+_floats\[step\])\[i\];", r"= \1[0];"),
    C("vector_shifted", "vectors start one element late", r"(\w+ \+ first_col \+ step \* kStride)\)", r"\1 + 1)"),
    C("vector_unscaled", "vectors overlap",
      r"first_col = (head \+ )?row_thread \* kVector\b", r"first_col = \1row_thread"),
    C("stride_unscaled", "a thread's vectors overlap", r"kStride = kThreadsPerRow \* kVector",
      "kStride = kThreadsPerRow"),
    C("tail_ignored", "vectors past the end", r"if \((?:step < kWholeSteps \|\| )?vector < \w+\)", "if (true)"),
    C("tail_bound", "one vector too many", r"vector < (kVectors|vectors)\)", r"vector <= \1)", uneven),
    C("tail_cut", "one vector too few", r"vector < (kVectors|vectors)\)", r"vector < \1 - 1)", uneven),
    C("edge_left_out", "edges are left out", r"if \(has_edge\)", "if (false)"),
    C("edge_everywhere", "every lane has an edge", r"if \(has_edge\)", "if (true)"),
    C("edge_bound", "one edge too many", r"edge < (kCols|cols);", r"edge <= \1;"),
    C("head_ignored", "vectors start at the row's first element",
      r"first_col = head \+ row_thread \* kVector", "first_col = row_thread * kVector"),
    C("head_of_aligned_rows", "an aligned row has a head, too", r"\(kVector - shift\) % kVector", "(kVector - shift)"),
    C("parameter_of_another", "the other column parameter", r">\((weight|bias) \+ ", other_parameter),
)  # fmt: skip

SIZES = (
    C("cols_one_less", "kCols", r"(\bkCols = )(\d+)\b", one_less),
    C("vector_halved", "kVector", r"(\bkVector = )(\d+)\b", half),
    C("threads_halved", "kThreadsPerRow", r"(\bTeam = \w+<)(\d+)\b", half),
    C("block_threads_halved", "kThreads", r"(\bkThreads = )(\d+)\b", half),
    C("row_groups_halved", "kRowsPerBlock", r"(\bTeam = \w+<\d+, )(\d+)\b", half),
    C("cluster_halved", "kCluster", r"(\bkCluster = )(\d+)\b", half),
    C("stage_less", "kStages", r"(\bkStages = )(\d+)\b", one_less),
    C("held_steps_less", "kHeldSteps", r"(\bkHeldSteps = )(\d+)\b", one_less),
    C("warps_halved", "kWarps, kWarpsPerRow", r"(\bkWarps(?:PerRow)? = \w+) / 32\b", r"\1 / 64"),
    C("pitch_of_sums_halved", "kPitch", r"(kPitch = \(kCols \+ 31\)) / 32", r"\1 / 64"),
    C("row_sums_halved", "kSumVectors of the kernel that adds", r"(kSumVectors = kCols / kSumVector)\b", r"\1 / 2"),
    C("steps_rounded_down", "the last steps are left out",
      r"(\w*[vV]ector\w*) \+ kThreadsPerRow - 1\)", r"\1)", uneven),
)  # fmt: skip

ARITHMETIC = (
    C("sum_replaced", "= instead of +=", r"(pass\d[._]\w+(?:\[[^\]]*\])?) \+= ", r"\1 = "),
    C("sum_negated", "-= instead of +=", r"(pass\d[._]\w+(?:\[[^\]]*\])?) \+= ", r"\1 -= "),
    C("square_dropped", "a value instead of its square", r"(\(\w+ - [\w.]+\)|\bx_i) \* \1;", r"\1;"),
    C("mean_ignored", "the mean is not subtracted", r"\(x_i - [\w.]+\)(?! \*)", "(x_i)"),
    C("subtraction_swapped", "operands of a subtraction", r"\b(x_i|dxhat_i) - ([\w.]+(?: \* [\w.]+)?)", r"\2 - \1"),
    C("divisor_less", "a mean of one column fewer", r"([\w.]+ / |Division::of\([\w.]+, )(kCols|cols)\b(?= *[;)])",
      r"\1(\2 - 1)"),
    C("divisor_of_remainder", "a mean of one column fewer", r"length, 1\.0f / length",
      "length - 1, 1.0f / (length - 1)"),
    C("divisor_of_scale", "a scale by another code", r"448\.0f, 1\.0f / 448\.0f", "440.0f, 1.0f / 440.0f"),
    C("inverse_kept", "a scale instead of its reciprocal",
      r"divide_by_remainder\(1\.0f, (\w+), reciprocal_approximate\(\1\)\)", r"\1"),
    C("divisor_dropped", "a sum instead of a mean",
      r"Division::of\(([\w.]+), (?:kCols|cols)\)|([\w.]+) / (?:kCols|cols)\b(?= *[;)])", lambda m: m[1] or m[2]),
    C("eps_dropped", "no eps", r"\beps \+ ", ""),
    C("eps_doubled", "twice the eps", r"\beps \+ ", "2.0f * eps + "),
    C("rsqrt_is_sqrt", "the reciprocal is dropped", r"\brsqrtf\(", "sqrtf("),
    C("rsqrt_coarse", "rsqrt with 12 bits", r"(=) (rsqrtf\(.*\));", TWELVE_BITS),
    C("summand_coarse", "summands with 12 bits", r"(pass\d[._]\w+(?:\[[^\]]*\])? \+=) (.*);", TWELVE_BITS),
    C("output_coarse", "outputs with 12 bits", r"(\w+_values\[\w\] =) (.*);", TWELVE_BITS),
    C("weight_dropped", "no weight", r" \* weight_i\b", ""),
    C("bias_dropped", "no bias", r" \+ bias_i\b", ""),
    C("bias_negated", "the bias is subtracted", r" \+ bias_i\b", " - bias_i"),
    C("inverse_dropped", "the reciprocal is dropped", r"1\.0f / (pass\d\.\w+)", r"\1"),
    C("statistic_of_another", "mean and rstd swapped", r"\b(mean|rstd)\[row\] = [\w.]+;", other_statistic),
    C("maximum_ignored", "exponentials that overflow", r"\b(exp\w*\(x_i) - [\w.]+\)", r"\1)"),
    C("exponential_base", "powers of two", r"\bexpf\(", "exp2f("),
    C("identity_large", "a finite number instead of -inf", LEAST, "-1.0e30f"),
    C("identity_zero", "0 instead of -inf", LEAST, "0.0f"),
    C("identity_one", "a sum starts at 1", r"(Pass\d\w* pass\d = \{)0\.0f|(\[kRunningSums\] = \{)(?=\})", sum_from_one),
    C("maximum_is_minimum", "minimum instead of maximum", r"\bmaximum\(", "minimum("),
    C("maximum_without_nan", "a maximum that ignores NaN", r"\bmaximum\(", "fmaxf("),
    C("accumulation_dropped", "gradients replace what is there", r"element\(\w+_before, \w\) \+ ", ""),
    C("gradient_term_dropped", "a term of the gradient is left out", r" - (?:xhat_i \* )?row_\w+_mean\b", ""),
    C("gradient_sign", "a term of the gradient is added", r" - ((?:xhat_i \* )?row_\w+_mean\b)", r" + \1"),
    C("gradient_scale_dropped", "the gradient is not scaled", r"\) \* row_rstd;", ");"),
    C("gradient_of_another", "a factor of the parameter's gradient", r"dy_i \* xhat_i", "dy_i * x_i"),
)  # fmt: skip

MONOIDS = (
    C("combine_one", "one of two states", r"\ba\.(\w+) \+ b\.\1\b", r"a.\1"),
    C("combine_twice", "one state twice", r"\ba\.(\w+) \+ b\.\1\b", r"a.\1 + a.\1"),
    C("combine_maximum", "one of two maxima", r"maximum\(a\.(\w+), b\.\1\)", r"a.\1"),
    C("rescale_dropped", "sums about two maxima are added", r"expf\([\w.]+ - new_max\) \* ", ""),
    C("welford_share", "a weight of 1", r"delta \* share\b", "delta"),
    C("welford_count", "no count", r"x_count \+ 1\.0f", "x_count"),
    C("welford_new_mean", "about the old mean", r"\(x_i - new_mean\) \* delta", "delta * delta"),
    C("welford_empty", "0 / 0 of two empty states", r"maximum\(total, 1\.0f\)", "total"),
    C("pivot_dropped", "a mean about the pivot", r"= row_x_pivot \+ ", "= "),
    C("pivot_of_lane", "a pivot for each lane", r"(element\(read<1>\(x_row)\), 0\)", r"\1 + row_thread), 0)"),
)  # fmt: skip

GUARDS = (
    C("vote_dropped", "every row for itself, in a warp of several", r"__any_sync\(0xffffffffu, (!\([^)]*\))\)", r"\1"),
    C("vote_of_all", "a look only if all rows of a warp need it", r"__any_sync", "__all_sync"),
    C("guard_inverted", "the second look where it is not needed", SPARED, r"\1 __any_sync(0xffffffffu, \2) : (\2)"),
    C("guard_never", "no second look", SPARED, "false"),
    C("guard_too_wide", "rows are spared that lose all digits", r"- 0\.75f \* ", "- 1e-7f * "),
    C("spared_dropped", "a spared row takes the second look's sums", r"if \((row_\w+_margin >= 0\.0f)\)", "if (false)"),
    C("spared_value", "a spared row's variance is 0", r"(pass2\.\w+_squares) = row_\w+_left;", r"\1 = 0.0f;"),
)  # fmt: skip

CHAINS = (
    C("chain_without_waits", "no kernel in front is waited for", r"using Chain = Early\w*;", "using Chain = InOrder;"),
    C("partner_wait_dropped", "a call's first kernel is not waited for", r"Chain::wait_for_partner\(\);", "", chained),
)  # fmt: skip

EXCHANGES = (
    C("shuffle_start", "half of the lanes are left out", r"kLanes / 2; offset", "kLanes / 4; offset"),
    C("shuffle_end", "neighbours are left out", r"offset > 0", "offset > 1"),
    C("shuffle_step", "every other exchange is left out", r"offset /= 2", "offset /= 4"),
    C("shuffle_mask", "half of the lanes are named", r"0xffffffffu", "0x0000ffffu"),
    C("shuffle_down", "a shift instead of an exchange", r"__shfl_xor_sync", "__shfl_down_sync"),
    C("lanes_halved", "half of a row's lanes", r"reduce_lanes<(\w+)([,>])", r"reduce_lanes<\1 / 2\2"),
    C("sync_dropped", "__syncthreads", r"__syncthreads\(\);", ""),
    C("syncwarp_dropped", "__syncwarp", r"__syncwarp\(\);", ""),
    C("fence_dropped", "__threadfence", r"__threadfence\(\);", ""),
    C("mbarrier_fence_dropped", "the fence behind an mbarrier's start", r"mbarrier_(?:cluster_)?fence\(\);", ""),
    C("cluster_wait_dropped", "cluster_wait", r"cluster_wait\(\);", ""),
    C("cluster_arrive_dropped", "cluster_arrive", r"cluster_arrive(_relaxed)?\(\);", ""),
    C("cluster_arrive_relaxed", "an arrival without fence", r"cluster_arrive\(\);", "cluster_arrive_relaxed();"),
    C("warp_of_thread", "all warps share a slot", r"(slots|own)\[threadIdx\.x / 32 % kWarps\]", r"\1[0]"),
    C("warp_leader", "one warp leaves its state", r"threadIdx\.x % 32 == 0", "threadIdx.x == 0"),
    C("slots_read_wide", "slots past the last warp's", r"(own = threadIdx\.x %) kLanes", r"\1 32"),
    C("parity_kept", "one set of slots", r"parity \^= 1;", "", slots_of_trips),
    C("slots_kept", "one set of slots for all trips", r"slots\[(?:parity|exchange % 2)\]", "slots[0]", slots_of_trips),
    C("trip_kept", "trips are not counted", r"\+\+trip;", ""),
    C("exchange_phase", "the phase of an exchange", r"exchange / 2 % 2", "(exchange / 2 + 1) % 2"),
    C("tree_stride", "every other level is left out", r"active = stride\)", "active = stride / 2)"),
    C("tree_start", "half of the threads are left out", r"active = kThreads,", "active = kThreads / 2,"),
    C("tree_bound", "a thread too many", r"lane < active - stride", "lane <= active - stride"),
    C("rank_of_another", "the rank of another block", r"\bcluster_rank\(\)", "(cluster_rank() ^ 1)"),
    C("cluster_send_short", "one block is not sent to", r"lane < (kCluster|kBlocks)\)", r"lane < \1 - 1)"),
    C("states_expected", "one state fewer is waited for", r"kStates \* static_cast", "(kStates - 1) * static_cast"),
)  # fmt: skip

TRANSPORTS = (
    C("bytes_expected", "fewer bytes are waited for", r"kCopiedCols \* \(", "(kCopiedCols - 8) * ("),
    C("bytes_copied", "the end of a row is not copied", r"\b(kCopiedCols|count) \* sizeof", r"(\1 - 8) * sizeof"),
    C("mbarrier_wait_dropped", "rows are read before they arrive", r"mbarrier_wait\([^;]*\);", ""),
    C("mbarrier_count", "an mbarrier of two arrivals", r"(mbarrier_init\([^,]*,) 1\)", r"\1 2)"),
    C("cp_async_wait_less", "rows are read before they arrive", r"cp_async_wait<(\w+) - 1>", r"cp_async_wait<\1>"),
    C("cp_async_wait_dropped", "rows are read before they arrive", r"cp_async_wait<[^>]*>\(\);", ""),
    C("cp_async_commit_dropped", "copies of two rows count as one", r"cp_async_commit\(\);", ""),
    C("stage_kept", "the stage does not advance", r"stage = \(stage \+ 1\) % kStages", "stage = stage"),
    C("stage_wraps_early", "the last stage is left out", r"\+\+stage == kStages\)", "++stage == kStages - 1)"),
    C("phase_kept", "the phase does not change", r"phase \^= 1;", ""),
    C("stage_ignored", "stages share a slot", r"\bstage \* (kSteps|kRowsPerBlock)", r"0 * \1"),
    C("ring_distance", "a row that is there already", r"row \+ kStages \* ", "row + (kStages - 1) * "),
    C("ring_start", "one stage is not filled at first", r"stage < kStages; ", "stage < kStages - 1; "),
    C("next_row_kept", "the next row never becomes the current one", r"\b(\w+)_held\[step\] = \1_next\[step\];", ""),
    C("held_of_another", "another tensor's row", r"\b(x|dy)_held\[step\] = \1_(next|shared|row)", other_operand),
    C("next_row_distance", "the row after the next",
      r"(\w+_row = (?:first_)?row \+) gridDim\.x", r"\1 2 * gridDim.x", ahead),
    C("griddepcontrol_wait_dropped", "the kernel in front is not waited for", r"Chain::wait\(\);", "", chained),
)  # fmt: skip

SUMS_OVER_ROWS = (
    C("column_sum_replaced", "= instead of +=", r"(?<![\w.])(\w+_sum(?:\[step\]\[i\])?) \+= ", r"\1 = "),
    C("column_sum_idle", "idle rows add to column sums", r"if \(active\) (?=\w+_sum|atomicAdd)", "", several_rows),
    C("atomic_is_plain", "a plain addition", r"atomicAdd\(([^,;]*sums[^,;]*), ([^;]+)\);", r"*(\1) += \2;"),
    C("column_order", "cells of columns in another order", r"i \* kVectors \+ vector", "i + vector * kVector"),
    C("column_of_cell", "columns in the order of cells", r"cell % kVectors \* kVector \+ cell / kVectors", "cell"),
    C("ticket_early", "the last block but one finishes", r"== gridDim\.x;", "== gridDim.x - 1;"),
    C("ticket_ignored", "every block finishes", r"(= atomicAdd\(ticket[^;]*) == gridDim\.x;", r"\1 <= gridDim.x;"),
    C("ticket_kept", "the ticket is not given back", r"(?:\*ticket|tickets\[[^\]]*\]) = 0;", ";"),
    C("sums_kept", "sums are left for the next call", r"\bsums\[[^\]]*\] = 0\.0f;", ";"),
    C("shared_sums_kept", "sums in shared memory start as they are", r"column_sums\[i\] = 0\.0f;", ";"),
    C("partial_row_bound", "a partial row too many", r"row < partial_rows\b", "row <= partial_rows"),
    C("partial_rows_endless", "an endless loop over partial rows", r"(first|next) \+= (kInFlight|8) \*", r"\1 = \2 *"),
    C("partial_row_of_0", "all blocks write one partial row", r"static_cast<long long>\(blockIdx\.x[^)]*\) \*", "0 *"),
    C("partial_rows_halved", "partial rows are left out", r"\+ i \* (kLanes|\(kThreads / 32\))", r"+ 2 * i * \1"),
    C("tensor_of_another", "the sums of another tensor", r"\btensor == ([01])", lambda m: f"tensor == {1 - int(m[1])}"),
    C("last_ignored", "every block finishes", r"return is_last;", "return true;"),
    C("warp_sum_dropped", "the last warp's sum is left out", "warp < kWarps", "warp < kWarps - 1"),
    C("finish_shuffle", "half of the lanes are left out", r"offset = kCells;", "offset = 2 * kCells;"),
    C("row_group_dropped", "a row group's sums are left out", r"int group = 1;", "int group = 2;"),
)  # fmt: skip

LIBRARY = (
    C("load_same_word", "one word of a vector for all",
      r"(const unsigned char\*>\(elements\)) \+ i, vec", r"\1, vec", accesses(17, written=False)),
    C("store_same_word", "all words to one place",
      r"(<unsigned char\*>\(elements\)) \+ i, vec", r"\1, vec", accesses(17, written=True)),
    C("split_swapped", "words of an access swapped",
      r"bits\[2\] = word\.z", "bits[2] = word.y", accesses(16, written=False)),
    C("join_swapped", "words of an access swapped",
      r"make_uint4\(bits\[0\], bits\[1\]", "make_uint4(bits[1], bits[0]", accesses(16, written=True)),
    C("bfloat16_bit", "an element's last bit", r"& 0xffff0000u\)", "& 0xfffe0000u)"),
    C("half_of_word", "elements of a word swapped", r"i % 2 == 1\)", "i % 2 == 0)"),
    C("half_of_word_kept", "one element of a word for both", r"i % 2 == 1\)", "false)"),
    C("pack_same_value", "one value of a pair for both", r"values\[i \+ 1\]\)", "values[i])"),
    C("pack_short", "the last pair is left out", r"i \+ 1 < N;", "i + 3 < N;"),
    C("pack_truncates", "bf16 towards zero", r"floats_to_bfloat162\((values\[i\]), (values\[i \+ 1\])\)", UPPER_HALVES),
)  # fmt: skip

CLASSES: tuple[MutationClass, ...] = (
    *ROWS,
    *COLUMNS_OF_A_ROW,
    *SIZES,
    *ARITHMETIC,
    *MONOIDS,
    *GUARDS,
    *CHAINS,
    *EXCHANGES,
    *TRANSPORTS,
    *SUMS_OVER_ROWS,
    *LIBRARY,
)
