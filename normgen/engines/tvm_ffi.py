"""TVM-FFI libraries: a header's function with its tensors checked, for every framework that hands over DLPack tensors.

Written as `<header>_ffi.cu`, which includes the header and is compiled by nvcc, or as `<header>_ffi.cc`, which holds
the kernels' machine code and is compiled by any C++ compiler. Either defines one function, named as the header's: its
arguments are the header's tensors in their order, then the scalars of the formula. Sizes, pitches, stream and scratch
memory follow from the tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import jinja2

from normgen.codegen.module import Source
from normgen.codegen.spelling import Spelling, mark
from normgen.codegen.templates import tidy
from normgen.cuda import nvrtc
from normgen.errors import UsageError
from normgen.export.compiled import compiled_for
from normgen.export.groups import HeaderGroup
from normgen.export.header import (
    Halves,
    binding_guard,
    environment,
    guard_of,
    header_text,
    host_text,
    kernel_dtypes,
    set_guard,
    stored_dtypes,
)
from normgen.export.host_part import HostPart
from normgen.problem.problem import MOST_NUMBERED, Problem
from normgen.problem.scales import WORD, ScaleLayout
from normgen.problem.tensors import TensorUse
from normgen.spec.checks import compared_with_whole
from normgen.spec.spec import Spec

_INPUT = re.compile(r"\bInput<Config, (\w+)>")
_STRING = re.compile(r'"[^"\n]*"')
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, kw_only=True)
class LibraryFunction:
    """A function of a library: what it is called with. It stands in `file_name`.

    tensors  in order; `scalars` behind them, by their names and defaults
    optional names of tensors that may be None
    """

    name: str
    file_name: str
    problem: Problem
    tensors: tuple[TensorUse, ...]
    optional: frozenset[str]
    scalars: tuple[tuple[str, float], ...]

    @property
    def signature(self) -> str:
        """rmsnorm_fwd_bf16(y, rstd, x, weight, eps)."""
        return f"{self.name}({', '.join((*(t.name for t in self.tensors), *(n for n, _ in self.scalars)))})"

    @property
    def described(self) -> list[str]:
        """A line for each argument."""
        width = max(len(n) for n in (*(t.name for t in self.tensors), *(n for n, _ in self.scalars)))
        lines = [f"{t.name.ljust(width)}  {self._said(t)}" for t in self.tensors]
        return lines + [f"{name.ljust(width)}  float, {value!r} by default of the spec" for name, value in self.scalars]

    def _said(self, tensor: TensorUse) -> str:
        words = [f"{shape_of(tensor)} {tensor.dtype.of_array.torch}"]
        words += ["written"] if tensor.is_written else []
        words += [f"read, then overwritten by {tensor.under}"] if tensor.under else []
        words += ["may be None"] if tensor.name in self.optional else []
        return ", ".join(words)


@dataclass(frozen=True, kw_only=True)
class Image:
    """Machine code of a header's kernels, and the host functions that stand for them."""

    code: bytes
    entries: tuple[tuple[str, str], ...]  # the kernel as C++ names it, its symbol
    kernels: tuple[tuple[str, tuple[str, ...]], ...]  # templates and the types of their parameters
    configs: tuple[str, ...]
    compiler: str

    @property
    def bytes(self) -> int:
        return len(self.code)

    @cached_property
    def words(self) -> list[str]:
        padded = self.code + bytes(-len(self.code) % 8)
        return [f"{int.from_bytes(padded[i : i + 8], 'little'):#x}" for i in range(0, len(padded), 8)]


def function_of(group: HeaderGroup, scalars: Sequence[str], *, file_name: str) -> LibraryFunction:
    """What the function of a header is called with. `scalars`: those that its kernels take.

    Raises UsageError for scales in tiles, whose bytes are no lines of a tensor.
    """
    problem = group.problem
    if tiled := [t.name for t in problem.tensors if t.layout is ScaleLayout.SWIZZLED]:
        rule = "the functions of TVM-FFI and of LibTorch take scales in lines"
        raise UsageError(rule, received=f"{tiled[0]} is {ScaleLayout.SWIZZLED}", hint="call the header's own function")
    free = {*group.optional, *(f"d{n}" for n in group.optional), *group.nullable}
    defaults = dict(problem.spec.scalars)
    return LibraryFunction(
        name=group.name,
        file_name=file_name,
        problem=problem,
        tensors=problem.passed_tensors,
        optional=frozenset(t.name for t in problem.passed_tensors if t.name in free),
        scalars=tuple((name, defaults[name]) for name in scalars),
    )


def described(one: Halves, *, file_name: str) -> LibraryFunction:
    """The function of a header."""
    params = one.device.kernels[-1].main.params
    return function_of(one.group, [p.key for p in params if p.source is Source.SCALAR], file_name=file_name)


def beside_header(one: Halves, is_set: bool = False) -> tuple[str, str]:
    """(File name, text) of the library that includes a header, or the file that picks among headers by the device."""
    group = one.group
    includes = group.set_name if is_set else group.file_name
    guard = set_guard(group) if is_set else guard_of(group.name, group.arch)
    scope = "normgen" if is_set else f"normgen::sm{group.arch}"
    return _named(includes, "cu"), _text(one, includes=includes, guard=guard, scope=scope, image=None)


def of_machine_code(one: Halves) -> tuple[str, str]:
    """(File name, text) of the library that holds its kernels' machine code: any C++ compiler makes it, without nvcc.

    Raises CompileError; NoDeviceError where NVRTC is missing.
    """
    group = one.group
    guard, scope = guard_of(group.name, group.arch), f"normgen::sm{group.arch}"
    text = _text(one, includes=group.file_name, guard=guard, scope=scope, image=image_of(one))
    return _named(group.file_name, "cc"), text


def image_of(one: Halves) -> Image:
    """Compile the kernels of a header. Raises CompileError, NoDeviceError."""
    group = one.group
    found = compiled_for(group.arch, header_text(one), name=group.file_name, instances=one.instances)
    scope = f"normgen::sm{group.arch}::{group.name}_detail::"
    kernels = dict.fromkeys(k for c in one.device.kernels for k in c.parts.kernels)
    signatures = {name: tuple(map(_plain, types)) for name, types in one.device.signatures.items()}
    return Image(
        code=found.cubin,
        entries=tuple((i.replace(scope, ""), s) for i, s in zip(one.instances, found.symbols, strict=True)),
        kernels=tuple(signatures.items()),
        configs=tuple(dict.fromkeys(kernel.config for kernel in kernels)),
        compiler=".".join(map(str, nvrtc.version())),
    )


def _plain(ctype: str) -> str:
    """A kernel's parameter as a host function has it: of the same size."""
    return _INPUT.sub(r"const \1*", ctype)


def _named(header: str, suffix: str) -> str:
    return f"{Path(header).stem}_ffi.{suffix}"


def template(name: str) -> jinja2.Template:
    """One of the templates of engines."""
    return _environment().get_template(name)


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    return environment().overlay(loader=jinja2.FileSystemLoader(_TEMPLATES))


def number(spec: Spec, name: str, value: str) -> str:
    """A scalar of a call, checked, as its kernel takes it."""
    is_compared = "true" if name in compared_with_whole(spec) else "false"
    return f'number(kName, "{name}", {value}, {is_compared})'


def library(*names: str) -> str:
    return "\n".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in names)


def _text(one: Halves, *, includes: str, guard: str, scope: str, image: Image | None) -> str:
    group, host = one.group, one.host
    function = described(one, file_name=_named(includes, "cc" if image else "cu"))
    problem, tensors = group.problem, [mark(t.name) for t in function.tensors]
    pitches = [f"call.pitch({i})" for i, t in enumerate(function.tensors) if t.kind.is_matrix]
    shares = ["per_batch"] if problem.rows_per_batch else []
    inner = ["inner"] if problem.inner else []
    passed = [f"call.at<{pointed(t)}>({i})" for i, t in enumerate(function.tensors)]
    passed += [*pitches, "rows", "cols", *inner, *shares]
    passed += [number(problem.spec, name, mark(name)) for name, _ in function.scalars]
    parameters = [
        f"{'Optional<DLTensor*>' if t.name in function.optional else 'DLTensor*'} {m}"
        for t, m in zip(function.tensors, tensors, strict=True)
    ]
    marked = template("ffi.cu.j2").render(
        banner=_banner(one, function, includes, image),
        guard=binding_guard(guard),
        name=group.name,
        arch=group.arch,
        includes=includes,
        header=includes,
        image=image,
        stored=stored_dtypes(group),
        kernel_dtypes=kernel_dtypes(group),
        library=library("driver.h" if image else "runtime.h", "checks.h", "ffi_client.h"),
        host_text="@host@" if image else "",
        uses=[use_of(t) for t in function.tensors],
        parameters=[*parameters, *(f"double {mark(name)}" for name, _ in function.scalars)],
        given=[f"given({m})" for m in tensors],
        sizes=list(sizes(problem)),
        rules=list(rules(group, function)),
        function=f"{scope}::{group.name}",
        workspace=workspace_of(host),
        passed=[*passed, *(["scratch.memory()"] if host.workspace else []), "stream"],
    )
    text = Spelling(_STRING.sub('""', marked)).within(marked)
    return tidy(text.replace("@host@", host_text(one)) if image else text)  # in its scope it has its own spelling


def pointed(tensor: TensorUse) -> str:
    return f"{'const ' if tensor.is_const else ''}{tensor.dtype.cuda_ctype}"


_AXES = {
    "rows": "kRows",
    "cols": "kCols",
    "groups": "kCols",
    "inner": "kInner",
    "batches": "kBatches",
    "heads": "kBatches",
}


def _leads(tensor: TensorUse) -> bool:
    return tensor.axes[:1] == ("rows",)


def shape_of(tensor: TensorUse) -> str:
    if tensor.layout is ScaleLayout.PACKED and tensor.kind.is_groups:
        return f"[cols / {tensor.group * WORD}, {WORD} * rows]"
    said = {"groups": f"cols / {tensor.group}"}
    said |= {tensor.axes[-1]: f"{tensor.axes[-1]} / {tensor.dtype.packed}"} if tensor.dtype.packed > 1 else {}
    axes = ["..", *tensor.axes[1:]] if _leads(tensor) else list(tensor.axes)
    return f"[{', '.join(said.get(axis, axis) for axis in axes)}]"


def use_of(tensor: TensorUse) -> str:
    """An initialiser of the library's struct Use."""
    if tensor.layout is ScaleLayout.PACKED and tensor.kind.is_groups:
        sizes = [f"{{kCols, 1, {tensor.group * WORD}}}", f"{{kRows, {WORD}, 1}}"]
    else:
        over = [tensor.group if axis == "groups" else 1 for axis in tensor.axes]
        over = over if tensor.dtype.packed == 1 else [*over[:-1], tensor.dtype.packed]
        sizes = [f"{{{_AXES[axis]}, 1, {n}}}" for axis, n in zip(tensor.axes, over, strict=True)]
    code, bits = tensor.dtype.of_array.dlpack
    leads, pitched = (str(flag).lower() for flag in (_leads(tensor), tensor.kind.is_matrix))
    stored = f"{{{code}, {bits}}}"
    named = f'"{tensor.name}", "{shape_of(tensor)}", "{tensor.dtype.of_array.torch}"'
    return f"{{{named}, {stored}, {leads}, {pitched}, {len(sizes)}, {{{', '.join(sizes)}}}}}"


def sizes(problem: Problem) -> Iterator[str]:
    """The sizes of a call beside rows and cols."""
    if problem.inner:
        yield "const int inner = call.size(kInner);"
    if problem.rows_per_batch:
        each = "call.size(kBatches)" if problem.spec.has_heads else "call.rows_per_batch()"
        yield f"const int per_batch = {each};"


def workspace_of(host: HostPart) -> str:
    """What the bytes of a workspace depend on, as a call names it; nothing where there is none."""
    named = ("per_batch" if size in ("heads", "rows_per_batch") else size for size in host.workspace_sizes)
    return ", ".join(named) if host.workspace else ""


def rules(group: HeaderGroup, function: LibraryFunction) -> Iterator[str]:
    """What a call must hold beside shapes."""
    problem = group.problem
    for size in problem.spec.divisors:
        yield f'call.require(cols % {size} == 0, "cols is a multiple of {size}", cols);'
    if few := problem.spec.too_few_cols:
        yield f'call.require(cols > {few}, "cols is more than {few}", cols);'
    if problem.spec.numbers_columns:
        yield f'call.require(cols <= {MOST_NUMBERED}, "cols is at most {MOST_NUMBERED}", cols);'
    if problem.rows_per_batch and problem.spec.has_heads:
        yield 'call.require(rows % per_batch == 0, "rows is a multiple of the heads", rows);'
    order = {t.name: i for i, t in enumerate(function.tensors)}
    for name in group.optional:
        if {name, f"d{name}"} <= order.keys():
            has, gradient = f"call.has({order[name]})", f"call.has({order[f'd{name}']})"
            rule = f"'d{name}' is there where '{name}' is, and there alone"
            yield f'if ({has} != {gradient}) call.refuse("{rule}", {has} ? "None" : "a tensor");'
    for t in function.tensors:
        if t.layout is ScaleLayout.PACKED and t.kind.is_groups:
            i, rule = order[t.name], f"the lines of '{t.name}' are whole words of {WORD} bytes apart"
            yield f'call.require(call.pitch({i}) % {WORD} == 0, "{rule}", call.pitch({i}));'


def _banner(one: Halves, function: LibraryFunction, includes: str, image: Image | None) -> list[str]:
    group, spec = one.group, one.group.problem.spec
    arch = f"{one.device.option(group.arch)} " if not group.archs else ""
    flags = "$(tvm-ffi-config --cxxflags) " + function.file_name
    library = f"{group.name}.so"
    build = (
        [
            f"c++ -O2 -shared -fPIC {flags} \\",
            f"    $(tvm-ffi-config --ldflags --libs) -ldl -o {library}",
        ]
        if image
        else [
            f"nvcc -O2 -shared {arch}-Xcompiler -fPIC {flags} \\",
            f"    $(tvm-ffi-config --ldflags --libs) -o {library}",
        ]
    )
    holds = (
        f"It holds the machine code of the kernels of {includes}: for GPUs of sm_{group.arch} alone."
        if image
        else (f"It includes {includes}, which has the evidence.")
    )
    return [
        function.file_name,
        f"Generated by normgen from the spec '{spec.name}'. Do not edit: run `normgen export --tvm-ffi` again.",
        "",
        f"A TVM-FFI library of one function. {holds}",
        "",
        f"  {function.signature}",
        *(f"    {line}" for line in function.described),
        "",
        "Tensors are on one CUDA device, and the call is on the stream of the framework there. Another dtype is a",
        "TypeError, another shape, stride or device a ValueError, a failed launch a RuntimeError.",
        "",
        f"spec      {spec.name}, sha256:{spec.sha256}",
        *(f"{'build     ' if i == 0 else '          '}{line}" for i, line in enumerate(build)),
        f'use       tvm_ffi.load_module("{library}").{function.signature}',
    ]
