"""The command line: a table of commands, whose modules are loaded when they are called."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from normgen.errors import TRACEBACK, UsageError, as_normgen_error, did_you_mean
from normgen.files.loading import load_module
from normgen.files.names import escaped, is_plain
from normgen.files.shipped import VERSION
from normgen.text.words import used

INTERRUPTED = 130
UNREAD = 141  # as a shell says of a program that a closed pipe ended
LONGEST_LINE = 2000

# Name -> where the command stands, and its line in `normgen --help`: printing the help imports no command.
COMMANDS: dict[str, tuple[str, str]] = {
    "bench": ("bench:bench", "Time a SUITE: our kernels, rooflines and other libraries in one interleaved run."),
    "cache": ("state:cache_group", "What is kept between runs: cubins, objects of the CPU executor, results."),
    "calibrate": ("study:calibrate", "Measure the cost model's constants on a GPU, or fit them to FILES."),
    "completion": ("completion:completion", "Print the completion script of a shell: bash, zsh or fish."),
    "compare": ("state:compare", "Whether the kernels of AFTER are faster, slower or the same as those of BEFORE."),
    "doctor": ("doctor:doctor", "What works here: driver, GPU, NVRTC, C++ compiler, cache."),
    "engines": ("engines.command:engines", "What inference engines run of ours, and what is untuned."),
    "explain": (
        "study:explain",
        "What the cost model makes of a schedule, and what tutorials would ask of its kernel.",
    ),
    "export": ("export:export", "Write the headers of all records under OUTPUT/records."),
    "ladder": ("ladder:ladder", "The kernels of tutorials and libraries, step by step: each proven and timed."),
    "list": ("show:list_command", "The built-in specs, and what each computes."),
    "profile": (
        "profile.command:profile",
        "Count what kernels do in hardware, by Nsight Compute, beside what `explain` derives.",
    ),
    "replay": ("study:replay", "What search strategies would have found on recorded sweeps, without a GPU."),
    "report": ("report:report", "Write one self-contained HTML page: search progress, % of roofline, all records."),
    "show": ("show:show_command", "What a problem turns into: program, CUDA text or schedule."),
    "space": ("show:space_command", "How many schedules are legal for a problem, and why the others are not."),
    "spec": ("show:spec_group", "Work on spec files."),
    "study": ("study:study", "Experiments on the tuner and on its kernels."),
    "sweep": ("study:sweep", "Measure every legal schedule of a problem, or a sample, into one file."),
    "trials": (
        "state:trials_group",
        "What measured tunes have timed: show it, merge it, push it into a shared folder.",
    ),
    "tune": ("tune.command:tune", "Find the fastest kernel for a shape, or for each of a suite."),
    "verify": ("show:verify", "Check a kernel against the float64 reference on adversarial rows."),
}

EXIT_CODES = """\
\b
Exit codes: 0 ok, 1 a fault of normgen, 2 usage, or a file that cannot be read or written,
3 nothing valid found, 4 verification failed, 5 slower than before, 6 no usable GPU,
130 interrupted, 141 nobody reads the output."""


def imported(name: str) -> Any:
    """A module; Ctrl-C waits until it is loaded, for numpy's modules make an ImportError of it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return load_module(name)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ExplainingFormatter(click.HelpFormatter):
    """Help that ends with the meaning of the project's words in it."""

    def getvalue(self) -> str:
        text = super().getvalue()
        end = click.HelpFormatter(width=self.width)
        words = used(text)
        if words:
            with end.section("\nWords"):
                end.write_dl([(word.name, word.says) for word in words])
        return text + end.getvalue()


class ExplainingContext(click.Context):
    """The context of a command whose help explains its words."""

    formatter_class = ExplainingFormatter


def _explained(command: click.Command) -> click.Command:
    command.context_class = ExplainingContext
    for one in command.commands.values() if isinstance(command, click.Group) else ():
        _explained(one)
    return command


class Commands(click.Group):
    """The commands of the table."""

    context_class = ExplainingContext

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command: click.Command = getattr(imported(f"normgen.cli.{module}"), attribute)
        return _explained(command)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Raises UsageError for an unknown command, with the nearest one."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise UsageError("unknown command", received=args[0], hint=did_you_mean(args[0], COMMANDS))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Click would end with 1 where the reader of the output went away."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise click.exceptions.Exit(UNREAD) from None

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
    """Run the command line and end the process with its exit code: no exception leaves, but for that end."""
    # For a search's small matrices BLAS threads only wait for each other: a replay on two busy cores took 6 x as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _open_closed_streams()
    if arguments is not None:
        sys.exit(_code(list(arguments)))
    code = _code(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it has ended: from here on Ctrl-C would change the code only
    sys.exit(code)


def _code(arguments: list[str]) -> int:
    """Run one command; what ends it early is said on stderr."""
    try:
        for argument in arguments:
            if not is_plain(argument):
                raise UsageError("an argument has no control characters", received=ascii(argument))
        code = cli.main(args=arguments, prog_name="normgen", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else "normgen"
        return _end(
            f"error: {error.format_message()}\n  hint: `{where} --help` says what it takes", UsageError.exit_code
        )
    except (KeyboardInterrupt, click.Abort):
        return _end("interrupted", INTERRUPTED)
    except BrokenPipeError:
        code = UNREAD
    except Exception as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        found = as_normgen_error(error)
        _give_up_stdout()
        return _end(f"error: {found}", found.exit_code)
    if code == UNREAD:
        _give_up_stdout()
    return code if isinstance(code, int) else 0


def _end(message: str, code: int) -> int:
    """Say why the command ends. Specs and records are written by others: their texts must not steer the terminal."""
    for line in escaped(message.rstrip("\n")).split("\n"):
        click.echo(line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} ...", err=True)
    return code


def _open_closed_streams() -> None:
    """The next file that is opened would get the number of a closed stream, and what is printed would land in it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def _give_up_stdout() -> None:
    """What stdout did not take goes nowhere: Python would try once more at its end, and change the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
