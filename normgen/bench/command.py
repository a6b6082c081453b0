"""What `normgen bench` does with its arguments: results on stdout, progress on stderr, a file that is always whole."""

from __future__ import annotations

import json
from pathlib import Path

import click

from normgen.bench import plot as plots
from normgen.bench import runner
from normgen.bench.peers import Options, check_names
from normgen.bench.result import Results, from_json
from normgen.bench.runner import DEVICE_LOST, INTERRUPTED, Wish
from normgen.bench.suite import load_suite
from normgen.bench.table import results_text
from normgen.console import Terminal
from normgen.errors import DriverError, NothingValidError, UsageError, VerificationError

EXIT_INTERRUPTED = 130
STDOUT = "-"


def run(
    suite: str,
    *,
    peers: tuple[str, ...] | None,
    json_to: str | None,
    only: str | None,
    budget_s: float | None,
    limit_s: float | None,
    records: tuple[Path, ...],
    picture: Path | None,
    compile_mode: str,
    samples: int,
    seed: int,
    device: int,
) -> int:
    """Run a suite and print it. Returns the exit code."""
    chosen = load_suite(suite)
    if only:
        chosen = chosen.only(only)
    if picture is not None:
        plots.require_matplotlib()
    file = Path(json_to) if json_to not in (None, STDOUT) else None
    if file is not None and not file.resolve().parent.is_dir():
        raise UsageError("the folder of the results file exists", received=str(file))
    wish = Wish(
        peers=None if peers is None else check_names(peers),
        options=Options(compile_mode=compile_mode),
        tune_budget_s=budget_s,
        records=records,
        samples=samples,
        seed=seed,
        limit_s=limit_s,
    )

    def save(results: Results) -> None:
        if file is not None:
            runner.write_atomically(file, as_json(results))

    with Terminal() as progress:
        results = runner.run_suite(chosen, wish, device=device, progress=progress, on_results=save)
    save(results)
    _show(results, json_to, picture)
    return exit_code(results)


def show_recorded(recorded: Path, *, json_to: str | None, picture: Path | None) -> int:
    """Print and draw what an earlier run wrote."""
    try:
        text = recorded.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("cannot read the results file", received=f"{recorded}: {error}") from None
    _show(from_json(text, file=str(recorded)), json_to, picture)
    return 0


def _show(results: Results, json_to: str | None, picture: Path | None) -> None:
    click.echo(as_json(results).rstrip("\n") if json_to == STDOUT else results_text(results))
    if picture is not None and results.entries:
        plots.plot(results, picture)


def as_json(results: Results) -> str:
    return json.dumps(results.as_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def exit_code(results: Results) -> int:
    """130 interrupted, 6 device lost, 4 a wrong kernel of ours, 3 one that does not compile or run, else 0."""
    if results.note == INTERRUPTED:
        return EXIT_INTERRUPTED
    if results.note.startswith(DEVICE_LOST):
        return DriverError.exit_code
    failed = [entry.ours.failed for entry in results.entries if entry.ours.failed]
    if any(reason.startswith("wrong result") for reason in failed):
        return VerificationError.exit_code
    return NothingValidError.exit_code if failed else 0
