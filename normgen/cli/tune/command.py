"""The command that tunes, as click sees it: it starts a tune's processes, and loads what tunes while they get ready."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from normgen.cli.main import imported
from normgen.cli.options import (
    json_option,
    parse_device,
    parse_seconds,
    place_options,
    problem_arguments,
    problem_options_or_suite,
    seed_option,
    target_option,
)
from normgen.errors import UsageError
from normgen.measure.isolation.start import Start
from normgen.tuning.search.names import SAMPLERS

MOST_JOBS = 1024
_SEARCH = (
    "setting",
    "context",
    "trials",
    "seed",
    "target",
    "output",
    "replace",
    "resume",
    "reuse",
    "storage",
    "sampler",
)


@click.command()
@problem_options_or_suite
@target_option
@json_option
@click.option("--device", default=None, help="Number of a GPU, or cpu (default: the first GPU, else predict).")
@place_options
@click.option("--trials", type=int, help="Candidates to try; else up to 64, fewer when none left promises more.")
@click.option("--budget", default="60s", show_default=True, help="Time in all: 60s, 2m; with --suite for each problem.")
@seed_option
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Folder of the header.")
@click.option("--push", type=click.Path(file_okay=False, path_type=Path), help="Copy what was timed into this folder.")
@click.option("--replace", is_flag=True, help="A header there of another spec of this name gives way.")
@click.option("--resume", is_flag=True, help="Go on with the last run, or suite, that asked the same and was killed.")
@click.option("--reuse/--no-reuse", default=True, help="Take over times other runs measured under the same conditions.")
@click.option("--rows", help="1..16384: tune a few row counts that serve all of these; the shape is *x4096.")
@click.option("--suite", help="Tune every problem of a suite: a built-in one, or a TOML file.")
@click.option("--engine", type=click.Choice(["vllm"]), help="Tune what this engine calls for a --model, as a suite.")
@click.option("--model", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its config.json.")
@click.option("--tp", type=click.IntRange(1, 1024), default=1, show_default=True, help="GPUs that share each layer.")
@click.option("--only", help="Entries of the suite whose label contains this: 'rmsnorm*bf16'.")
@click.option("--gpus", help="GPUs that work on the suite, one worker each: all, or 0,1 (default: all).")
@click.option("--jobs", type=click.IntRange(1, MOST_JOBS), default=1, show_default=True, help="Workers without a GPU.")
@click.option(
    "--storage",
    help="Database for the study, sqlite:///studies.db; hosts share a suite through postgresql://user@host/name.",
)
@click.option(
    "--sampler", type=click.Choice(SAMPLERS), default=SAMPLERS[0], show_default=True,
    help="What decides which candidate is next: normgen's own, or Optuna's; gp needs torch.",
)  # fmt: skip
@click.option("--restart", is_flag=True, help="With --storage: forget what it has of this suite.")
@click.option("--stale-after", default="15s", show_default=True, help="A worker silent for so long counts as dead.")
def tune(as_json: bool, suite: str | None, **options: Any) -> None:
    """Find the fastest kernel for a shape, or for each of a suite: measured on a GPU, predicted without one.

    \b
    --json prints {problem, rows, cols, device, measured, best, default, finalists, counts, phases_s, paths, ships,
    adopted, interrupted, notes}; best and default are records. With --suite: {suite, device, workers, wall_s,
    interrupted, jobs: [{label, status, attempts, reason, best}]}. With --rows: {bands, paths, interrupted}, bands as
    for one problem each.
    """
    _check_what(suite, options)
    terms = {"budget_s": parse_seconds(options["budget"])}
    device = parse_device(options["device"])
    if suite is not None or options["engine"]:
        if options["push"]:
            hint = "`normgen trials push FOLDER` copies what runs have timed"
            raise UsageError("--push belongs to --shape", received=str(options["push"]), hint=hint)
        if options["sampler"] != SAMPLERS[0]:
            raise UsageError("--sampler is for one problem; a suite has normgen's", received=options["sampler"])
        code = _loaded().tune_suite(as_json, suite, options)
    else:
        for name in ("only", "gpus", "restart"):
            if options[name]:
                raise UsageError(f"--{name} belongs to --suite", received=str(options[name]))
        arguments = problem_arguments(options) | {name: options[name] for name in _SEARCH} | terms
        if options["rows"] is not None:
            asked = arguments | {"device": device}
            code = _loaded().tune_rows(as_json, options["op"], options["rows"], asked, push_to=options["push"])
        else:
            with Start(device) as start:
                asked = arguments | {"start": start}
                code = _loaded().tune_one(as_json, options["op"], asked, push_to=options["push"])
    if code:
        sys.exit(code)


def _check_what(suite: str | None, options: dict[str, Any]) -> None:
    """One thing is tuned: a problem, a suite, or what an engine asks for a model. Raises UsageError."""
    what = {"--shape": options["shape"], "--suite": suite, "--engine": options["engine"]}
    given = [name for name, value in what.items() if value is not None]
    if len(given) != 1:
        hint = "for example --shape 8x1024x768" if options["rows"] is None else "for example --shape '*x4096'"
        rule = "give --shape for one problem, or --suite, or --engine"
        raise UsageError(rule, received=" and ".join(given) or None, hint="leave out all but one" if given else hint)
    if options["rows"] is None and options["shape"] is not None and "*" in options["shape"]:
        hint = f"--rows 1..16384 --shape '{options['shape']}' for a range of row counts"
        raise UsageError("a shape with '*' belongs to --rows", received=options["shape"], hint=hint)
    if (options["engine"] is None) != (options["model"] is None):
        hint = "--engine vllm --model CONFIG.json"
        raise UsageError("--engine and --model belong together: whose calls, for which model", hint=hint)


def _loaded() -> Any:
    """What tunes: a second of modules."""
    return imported("normgen.cli.tune.run")
