"""What a ranker knows of schedules: facts of the problem, the knobs, what the cost model makes of both."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.cost.model import terms
from normgen.device import Device
from normgen.knobs import KNOBS
from normgen.problem.problem import Problem
from normgen.program.source import written_program
from normgen.schedule.legality import has_quotients, has_softmax, has_variance
from normgen.schedule.many import NAMES, Schedules
from normgen.schedule.plan import held_bytes_per_thread, param_bytes_per_thread

Features = dict[str, NDArray[np.float32]]
GPC_SMS = 18  # at most
TIMES = ("us", "memory_us", "latency_us", "issue_us", "columns_us", "starts_us", "tail_us")
COUNTS = ("registers", "blocks_per_sm", "occupancy", "waves", "blocks", "steps", "shared_bytes", "dram_bytes")


def features(problem: Problem, schedules: Schedules, device: Device) -> Features:
    """Of each schedule: name -> [schedules], sizes and times by their logarithms (of 2), choices by their place.

    Times are over what the problem's bytes take at the device's bandwidth, so that they tell of no one GPU.
    """
    found: dict[str, Any] = dict(_facts(problem, device))
    found |= {name: _codes(schedules, name) for name in KNOBS}
    s, cost = schedules.columns, terms(problem, schedules, device)
    least_us = max(1, problem.compulsory_bytes) / device.dram_gb_per_s / 1e3
    found |= {name: _log(cost[name] / least_us) for name in TIMES}
    found |= {name: _log(cost[name]) for name in COUNTS}
    vector = s.vector * problem.dtype.bytes
    held = held_bytes_per_thread(problem, s)
    found |= {
        "factor": cost["factor"],
        "spilled": cost["spilled"],
        "looks": cost["looks"],
        "idle": cost["idle_lanes"],
        "last_round": np.ceil(cost["rounds"]) / np.maximum(cost["rounds"], 2**-10),
        "rounds": _log(cost["rounds"]),
        "last_wave": np.ceil(cost["waves"]) / np.maximum(cost["waves"], 2**-10),
        "threads": _log(s.threads),
        "row_threads": _log(s.threads_per_row * s.row_blocks),
        "access": _log(vector),
        "held": _log(held),
        "beside": _log(param_bytes_per_thread(problem, s)),
        "in_flight": _log(held * s.threads * cost["blocks_per_sm"]),
        "walkers": _log(s.persistent * s.threads),
        "elements": _log(held / problem.dtype.bytes),
        "wanted": cost["registers"] + cost["spilled"],
        "clusters": _log(cost["blocks"] / s.cluster / _clusters_at_once(s.cluster, cost["blocks_per_sm"], device)),
    }
    return {name: np.broadcast_to(np.asarray(value, np.float32), len(schedules)) for name, value in found.items()}


def _clusters_at_once(size: Any, blocks_per_sm: Any, device: Device) -> Any:
    """Clusters that are resident at a time: each in one of the GPCs, of at most 18 SMs."""
    gpcs = math.ceil(device.sm_count / GPC_SMS)
    return np.maximum(1, gpcs * np.floor(device.sm_count / gpcs * blocks_per_sm / size))


def _facts(problem: Problem, device: Device) -> dict[str, float]:
    row = problem.cols * problem.dtype.bytes
    return {
        "rows": math.log2(max(1, problem.rows)),
        "cols": math.log2(problem.cols),
        "row_bytes": math.log2(max(1, problem.row_bytes)),
        "aligned": math.gcd(row, problem.align, 16),
        "lines": row % 128 == 0,
        "element": problem.dtype.bytes,
        "rows_per_sm": math.log2(max(1, problem.rows) / device.sm_count),
        "main_over_l2": math.log2(max(1, problem.main_bytes) / device.l2_bytes),
        "moved_over_l2": math.log2(max(1, problem.compulsory_bytes) / device.l2_bytes),
        "inputs": len(problem.elem_inputs),
        "outputs": sum(t.is_written and t.kind.is_elem for t in problem.tensors),
        "narrowed": any(t.dtype.bytes < problem.dtype.bytes for t in problem.elem_tensors),
        "parameters": math.log2(1 + problem.parameter_bytes),
        "sums": problem.column_outputs,
        "group": problem.spec.group or 0,
        "reduces": len(written_program(problem).row_reduces),
        "variance": has_variance(problem),
        "softmax": has_softmax(problem),
        "quotients": has_quotients(problem),
        "any_cols": problem.any_cols,
    }


def _codes(schedules: Schedules, name: str) -> Any:
    values = schedules.values[NAMES.index(name)]
    known = KNOBS[name].values
    numbers = [math.log2(max(0.5, v)) if KNOBS[name].is_size else known.index(v) for v in values]
    return np.array(numbers, np.float32)[schedules.codes[:, NAMES.index(name)]]


def _log(values: Any) -> Any:
    return np.log2(np.maximum(values, 2**-10))
