"""The host C++ compiler: finding it, its flags, and the runtime library it builds once."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from normgen.cpu.library import load_runtime
from normgen.cpu.objects import find_object, keep_object, object_folder
from normgen.errors import CompileError, NoCompilerError
from normgen.files.private import to_stderr

SHIM = Path(__file__).parent / "shim"
_CANDIDATES = ("g++", "clang++", "c++")
_COMPILE_SECONDS = 300.0

# -Og keeps the line of every access and 16-byte copies whole. DWARF 4, because addr2line 2.40 takes the lines of a
# `#line` file for lines of the file around it in DWARF 5.
_KERNEL_FLAGS = (
    *("-std=c++17", "-Og", "-g1", "-gdwarf-4", "-pipe", "-fPIC", "-shared", "-nostdlib", "-w"),
    *("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fno-asynchronous-unwind-tables"),
    *(
        "-fvisibility=hidden",
        "-ffp-contract=off",
        "-fno-strict-aliasing",
        "-fno-math-errno",
        "-fno-plt",
        "-fstack-clash-protection",
    ),
    # The same instrumentation a sanitizer uses, answered by our own runtime: every access calls it first.
    "-fsanitize=thread,alignment,bounds",
)
# Every byte of an uninitialised variable is 0xFE (g++) or 0xFF or 0xAA (clang++), not the 0 that a fresh stack holds.
# 0xFEFE is NaN in float16; as float or bfloat16 it is -1.7e38, which spoils every sum, but not a maximum.
_FILL_FLAG = "-ftrivial-auto-var-init=pattern"
_GCC_FILL_FLAG = "-fno-tree-fre"  # value numbering takes a variable that one branch sets to be set on all paths
_FILL_SINCE = {"g++": 12, "clang++": 8}  # major versions that have the flag
# Without these passes g++ takes half the time; all run behind the instrumentation. -g1 has no variables to track, and
# the other passes make code faster that runs for milliseconds.
_GCC_FAST_FLAGS = (
    *("-fno-var-tracking", "-fira-algorithm=priority", "-fira-region=one", "-fno-forward-propagate"),
    *("-fno-cse-follow-jumps", "-fno-rerun-cse-after-loop", "-fno-reorder-blocks", "-fno-if-conversion"),
    *("-fno-thread-jumps", "-fno-crossjumping", "-fno-compare-elim", "-fno-ree"),
)
_GCC_FLAGS = ("--param=tsan-instrument-func-entry-exit=0",)
_GCC_BOUNDS_FLAG = "-fsanitize=bounds-strict"  # of an array at a struct's end, too: the elements of a vector
_CLANG_FLAGS = ("-mllvm", "-tsan-instrument-func-entry-exit=0", "-fno-sanitize=local-bounds")
_CLANG_BOUNDS_FLAG = "-fstrict-flex-arrays=3"  # the same
_CLANG_BOUNDS_SINCE = 16
_RUNTIME_FLAGS = ("-std=c++17", "-O2", "-g1", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-exceptions")


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """A C++ compiler on this machine."""

    command: tuple[str, ...]
    version: str  # the first line of --version

    @property
    def is_clang(self) -> bool:
        return "clang" in self.version.lower()

    @property
    def _major(self) -> int:
        found = re.search(r"(\d+)\.\d+\.\d+", self.version)
        return int(found[1]) if found else 0

    @property
    def fills_variables(self) -> bool:
        """Whether kernels see a pattern in variables that they have not initialised."""
        return self._major >= _FILL_SINCE["clang++" if self.is_clang else "g++"]

    @property
    def kernel_flags(self) -> tuple[str, ...]:
        fill = (_FILL_FLAG,) if self.fills_variables else ()
        if self.is_clang:
            bounds = (_CLANG_BOUNDS_FLAG,) if self._major >= _CLANG_BOUNDS_SINCE else ()
            return (*_KERNEL_FLAGS, *_CLANG_FLAGS, *bounds, *fill)
        flags = (*_KERNEL_FLAGS, _GCC_BOUNDS_FLAG, *_GCC_FAST_FLAGS)
        if self._major < 12:  # the hooks of functions' entries and exits are empty functions
            return flags
        return (*flags, *_GCC_FLAGS, *fill, _GCC_FILL_FLAG)

    def __str__(self) -> str:
        return f"{' '.join(self.command)} ({self.version})"


@functools.lru_cache(maxsize=16)
def _version(command: tuple[str, ...]) -> str | None:
    try:
        answer = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.partition("\n")[0].strip()


def _probe(command: tuple[str, ...]) -> Compiler | None:
    path = shutil.which(command[0])
    if path is None:
        return None
    version = _version((path, *command[1:]))
    return None if version is None else Compiler(command=(path, *command[1:]), version=version)


def find_compiler() -> Compiler | None:
    """$CXX when set, else the first of g++, clang++, c++ that answers; None without any."""
    chosen = os.environ.get("CXX", "").split()
    candidates = [tuple(chosen)] if chosen else [(name,) for name in _CANDIDATES]
    return next((found for found in map(_probe, candidates) if found is not None), None)


def require_compiler() -> Compiler:
    """As find_compiler. Raises NoCompilerError."""
    found = find_compiler()
    if found is None:
        raise NoCompilerError(
            "the CPU executor needs a C++17 compiler, and none was found",
            received=f"CXX={os.environ.get('CXX', '')!r}; looked for {', '.join(_CANDIDATES)}",
            hint="install g++ (Debian, Ubuntu: apt install g++) or point $CXX at a compiler",
        )
    return found


@functools.cache
def report_unfilled(compiler: Compiler) -> None:
    """Say once, on stderr, what a check with this compiler cannot see."""
    if not compiler.fills_variables:
        enough = " or ".join(f"{name} {major}" for name, major in _FILL_SINCE.items())
        to_stderr(
            f"{compiler.version} cannot fill uninitialised variables with a pattern: a kernel that reads one may pass "
            f"the check on the CPU; {enough} can"
        )


@functools.cache
def shim_digest() -> str:
    """A digest over every file of the shim and the runtime."""
    digest = hashlib.sha256()
    for path in sorted(SHIM.rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(SHIM)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def compile_file(
    compiler: Compiler, source: Path, target: Path, flags: Sequence[str], libraries: Sequence[str]
) -> bytes:
    """The shared library `target` that `source` compiles and links to. Raises CompileError with the log."""
    command = [*compiler.command, *flags, str(source), "-o", str(target), *libraries]
    try:
        answer = _run_owned(command, timeout=_COMPILE_SECONDS)
    except subprocess.TimeoutExpired as late:
        raise CompileError(
            "the host compiler did not finish", log=str(late), received=f"{_COMPILE_SECONDS} s"
        ) from late
    if answer.returncode != 0:
        log = answer.stderr.decode(errors="replace")
        raise CompileError("the host compiler refused the text", log=log, received=log[-2000:])
    return target.read_bytes()


# A compiler starts others, which a signal to it alone would leave behind. All of them are one process group, and the
# reader ends it when the pipe on standard input closes: that is when this process ends, were it by SIGKILL.
_OWNED = """
exec 3<&0 </dev/null
"$@" 3<&- &
compiler=$!
{ read -r _ <&3; kill -KILL 0; } >/dev/null 2>&1 &
reader=$!
wait $compiler
answer=$?
kill $reader
exit $answer
"""


def _run_owned(command: Sequence[str], *, timeout: float) -> subprocess.CompletedProcess[bytes]:
    """As `subprocess.run`; the command and all that it starts end with this process, however it ends."""
    read_end, held = os.pipe()
    try:
        whole = ["/bin/sh", "-c", _OWNED, "sh", *command]
        run = subprocess.run(whole, stdin=read_end, capture_output=True, timeout=timeout, check=False, process_group=0)
    finally:
        os.close(read_end)
        os.close(held)
    return run


def runtime_library(compiler: Compiler) -> Path:
    """The runtime as a shared library, loaded; built on first use. Raises CompileError."""
    key = hashlib.sha256("\0".join([shim_digest(), str(compiler), *_RUNTIME_FLAGS]).encode()).hexdigest()[:20]
    name = f"libnormgen_cpu_{key}"
    found = find_object(name, load_runtime)
    if found is None:
        with tempfile.TemporaryDirectory(prefix="normgen-") as folder:
            source, target = SHIM / "runtime" / "runtime.cpp", Path(folder) / "runtime.so"
            built = compile_file(compiler, source, target, (*_RUNTIME_FLAGS, f"-Wl,-soname,{name}.so"), ("-lrt",))
        keep_object(name, built, [name])
        found = find_object(name, load_runtime)
    if found is None:
        raise unloadable()
    return found[0]


def unloadable() -> CompileError:
    """The error for a program that was built and kept a moment ago, and is gone or cannot be loaded."""
    return CompileError(
        "a built program must load from the cache folder",
        log="",
        received=str(object_folder()),
        hint="set NORMGEN_CACHE_DIR to a folder on a file system that runs programs",
    )
