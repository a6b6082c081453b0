"""The command that times suites."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from normgen.cli import bench_command as command
from normgen.cli.options import NewFile, file_or_stdout, parse_names, parse_part, parse_seconds, seed_option
from normgen.errors import UsageError
from normgen.records.place import Context, Setting


@click.command()
@click.argument("suite", required=False)
@click.option(
    "--peers",
    help="torch,compile,liger,quack,flashinfer,vllm,transformers,helion,triton or none (default: every installed one).",
)
@click.option(
    "--json",
    "json_to",
    callback=file_or_stdout,
    help="File the results are written to after every entry; - prints them at the end.",
)
@click.option("--only", help="Entries whose label contains this: 'rmsnorm*bf16'.")
@click.option("--skip", help="Entries whose label does not contain this.")
@click.option("--part", help="Every N-th entry from the K-th on: 1/2 on one GPU, 2/2 on another, joined by --from.")
@click.option("--resume", is_flag=True, help="Go on with the file of --json: what has a time there is kept.")
@click.option("--tune", "is_tuning", is_flag=True, help="Tune entries without an exact record first.")
@click.option("--budget", default="20s", show_default=True, help="Time for each tuning.")
@click.option("--limit", help="Begin no entry after this time: 8m.")
@click.option("--records", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--plot", "picture", type=NewFile(), help="Draw % of roofline over cols.")
@click.option("--compile-mode", default="max-autotune-no-cudagraphs", show_default=True, help="Of torch.compile.")
@click.option("--setting", type=click.Choice([s.value for s in Setting]), help="Instead of the suite's.")
@click.option("--context", type=click.Choice([c.value for c in Context]), help="Instead of the suite's.")
@click.option("--alone", is_flag=True, help="Time every kernel back to back with itself too, in the last columns.")
@click.option("--samples", type=int, default=40, show_default=True, help="Interleaved replays of each provider.")
@seed_option
@click.option(
    "--nearest", type=click.IntRange(min=1), help="At so many random shapes, what the nearest schedule reaches."
)
@click.option("--rows", help="With --nearest: row counts from 1..16384, about the records of --records (tune --rows).")
@click.option("--host", is_flag=True, help="What a call of one row costs the host, beside torch's functions.")
@click.option("--model", help="A model of transformers, with each library's norms: llama or gpt2; or llama-products.")
@click.option("--compiled", is_flag=True, help="With --model: its training step under torch.compile too.")
@click.option("--ablation", help="What each technique is worth: a suite, or a file of records (.jsonl).")
@click.option("--each", type=click.IntRange(min=1), default=2, show_default=True, help="Shapes for each technique.")
@click.option("--most", type=click.IntRange(min=1), default=25, show_default=True, help="Shapes of an ablation in all.")
@click.option("--tried", type=click.IntRange(min=1), default=4, show_default=True, help="Kernels without a technique.")
@click.option("--device", type=int, default=0, show_default=True, help="Number of the GPU.")
@click.option(
    "--from",
    "recorded",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Print what --json wrote; repeat to join runs of a suite, into the file of --json: later entries replace.",
)
def bench(
    suite: str | None, recorded: tuple[Path, ...], json_to: str | None, picture: Path | None, **options: Any
) -> None:
    """Time a SUITE: our kernels, rooflines and other libraries between the same kernels, in one interleaved run.

    SUITE is a built-in suite (such as forward_h200, decode_h200, backward_h200) or a TOML file. Every result is checked
    against float64 first; a peer that fails says so in its cell. Exit 4 if one of our kernels is wrong.

    \b
    --nearest N times shapes that nobody tuned: the nearest record's schedule against what a tune of --budget finds.
    --host prints the host time of calls, ours and torch's, and their ratios in that run.
    --model NAME times steps of a model: as it is, with ours, Liger's, and copies in the place of its norms.
    --ablation SOURCE times tuned kernels against the best found without each of their techniques.
    """
    nearest, source, rows = options.pop("nearest"), options.pop("ablation"), options.pop("rows")
    is_host, model, compiled = options.pop("host"), options.pop("model"), options.pop("compiled")
    if sum(map(bool, (suite, recorded, nearest, source, model, is_host))) != 1:
        rule = "give a suite, or --from with the file of a recorded one, --nearest, --ablation, --host or --model"
        raise UsageError(rule)
    if compiled and model is None:
        raise UsageError("--compiled belongs to --model")
    if is_host:
        command.run_host(json_to, rounds=options["samples"], device=options["device"])
        return
    if model is not None:
        command.run_model(model, json_to, rounds=options["samples"], device=options["device"], compiled=compiled)
        return
    if rows is not None and nearest is None:
        raise UsageError("--rows belongs to --nearest", received=rows)
    budget_s, limit = parse_seconds(options.pop("budget")), options.pop("limit")
    shared = {name: options.pop(name) for name in ("records", "samples", "seed", "device")}
    ask = command.Ask(json_to=json_to, limit_s=parse_seconds(limit) if limit else None, **shared)
    part = options.pop("part")
    which = slice(None) if part is None else parse_part(part)
    sizes = {name: options.pop(name) for name in ("each", "most", "tried")}
    if nearest is not None:
        code = command.run_nearest(nearest, ask, budget_s=budget_s, rows=rows, which=which)
    elif source is not None:
        code = command.run_ablation(source, ask, **sizes)
    elif suite is not None:
        peers = options.pop("peers")
        code = command.run(
            suite,
            ask,
            which=which,
            picture=picture,
            tune_budget_s=budget_s if options.pop("is_tuning") else None,
            peers=None if peers is None else tuple(name for name in parse_names(peers) if name != "none"),
            **options,
        )
    else:
        code = command.show_recorded(recorded, json_to=json_to, picture=picture)
    sys.exit(code)
