"""The command that climbs the classic optimisation ladders."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import fill
from typing import Any

import click

from normgen.cli.options import NewFile, json_option, parse_device, seed_option, show, target_option
from normgen.cli.text.ladder import climb_text, list_text
from normgen.cli.text.result import LiveLine
from normgen.cuda.driver import find_gpu
from normgen.device import target as named_target
from normgen.errors import UsageError, VerificationError
from normgen.files.private import write_output
from normgen.ladder.climb import Climb, Ground, climb, read_climbs, shipped_climb
from normgen.ladder.page import difference, kernel_of, page
from normgen.ladder.plot import plot
from normgen.ladder.rungs import Ladder, list_ladders, load_ladder
from normgen.records.place import Context, Place, Setting

PLACE = Place(context=Context.ALONE, setting=Setting.COLD)  # as the sources time: the kernel by itself, data in DRAM


@click.command()
@click.argument("names", nargs=-1, metavar="[LADDER]...")
@target_option
@json_option
@click.option("--device", default=None, help="Number of a GPU, or cpu (default: the first GPU, else predict).")
@click.option("--rung", "rungs", multiple=True, help="Only this rung; repeat for several.")
@click.option("--cuda", is_flag=True, help="The emitted kernels of the rungs too.")
@click.option("--diff", "diff", is_flag=True, help="How each rung's kernel differs from that of the rung before.")
@click.option("--plot", "picture", type=NewFile(), help="Write time over launches.")
@click.option("--page", "document", type=NewFile(), help="Write the ladder's page in Markdown.")
@click.option(
    "--from",
    "sources",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show what --json printed; repeat to join files.",
)
@click.option("--samples", type=click.IntRange(min=6), default=60, show_default=True, help="Replays of a kernel.")
@seed_option
def ladder(
    names: tuple[str, ...], as_json: bool, sources: tuple[Path, ...], seed: int, samples: int, **options: Any
) -> None:
    """The kernels of tutorials and libraries, step by step: without LADDER all of them, with it each proven and timed.

    LADDER is a name, a TOML file, or all; each of its kernels is a rung. A GPU measures every launch of the source,
    back to back and with its data in DRAM; without one each rung is checked on the CPU at one launch and its times are
    predicted, beside those that were measured and ship with normgen. A rung that may be wrong on some rows
    says on which; exit 4 if another one is wrong.

    \b
    --json prints {ladders: [...]}: without LADDER their data, with it what `normgen.ladder.climb` says.
    """
    if not names and not sources:
        every = [load_ladder(name) for name in list_ladders()]
        show({"ladders": every} if as_json else list_text(every))
        return
    chosen = [load_ladder(n) for name in names for n in (list_ladders() if name == "all" else [name])]
    if sources:
        found = [one for source in sources for one in _read(source, chosen)]
    else:
        found = _climbed(chosen, seed=seed, samples=samples, **options)
    for one, climbed in found if not as_json else []:
        measured = None if climbed.measured else shipped_climb(one, named_target(options["target"]))
        show(climb_text(one, climbed, measured) + _kernels(one, climbed, options) + "\n")
    if as_json:
        show({"ladders": [climbed for _, climbed in found]})
    if options["picture"]:
        if len(found) != 1:
            raise UsageError("--plot draws one ladder", received=", ".join(one.name for one, _ in found))
        plot(*found[0], options["picture"])
    if options["document"]:
        write_output(options["document"], page(found))
    if any(rung.is_surprise for _, climbed in found for rung in climbed.rungs):
        sys.exit(VerificationError.exit_code)


def _climbed(chosen: list[Ladder], *, seed: int, samples: int, **options: Any) -> list[tuple[Ladder, Climb]]:
    gpu = find_gpu(parse_device(options["device"]))
    facts, index = (gpu[1], gpu[0]) if gpu else (named_target(options["target"]), None)
    ground = Ground(device=facts, place=PLACE, index=index, samples=samples, seed=seed)
    with LiveLine() as line:
        return [(one, climb(one, ground, rungs=options["rungs"], tell=line.say)) for one in chosen]


def _read(source: Path, asked: list[Ladder]) -> list[tuple[Ladder, Climb]]:
    wanted = {one.name: one for one in asked}
    chosen = [one for one in read_climbs(source) if not wanted or one.ladder in wanted]
    return [(wanted.get(one.ladder) or load_ladder(one.ladder), one) for one in chosen]


def _kernels(one: Ladder, climbed: Climb, options: dict[str, Any]) -> str:
    """The rungs' kernels, or how each differs from the one before."""
    if not (options["cuda"] or options["diff"]):
        return ""
    facts, known = named_target(options["target"]), {rung.name: rung for rung in one.rungs}
    texts, before = [], ""
    for rung in (known[r.name] for r in climbed.rungs if r.name in known and r.kernels):
        kernel = kernel_of(one, rung, facts)
        shown = difference(before, kernel) if options["diff"] and before else kernel
        head = [f"{one.name}/{rung.name}: {rung.title}", rung.idea, f"To see: {rung.look}"]
        texts.append(
            "\n" + "".join(fill(line, 110, initial_indent="// ", subsequent_indent="// ") + "\n" for line in head)
        )
        texts.append(shown)
        before = kernel
    return "\n".join(texts)
