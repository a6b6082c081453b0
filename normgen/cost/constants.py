"""The cost model's constants: defaults, and those calibrated for a GPU model, as data (`devices/<gpu>.json`)."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from normgen.device import TARGETS, Device
from normgen.errors import UsageError, did_you_mean
from normgen.files.decoded import parse_json
from normgen.files.private import write_output

FOLDER = Path(__file__).parent / "devices"


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Times in µs; defaults are an H200's, by published latencies where not measured.

    grid_exchange_us                that resident blocks take to exchange states through memory
    launch_us .. l2_over_dram       what `normgen calibrate` measures
    l2_over_dram                    L2 bandwidth in units of DRAM bandwidth
    sm_gb_per_s                     what one SM takes from L2: 64 bytes a clock, less what is lost
    trip_share                      of a load's latency that each further loop trip waits
    prefetch_left                   share of the shorter of loading and computing that prefetching does not hide
    instructions_per_clock          warp instructions an SM issues, of 4 schedulers
    chained_block_us                between two blocks that an SM starts where kernels start early: 8192 blocks of any
                                    size take 11 us then (H200)
    blend                           exponent of the smooth maximum of memory, latency and issue
    narrow_penalty                  per halving of a 16-byte access
    load_past_l1 .. persistent_penalty  factors on the bound; hints that leave L1 out pay for one stream of rows only
    *_registers                     of the register estimate
    chained                         of a launch's time, what is left when it starts while the kernel before it ends
    second_kernel_us .. atomics_per_us column sums
    products_share                  of the clocks of `schedule.tiles.clocks`, what an SM has at full load
    spilled_products                what a spilled register costs, in units of a sum's
    """

    launch_us: float = 0.7
    dram_latency_us: float = 0.65
    l2_latency_us: float = 0.2
    l1_latency_us: float = 0.02
    shuffle_us: float = 0.018
    barrier_us: float = 0.015
    cluster_barrier_us: float = 0.18
    grid_exchange_us: float = 4.0
    l2_over_dram: float = 1.26
    store_us: float = 0.2
    element_us: float = 0.003
    trip_share: float = 0.6
    prefetch_left: float = 0.3
    sm_gb_per_s: float = 110.0
    instructions_per_clock: float = 2.5
    chained_block_us: float = 0.16
    blend: float = 3.0
    tail_share: float = 0.6
    narrow_penalty: float = 0.02
    load_past_l1: float = 0.98
    load_streams_past_l1: float = 1.03
    load_evict_last: float = 0.975
    store_streaming: float = 0.98
    params_early: float = 0.985
    params_kept: float = 0.985
    idle_exponent: float = 0.3
    side_by_side: float = 0.01
    few_vectors: float = 0.03
    held_shared: float = 1.04
    persistent_penalty: float = 1.06
    base_registers: float = 17.0
    held_registers: float = 1.25
    param_registers: float = 1.0
    vector_registers: float = 1.6
    sum_registers: float = 1.4
    second_kernel_us: float = 1.6
    chained: float = 0.5
    last_tile_us: float = 0.03
    atomics_per_us: float = 80_000.0
    products_share: float = 0.9
    spilled_products: float = 1.0

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def constants_from(values: Mapping[str, float]) -> Constants:
    """Constants from a mapping; unknown names are errors, missing ones keep their default."""
    known = [f.name for f in fields(Constants)]
    if not isinstance(values, Mapping):
        raise UsageError("constants of the cost model are a table", received=repr(values))
    for name, value in values.items():
        if name not in known:
            raise UsageError("unknown constant of the cost model", received=name, hint=did_you_mean(name, known))
        if not isinstance(value, int | float) or value != value:
            raise UsageError(f"constant '{name}' is a number", received=repr(value))
    return Constants(**{name: float(value) for name, value in values.items()})


def file_name(device_name: str) -> str:
    """`nvidia-h200.json` of "NVIDIA H200"."""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-") + ".json"


def constants_of(device: Device) -> Constants:
    """The constants that ship for this GPU model, else for one of its architecture, else the defaults."""
    return _shipped(device.name, device.arch)


def fitted_to(device: Device) -> frozenset[str]:
    """The problems whose times those constants were fitted to, spelled as `str(problem)`."""
    path = _file_of(device.name, device.arch)
    fit = parse_json(path.read_bytes())["evidence"].get("fit", []) if path else []
    return frozenset(line.rpartition(":")[0] for line in fit)


@functools.cache
def _shipped(name: str, arch: int) -> Constants:
    path = _file_of(name, arch)
    return read_constants(path) if path else Constants()


def _file_of(name: str, arch: int) -> Path | None:
    kin = (known.name for known in TARGETS.values() if known.arch == arch)
    files = (FOLDER / file_name(known) for known in (name, *kin))
    return next((path for path in files if path.is_file()), None)


def read_constants(path: Path) -> Constants:
    """The constants of a file that `normgen calibrate` wrote. Raises UsageError for another file."""
    try:
        plain = parse_json(path.read_bytes())
        return constants_from(plain["constants"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError("a file of constants is a JSON object with 'constants'", received=f"{path}: {error}") from None


def write_constants(path: Path, constants: Constants, *, device: str, evidence: Mapping[str, object]) -> None:
    """Constants with where they come from, four significant digits each."""
    rounded = {name: float(f"{value:.4g}") for name, value in constants.as_dict().items()}
    text = json.dumps({"device": device, "evidence": dict(evidence), "constants": rounded}, indent=2)
    write_output(path, text + "\n")
