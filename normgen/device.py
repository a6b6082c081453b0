"""What the space, the emitter and the cost model must know of a GPU, as plain facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from normgen.errors import UsageError, did_you_mean
from normgen.files.names import NamePart, name_part

MOST_BLOCKS = 2**31 - 1  # of a grid in x, on every GPU
# Of an SM in a clock: products of 16 bits with sums in float32, at the vendor's peak, and of these what mma.sync gets.
# From 9.0 on the peak is that of other instructions; mma.sync has 0.63 of it on an H100 (arXiv:2402.13499), and of 10.0
# nobody has published it.
TENSOR_FMAS = {80: (1024, 1.0), 86: (512, 1.0), 89: (512, 1.0), 90: (2048, 0.63), 100: (4096, 0.25), 120: (512, 1.0)}
MOST_TOGETHER = 1024  # blocks of a launch that meet in memory: seven for each SM of the largest GPU


@dataclass(frozen=True, kw_only=True)
class Device:
    """Facts of one GPU model. Bandwidths are measured copies where we have them, else the vendor's figure."""

    name: str
    arch: int  # compute capability as sm_NN: 90 for 9.0
    sm_count: int
    l2_bytes: int
    shared_per_block: int  # the most dynamic shared memory one block may ask for
    shared_per_sm: int
    dram_gb_per_s: float  # bytes read + written
    sm_clock_ghz: float
    registers_per_sm: int = 65536
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32

    @property
    def sm(self) -> str:
        return f"sm_{self.arch}"

    @property
    def has_clusters(self) -> bool:
        """Whether blocks of a cluster reach each other's shared memory."""
        return self.arch >= 90

    @property
    def tensor_fmas(self) -> int:
        """Products of 16 bits with sums in float32 that an SM's tensor cores have in a clock; 0: none."""
        return self._tensor_cores[0]

    @property
    def mma_fmas(self) -> float:
        """Of these what mma.sync gets; one where there are none, so that it divides."""
        peak, share = self._tensor_cores
        return peak * share or 1.0

    @property
    def _tensor_cores(self) -> tuple[int, float]:
        """Those of the latest architecture that is known up to this one."""
        return TENSOR_FMAS.get(max((arch for arch in TENSOR_FMAS if arch <= self.arch), default=0), (0, 0.0))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


TARGETS: dict[str, Device] = {
    "h200": Device(
        name="NVIDIA H200",
        arch=90,
        sm_count=132,
        l2_bytes=60 << 20,
        shared_per_block=227 << 10,
        shared_per_sm=228 << 10,
        dram_gb_per_s=4200.0,
        sm_clock_ghz=1.98,
    ),
    "h100": Device(
        name="NVIDIA H100 80GB HBM3",
        arch=90,
        sm_count=132,
        l2_bytes=50 << 20,
        shared_per_block=227 << 10,
        shared_per_sm=228 << 10,
        dram_gb_per_s=2900.0,
        sm_clock_ghz=1.98,
    ),
    "a100": Device(
        name="NVIDIA A100-SXM4-80GB",
        arch=80,
        sm_count=108,
        l2_bytes=40 << 20,
        shared_per_block=163 << 10,
        shared_per_sm=164 << 10,
        dram_gb_per_s=1750.0,
        sm_clock_ghz=1.41,
    ),
    "b200": Device(
        name="NVIDIA B200",
        arch=100,
        sm_count=148,
        l2_bytes=126 << 20,
        shared_per_block=227 << 10,
        shared_per_sm=228 << 10,
        dram_gb_per_s=7000.0,
        sm_clock_ghz=1.96,
    ),
    "l4": Device(
        name="NVIDIA L4",
        arch=89,
        sm_count=58,
        l2_bytes=48 << 20,
        shared_per_block=99 << 10,
        shared_per_sm=100 << 10,
        dram_gb_per_s=260.0,
        sm_clock_ghz=2.04,
        threads_per_sm=1536,
        blocks_per_sm=24,
    ),
    "rtx4090": Device(
        name="NVIDIA GeForce RTX 4090",
        arch=89,
        sm_count=128,
        l2_bytes=72 << 20,
        shared_per_block=99 << 10,
        shared_per_sm=100 << 10,
        dram_gb_per_s=1008.0,
        sm_clock_ghz=2.52,
        threads_per_sm=1536,
        blocks_per_sm=24,
    ),
    "rtx5090": Device(
        name="NVIDIA GeForce RTX 5090",
        arch=120,
        sm_count=170,
        l2_bytes=96 << 20,
        shared_per_block=99 << 10,
        shared_per_sm=100 << 10,
        dram_gb_per_s=1792.0,
        sm_clock_ghz=2.41,
        threads_per_sm=1536,
        blocks_per_sm=24,
    ),
    "t4": Device(
        name="Tesla T4",
        arch=75,
        sm_count=40,
        l2_bytes=4 << 20,
        shared_per_block=64 << 10,
        shared_per_sm=64 << 10,
        dram_gb_per_s=260.0,
        sm_clock_ghz=1.59,
        threads_per_sm=1024,
        blocks_per_sm=16,
    ),
}


def device_from(facts: Mapping[str, Any]) -> Device:
    """The GPU whose facts a record holds. Raises UsageError for other facts, and for names that fit no path."""
    try:
        device = Device(**dict(facts))
    except (TypeError, ValueError) as error:
        raise UsageError("a record holds the facts of its GPU", received=str(error)) from None
    name_part(NamePart.ARCH, device.arch)
    name_part(NamePart.GPU, device.name)
    return device


# The sm_NN of other GPUs, by how their names begin.
OTHERS = {
    **dict.fromkeys(("rtx20", "gtx16", "quadrortx"), 75),
    **dict.fromkeys(("a30", "a800"), 80),
    **dict.fromkeys(("rtx30", "rtxa", "a10", "a16", "a40", "a2"), 86),
    **dict.fromkeys(("rtx40", "rtx6000ada", "l40", "l20", "l2"), 89),
    **dict.fromkeys(("h800", "h20", "gh200"), 90),
    **dict.fromkeys(("b100", "gb200"), 100),
    **dict.fromkeys(("rtx50", "rtxpro"), 120),
}
OLDER = {"v100": 70, "titanv": 70, "p100": 60, "p40": 61, "p4": 61, "gtx1080": 61, "m40": 52, "k80": 37}  # sm_NN


def target(name: str) -> Device:
    """The named target a machine without a GPU compiles and predicts for.

    Raises UsageError for an unknown name, and for a GPU that CUDA 13 does not compile for.
    """
    found = TARGETS.get(name.lower())
    if found is None and (older := OLDER.get(name.lower())):
        hint = "the oldest architecture is sm_75 (--target t4), the oldest that CUDA 13 compiles for"
        raise UsageError(f"sm_{older} is not supported", received=name, hint=hint)
    if found is None:
        hint = _nearest_target(name) or did_you_mean(name, TARGETS)
        raise UsageError("unknown target GPU", received=name, hint=hint)
    return found


def _nearest_target(name: str) -> str:
    """The hint for a GPU that has no target of its own: its architecture, and the newest target up to it."""
    plain = "".join(filter(str.isalnum, name.lower())).removeprefix("nvidia").removeprefix("geforce")
    starts = [start for start in OTHERS if plain.startswith(start)]
    if not starts:
        return ""
    arch = OTHERS[max(starts, key=len)]
    nearest = max((t for t in TARGETS if TARGETS[t].arch <= arch), key=lambda t: TARGETS[t].arch)
    return f"it is sm_{arch}: --target {nearest} (sm_{TARGETS[nearest].arch}) is the nearest; on the GPU it needs none"
