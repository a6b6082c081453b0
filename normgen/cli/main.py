"""The command line: a table of commands, whose modules are loaded when they are called."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from normgen.errors import NormgenError, needed
from normgen.files.shipped import VERSION

INTERRUPTED = 130

# Name -> where the command stands, and its line in `normgen --help`: printing the help imports no command.
COMMANDS: dict[str, tuple[str, str]] = {
    "bench": ("bench:bench", "Time a SUITE: our kernels, the roof and other libraries in one interleaved run."),
    "cache": ("state:cache_group", "What is kept between runs: cubins, objects of the CPU executor, results."),
    "calibrate": ("study:calibrate", "Measure the cost model's constants on a GPU, or fit them to FILES."),
    "compare": ("state:compare", "Whether the kernels of AFTER are faster, slower or the same as those of BEFORE."),
    "doctor": ("doctor:doctor", "What works here: driver, GPU, NVRTC, C++ compiler, cache."),
    "explain": ("study:explain", "What the cost model makes of a schedule, or of several side by side."),
    "export": ("export:export", "Write the headers of all records under OUTPUT/records."),
    "list": ("show:list_command", "The built-in specs, and what each computes."),
    "replay": ("study:replay", "What search strategies would have found on recorded sweeps, without a GPU."),
    "report": ("report:report", "Write one self-contained HTML page: search progress, % of roof, all records."),
    "show": ("show:show_command", "What a problem turns into: program, CUDA text or schedule."),
    "space": ("show:space_command", "How many schedules are legal for a problem, and why the others are not."),
    "spec": ("show:spec_group", "Work on spec files."),
    "study": ("study:study", "Experiments on the tuner itself."),
    "sweep": ("study:sweep", "Measure every legal schedule of a problem, or a sample, into one file."),
    "tune": ("tune:tune", "Find the fastest kernel for a shape, or for each of a suite."),
    "verify": ("show:verify", "Check a kernel against the float64 reference on adversarial rows."),
}

EXIT_CODES = """\
\b
Exit codes: 0 ok, 2 usage, or a file that cannot be read or written, 3 nothing valid found,
4 verification failed, 5 slower than before, 6 no usable GPU, 130 interrupted."""

_REFUSED = "a command must be able to read and write its files, stdout among them"
_HINT = "name another place, or look at its owner, mode and free space"


class Commands(click.Group):
    """The commands of the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(f"normgen.cli.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(
    cls=Commands,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(VERSION, prog_name="normgen")
def cli() -> None:
    """Writes, proves and tunes CUDA kernels for row-wise operations from a formula."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    # For a search's small matrices BLAS threads only wait for each other: a replay on two busy cores took 6 x as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        with needed(_REFUSED, hint=_HINT):
            given = None if arguments is None else list(arguments)
            code = cli.main(args=given, prog_name="normgen", standalone_mode=False)
            sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except NormgenError as error:
        click.echo(f"error: {error}", err=True)
        _give_up_stdout()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _give_up_stdout() -> None:
    """What stdout did not take is not tried again when Python ends: that would change the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends


if __name__ == "__main__":
    main()
