"""The command that counts what a kernel does in hardware."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from normgen.cli.options import json_option, parse_device, problem_options, show, target_option
from normgen.cli.problems import read_problem
from normgen.cuda.driver import find_gpu
from normgen.device import target as named_target
from normgen.errors import UsageError, needed
from normgen.ladder.points import read_schedule
from normgen.records.place import Setting
from normgen.studies import counters


@click.command()
@problem_options
@target_option
@json_option
@click.option("--device", default=None, help="Number of a GPU (default: the first one).")
@click.option(
    "--schedule",
    "schedules",
    multiple=True,
    default=["default"],
    show_default=True,
    help="As `normgen show` takes it: record, FILE.jsonl, a record's text; repeat it to have kernels side by side.",
)
@click.option(
    "--setting",
    type=click.Choice([Setting.COLD.value, Setting.HOT.value]),
    default=Setting.COLD.value,
    show_default=True,
    help="What the kernel finds in L2: nothing of its own, or everything.",
)
@click.option("--ncu", default="ncu", show_default=True, help="The program of Nsight Compute.")
@click.option(
    "--from", "source", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What ncu printed elsewhere."
)
@click.option("--launch", is_flag=True, hidden=True, help="Launch the kernels: what ncu runs.")
def profile(
    target: str,
    as_json: bool,
    device: str | None,
    schedules: tuple[str, ...],
    setting: str,
    ncu: str,
    source: Path | None,
    launch: bool,
    **options: Any,
) -> None:
    """Count what kernels do in hardware: DRAM, L2, occupancy, stalls, bank conflicts, beside what `explain` derives.

    Nsight Compute (ncu) counts one call of each schedule. Its time is not comparable with a bench's: ncu runs a
    kernel several times, alone. Without ncu or a GPU the command for a machine that has them is printed, and --from
    reads what it printed there. In ncu's reports a schedule is the NVTX range normgen:ID where nvtx is installed.
    --json prints {problem, device, setting, command, kernels: [{id, schedule, counters, derived}]}: counters null
    without ncu.
    """
    problem, hot = read_problem(options), setting == Setting.HOT
    chosen = parse_device(device)
    if chosen == "cpu":
        raise UsageError("counters are a GPU's", received="--device cpu", hint="without a GPU leave --device out")
    gpu = None if source else find_gpu(chosen)
    facts = gpu[1] if gpu else named_target(target)
    profiled = [
        counters.Profiled.of(problem, read_schedule(problem, facts, text), facts, hot=hot) for text in schedules
    ]
    if launch:
        counters.launch_for_ncu(problem, profiled, facts, index=gpu[0] if gpu else 0, hot=hot)
        return
    found: list[counters.Counters] | None = None
    if source:
        with needed("what ncu printed must be readable"):
            found = counters.counted(counters.read(source.read_text(encoding="utf-8", errors="replace")), profiled)
    elif gpu and shutil.which(ncu):
        run = counters.command(ncu, [sys.executable, "-m", "normgen", *_arguments()], hot=hot)
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        found = counters.counted(counters.read(done.stdout + done.stderr), profiled)
    there = shlex.join(counters.command(ncu, ["normgen", *_arguments()], hot=hot))
    told: Sequence[counters.Counters | None] = found or [None] * len(profiled)
    if as_json:
        kernels = [counters.as_dict(one, own) for one, own in zip(profiled, told, strict=True)]
        head = {"problem": str(problem), "device": facts.name, "setting": setting, "command": there}
        show(head | {"kernels": kernels})
        return
    click.echo(f"{problem} on {facts.name}, {setting}\n\n{counters.lines(profiled, told)}")
    if found is None:
        missing = "there is no ncu here" if gpu else "there is no GPU here"
        click.echo(f"\n{missing}: where there is, run\n\n{there} > ncu.csv\n\nand read it with --from ncu.csv")


def _arguments() -> list[str]:
    """What this command was asked, for the process that ncu runs."""
    context = click.get_current_context()
    asked = ["profile"]
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if source is not click.core.ParameterSource.COMMANDLINE or param.name in ("as_json", "source", "ncu"):
            continue
        value = context.params[param.name or ""]
        for one in value if isinstance(value, tuple) else (value,):
            asked += [param.opts[0]] if one is True else [param.opts[0], str(one)]
    return [*asked, "--launch"]
