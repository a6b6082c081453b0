"""Every error normgen raises on purpose: the rule that broke, what was received, and a hint.

Each class carries the exit code the command line ends with (see `normgen --help`):
0 ok, 1 a fault of normgen, 2 usage, or a file that cannot be read or written, 3 nothing valid found, 4 verification
failed, 5 slower than before, 6 no usable GPU, 130 interrupted, 141 nobody reads the output.
"""

from __future__ import annotations

import contextlib
import difflib
import traceback
from collections.abc import Iterable, Iterator, Sequence

SLIP = 0.65  # of the letters of two names, those that both have in the same order
SHORTEST = 3  # letters of a name that may be another one, cut short
TRACEBACK = "NORMGEN_TRACEBACK"  # an environment variable: the command line prints Python's traceback too


class NormgenError(Exception):
    """One sentence with the rule that broke, then what was received, then a hint."""

    exit_code = 2

    def __init__(self, rule: str, *, received: str | None = None, hint: str | None = None) -> None:
        self.rule = rule
        self.received = received
        self.hint = hint
        parts = [rule]
        if received is not None:
            parts.append(f"received: {received}")
        if hint is not None:
            parts.append(f"hint: {hint}")
        super().__init__("\n  ".join(parts))


class UsageError(NormgenError):
    """A command-line option or a Python argument does not fit."""


class OutsideError(UsageError, IndexError):
    """An index names what is not there; an IndexError too, as Python's users and torch's catch it."""


class FileError(NormgenError):
    """The operating system refused to read or write what a command cannot do without."""


class BrokenError(NormgenError):
    """Normgen itself is wrong: an exception that nobody raised on purpose."""

    exit_code = 1


class SpecError(NormgenError):
    """A spec file breaks a rule; the message starts with `file:line:`."""

    def __init__(
        self,
        rule: str,
        *,
        file: str,
        line: int | None = None,
        received: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.file = file
        self.line = line
        where = file if line is None else f"{file}:{line}"
        super().__init__(f"{where}: {rule}", received=received, hint=hint)


class ProgramError(NormgenError):
    """A RowProgram breaks a rule of the IR: a compiler pass is wrong, or a formula cannot be lowered.

    `value` names the value of the program where it does, if it is one.
    """

    def __init__(
        self, rule: str, *, received: str | None = None, hint: str | None = None, value: str | None = None
    ) -> None:
        self.value = value
        super().__init__(rule, received=received, hint=hint)


class NothingValidError(NormgenError):
    """No candidate of the search space is legal, compiles and is right."""

    exit_code = 3


class NotOfferedError(NormgenError):
    """Another library has no such operation, direction or form of it."""


class VerificationError(NormgenError):
    """A kernel's result misses the accuracy contract of its spec."""

    exit_code = 4


class FaultError(NormgenError):
    """The CPU executor saw a kernel do what none may do; `faults` has each `normgen.cpu.Fault`, with its line."""

    exit_code = 4

    def __init__(self, rule: str, *, faults: Sequence[object], hint: str | None = None) -> None:
        self.faults = tuple(faults)
        super().__init__(rule, received="\n".join(map(str, faults)), hint=hint)


class CompileError(NormgenError):
    """The CUDA or the host compiler refused the emitted text; `log` is its output."""

    exit_code = 3

    def __init__(self, rule: str, *, log: str, received: str | None = None, hint: str | None = None) -> None:
        self.log = log
        super().__init__(rule, received=received, hint=hint)


class LostCompilerError(CompileError):
    """The compiling process ended, or gave no answer in time: it says nothing about the text."""


class NoDeviceError(NormgenError):
    """No usable CUDA device, driver or NVRTC library."""

    exit_code = 6


class DriverError(NormgenError):
    """A CUDA driver call failed; `code` is the driver's name for it, such as CUDA_ERROR_ILLEGAL_ADDRESS."""

    exit_code = 6

    def __init__(self, rule: str, *, code: str, received: str | None = None, hint: str | None = None) -> None:
        self.code = code
        super().__init__(rule, received=code if received is None else f"{code} ({received})", hint=hint)


class NoCompilerError(NormgenError):
    """No host C++ compiler: the CPU executor cannot build kernels. Everything else goes on."""

    exit_code = 6


@contextlib.contextmanager
def needed(rule: str, *, hint: str | None = None) -> Iterator[None]:
    """The boundary between the operating system and ours: an OSError inside becomes a FileError."""
    try:
        yield
    except OSError as error:
        raise FileError(rule, received=refusal_of(error), hint=hint) from error


def refusal_of(error: OSError) -> str:
    """What the operating system says, in one line: `/x/y: Permission denied`."""
    why = error.strerror or str(error) or type(error).__name__
    files = " -> ".join(str(file) for file in (error.filename, error.filename2) if file is not None)
    return f"{files}: {why}" if files else why


def as_normgen_error(error: Exception) -> NormgenError:
    """What ended the work as an error of three parts: the limits of the machine are usage, the rest is ours."""
    match error:
        case NormgenError():
            return error
        case RecursionError():
            return UsageError("what was asked nests too deep", hint="split the formula, or take a smaller file")
        case MemoryError():
            hint = "take fewer rows or cols, or a machine with more memory"
            return UsageError("what was asked does not fit the memory", received=str(error) or None, hint=hint)
        case OSError():
            hint = "name another place, or look at its owner, mode and free space"
            return FileError("the system refused a file, a folder or a process", received=refusal_of(error), hint=hint)
        case _:
            last = traceback.extract_tb(error.__traceback__)[-1:]
            where = "".join(f" at {frame.filename}:{frame.lineno}" for frame in last)
            hint = f"set {TRACEBACK}=1 to see where, and report it"
            rule = "this is a fault of normgen, not of the command"
            return BrokenError(rule, received=f"{type(error).__name__}: {error}{where}", hint=hint)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The hint for an unknown name: first the known one that it is a slip of, if it is one, then all of them.

    A name that only shares letters with a known one, as `softmin` does with `sin`, is no slip of it; one that is cut
    short, or written out (`epsilon`), is.
    """
    names = sorted(known)
    listed = "known names: " + ", ".join(names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=SLIP)
    if not close and "_" not in name:
        ends = (one for one in names if min(len(one), len(name)) >= SHORTEST)
        close = [one for one in ends if one.startswith(name) or name.startswith(one)]
    return f"did you mean '{close[0]}'? {listed}" if close else listed
