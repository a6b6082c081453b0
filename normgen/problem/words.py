"""A problem in words: a command line, and the names of files."""

from __future__ import annotations

from normgen.dtypes import DType
from normgen.dtypes import dtype as dtype_named
from normgen.problem.problem import Problem
from normgen.problem.question import PLAIN_ALIGN, Direction
from normgen.problem.tensors import followed_dtypes


def said_dtypes(problem: Problem) -> dict[str, str]:
    """The stored dtypes that a question must name: those that do not follow from its dtype and the others named."""
    stored = {name: dtype_named(dtype) for name, dtype in problem.named_dtypes.items()}
    said: dict[str, DType] = {}
    while True:
        found = followed_dtypes(problem.spec, stored[problem.first], said)
        other = next((name for name, dtype in stored.items() if found[name].name != dtype.name), None)
        if other is None:
            return {name: dtype.name for name, dtype in said.items()}
        said[other] = stored[other]


def options(problem: Problem) -> list[str]:
    """The command line's words behind `--op`: only what differs from the defaults."""
    beside, dtype = problem.col_stride, problem.named_dtypes[problem.first]
    words = ["--shape", f"{problem.rows}x{problem.cols}"]
    if beside != 1:
        words = ["--shape", f"{problem.rows // beside}x{problem.cols}x{beside}", "--axis", "1"]
    words += ["--size", f"inner={problem.inner}"] if problem.inner else []
    words += ["--dtype", dtype] if dtype != "f32" else []
    others = [f"{name}={dtype}" for name, dtype in said_dtypes(problem).items()]
    words += ["--dtypes", ",".join(others)] if others else []
    words += ["--direction", problem.direction.value] if problem.direction is Direction.BACKWARD else []
    words += ["--without", ",".join(problem.absent)] if problem.absent else []
    words += ["--gradients", ",".join(problem.gradients)] if problem.gradients else []
    words += [f"--{name.replace('_', '-')}" for name in problem.promises]
    words += [word for pair in problem.in_place for word in ("--in-place", "=".join(pair))]
    words += [word for pair in problem.layout for word in ("--layout", "=".join(pair))]
    words += ["--pitch", str(problem.pitch)] if problem.pitch != problem.cols * beside else []
    words += ["--batches", str(problem.batches)] if problem.batches > 1 else []
    return words + (["--align", str(problem.align)] if problem.align != PLAIN_ALIGN else [])


def header_stem(problem: Problem) -> str:
    """layernorm_fwd_bf16: a header's file and function, named after whatever makes another signature as well."""
    words = [problem.spec.name, problem.direction.short, problem.named_dtypes[problem.first]]
    words += [f"{name}_{dtype}" for name, dtype in said_dtypes(problem).items()]
    words += [f"without_{name}" for name in problem.absent]
    words += ["only", *(f"d{name}" for name in problem.gradients)] if problem.gradients else []
    words += [f"{written}_over_{read}" for written, read in problem.in_place]
    words += [f"{name}_{layout}" for name, layout in problem.layout]
    words += ["strided"] if problem.col_stride != 1 else []
    return "_".join([*words, *problem.promises])


def file_stem(problem: Problem) -> str:
    """layernorm_fwd_bf16_8192x768: how files about the question begin."""
    within = f"_in_{problem.batches}" if problem.batches > 1 else ""
    within += f"_inner_{problem.inner}" if problem.inner else ""
    within += f"_stride_{problem.col_stride}" if problem.col_stride != 1 else ""
    head = f"{problem.spec.name}_{problem.direction.short}_{problem.named_dtypes[problem.first]}"
    return f"{head}_{problem.rows}x{problem.cols}{within}"
