"""What the reproductions share: commands in this process with all that they say, small specs, and a limit of time."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

from normgen.cli import main as cli
from tests.fuzz.stages import limited

PATIENCE_S = 60.0  # no command of a reproduction works for so long; those that hung took more
TENSORS = 'x = "input"\ny = "output"'
ON_CPU = ("--device", "cpu", "--shape", "8x96")
FEW = (Path(__file__).parents[1] / "killing" / "few.toml").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def is_one_error(self) -> bool:
        """Whether stderr holds one error in its three parts, or an option's that was refused, and nothing else."""
        first, *rest = self.err.splitlines()
        known = all(line.startswith(("  received: ", "  hint: ", "    ")) for line in rest)
        return known and len(rest) <= 3 and first.startswith("error: ") and not self.out


def normgen(*arguments: str) -> Ended:
    """`normgen ARGUMENTS` in this process. Raises HangError."""
    out, err = io.StringIO(), io.StringIO()
    out.fileno = lambda: 1  # type: ignore[method-assign]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), limited(PATIENCE_S):
        try:
            cli.main(arguments)
        except SystemExit as ended:
            code = ended.code
    return Ended(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def spec_text(formulas: str, tensors: str = TENSORS, scalars: str = "") -> str:
    """A spec named `made_up`."""
    head = f'name = "made_up"\n[tensors]\n{tensors}\n'
    return head + (f"[scalars]\n{scalars}\n" if scalars else "") + f"[formulas]\n{formulas}\n"


def spec_file(folder: Path, text: str = FEW) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "made_up.toml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def tune_few(folder: Path, *arguments: str) -> tuple[str, ...]:
    """The command line of a tune that takes two of few schedules; the spec goes into the folder."""
    return ("tune", *ON_CPU, "--op", spec_file(folder), "--trials", "2", *arguments)


def verified(folder: Path, text: str, *arguments: str) -> Ended:
    """`normgen verify` of a spec on the CPU executor."""
    return normgen("verify", *ON_CPU, "--op", spec_file(folder, text), *arguments)
