"""The derived parts of README.md, docs and the records' schema, and the README's picture.

`python -m normgen.report.readme` rewrites them; with `--check` it compares. A part of a document stands between
`<!-- derived: NAME -->` and `<!-- end -->`; in the schema the knobs are derived. Everything else is written by hand.
"""

from __future__ import annotations

import difflib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from normgen.bench.result import Results, geometric_mean
from normgen.bench.rounds import Contender, Rounds, between
from normgen.choice.first import default_schedule
from normgen.device import target
from normgen.errors import UsageError, did_you_mean
from normgen.files.private import write_output
from normgen.knobs import TABLE
from normgen.ladder.climb import Climb, shipped_climbs
from normgen.ladder.kernels import own_text
from normgen.ladder.page import FOLDER, index
from normgen.ladder.page import page as ladder_page
from normgen.ladder.rungs import Ladder, load_ladder
from normgen.pipeline import emit_alone
from normgen.problem.question import DESCRIBED
from normgen.problem.scales import ScaleLayout
from normgen.problem.tensors import MATRIX_LAYOUTS
from normgen.program.source import problem_for
from normgen.records.record import Record
from normgen.records.winners import kept
from normgen.report.api import api_part
from normgen.report.knobs.page import knobs_part
from normgen.report.language import bits_part, dtypes_part, functions_part, roles_part
from normgen.report.picture import dots_of, svg
from normgen.report.proof import varied_part
from normgen.report.techniques import markdown_table, techniques_part
from normgen.spec.reader import list_specs, load
from normgen.text.words import WORDS
from normgen.trials.file import read

ROOT = Path(__file__).resolve().parents[2]
_PART = re.compile(r"(<!-- derived: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_SHOWN = ("rmsnorm", "8x1024x768")


def kernel_part(_: Path) -> str:
    """The kernel of one problem under its default schedule, without the helpers in front of it."""
    op, shape = _SHOWN
    problem = problem_for(load(op), shape=shape)
    text = own_text(emit_alone(problem, default_schedule(problem, target("h200"))))
    command = f"normgen show --kernel --op {op} --shape {shape}"
    return f"What `{command}` prints:\n\n```cuda\n{text.rstrip()}\n```\n"


def specs_part(_: Path) -> str:
    """The built-in operations."""
    specs = {name: load(path) for name, path in list_specs().items()}
    return markdown_table(("op", "what it computes"), [(f"`{n}`", spec.summary) for n, spec in specs.items()])


def results_part(root: Path) -> str:
    """One line for every shipped record, measured ones and predictions apart."""
    files = sorted((root / "generated" / "records").glob("*.jsonl"))
    records = [(file.stem, record) for file in files for record in kept(file)]
    if not records:
        return "No results are shipped yet.\n"
    timed = ("marginal µs", "chain µs", "GB/s", "x roofline", "x copy")
    head = ("GPU", "op", "shape", "dtype", "setting", *timed, "kernel", "alone µs")
    lines = markdown_table(head, [_result(gpu, record) for gpu, record in records])
    alone = sum(record.is_alone for _, record in records)
    if not alone:
        return lines
    return f"{lines}\n{alone} of {len(records)} were timed alone, back to back: their ratios are of such times.\n"


def peers_part(root: Path) -> str:
    """A line a suite: what each other library's kernels cost over ours, the geometric mean of marginal times."""
    results = _benches(root)
    if not results:
        return "No benches are shipped yet.\n"
    peers = sorted({dot.peer for dot in dots_of(results)})
    rows = []
    for result in results:
        dots = dots_of([result])
        ratios = {peer: [dot.ratio for dot in dots if dot.peer == peer] for peer in peers}
        means = [f"{geometric_mean(found):.2f} x ({len(found)})" if found else "" for found in ratios.values()]
        rows.append((f"{result.suite}, {len(result.entries)} entries", *means, f"{result.geometric_mean:.2f} x"))
    return markdown_table(("suite", *peers, "the best of them"), rows)


def _benches(root: Path) -> list[Results]:
    files = sorted((root / "generated" / "evidence").glob("bench_*.json"))
    return [read(Results, file) for file in files]


def benches_part(root: Path) -> str:
    """One line for every bench of a suite: ours against the best peer of each entry, and against the rooflines."""
    files = sorted((root / "generated" / "evidence").glob("bench_*.json"))
    if not files:
        return "No benches are shipped yet.\n"
    head = ("suite", "entries", "peers", "x best peer", "least", "of chains", "over the rooflines", "file")
    return markdown_table(head, [_bench(file) for file in files])


def _bench(file: Path) -> tuple[str, ...]:
    results = read(Results, file)
    figures, worst = results.figures(), results.worst
    faster = worst.faster if worst else None
    return (
        f"{results.suite}, {results.device['name']}",
        f"{len(results.entries)}",
        ", ".join(results.peers),
        f"{results.geometric_mean:.3f}",
        f"{faster.median:.3f} [{faster.low:.3f}, {faster.high:.3f}] at {worst.label}" if worst and faster else "",
        f"{figures['geometric_mean_of_chains']:.3f}",
        ", ".join(f"{mean:.3f} {family}" for family, mean in sorted(results.mean_to_roofs().items())),
        f"`{file.name}`",
    )


def _result(gpu: str, record: Record) -> tuple[str, ...]:
    key = record.problem
    cost_us, alone_us = record.cost_us, record.us if record.is_alone else record.alone_us
    roof = f"{cost_us / record.roof_us:.2f}" if cost_us and record.roof_us else ""
    price = f"{cost_us:.4g}" if cost_us and not record.is_alone else ""
    chain = f"{record.us:.4g} / {record.chain_us.median:.4g}" if record.us and record.chain_us else ""
    return (
        gpu,
        f"{key.op} {key.direction}",
        f"{key.rows}x{key.cols}"
        + (f", inner {key.inner}" if key.inner else "")
        + (f", stride {key.col_stride}" if key.col_stride != 1 else ""),
        "/".join(dict.fromkeys(dtype for _, dtype in key.dtypes)),
        str(record.place),
        price if record.measured else f"{price} (predicted, not measured)",
        chain,
        ", ".join(
            (
                *([f"{record.gb_per_s:.0f}"] if record.gb_per_s else []),
                *([f"{record.tflops:.1f} TFLOP/s"] if record.tflops else []),
            )
        ),
        roof,
        f"{record.to_copy:.2f}" if record.to_copy else "",
        record.schedule.strategy,
        f"{alone_us:.4g}" if alone_us else "",
    )


def ladders_part(root: Path) -> str:
    """Every ladder in a line, with a link to its page."""
    return index(_climbs(root))


def ladder_pages(root: Path) -> dict[str, str]:
    """File -> text of the page of each ladder, as its evidence has it."""
    return {f"{LADDERS}/{ladder.name}.md": ladder_page([(ladder, found)]) for ladder, found in _climbs(root)}


def _climbs(root: Path) -> list[tuple[Ladder, Climb]]:
    return [(load_ladder(one.ladder), one) for one in shipped_climbs(root)]


def words_part(_: Path) -> str:
    """The project's words, each with its meaning and with what headers, records and options call it."""
    rows: list[tuple[str, ...]] = [(f"**{word.name}**", word.says, ", ".join(word.instead)) for word in WORDS]
    return markdown_table(("word", "what it is", "in headers, records and options"), rows)


def models_part(root: Path) -> str:
    """Steps of whole models with each library's norms, as `normgen bench --model` found them."""
    rows = [(*step, between(one.share)) for step, one in _steps(root, "model_*.jsonl")]
    return markdown_table(("model", "step", "norms", "ms", "of torch", "share of what copies save"), rows)


def products_part(root: Path) -> str:
    """Steps of whole models with their products replaced, beside our norms and gates with torch's products."""
    rows = [step for step, _ in _steps(root, "products_*.jsonl")]
    return markdown_table(("model", "step", "replaced", "ms", "of ours, gates"), rows)


def _steps(root: Path, files: str) -> Iterator[tuple[tuple[str, ...], Contender]]:
    """(Model, step, contender, ms, of the base) of each that `normgen bench --model` timed."""
    for file in sorted((root / "generated" / "evidence").glob(files)):
        found = read(Rounds, file)
        for one in found.contenders:
            model = found.name.removesuffix("-products")
            yield (model, one.step, one.name, f"{one.median:.1f}", between(one.of_base)), one


def commands_part(_: Path) -> str:
    """What `normgen --help` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "normgen", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return f"```\n{done.stdout.strip()}\n```\n"


PARTS: dict[str, Callable[[Path], str]] = {
    "kernel": kernel_part,
    "specs": specs_part,
    "results": results_part,
    "benches": benches_part,
    "peers": peers_part,
    "commands": commands_part,
    "techniques": techniques_part,
    "roles": roles_part,
    "functions": functions_part,
    "dtypes": dtypes_part,
    "bits": bits_part,
    "ladders": ladders_part,
    "knobs": knobs_part,
    "api": api_part,
    "models": models_part,
    "products": products_part,
    "varied": varied_part,
    "words": words_part,
}
DOCUMENTS = (
    "README.md",
    "docs/techniques.md",
    "docs/language.md",
    "docs/ladder.md",
    "docs/results.md",
    "docs/reference.md",
    "docs/knobs.md",
    "docs/api.md",
    "docs/frameworks.md",
    "docs/proof.md",
    "docs/measuring.md",
)
SCHEMA = "normgen/records/schema.json"
PICTURE = "docs/prices.svg"
LADDERS = f"docs/{FOLDER}"


def rendered(text: str, root: Path = ROOT) -> str:
    """The text of a document with every derived part as it is now. Raises UsageError for an unknown part."""

    def part(match: re.Match[str]) -> str:
        name = match[2]
        if name not in PARTS:
            raise UsageError("unknown derived part", received=name, hint=did_you_mean(name, PARTS))
        return f"{match[1]}\n{PARTS[name](root)}\n{match[4]}"

    return _PART.sub(part, text)


def with_facts(schema: str) -> str:
    """The schema of records with the promises and layouts of a question, and the values that each knob may have."""
    plain = json.loads(schema)
    for name, said in DESCRIBED.items():
        plain["properties"].setdefault(name, {}).update({"type": "boolean", "description": said})
    layouts = {*ScaleLayout, *MATRIX_LAYOUTS} - {ScaleLayout.ROW_MAJOR}
    plain["properties"]["layout"]["additionalProperties"] = {"enum": sorted(layouts)}
    plain["properties"]["schedule"]["properties"] = {knob.name: {"enum": list(knob.values)} for knob in TABLE}
    return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"


def derived(name: str, old: str) -> str:
    """What the file of that name holds, of what it held."""
    if name == PICTURE:
        return svg(_benches(ROOT))
    if name.startswith(f"{LADDERS}/"):
        return ladder_pages(ROOT)[name]
    return with_facts(old) if name == SCHEMA else rendered(old)


def main(arguments: list[str]) -> int:
    """Rewrite the files; with --check say what would change and return 1 if anything would."""
    changed = 0
    for name in (*DOCUMENTS, SCHEMA, PICTURE, *ladder_pages(ROOT)):
        path = ROOT / name
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        new = derived(name, old)
        if "--check" in arguments:
            diff = difflib.unified_diff(old.splitlines(), new.splitlines(), name, "derived", lineterm="")
            print("\n".join(diff))
            changed |= int(new != old)
        else:
            write_output(path, new)
    return changed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
