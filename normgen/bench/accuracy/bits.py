"""Presets beside the libraries themselves: how many elements of each output have other bits, on random rows.

Libraries find the statistic of a row in orders of their own, so that a share of what follows differs: `tests/presets`
shows that everything behind the statistic has the same bits.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen import verify
from normgen.bench.accuracy.kernels import KernelRunner
from normgen.bench.peers import load_peer
from normgen.choice.first import default_schedule
from normgen.errors import NormgenError, NotOfferedError, UsageError, did_you_mean
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.spec.reader import list_presets, load
from normgen.trials.file import write
from normgen.trials.head import Run, opening, reason_of
from normgen.trials.run import RunProgress, run
from normgen.verify import Inputs

COLS, HEADS = 4096, 32
VALUES = 10**7
CALL_VALUES = 1 << 22
OUTLIER = 50.0  # times as large as the rest of its row


@dataclass(frozen=True, kw_only=True)
class PeerPair:
    """A spec, and the peer whose bits it has.

    function  what the library calls it
    asked     of the question: optional tensors that are absent, dtypes
    in_place  which outputs the library writes over its inputs
    """

    spec: str
    peer: str
    function: str
    dtype: str = "bf16"
    asked: Mapping[str, Any] = field(default_factory=dict)
    in_place: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.spec} beside {self.peer}'s {self.function}"

    key = label


_NO_RSTD = {"without": ("rstd",)}
_ALONE = {"without": ("rstd", "residual", "h")}
PAIRS = (
    PeerPair(spec="llama_rmsnorm", peer="transformers", function="LlamaRMSNorm", asked=_ALONE),
    PeerPair(spec="gemma_rmsnorm", peer="transformers", function="GemmaRMSNorm", asked=_ALONE),
    PeerPair(
        spec="head_layernorm",
        peer="transformers",
        function="CohereLayerNorm",
        asked={"without": ("bias", "mean", "rstd"), "batches": HEADS},
    ),
    PeerPair(spec="rmsnorm", peer="flashinfer", function="rmsnorm", asked=_NO_RSTD),
    PeerPair(
        spec="add_rmsnorm",
        peer="flashinfer",
        function="fused_add_rmsnorm",
        asked=_NO_RSTD,
        in_place={"h": "residual", "y": "x"},
    ),
    PeerPair(spec="gemma_rmsnorm", peer="flashinfer", function="gemma_rmsnorm", asked=_ALONE),
    PeerPair(spec="flashinfer_rmsnorm_to_fp8", peer="flashinfer", function="rmsnorm_quant", asked=_NO_RSTD),
    PeerPair(
        spec="flashinfer_add_rmsnorm_to_fp8",
        peer="flashinfer",
        function="fused_add_rmsnorm_quant",
        asked=_NO_RSTD,
        in_place={"h": "residual"},
    ),
    PeerPair(spec="flashinfer_quantize_to_fp8_group", peer="flashinfer", function="per_token_group_quant_8bit"),
    PeerPair(spec="flashinfer_quantize_to_int8_group", peer="flashinfer", function="per_token_group_quant_8bit"),
    PeerPair(spec="flashinfer_quantize_to_mxfp8", peer="flashinfer", function="mxfp8_quantize"),
    PeerPair(spec="rmsnorm", peer="quack", function="rmsnorm_fwd", asked=_NO_RSTD),
    PeerPair(spec="quack_quantize_to_mxfp8", peer="quack", function="to_mx"),
    PeerPair(spec="llama_rmsnorm", peer="liger", function="LigerRMSNormFunction", asked=_ALONE),
)
# Of presets that no pair calls: their libraries, by how the names begin. FlashInfer's and QuACK's of four bits are
# for sm_100.
_UNCALLED = {
    "flashinfer": "flashinfer",
    "quack": "quack",
    "ocp": "torchao",
    "vllm": "vllm",
    "te": "transformer_engine",
    "sglang": "sgl_kernel",
    "deepgemm": "deep_gemm",
    "tilekernels": "tile_kernels",
}


@dataclass(frozen=True, kw_only=True)
class Differing:
    """Of one output: how many elements have other bits than the library's, of how many; two NaN are the same."""

    differing: int
    of: int

    @property
    def share(self) -> float:
        return self.differing / self.of if self.of else 0.0


@dataclass(frozen=True, kw_only=True)
class PairOutcome:
    """One pair's outcome; `note` says why it was not run."""

    spec: str
    library: str
    function: str = ""
    outputs: Mapping[str, Differing] = field(default_factory=dict)
    note: str = ""

    @property
    def words(self) -> str:
        return ", ".join(f"{n} {d.differing} of {d.of} ({d.share:.2g})" for n, d in self.outputs.items()) or self.note


@dataclass(frozen=True, kw_only=True)
class Bits(Run):
    """A run of all pairs, each of which has at least `values` elements of its first output."""

    TRIALS = "found"
    WRITER = "`normgen study bits`"

    where: str
    values: int
    found: tuple[PairOutcome, ...] = ()


def check_known(specs: Sequence[str]) -> None:
    """Raises UsageError for a spec that is in no pair."""
    known = sorted({pair.spec for pair in PAIRS})
    for name in specs:
        if name not in known:
            raise UsageError("no library's call is written of that spec", received=name, hint=did_you_mean(name, known))


def run_pairs(
    pairs: tuple[PeerPair, ...],
    place: KernelRunner,
    *,
    values: int,
    seed: int,
    progress: RunProgress,
    path: Path | None = None,
) -> Bits:
    """Every pair on at least `values` random values of its first output; libraries that are missing are named."""
    versions = dict[str, str]()

    def measure(pair: PeerPair) -> list[PairOutcome]:
        found = PairOutcome(spec=pair.spec, library=pair.peer, function=pair.function)
        try:
            versions.update(load_peer(pair.peer).versions())
            return [replace(found, outputs=differing(pair, place, values=values, seed=seed))]
        except Exception as error:  # a library may raise anything
            if isinstance(error, NormgenError) and not isinstance(error, NotOfferedError):
                raise
            return [replace(found, note=reason_of(error))]

    where = "CPU executor" if place.index is None else place.facts.name
    opened = Bits(**opening(place.facts, {}, {"seed": seed}), where=where, values=values)
    found = run(opened, pairs, measure, progress=progress, words=lambda beside: beside[0].words, path=path)
    whole = replace(found, versions=versions, found=(*found.found, *_uncalled()))
    if path is not None:
        write(path, whole)
    return whole


def _uncalled() -> Iterator[PairOutcome]:
    called = {pair.spec for pair in PAIRS}
    for name in (name for name in list_presets() if name not in called):
        package = _UNCALLED.get(name.partition("_")[0])
        if package:
            is_there = importlib.util.find_spec(package) is not None
            yield PairOutcome(
                spec=name, library=package, note="no call of it is written" if is_there else "not installed"
            )


def differing(pair: PeerPair, place: KernelRunner, *, values: int, seed: int) -> dict[str, Differing]:
    """Raises NotOfferedError, and whatever the library raises."""
    from normgen.bench.peers import host

    found: dict[str, Differing] = {}
    done, number = 0, 0
    while done < values:
        rows = max(1, min(values - done, CALL_VALUES) // COLS)
        rows += -rows % dict(pair.asked).get("batches", 1)
        problem = problem_of(pair, rows)
        inputs = drawn(problem, seed=seed + number)
        ours = place.run(emit(problem, default_schedule(problem, place.facts)), inputs)
        theirs = host.bits(pair.peer, problem_of(pair, rows, in_place=pair.in_place), inputs.arrays, place.index)
        for name, theirs_bits in theirs.items():
            count, size = _other_bits(ours[name], theirs_bits)
            before = found.get(name, Differing(differing=0, of=0))
            found[name] = Differing(differing=before.differing + count, of=before.of + size)
        done, number = done + rows * COLS, number + 1
    return found


def problem_of(pair: PeerPair, rows: int, in_place: Mapping[str, str] | None = None) -> Problem:
    return problem_for(load(pair.spec), shape=(rows, COLS), dtype=pair.dtype, in_place=in_place, **pair.asked)


def drawn(problem: Problem, *, seed: int) -> Inputs:
    """Rows whose sizes are from 2^-12 to 2^8, one element in a thousand an outlier, the second row of zeros."""
    rng, made = np.random.default_rng(seed), verify.make_inputs(problem, families=("normal",), seed=seed)
    size = np.exp2(rng.uniform(-12, 8, (problem.rows, 1)))
    for use in (t for t in problem.tensors if not t.is_written):
        array = made.arrays[use.name]
        if use.kind.is_elem:
            outliers = np.where(rng.random(array.shape) < 1e-3, OUTLIER, 1)
            array[...] = size * rng.standard_normal(array.shape) * outliers
            array[1:2] = 0
        elif use.kind.within_row:
            array[...] = 1 + 0.5 * rng.standard_normal(array.shape)
        else:
            array[...] = rng.uniform(0.002, 0.02)
    return made


def _other_bits(ours: NDArray[Any], theirs: NDArray[Any]) -> tuple[int, int]:
    """How many elements differ, of how many; `theirs` are the bits of an array of the same dtype and size."""
    if ours.size != theirs.size or ours.dtype.itemsize != theirs.dtype.itemsize:
        received = f"{theirs.size} of {theirs.dtype.itemsize} bytes, not {ours.size} of {ours.dtype.itemsize}"
        raise NotOfferedError("returns other elements", received=received)
    theirs = theirs.reshape(ours.shape)
    same = np.ascontiguousarray(ours).view(theirs.dtype) == theirs
    same |= np.isnan(ours.astype(np.float32)) & np.isnan(theirs.view(ours.dtype).astype(np.float32))
    return int((~same).sum()), int(ours.size)
