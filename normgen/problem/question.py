"""A question: what is asked for, as plain values. It alone becomes arguments, a command line, a file name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypedDict

PLAIN_ALIGN = 16  # bytes; what allocators give
PROMISES = ("accumulate", "deterministic", "batch_invariant", "stable_parameters")


class Direction(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"

    @property
    def short(self) -> str:
        return {"forward": "fwd", "backward": "bwd"}[self.value]


class Asked(TypedDict, total=False):
    """What may be asked of a problem besides its spec and shape; what is left out is as in `make_problem`.

    dtype      stored dtype of the first input, by name or a library's object for it
    dtypes     of tensors, by name, where others differ
    direction  forward | backward
    without    optional tensors that are not there
    gradients  backward only: the tensors to differentiate with respect to (default: every input and parameter)
    in_place   written tensor -> the read tensor whose memory it takes: {"h": "residual"}
    layout     written tensor of groups -> how it lies in memory (`ScaleLayout`): {"scale": "column_major"};
               matrix -> the order of its axes: {"w": "cols_inner"}
    inner      length of the axis inner, where a tensor has it
    col_stride  elements from one of a row to its next, where another axis lies behind that of the columns (`Problem`)
    pitch, align, accumulate, deterministic, batch_invariant, stable_parameters   as in `Problem`
    batches    of equally many rows, where a tensor has a row for each (default: the first size of three or more);
               heads, where one has a row for each of those (default: the last size but one of three or more)
    """

    dtype: Any
    dtypes: Mapping[str, Any] | None
    direction: str
    without: Collection[str]
    gradients: Collection[str] | None
    inner: int | None
    col_stride: int
    pitch: int | None
    batches: int | None
    align: int
    accumulate: bool
    deterministic: bool
    batch_invariant: bool
    stable_parameters: bool
    in_place: Mapping[str, str] | None
    layout: Mapping[str, str] | None


@dataclass(frozen=True, kw_only=True)
class Question:
    """One kernel that somebody wants.

    op         the spec's name
    dtype      stored dtype of the first input (`first_dtype`), and `dtypes` of every tensor that takes part
    without    optional tensors that are not there
    gradients  backward: the tensors to differentiate by, where not all of them are; else None
    in_place   (written tensor, the read tensor whose memory it takes)
    layout     (tensor of groups, its layout), of those that are not row-major, and (matrix, its order) where another
               than the spec's
    batches    of equally many rows, or heads; 1 where no tensor has a row for each
    inner      length of the axis inner; 0 where no tensor has it
    The other fields are those of `Problem`.
    """

    op: str
    rows: int
    cols: int
    dtype: str
    dtypes: tuple[tuple[str, str], ...]
    direction: Direction = Direction.FORWARD
    without: tuple[str, ...] = ()
    gradients: tuple[str, ...] | None = None
    pitch: int
    batches: int = 1
    inner: int = 0
    col_stride: int = 1
    align: int = PLAIN_ALIGN
    any_cols: bool = False
    accumulate: bool = False
    deterministic: bool = False
    batch_invariant: bool = False
    stable_parameters: bool = False
    in_place: tuple[tuple[str, str], ...] = ()
    layout: tuple[tuple[str, str], ...] = ()

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `problem_for` behind the spec, and of `tune` behind `op`: values that JSON has."""
        asked: dict[str, Any] = {
            "shape": f"{self.rows}x{self.cols}",
            "dtype": self.dtype,
            "dtypes": dict(self.dtypes),
            "direction": self.direction.value,
            "without": list(self.without),
            "gradients": None if self.gradients is None else list(self.gradients),
            "pitch": self.pitch,
            "align": self.align,
        }
        asked |= {"batches": self.batches} if self.batches != 1 else {}
        asked |= {"inner": self.inner} if self.inner else {}
        asked |= {"col_stride": self.col_stride} if self.col_stride != 1 else {}
        asked |= {name: True for name in PROMISES if getattr(self, name)}
        asked |= {"in_place": dict(self.in_place)} if self.in_place else {}
        asked |= {"layout": dict(self.layout)} if self.layout else {}
        return asked | ({"any_cols": True} if self.any_cols else {})

    def options(self, said: Mapping[str, str]) -> list[str]:
        """The command line's words behind `--op`: only what differs from the defaults.

        said  the dtypes that must be named: `said_dtypes`
        """
        words = ["--shape", f"{self.rows}x{self.cols}"]
        if self.col_stride != 1:
            words = ["--shape", f"{self.rows // self.col_stride}x{self.cols}x{self.col_stride}", "--axis", "1"]
        words += ["--size", f"inner={self.inner}"] if self.inner else []
        words += ["--dtype", self.dtype] if self.dtype != "f32" else []
        others = [f"{name}={dtype}" for name, dtype in said.items()]
        words += ["--dtypes", ",".join(others)] if others else []
        words += ["--direction", self.direction.value] if self.direction is Direction.BACKWARD else []
        words += ["--without", ",".join(self.without)] if self.without else []
        words += ["--gradients", ",".join(self.gradients)] if self.gradients else []
        words += [f"--{name.replace('_', '-')}" for name in PROMISES if getattr(self, name)]
        words += [word for pair in self.in_place for word in ("--in-place", "=".join(pair))]
        words += [word for pair in self.layout for word in ("--layout", "=".join(pair))]
        words += ["--pitch", str(self.pitch)] if self.pitch != self.cols * self.col_stride else []
        words += ["--batches", str(self.batches)] if self.batches != 1 else []
        return words + (["--align", str(self.align)] if self.align != PLAIN_ALIGN else [])

    def header_stem(self, said: Mapping[str, str]) -> str:
        """layernorm_fwd_bf16: a header's file and function, named after whatever makes another signature as well.

        said  the dtypes that must be named: `said_dtypes`
        """
        words = [self.op, self.direction.short, self.dtype, *(f"{name}_{dtype}" for name, dtype in said.items())]
        words += [f"without_{name}" for name in self.without]
        words += ["only", *(f"d{name}" for name in self.gradients)] if self.gradients else []
        words += [f"{written}_over_{read}" for written, read in self.in_place]
        words += [f"{name}_{layout}" for name, layout in self.layout]
        words += ["strided"] if self.col_stride != 1 else []
        return "_".join([*words, *(name for name in PROMISES if getattr(self, name))])

    @property
    def file_stem(self) -> str:
        """layernorm_fwd_bf16_8192x768: how files about the question begin."""
        within = f"_in_{self.batches}" if self.batches != 1 else ""
        within += f"_inner_{self.inner}" if self.inner else ""
        within += f"_stride_{self.col_stride}" if self.col_stride != 1 else ""
        return f"{self.op}_{self.direction.short}_{self.dtype}_{self.rows}x{self.cols}{within}"
