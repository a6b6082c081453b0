"""What the commands share: the options that name a problem, and how their texts are read.

This file imports nothing heavy: a command that measures starts its processes before it loads the tuner.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from normgen.device import TARGETS
from normgen.errors import UsageError
from normgen.files.plain import plain
from normgen.files.shipped import shipped
from normgen.problem.question import ASKED, Direction, Option
from normgen.records.place import Context, Setting
from normgen.tuning.progress import LARGEST_SEED, LONGEST_BUDGET_S

STDOUT = "-"
LONGEST_HELP = 400  # characters of a first sentence
Command = TypeVar("Command", bound=Callable[..., Any])


class NewFile(click.Path):
    """A file that a command writes. Its folder must be there: a path that was mistyped makes none."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.parent.is_dir():
            hint = f"mkdir -p {shlex.quote(str(path.parent))}"
            raise UsageError("the folder of a file to write must exist", received=str(path), hint=hint)
        return path


def file_or_stdout(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """The text itself: a file to write, or - for stdout."""
    if text and text != STDOUT:
        NewFile().convert(text, parameter, context)
    return text


def problem_options(command: Command) -> Command:
    """The options that name a problem."""
    return _problem_options(command, is_required=True)


def problem_options_or_suite(command: Command) -> Command:
    """The same where a suite may stand instead of one problem."""
    return _problem_options(command, is_required=False)


def _problem_options(command: Command, *, is_required: bool) -> Command:
    named = (
        click.option(
            "--op", default="layernorm", show_default=True, callback=_op, help="A built-in spec, or a TOML file."
        ),
        click.option("--shape", required=is_required, callback=_shape, help="[.., cols], for example 8x1024x768."),
    )
    options = (*named, *(_option(name, fact) for name, fact in ASKED.items()))
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def _option(name: str, fact: Option) -> Callable[[Command], Command]:
    """That of one fact of a question."""
    more: dict[str, Any] = {}
    if fact.several:
        more = {"multiple": True}
    elif fact.kind is bool:
        more = {"is_flag": True}
    elif fact.kind in (tuple, dict):
        more = {"default": ""}
    elif fact.kind is Direction:
        more = {"type": click.Choice([direction.value for direction in Direction])}
    elif fact.kind is int:
        more = {"type": int}
    if fact.default and not fact.option:
        more |= {"default": fact.default, "show_default": True}
    return click.option(_flag(fact.option or name), help=fact.help, **more)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _shape(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """The text itself; of a number alone it is said that it means one row."""
    if text and re.fullmatch(r"[0-9]{1,9}", text):
        click.echo(f"--shape {text} is one row of {text} columns; 8x{text} are eight", err=True)
    return text


def _op(_: click.Context, __: click.Parameter, name: str) -> str:
    """The name itself. Raises UsageError where it is no built-in spec, but the stem of a file in this folder."""
    if "/" not in name and Path(f"{name}.toml").is_file() and not (shipped("specs") / f"{name}.toml").is_file():
        raise UsageError("unknown spec", received=name, hint=f"a file is named by its path: --op ./{name}.toml")
    return name


def target_option(command: Command) -> Command:
    help_text = f"GPU to compile for when none is used: {', '.join(TARGETS)}."
    return click.option("--target", default="h200", show_default=True, help=help_text)(command)


def schedule_option(command: Command) -> Command:
    starts = "default, plain, record, FILE.jsonl, layernorm/v3"
    help_text = f"Where to start, then the knobs that differ: 'plain,vector=float4'. Starts: {starts}."
    return click.option("--schedule", "knobs", default="", help=help_text)(command)


def place_options(command: Command) -> Command:
    """Where a kernel is timed: --setting and --context."""
    setting = click.option(
        "--setting",
        type=click.Choice([s.value for s in Setting]),
        default=Setting.FRESH.value,
        show_default=True,
        help="What the kernel finds in L2: its main input, nothing, everything.",
    )
    context = click.option(
        "--context",
        type=click.Choice([c.value for c in Context]),
        default=Context.BETWEEN.value,
        show_default=True,
        help="What runs before and after it: plain kernels, early-starting ones, matrix products, itself.",
    )
    return setting(context(command))


def seed_option(command: Command) -> Command:
    return click.option("--seed", type=click.IntRange(0, LARGEST_SEED), default=0, show_default=True)(command)


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


class CommandGroup(click.Group):
    """A group of commands whose help has each command's first sentence whole."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(limit=LONGEST_HELP)) for name, one in commands if one])


def show(what: Any) -> None:
    """A text as it is, anything else as JSON, on stdout."""
    click.echo(what if isinstance(what, str) else json.dumps(plain(what), indent=2, ensure_ascii=False))


def problem_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of make_problem and tune from the command line's.

    Raises UsageError for a tensor or an axis that is named twice.
    """
    asked = {name: _value(name, fact, options[name]) for name, fact in ASKED.items() if not fact.option}
    lengths = parse_pairs(" ".join(options["size"]), "inner=4096", once="--size names an axis")
    sizes: dict[str, Any] = {name: parse_size(name, size) for name, size in lengths.items()}
    if options.get("axis") is not None and options["shape"]:
        from normgen.problem.problem import along_axis  # loads numpy, which a tune's first step does without

        shape, col_stride = along_axis(options["shape"], options["axis"])
        sizes |= {"shape": "x".join(map(str, shape))} | ({"col_stride": col_stride} if col_stride != 1 else {})
    return {"shape": options["shape"]} | asked | sizes


def _value(name: str, fact: Option, given: Any) -> Any:
    """A fact as Python asks for it, of what its option was given."""
    if fact.kind is tuple:
        return parse_names(given) or fact.default
    if fact.kind is not dict:
        return given
    text = " ".join(given) if fact.several else given
    return parse_pairs(text, fact.example, once=f"{_flag(name)} names a tensor")


def parse_size(name: str, text: str) -> int:
    """The length of an axis beside rows and cols. Raises UsageError for another axis, and for no number."""
    received = f"--size {name}={text}"
    if name != "inner":
        rule = "--size says the length of the axis inner; --shape says rows and cols, --batches batches or heads"
        raise UsageError(rule, received=received, hint="--size inner=4096")
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise UsageError("a size is a whole number, at least 1, in digits", received=received, hint="--size inner=4096")
    return int(text)


def parse_names(text: str) -> tuple[str, ...]:
    return tuple(name for name in re.split(r"[,\s]+", text) if name)


def parse_part(text: str) -> slice:
    """`2/3`: of several things every third, from the second on. Raises UsageError for another text."""
    found = re.fullmatch(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})", text.strip())
    if found is None or int(found[1]) > int(found[2]):
        raise UsageError("a part is K/N: every N-th, from the K-th on", received=text, hint="for example 1/2, and 2/2")
    return slice(int(found[1]) - 1, None, int(found[2]))


def parse_pairs(text: str, example: str = "eps=1e-3", *, once: str = "--set names a scalar") -> dict[str, str]:
    """`a=1 b=2` or `a=1,b=2`. Raises UsageError for another text, with one that is right, and for a name said twice."""
    pairs: dict[str, str] = {}
    for part in parse_names(text):
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            raise UsageError("expected name=value", received=part, hint=f"for example {example}")
        if name in pairs:
            raise UsageError(f"{once} once", received=text, hint=f"leave out one {name}=")
        pairs[name] = value
    return pairs


def parse_seconds(text: str) -> float:
    """`60s`, `2m`, `1.5` (seconds). Raises UsageError for another text and for too long a time."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(s|m|h)?", text.strip())
    if found is None:
        raise UsageError("a time is a number with s, m or h", received=text, hint="for example 60s or 2m")
    seconds = float(found[1]) * {None: 1, "s": 1, "m": 60, "h": 3600}[found[2]]
    if seconds > LONGEST_BUDGET_S:
        raise UsageError(f"a time is at most {LONGEST_BUDGET_S / 3600:.0f}h", received=text)
    return seconds


def parse_whole(text: str) -> int | str:
    """A whole number of up to nine ASCII digits without zeros in front, else the text itself."""
    return int(text) if re.fullmatch(r"0|[1-9][0-9]{0,8}", text) else text


def parse_device(text: str | None) -> int | str | None:
    return None if text is None else parse_whole(text)
