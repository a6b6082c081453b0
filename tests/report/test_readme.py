"""README.md: derived parts as they are now, a tested spec, lines that the CI script runs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from normgen.bench.result import Results
from normgen.choice.first import default_schedule
from normgen.cpu import find_compiler
from normgen.device import Device, target
from normgen.errors import UsageError
from normgen.knobs import TABLE, Knob
from normgen.ladder.rungs import list_ladders
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.record import Outcome, Record
from normgen.records.statistics import summarise
from normgen.records.winners import adopt
from normgen.report.picture import dots_of, svg
from normgen.report.readme import (
    DOCUMENTS,
    LADDERS,
    PARTS,
    PICTURE,
    ROOT,
    derived,
    ladder_pages,
    rendered,
    results_part,
)
from normgen.spec.reader import load, parse
from normgen.trials.file import read

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_derived_parts_are_what_the_code_and_the_records_say() -> None:
    found: list[str] = []
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        if name != "docs/knobs.md" or find_compiler():  # its pictures are of kernels that ran
            assert rendered(text) == text, "run: python -m normgen.report.readme"
        found += re.findall(r"<!-- derived: (\w+) -->", text)
    assert sorted(found) == sorted(PARTS)


def test_every_ladder_has_a_page_that_is_derived_and_stands_in_the_index_and_the_menu() -> None:
    pages = ladder_pages(ROOT)
    assert {ROOT / name for name in pages} == set((ROOT / LADDERS).glob("*.md"))
    index, menu = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/ladder.md", "mkdocs.yml"))
    for name, text in pages.items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, "run: python -m normgen.report.readme"
        assert f"]({name.removeprefix('docs/')})" in index
        assert f": {name.removeprefix('docs/')}\n" in menu
    assert {Path(name).stem for name in pages} == set(list_ladders())


def test_an_unknown_part_is_an_error() -> None:
    with pytest.raises(UsageError, match="did you mean 'kernel'"):
        rendered("<!-- derived: kernels -->\n<!-- end -->")


def record(problem: Problem, device: Device) -> Record:
    return Record(
        problem=problem.question,
        schedule=default_schedule(problem, device),
        outcome=Outcome.OK,
        measured=True,
        times_us=summarise([14.0, 14.5, 15.0]),
        roof_us=14.0,
        bytes=problem.compulsory_bytes,
        device=device.as_dict(),
    )


def test_results_come_from_the_shipped_records(tmp_path: Path) -> None:
    assert results_part(tmp_path) == "No results are shipped yet.\n"
    problem, device = problem_for(load("layernorm"), shape="8x1024x768"), target("h200")
    adopt(record(problem, device), tmp_path / "generated" / "records", device)
    lines = results_part(tmp_path).splitlines()
    assert len(lines) == 3
    gigabytes = problem.compulsory_bytes / 14.5 / 1e3
    strategy = default_schedule(problem, device).strategy
    for cell in ("layernorm forward", "8192x768", "f32", "fresh", "14.5", "1.04", f"{gigabytes:.0f}", strategy):
        assert f" {cell} |" in lines[2], cell


def shell_lines() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def test_the_two_lines_of_the_start_install_all_they_need() -> None:
    tune, tests = shell_lines()[:2]
    for line in (tune, tests):
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install -q ")
    assert tune.endswith(".venv/bin/normgen tune --shape 8x1024x768")
    assert tests.endswith(".venv/bin/python -m pytest -q -n 2 --dist worksteal")


def test_the_ci_script_finds_its_lines_in_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    wanted = re.findall(r"readme_line '([^']+)'", script)
    assert len(wanted) == 2
    for part in wanted:
        assert any(part in line for line in shell_lines()), part
    own = r"^(newest|engines)\(\) \{.*?^\}"  # what works in environments of its own
    plain = re.sub(own, "", script, flags=re.DOTALL | re.MULTILINE)
    assert plain != script
    assert "pip install" not in plain, "its commands are read from README.md"
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=True)


LANGUAGE = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", re.findall(r"```toml\n(.*?)```", LANGUAGE, re.DOTALL))
def test_every_spec_of_the_language_s_page_has_a_kernel(text: str) -> None:
    spec = parse(text)
    stored, cols = spec.inputs[0].dtypes, -(-256 // spec.whole_cols) * spec.whole_cols
    asked = {"shape": (8, cols), "dtype": "bf16" if "bf16" in stored else stored[0]}
    problem = problem_for(spec, **asked)
    assert emit(problem, default_schedule(problem, target("h200"))).text
    if spec.name != "norm_to_fp8":
        sources = [t.name for t in spec.tensors if t.has_gradient and not (t.role.is_written or t.kind.by_batch)]
        backward = problem_for(spec, **asked, direction="backward", gradients=sources)
        assert emit(backward, default_schedule(backward, target("h200"))).text


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_changelog_says_nothing_twice() -> None:
    lines = re.split(r"\n(?=\* |## )", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    said = [" ".join(line.split()) for line in lines]
    assert len(said) > 100
    assert {line for line in said if said.count(line) > 1} == set()


def test_the_readme_is_short_and_names_every_page() -> None:
    assert len(README.splitlines()) <= 250
    assert {page.name for page in PAGES[1:] if page.parent.name != Path(LADDERS).name} <= set(
        re.findall(r"([\w-]+\.md)\)", README)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for file, anchor in re.findall(r"\]\((?!http)([^)#]*)(#[^)]*)?\)", text):
        aim = page.parent / file if file else page
        assert aim.exists(), file
        if anchor:
            titles = re.findall(r"^#+ (.*)$", aim.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor[1:] in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def test_the_picture_is_derived_and_has_a_dot_for_each_price_of_a_peer() -> None:
    text = (ROOT / PICTURE).read_text(encoding="utf-8")
    assert derived(PICTURE, "") == text, "run: python -m normgen.report.readme"
    files = sorted((ROOT / "generated" / "evidence").glob("bench_*.json"))
    results = [read(Results, file) for file in files]
    dots = dots_of(results)
    priced = [(e, p) for r in results for e in r.entries for p in e.peers.values() if p.price_us and e.ours.price_us]
    assert len(dots) == len(priced) == text.count("<title>") > 200
    for dot, (entry, peer) in zip(dots, priced, strict=True):  # medians of ratios, not ratios of medians
        assert peer.price_us
        assert entry.ours.price_us
        assert dot.ratio == pytest.approx(peer.price_us.median / entry.ours.price_us.median, rel=0.05)
    one = svg([results[0]])
    assert one.count("<title>") == len(dots_of([results[0]]))


@pytest.mark.parametrize("knob", TABLE, ids=lambda knob: knob.name)
def test_every_knob_and_each_of_its_named_values_has_words(knob: Knob) -> None:
    assert knob.meaning
    if not all(isinstance(value, int) for value in knob.values):
        assert {str(value) for value in knob.values} - {str(knob.plain)} <= set(knob.words)
