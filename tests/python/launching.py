"""The launcher without a GPU: built from its source, above a driver of the tests whose kernels are the CPU executor's.

`Tensor` has what the handle reads of a torch tensor, and the exchange API of DLPack; `LauncherCpu` is the CPU as a
device whose known calls go through the launcher.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import shutil
import subprocess
import sysconfig
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normgen.codegen.module import Module, Param, Source, inverse_of
from normgen.cuda.captured import Capture
from normgen.dtypes import DTYPES, DType
from normgen.problem.problem import Problem
from normgen.python import repeat
from normgen.python.cpu import Cpu
from normgen.python.repeat import Repeater, repeater

HERE = Path(__file__).parent
LAUNCHER = [Path(repeat.__file__).with_name(f"{name}.c") for name in ("launcher", "launch", "xla")]
INCLUDE = Path(sysconfig.get_paths()["include"])
COMPILER = shutil.which("gcc") or shutil.which("cc")
NEEDS_BUILD = pytest.mark.skipif(
    COMPILER is None or not (INCLUDE / "Python.h").is_file(), reason="no C compiler, or no Python.h, on this machine"
)
WARNINGS = ("-Wall", "-Wextra", "-Werror")
CONTEXT = 0xC0  # of driver.c
REFUSED = 700  # what the driver answers where a test tells it to
NAMES = {known.numpy: known for known in DTYPES.values() if known.name in ("f32", "f16", "bf16", "i64")}


def compiled(sources: Sequence[Path], made: Path, *options: str) -> Path:
    """A shared library; the compiler's complaints are the test's."""
    command = [
        str(COMPILER),
        "-O1",
        *WARNINGS,
        "-shared",
        "-fPIC",
        *options,
        *map(str, sources),
        "-o",
        str(made),
        "-ldl",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return made


def loaded(library: Path) -> Any:
    """The launcher as a module, beside one that may be installed."""
    name = "normgen.python._launcher"
    spec = importlib.util.spec_from_file_location(
        name, library, loader=importlib.machinery.ExtensionFileLoader(name, str(library))
    )
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


# ---- Arrays ----


class _Facts(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Facts))
def _describe(tensor: Any, out: Any) -> int:
    sizes = tensor.sizes
    known = NAMES.get(tensor.dtype)
    if known is None:
        return -1
    code, bits = known.dlpack
    out[0] = _Facts(
        tensor.data_ptr(), 1, tensor.get_device() + 1, tensor.values.ndim, code, bits, 1, sizes.buffer_info()[0],
        sizes.buffer_info()[0] + 8 * tensor.values.ndim, 0,
    )  # fmt: skip
    return 0


_stream = 0


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
def _current_stream(_type: int, _device: int, out: Any) -> int:
    out[0] = _stream
    return 0


class _Exchange(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("unused", ctypes.c_void_p * 3),
        ("describe", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    ]


_api = _Exchange(
    1,
    3,
    None,
    (ctypes.c_void_p * 3)(),
    ctypes.cast(_describe, ctypes.c_void_p),
    ctypes.cast(_current_stream, ctypes.c_void_p),
)
_NAME = b"dlpack_exchange_api"  # a capsule keeps its address
_capsule_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class Tensor:
    """A numpy array with a torch tensor's methods."""

    __dlpack_c_exchange_api__ = _capsule_new(ctypes.addressof(_api), _NAME, None)

    def __init__(self, values: Any, *, device: int = -1) -> None:
        self.values, self._device = values, device
        steps = (step // values.itemsize for step in values.strides)
        self.sizes = array("q", (*values.shape, *steps))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    def stride(self) -> tuple[int, ...]:
        return tuple(self.sizes[self.values.ndim :])

    def data_ptr(self) -> int:
        return int(self.values.ctypes.data)

    def get_device(self) -> int:
        return self._device

    def new_empty(self, shape: tuple[int, ...], *, dtype: Any) -> Tensor:
        return aligned(np.full(shape, np.nan, dtype))


def aligned(values: Any) -> Tensor:
    """A copy at a multiple of 256 bytes."""
    memory = np.empty(values.nbytes + 256, np.uint8)
    start = -memory.ctypes.data % 256
    made = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    made[...] = values
    return Tensor(made)


# ---- The device ----

_Function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), *([ctypes.c_uint32] * 5), ctypes.c_void_p)
_CELLS = {
    Source.TENSOR: ctypes.c_void_p,
    Source.PITCH: ctypes.c_longlong,
    Source.SCALAR: ctypes.c_float,
    Source.WORKSPACE: ctypes.c_void_p,
    Source.INVERSE: ctypes.c_ulonglong,
}


class LauncherCpu(Cpu):
    """The CPU, whose known calls the launcher repeats; `seen`: grid, threads, shared, cluster, how, stream.

    maps  the last tensor map of each tensor, in the numbers that it is encoded of
    """

    def __init__(self, library: Path) -> None:
        super().__init__()
        self.library = library
        self.seen: list[tuple[int, ...]] = []
        self.maps: dict[str, tuple[int, ...]] = {}
        self.captured = False
        self.answer = 0

    def bind(self, problem: Problem, module: Module, cubin: Any) -> Any:
        return _Launched(self, problem, module, super().bind(problem, module, cubin))

    def repeater(self, problem: Problem, out: str) -> Repeater | None:  # type: ignore[override]
        return repeater(problem, out=out, context=CONTEXT, refused=_refuse, library=str(self.library))

    def current_stream(self, _array: Any) -> int:
        return _stream

    def stream_handle(self, stream: Any) -> int:  # type: ignore[override]
        return int(stream)

    def capture_on(self, _queue: int) -> Any:
        return Capture(id=1, graph=None) if self.captured else None

    def captured_workspace(self, _capture: Any, size: int) -> Any:  # type: ignore[override]
        return self.new_workspace(size, size, 0)

    def new_like(self, array: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        return array.new_empty(shape, dtype=dtype.numpy)


def _refuse(code: int, kernel: int) -> None:
    raise RuntimeError(f"kernel {kernel}: {code}")


def use_stream(stream: int) -> None:
    """The current one of the arrays' library."""
    global _stream
    _stream = stream


class _Launched:
    """A bound program that also packs its arguments, and whose kernels can be launched with packed ones."""

    def __init__(self, device: LauncherCpu, problem: Problem, module: Module, bound: Any) -> None:
        self._device, self._problem, self._module, self._bound = device, problem, module, bound
        self._values: dict[tuple[Source, str], Any] = {(Source.COLS, ""): problem.cols}
        self._gathered: dict[tuple[Source, str], Any] = {}
        self._functions = [_Function(self._kernel(number)) for number in range(len(module.kernels))]

    def set(self, **values: Any) -> None:
        scalars: Mapping[str, float] = values.get("scalars") or {}
        self._values |= {(Source.SCALAR, name): value for name, value in scalars.items()}
        plain = {"rows_per_batch": Source.ROWS_PER_BATCH, "workspace": Source.WORKSPACE}
        plain |= {"cols": Source.COLS, "inner": Source.INNER}
        self._values |= {(plain[name], ""): value for name, value in values.items() if name in plain}
        if "rows_per_batch" in values:
            self._values[Source.INVERSE, "rows_per_batch"] = inverse_of(values["rows_per_batch"] or 0)
        self._bound.set(**values)

    def set_tensor(self, key: str, pointer: int | None, pitch: int) -> None:
        self._values |= {(Source.TENSOR, key): pointer, (Source.PITCH, key): pitch}
        self._bound.set_tensor(key, pointer, pitch)

    def set_rows(self, rows: int, batches: int) -> None:
        self._values |= {(Source.ROWS, ""): rows, (Source.BATCHES, ""): batches}
        self._values[Source.INVERSE, "batches"] = inverse_of(batches)
        self._bound.set_rows(rows, batches)

    def launch(self, stream: int) -> None:
        self._bound.launch(stream)

    def launches(self) -> Iterator[tuple[int, int, int, int, int, tuple[Param, ...]]]:
        for kernel, function in zip(self._module.kernels, self._functions, strict=True):
            launch, address = kernel.launch, ctypes.cast(function, ctypes.c_void_p).value or 0
            how = int(launch.dependent) | int(launch.cooperates) << 1
            yield address, launch.threads, launch.cluster, launch.shared_bytes, how, kernel.params

    def packed(self) -> tuple[bytes, bytes]:
        made = b""
        for param in (param for kernel in self._module.kernels for param in kernel.params):
            if param.boxes:
                made += self._encoded_of(param)
                continue
            value = self._values.get((param.source, param.key), 0) or 0
            value += param.offset if param.source is Source.WORKSPACE else 0
            made += bytes(_CELLS.get(param.source, ctypes.c_int)(value)).ljust(8, b"\0")
        rows, batches = self._values[Source.ROWS, ""], self._values[Source.BATCHES, ""]
        sized = {"rows": rows, "batches": batches, "sm_count": self._device.sm_count}
        sized |= {"cols": self._problem.cols, "inner": self._problem.sizes.inner}
        grids = [kernel.launch.grid(**sized) for kernel in self._module.kernels]
        return made, array("q", grids).tobytes()

    def _encoded_of(self, param: Param) -> bytes:
        assert param.boxes is not None
        (line, elements), (along, lines) = param.boxes.line, param.boxes.lines
        sizes = {**self._values, (Source.INNER, ""): self._problem.sizes.inner}
        pointer, pitch = (self._values[source, param.key] for source in (Source.TENSOR, Source.PITCH))
        matrix = [pointer or 0, param.boxes.element_bytes * pitch, sizes[line, ""], sizes[along, ""]]
        return array("q", [*matrix, elements, lines, param.boxes.element_type]).tobytes()

    def _kernel(self, number: int) -> Any:
        """The program runs with the arguments of all its kernels once the last of them is launched."""
        params = self._module.kernels[number].params

        def run(arguments: Any, grid: int, threads: int, shared: int, cluster: int, how: int, stream: Any) -> int:
            self._device.seen.append((grid, threads, shared, cluster, how, stream or 0))
            for param, address in zip(params, arguments[: len(params)], strict=True):
                if param.boxes:
                    self._device.maps[param.key] = tuple((ctypes.c_uint64 * 7).from_address(address))
                    continue
                cell = _CELLS.get(param.source, ctypes.c_int).from_address(address)
                value = cell.value - param.offset if param.source is Source.WORKSPACE else cell.value
                self._gathered[param.source, param.key] = value
            if self._device.answer:
                return self._device.answer
            if number == len(self._functions) - 1:
                self._launch_gathered()
            return 0

        return run

    @staticmethod
    def _divisor(found: Mapping[tuple[Source, str], Any]) -> int:
        """The rows of a batch, of whose number kernels are given what divides by it."""
        inverse = found.get((Source.INVERSE, "rows_per_batch"))
        return 0 if inverse is None else -(-(1 << 64) // inverse) if inverse else 1

    def _launch_gathered(self) -> None:
        found = self._gathered
        for tensor in self._problem.passed_tensors:
            fixed = self._problem.pitches.get(tensor.name, 1)
            pitch = found.get((Source.PITCH, tensor.name), fixed)
            self._bound.set_tensor(tensor.name, found.get((Source.TENSOR, tensor.name)), pitch)
        scalars = {key: value for (source, key), value in found.items() if source is Source.SCALAR}
        rows, in_batch = found[Source.ROWS, ""], found.get((Source.ROWS_PER_BATCH, ""), self._divisor(found))
        workspace = found.get((Source.WORKSPACE, ""), 0)
        self._bound.set(scalars=scalars, workspace=workspace, rows_per_batch=in_batch)
        self._bound.set_rows(rows, found.get((Source.BATCHES, ""), rows // in_batch if in_batch else 1))
        self._bound.launch(0)
