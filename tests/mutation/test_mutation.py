"""The tool finds what it is given, and a fixed sample of mutants is killed as often as it was when this was written."""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from normgen.cpu import find_compiler
from normgen.knobs import KNOBS, ColumnWay, VarianceMethod
from normgen.pipeline import programs_of
from normgen.schedule.plan import ExchangeWay, plan_of
from tests.mutation.arguments import Argument, arguments
from tests.mutation.cases import CASES
from tests.mutation.command import main
from tests.mutation.grids import GRID_CASES, GRIDS
from tests.mutation.group_sums import GROUP_CASES, GROUP_SUMS
from tests.mutation.judge import LIMIT_S, Outcome, Task, Verdict, judge_all
from tests.mutation.kernel_run import (
    Result,
    WrongBaseline,
    argued,
    judged,
    refuted_arguments,
    share_killed,
    unused_arguments,
)
from tests.mutation.mutants import (
    ALL_CASES,
    ALL_CLASSES,
    VARIED,
    VARIED_CASES,
    all_sites,
    chosen,
    module_of,
    sample,
    without_comments,
)
from tests.mutation.package_changes import CHANGES, STATISTICS, Change
from tests.mutation.package_run import ROOT, StaleChange, changed_text, package_report, tried
from tests.mutation.products import PRODUCT_CASES, PRODUCTS
from tests.mutation.tables import summary, survivors
from tests.samples import sized

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler for the CPU executor")


def test_every_class_changes_a_kernel() -> None:
    assert len({mutation.name for mutation in ALL_CLASSES}) == len(ALL_CLASSES) >= 200
    assert [kind for kind, mutants in all_sites().items() if not mutants] == []


def test_the_kernels_use_every_technique() -> None:
    plans = [
        plan_of(n.problem, programs_of(n.problem, n.schedule)[-1][1], n.schedule) for n in (CASES | GRID_CASES).values()
    ]
    # A warp's worth of cooperative groups is a part of a block's.
    assert {plan.exchange for plan in plans} >= set(ExchangeWay) - {ExchangeWay.COOPERATIVE_WARP}
    assert {plan.sums.way for plan in plans if plan.sums} == set(ColumnWay)
    assert any(n.problem.deterministic and n.schedule.columns is ColumnWay.ATOMIC for n in CASES.values())
    assert any(plan.reads_params_ahead for plan in plans)
    for knob in (
        "copy",
        "edges",
        "hold",
        "keep",
        "reduce_with",
        "softmax",
        "params",
        "arithmetic",
        "division",
        "dependent_launch",
        "row_order",
        "statistics",
    ):
        assert {getattr(named.schedule, knob) for named in CASES.values()} == set(KNOBS[knob].values), knob
    # The check finds sum_of_squares wrong as it is.
    methods = {named.schedule.variance for named in CASES.values()}
    assert methods == set(VarianceMethod) - {VarianceMethod.SUM_OF_SQUARES}


def digest_of_all() -> str:
    texts = [f"{mutant.name}\0{mutant.text}" for mutant in chosen(all_sites())]
    assert len(texts) >= 600
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def test_the_mutants_are_the_same_in_every_process() -> None:
    script = "from tests.mutation.test_mutation import digest_of_all; print(digest_of_all())"
    told = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == digest_of_all()


def test_every_mutant_differs_from_its_kernel_and_from_every_other_in_more_than_comments() -> None:
    mutants = [mutant for found in all_sites().values() for mutant in found]
    codes = {case: without_comments(module_of(case).text) for case in ALL_CASES}
    assert [m.name for m in mutants if without_comments(m.text) == codes[m.case]] == []
    assert len({mutant.text for mutant in mutants}) == len(mutants)
    assert all(mutant.diff().count("\n") for mutant in mutants)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all that is built here: the executor itself takes longer than a kernel."""
    return tmp_path_factory.mktemp("mutation")


def verdict_of(case: str, old: str, new: str, scratch: Path, limit_s: float = LIMIT_S) -> Verdict:
    """The verdict on a kernel in which every `old` is `new`."""
    module = module_of(case)
    assert old in module.text
    unchanged = Task(problem=CASES[case].problem, module=module)
    with judge_all([unchanged], scratch) as judgements:
        [(_, original)] = judgements
    assert original.outcome is Outcome.SURVIVED, original.detail
    changed = replace(unchanged, module=replace(module, text=module.text.replace(old, new)), original=original.code)
    with judge_all([changed], scratch, limit_s=limit_s) as judgements:
        [(_, verdict)] = judgements
    return verdict


OF_SHARED = "const float x_i = element(x_vec, i);\n        pass2_row_sum[i % kRunningSums] += "
START = "  float pass1_total[kRunningSums] = {};"
ADDED = "pass1_total[i % kRunningSums] += x_i"
PLANTED = [
    (ADDED, "pass1_total[i % kRunningSums] += 2.0f * x_i", Outcome.NUMBERS),
    ("x_row + first_col + step * kStride", "x_row + first_col + step * kStride + 4096 * kCols", Outcome.FAULT),
    (ADDED, "pass1_totl[i % kRunningSums] += x_i", Outcome.DOES_NOT_COMPILE),
    (START, f"{START}\n  while (*reinterpret_cast<const volatile int*>(x + 0) != rows + 1) {{}}", Outcome.HANG),
    (START, f"{START}\n  reinterpret_cast<void (*)()>(x_pitch - x_pitch + 8)();", Outcome.FAULT),  # ends the process
    (ADDED, "pass1_total[i % kRunningSums] = pass1_total[i % kRunningSums] + x_i", Outcome.SAME_CODE),
    ("x_i", "renamed_i", Outcome.SAME_CODE),
    (ADDED, ADDED.replace("+= x_i", "+= 0.99999f * x_i + 0.00001f * x_i"), Outcome.SURVIVED),
]


@needs_compiler
@pytest.mark.parametrize(("old", "new", "outcome"), PLANTED)
def test_a_planted_mutant_gets_the_verdict_it_deserves(old: str, new: str, outcome: Outcome, scratch: Path) -> None:
    verdict = verdict_of("thread_sum", old, new, scratch, limit_s=8.0 if outcome is Outcome.HANG else LIMIT_S)
    assert verdict.outcome is outcome, verdict.detail


def result(kind: str, case: str, outcome: Outcome, because: str = "") -> Result:
    mutant = next(mutant for mutant in all_sites()[kind] if mutant.case == case)
    return Result(mutant=mutant, verdict=Verdict(outcome=outcome), because=because)


def test_an_argument_that_the_check_refutes_or_nothing_needs_is_told() -> None:
    listed = [Argument(classes=("eps_dropped",), kernels=("warp_*",), because="eps is small")]
    killed, survived = (result("eps_dropped", "warp_layernorm", o) for o in (Outcome.NUMBERS, Outcome.SURVIVED))
    assert "eps_dropped/warp_layernorm" in refuted_arguments([killed], listed)[0]
    assert "no survivor of eps_dropped" in unused_arguments([killed], listed)[0]
    settled = argued(survived.mutant, survived.verdict, listed)
    assert (settled.verdict.outcome, settled.because) == (Outcome.ARGUED, "eps is small")
    assert refuted_arguments([settled], listed) == unused_arguments([settled], listed) == []
    elsewhere = result("eps_dropped", "block_rmsnorm", Outcome.SURVIVED)
    assert argued(elsewhere.mutant, elsewhere.verdict, listed) == elsewhere


def test_every_argument_names_classes_and_kernels_and_covers_a_mutant() -> None:
    mutants = [mutant for of_class in all_sites().values() for mutant in of_class]
    for argument in arguments():
        assert set(argument.classes) <= {mutation.name for mutation in ALL_CLASSES}
        for pattern in argument.kernels:
            assert fnmatch.filter(ALL_CASES, pattern)
        assert any(argument.covers(mutant) for mutant in mutants), argument.because


# When this was written every wrong mutant of each part's sample was killed: the floor. Of all, 98.9 % were.
PARTS = {
    "exchanges": (
        ("thread_sum", "lanes_softmax", "warp_layernorm", "block_rmsnorm", "tree_layernorm", "groups_layernorm"),
        ("cluster_layernorm", "cluster_softmax_ring", "uneven_layernorm", "uneven_cluster", "short_to_int8"),
    ),
    "statistics": (
        (
            "welford_masked",
            "shifted_block",
            "corrected_block",
            "corrected_cluster",
            "guarded_lanes",
            "guarded_block",
            "shifted_any_cols",
            "left_out_statistics",
            "max_sum_hybrid",
            "approximate_softmax",
            "groups_of_columns",
            "exact_sum",
            "exact_fp8",
            "exact_int8",
        ),
        ("peeled_any_cols", "masked_any_cols", "chained_rmsnorm", "early_at_start"),
    ),
    "transports": (
        ("ahead_layernorm", "kept_layernorm", "packed_rmsnorm", "cp_async_layernorm", "cp_async_peel", "bulk_rmsnorm"),
        ("bulk_backward", "cp_async_backward"),
    ),
    "columns": (
        ("two_kernels", "two_kernels_cluster", "last_tile", "register_atomic"),
        ("shared_atomic", "atomic_peeled", "accumulate_masked", "softmax_backward"),
        ("atomic_in_order", "early_partner"),
    ),
    "varied": (tuple(VARIED_CASES),),
    "products": (tuple(PRODUCT_CASES),),
    "grids": (tuple(GRID_CASES),),
    "groups": (tuple(GROUP_CASES),),
}
SAMPLED = sized(8, 24)


def test_every_kernel_is_in_one_part() -> None:
    assert sorted(case for cases in PARTS.values() for case in itertools.chain(*cases)) == sorted(ALL_CASES)


def test_the_kernels_of_what_is_varied_are_changed_by_its_classes_alone() -> None:
    kinds = {mutation.name for mutation in VARIED}
    by_kind = {kind: {m.case for m in mutants} & set(VARIED_CASES) for kind, mutants in all_sites().items()}
    assert {kind for kind, cases in by_kind.items() if cases} <= kinds
    assert sum(len(mutants) for mutants in all_sites().values() if mutants and mutants[0].kind in kinds) >= 150


def test_products_are_changed_in_their_tiles_and_in_what_a_caller_varies() -> None:
    of_products = {kind: [m for m in mutants if m.case in PRODUCT_CASES] for kind, mutants in all_sites().items()}
    assert {kind for kind, mutants in of_products.items() if mutants} <= {m.name for m in PRODUCTS}
    of_tiles = [m for kind, mutants in of_products.items() if kind.startswith("tile_") for m in mutants]
    assert len(of_tiles) >= 300
    assert sum(map(len, of_products.values())) - len(of_tiles) >= 180
    assert {m.case for m in of_tiles} == set(PRODUCT_CASES)


def test_blocks_that_share_rows_are_changed_where_they_meet() -> None:
    of_grids = {kind: {m.case for m in mutants} for kind, mutants in all_sites().items()}
    assert {kind for kind, cases in of_grids.items() if cases & set(GRID_CASES)} == {m.name for m in GRIDS}
    assert len(GRIDS) >= 60
    assert set().union(*(of_grids[m.name] for m in GRIDS)) == set(GRID_CASES)


def test_gradients_of_groups_are_changed_where_columns_are_added_up() -> None:
    of_groups = {kind: {m.case for m in mutants} for kind, mutants in all_sites().items()}
    assert {kind for kind, cases in of_groups.items() if cases & set(GROUP_CASES)} == {m.name for m in GROUP_SUMS}
    assert set().union(*(of_groups[m.name] for m in GROUP_SUMS)) == set(GROUP_CASES)


@needs_compiler
@pytest.mark.parametrize("part", PARTS)
def test_every_wrong_kernel_of_a_sample_is_killed(part: str) -> None:
    names = set(itertools.chain(*PARTS[part]))
    results = judged(sample([mutant for mutant in chosen(all_sites()) if mutant.case in names], SAMPLED, seed=1))
    assert share_killed(results) == 1, "\n".join([summary(results), *survivors(results)])
    assert refuted_arguments(results, arguments()) == []


@needs_compiler
@pytest.mark.parametrize(
    ("case", "old", "new", "family"),
    [
        # A mean is off by a thirtieth of the deviation: rows of a larger mean allow that, others never come there.
        (
            "guarded_lanes",
            "pass2_x_shifted_sum[i % kRunningSums] += ",
            "pass2_x_shifted_sum[i % kRunningSums] = ",
            "some_mean",
        ),
        # One eighth of a row's exponentials loses 12 bits: less than the bound of one chain of 6144 terms.
        (
            "max_sum_hybrid",
            f"{OF_SHARED}expf(x_i - pass1.row_max);",
            f"{OF_SHARED}__uint_as_float(__float_as_uint(expf(x_i - pass1.row_max)) & 0xfffff000u);",
            "stretch",
        ),
    ],
    ids=["the sum of a second look", "the part of a row in shared memory"],
)
def test_what_a_family_of_rows_was_added_for_shows_in_it(
    case: str, old: str, new: str, family: str, scratch: Path
) -> None:
    verdict = verdict_of(case, old, new, scratch)
    assert verdict.outcome is Outcome.NUMBERS
    assert f"{family} (" in verdict.detail


def test_every_change_of_the_package_fits_its_file() -> None:
    assert len(set(CHANGES)) == len(CHANGES) >= 60
    for change in CHANGES:
        changed_text(change, ROOT / "normgen" / change.file)


def test_a_change_that_fits_no_more_is_an_error_that_names_it() -> None:
    stale = Change("records/statistics.py", "no such line", "", ("tests/records/test_statistics.py",))
    with pytest.raises(StaleChange, match=r"records/statistics.py: no such line .* 0 times"):
        tried([stale])


def test_tests_that_fail_with_nothing_changed_are_an_error() -> None:
    broken = Change("records/statistics.py", "k = max(k, 1)", "k = 1", ("tests/records/test_no_such_file.py",))
    with pytest.raises(WrongBaseline, match=r"test_no_such_file.py, with nothing changed"):
        tried([broken])


SAMPLED_FILES = ("records/statistics.py", "python/arguments.py")[: sized(1, 2)]


def test_wrong_lines_of_a_sample_of_files_are_all_killed() -> None:
    picked = [change for file in SAMPLED_FILES for change in CHANGES if change.file == file]
    harmless = Change(
        "records/statistics.py", "(ordered)\n    if n == 0:", "(ordered)\n    if not ordered:", STATISTICS
    )
    *results, unseen = tried([*picked, harmless])
    assert unseen.outcome == "survived"
    assert all(result.outcome != "survived" for result in results), package_report(results)


@needs_compiler
def test_the_command_prints_tables_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.json"
    assert main(["kernels", "--schedule", "thread_sum", "--class", "summand_coarse", "--json", str(file)]) == 0
    printed = capsys.readouterr()
    assert "1 mutants of 1 classes in 1 kernels" in printed.out
    assert "[1/1] summand_coarse/thread_sum" in printed.err
    [told] = json.loads(file.read_text())
    assert (told["class"], told["kernel"], told["outcome"]) == ("summand_coarse", "thread_sum", "killed_by_numbers")


@needs_compiler
@pytest.mark.parametrize(
    "words", [("kernels", "--schedule", "thread_sum"), ("package", "--class", "records/statistics.py")], ids=" ".join
)
def test_ctrl_c_ends_the_command_and_leaves_nothing_behind(words: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.mutation", *words, "--jobs", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # the background jobs of a shell ignore it
    running = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=listen)
    assert running.stderr is not None
    assert running.stderr.readline().startswith("[1/")
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in told
    assert list(tmp_path.iterdir()) == []
