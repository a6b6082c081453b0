"""Operators of LibTorch by its stable ABI: one file over the forward headers of a folder, for programs without Python.

Written as `normgen_torch.cu`, which includes the headers and is compiled by nvcc, or as `normgen_torch.cc`, which holds
the kernels' machine code and is compiled by any C++ compiler. The operators have the names and schemas of those that
`normgen.torch` registers, so that a program which was exported with these calls the library's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normgen.codegen.templates import tidy
from normgen.engines.source import ExportSource, written
from normgen.engines.tvm_ffi import (
    described,
    image_of,
    library,
    number,
    pointed,
    rules,
    shape_of,
    sizes,
    template,
    use_of,
    workspace_of,
)
from normgen.errors import NothingValidError, UsageError
from normgen.export.beside import require_written
from normgen.export.header import Halves, host_text, kernel_dtypes, stored_dtypes
from normgen.export.proof import require_all
from normgen.files.private import to_stderr
from normgen.operators.forms import is_of_rows, writes_of
from normgen.operators.schema import forward_schema, operator_name
from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.problem.scales import ScaleLayout
from normgen.problem.tensors import TensorUse, by_role
from normgen.spec.spec import READ, Tensor

NAME = "normgen_torch"
NAMESPACE = "normgen"
_OLDEST, _WITH_E8M0 = (2, 10), (2, 11)


@dataclass(frozen=True, kw_only=True)
class StableOperator:
    """An operator that is registered.

    asked  which results of its family it returns
    """

    name: str
    schema: str
    asked: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class Family:
    """The operators of one spec, and the headers that have their kernels, each of other dtypes.

    results  names: what a call before a backward pass returns, in order, then other statistics
    first    place of the first tensor of rows among those that are read
    """

    name: str
    reads: tuple[Tensor, ...]
    results: tuple[str, ...]
    operators: tuple[StableOperator, ...]
    headers: tuple[Halves, ...]

    @property
    def first(self) -> int:
        return next(i for i, t in enumerate(self.reads) if is_of_rows(t.kind))

    @property
    def problem(self) -> Problem:
        return self.headers[0].group.problem


def families(headers: Sequence[Halves]) -> Iterator[Family]:
    """The operators of headers; a header without one is told of on stderr.

    Raises UsageError for two headers of one name, which are of several GPUs.
    """
    names = [one.group.name for one in headers]
    if several := sorted({name for name in names if names.count(name) > 1}):
        rule = "a library of operators has one header of a name"
        hint = "--arch sm80,sm90 writes one that picks by the device; or export the records of one GPU"
        raise UsageError(rule, received=f"several of {several[0]}", hint=hint)
    found: dict[tuple[str, str], list[Halves]] = {}
    for one in headers:
        problem = one.group.problem
        why = _has_none(problem)
        name = operator_name(problem.spec, _returned(problem))
        alike = found.setdefault((name, problem.spec.sha256), []) if not why else []
        if not why and _dtypes(problem) in [_dtypes(other.group.problem) for other in alike]:
            why = f"{alike[0].group.name} has its dtypes"
        if why:
            to_stderr(f"{one.group.file_name}: no operator, for {why}")
            continue
        alike.append(one)
    return (_family(name, some) for (name, _), some in found.items())


def _family(name: str, headers: Sequence[Halves]) -> Family:
    problem = headers[0].group.problem
    spec, reads = problem.spec, tuple(by_role(problem.spec.tensors, *READ))
    writes = writes_of(spec, _returned(problem))
    others = [t.name for t in problem.tensors if t.is_written and t.name not in writes.saving]
    results = (*writes.saving, *others)
    forms = {f"{name}_saving": writes.saving} | ({name: writes.plainly} if writes.plainly != writes.saving else {})
    made = [
        StableOperator(
            name=op,
            schema=forward_schema(spec, reads, len(returned)),
            asked=tuple(result in returned for result in results),
        )
        for op, returned in forms.items()
    ]
    return Family(name=name, reads=reads, results=results, operators=tuple(made), headers=tuple(headers))


def _returned(problem: Problem) -> list[str]:
    """The optional outputs that a header's function writes."""
    there = [t.name for t in problem.tensors if t.is_written]
    return [t.name for t in problem.spec.outputs if t.optional and t.name in there]


def _dtypes(problem: Problem) -> tuple[str, ...]:
    return tuple(f"{t.name} {t.dtype.name}" for t in problem.tensors)


def _has_none(problem: Problem) -> str:
    """Why a header has no operator; "" of one that has."""
    if problem.direction is Direction.BACKWARD:
        return "it is a backward pass: programs without Python infer"
    if problem.in_place or problem.accumulate:
        return "it writes over its inputs"
    if problem.spec.has_inner:
        return "it multiplies matrices"
    results = [t for t in problem.tensors if t.is_written]
    if not all(t.kind.by_row and t.layout is ScaleLayout.ROW_MAJOR for t in results):
        return "a result is not of rows, one behind the other"
    first = next(t for t in problem.tensors if t.is_row_input)
    return "" if first.kind.is_elem and not first.group else "its first input is not [rows, cols]"


def library_of(headers: Sequence[Halves], is_set: bool) -> tuple[str, str]:
    """(File name, text) of the operators of headers beside the file, or of the files that pick among them.

    Raises UsageError for two headers of one name; NothingValidError where no header has an operator.
    """
    ones = list({one.group.name: one for one in headers}.values()) if is_set else headers
    return f"{NAME}.cu", _text(ones, is_set=is_set, has_code=False)


def write_operators(source: ExportSource, folder: Path) -> Iterator[Path]:
    """The operators of the records, with their machine code: `normgen_torch.cc`; the file written.

    Raises CompileError, NoDeviceError; UsageError for records of several GPUs and for another's file of that name;
    NothingValidError; VerificationError at the end, for records that do not leave.
    """
    found = source.records()
    name, text = f"{NAME}.cc", _text(source.halves(found), is_set=False, has_code=True)
    require_written([folder / name], replace=source.replace)
    yield from written(folder, {name: text})
    require_all(found.refused)


def _text(headers: Sequence[Halves], *, is_set: bool, has_code: bool) -> str:
    known = list(families(headers))
    if not known:
        rule = "an operator is of a forward header of rows"
        raise NothingValidError(rule, received=", ".join(one.group.name for one in headers) or "no header")
    ones = [one for family in known for one in family.headers]
    stored = {dtype.name: dtype for one in ones for dtype in stored_dtypes(one.group)}
    has_e8m0 = any(t.dtype.name == "f8e8m0" for one in ones for t in one.group.problem.tensors)
    target = _WITH_E8M0 if has_e8m0 else _OLDEST
    file_name = f"{NAME}.{'cc' if has_code else 'cu'}"
    text = template("torch.cu.j2").render(
        banner=_banner(known, file_name, target, ones, is_set=is_set),
        file_name=file_name,
        target=target,
        namespace=NAMESPACE,
        stored=[stored[name] for name in sorted(stored)],
        library=library("driver.h" if has_code else "runtime.h", "checks.h", "torch_client.h"),
        headers=[_header(family, one, is_set, has_code) for family in known for one in family.headers],
        families=[_printed(family) for family in known],
        operators=[op for family in known for op in family.operators],
    )
    return tidy(text)


def _header(family: Family, one: Halves, is_set: bool, has_code: bool) -> dict[str, Any]:
    """What the template prints of a header."""
    group, problem, host = one.group, one.group.problem, one.host
    taken = described(one, file_name="")
    reads = {t.name: i for i, t in enumerate(family.reads)}
    results = {name: i for i, name in enumerate(family.results)}
    by_name = {t.name: t for t in problem.tensors}
    scalars = [name for name, _ in problem.spec.scalars]
    passed = [_passed(t, reads, results) for t in taken.tensors]
    pitches = [_pitch(t, reads, results) for t in taken.tensors if t.kind.is_matrix]
    shares = ["per_batch"] if problem.rows_per_batch else []
    given = [number(problem.spec, name, f"with.scalars[{scalars.index(name)}]") for name, _ in taken.scalars]
    scratch = ["scratch.data_ptr()"] if host.workspace else []
    scope = "normgen" if is_set else f"normgen::sm{group.arch}"
    return {
        "name": group.name,
        "arch": group.arch,
        "includes": f"{group.name}.cu" if is_set else group.file_name,
        "image": image_of(one) if has_code else None,
        "kernel_dtypes": kernel_dtypes(group),
        "host_text": host_text(one) if has_code else "",
        "function": f"{scope}::{group.name}",
        "reads": [use_of(by_name[t.name]) for t in family.reads],
        "results": [use_of(by_name[name]) for name in family.results],
        "nullable": [str(name in taken.optional).lower() for name in family.results],
        "views": [f"view{i} ? &*view{i} : nullptr" for i in range(len(family.reads))],
        "sizes": list(sizes(problem)),
        "rules": list(rules(group, taken)),
        "workspace": workspace_of(host),
        "passed": [*passed, *pitches, "rows", "cols", *shares, *given, *scratch, "stream"],
    }


def _passed(tensor: TensorUse, reads: dict[str, int], results: dict[str, int]) -> str:
    if tensor.is_written:
        return f"to.at<{pointed(tensor)}>({results[tensor.name]})"
    return f"call.at<{pointed(tensor)}>({reads[tensor.name]})"


def _pitch(tensor: TensorUse, reads: dict[str, int], results: dict[str, int]) -> str:
    return f"to.pitch({results[tensor.name]})" if tensor.is_written else f"call.pitch({reads[tensor.name]})"


def _printed(family: Family) -> dict[str, Any]:
    """What the template prints of a family. C++ numbers what the schema names."""
    scalars = [f"s{i}" for i, _ in enumerate(family.problem.spec.scalars)]
    parameters = [f"{'std::optional<Tensor>' if t.optional else 'Tensor'} t{i}" for i, t in enumerate(family.reads)]
    following = [t.name for t in family.problem.spec.outputs if t.follows]
    operators = []
    for op in family.operators:
        made = [f"made[{i}]" for i, is_asked in enumerate(op.asked) if is_asked]
        operators.append(
            {
                "name": op.name,
                "schema": op.schema,
                "returns": "Tensor" if len(made) == 1 else f"std::tuple<{', '.join(['Tensor'] * len(made))}>",
                "parameters": [*parameters, *(f"double {name}" for name in scalars), "std::optional<ScalarType> out"],
                "given": [f"given(t{i})" for i in range(len(family.reads))],
                "scalars": scalars,
                "asked": [str(is_asked).lower() for is_asked in op.asked],
                "made": made[0] if len(made) == 1 else f"{{{', '.join(made)}}}",
            }
        )
    return {
        "name": family.name,
        "reads": len(family.reads),
        "results": len(family.results),
        "first": family.first,
        "rows": [str(is_of_rows(t.kind)).lower() for t in family.reads],
        "operators": operators,
        "follows": next((i for i, name in enumerate(family.results) if name in following), -1),
        "headers": [one.group.name for one in family.headers],
    }


def _banner(
    known: Sequence[Family], file_name: str, target: tuple[int, int], ones: Sequence[Halves], *, is_set: bool
) -> list[str]:
    lines = []
    for family in known:
        lines += [f"  {NAMESPACE}::{op.name}{op.schema}" for op in family.operators]
        lines += [f"      {_said(family, one)}" for one in family.headers]
    places = "-I $TORCH/include " + file_name + " -L $TORCH/lib -ltorch_cpu -ldl"
    arch = "" if is_set else f"{ones[0].device.option(ones[0].group.arch)} "
    has_code = file_name.endswith(".cc")
    how = "c++ -std=c++17 -O2 -shared -fPIC" if has_code else f"nvcc -std=c++17 -O2 -shared {arch}-Xcompiler -fPIC"
    holds = "It holds the machine code of kernels" if has_code else "It includes headers, which have the evidence"
    return [
        file_name,
        "Generated by normgen. Do not edit: run `normgen export --torch-stable` again.",
        "",
        f"Operators of LibTorch, from {target[0]}.{target[1]} on, by its stable ABI: Python is not needed to run them.",
        f"{holds}; of these dtypes:",
        "",
        *lines,
        "",
        "The first tensor is [.., cols] on a CUDA device. Results are new, without gaps; the last argument is the",
        "dtype of those that follow an input, or None: that of the tensors of rows. A call is on LibTorch's stream.",
        "What does not fit is a RuntimeError that says why.",
        "",
        f"build     {how} {places} \\",
        f"              -o lib{NAME}.so    # TORCH: the folder of LibTorch, or of Python's package torch",
        f'use       torch.ops.load_library("lib{NAME}.so"); in C++ dlopen("lib{NAME}.so", RTLD_NOW)',
    ]


def _said(family: Family, one: Halves) -> str:
    named = {t.name: t for t in one.group.problem.tensors}
    tensors = [f"{t.name} {shape_of(named[t.name])} {named[t.name].dtype.of_array.torch}" for t in family.reads]
    made = [f"{name} {shape_of(named[name])} {named[name].dtype.of_array.torch}" for name in family.results]
    return f"{', '.join(tensors)} -> {', '.join(made)}"
