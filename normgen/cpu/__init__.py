"""The CPU executor: builds an emitted module with a host C++ compiler, runs it, and checks every access.

A checker, never a stopwatch. Threads are fibers; see `shim/` for the CUDA language on the host and its runtime.
"""

from normgen.cpu.build import build, build_many
from normgen.cpu.compiler import Compiler, find_compiler
from normgen.cpu.fault import Fault, FaultKind
from normgen.cpu.program import Program, ProgramRun
from normgen.errors import NoCompilerError

__all__ = [
    "Compiler",
    "Fault",
    "FaultKind",
    "NoCompilerError",
    "Program",
    "ProgramRun",
    "build",
    "build_many",
    "find_compiler",
]
