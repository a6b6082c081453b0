"""Suites: strict reading with lines, defaults, lists of shapes, and what ships."""

from __future__ import annotations

from pathlib import Path

import pytest

from normgen.errors import SpecError, UsageError
from normgen.problem.question import PROMISES
from normgen.records.place import Place, Setting
from normgen.spec.toml_lines import array_lines
from normgen.suites.suite import list_suites, load_suite, parse_suite

HEAD = 'name = "few"\n[[entry]]\nop = "rmsnorm"\n'


def test_an_entry_takes_the_defaults_and_one_problem_for_each_shape() -> None:
    suite = parse_suite(
        'name = "few"\nsummary = "s"\n[defaults]\nsetting = "hot"\ndtype = "bf16"\n'
        '[[entry]]\nop = "rmsnorm"\nshape = ["1x4096", "2x3x128"]\nwithout = ["rstd"]\n'
        '[[entry]]\nop = "layernorm"\nshape = "8x100"\nsetting = "fresh"\ndirection = "backward"\n'
        'dtypes = { weight = "f32" }\npitch = 104\nalign = 4\n'
    )
    first, second, third = suite.entries
    assert (first.place, first.problem.dtype.name, first.problem.present) == (
        Place(setting=Setting.HOT),
        "bf16",
        {"y", "x", "weight"},
    )
    assert (second.problem.rows, second.problem.cols) == (6, 128)
    assert third.place == Place()
    assert third.problem.present == {"dx", "dweight", "dbias", "dy", "x", "weight", "mean", "rstd"}
    assert (third.problem.pitch, third.problem.align) == (104, 4)
    assert third.label == "layernorm bwd 8x100 bf16 fresh dweight=f32 weight=f32 pitch=104 align=4"
    assert dict(third.dtypes) == {"weight": "f32"}


def test_an_entry_says_how_scales_lie_in_memory() -> None:
    text = (
        'name = "few"\n[[entry]]\nop = "quantize_to_fp8_group"\nshape = "8x256"\nlayout = { scale = "column_major" }\n'
    )
    (entry,) = parse_suite(text).entries
    assert entry.problem.layout == (("scale", "column_major"),)
    assert entry.label == "quantize_to_fp8_group fwd 8x256 f32 fresh q=f8e4m3 scale_column_major"
    assert entry.arguments()["layout"] == {"scale": "column_major"}


def test_an_entry_makes_any_promise_and_says_so() -> None:
    text = f'{HEAD}shape = "8x256"\ndirection = "backward"\n'
    promises = "".join(f"{name} = true\n" for name in PROMISES)
    plain, made = (parse_suite(asked).entries[0] for asked in (text, text + promises))
    assert made.label == " ".join((plain.label, *PROMISES))
    assert made.problem.promises == PROMISES
    with pytest.raises(SpecError, match=f"'{PROMISES[-1]}' is true or false"):
        parse_suite(f"{text}{PROMISES[-1]} = 1\n")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[[entry]]\n", 1, "a suite has a name"),
        ('name = "a"\n', 1, "at least one [[entry]]"),
        ('name = "a"\nentry = [1]\n', 2, "at least one [[entry]]"),
        ('name = "a"\nentries = 1\n', 2, "unknown key 'entries'\n  hint: did you mean 'entry'?"),
        ('name = "a"\n[defaults]\nsetin = "hot"\n', 3, "unknown key 'setin'\n  hint: did you mean 'setting'?"),
        (HEAD, 2, "an entry has 'shape'"),
        (HEAD + 'shape = "8xx"\n', 2, "whole numbers joined by 'x'"),
        (HEAD + 'shape = "0x8"\n', 4, "nothing to time"),
        (HEAD + "shape = []\n", 4, "'shape' is a shape or a list of them"),
        (HEAD + 'shape = "8x8"\n\ndytpe = "f16"\n', 6, "unknown key 'dytpe'\n  hint: did you mean 'dtype'?"),
        (HEAD + 'shape = "8x8"\ndtype = "f64"\n', 2, "unknown dtype\n  received: f64"),
        (HEAD + 'shape = "8x8"\nsetting = "warm"\n', 5, "unknown setting\n  received: warm"),
        (HEAD + 'shape = "8x8"\ndirection = "back"\n', 5, "did you mean 'backward'?"),
        (HEAD + 'shape = "8x8"\nwithout = ["weigth"]\n', 2, "did you mean 'weight'?"),
        (HEAD + 'shape = "8x8"\nwithout = "rstd"\n', 5, "'without' is a list of names"),
        (HEAD + 'shape = "8x8"\npitch = true\n', 5, "'pitch' is a whole number"),
        (HEAD + 'shape = "8x8"\npitch = 4\n', 2, "the pitch is at least cols"),
        (HEAD + 'shape = "8x8"\ndtypes = ["f32"]\n', 5, "'dtypes' is a table"),
        (HEAD.replace("rmsnorm", "rmsnrom") + 'shape = "8x8"\n', 2, "did you mean 'rmsnorm'?"),
        (HEAD + 'shape = "8x8"\n[[entry]]\nop = "rmsnorm"\nshape = "8x8"\n', 5, "as on line 2"),
        (HEAD + 'shape = ["8x8"\n', 5, "not valid TOML"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_suite(text, file="few.toml")
    assert caught.value.line == line
    assert str(caught.value).startswith(f"few.toml:{line}: ")
    assert message in str(caught.value)


def test_lines_of_table_arrays_are_counted_by_table() -> None:
    text = 'a = 1\n[[entry]]\nop = 1 # first\n[other]\nop = 2\n[[entry]]\n\n"shape" = [\n"x",\n]\nop = 3\n'
    assert array_lines(text, "entry") == [{"": 2, "op": 3}, {"": 6, "shape": 8, "op": 11}]


def test_the_suites_that_ship_have_their_shapes() -> None:
    suites = {name: load_suite(name) for name in list_suites()}
    assert set(suites) >= {"forward_h200", "decode_h200", "backward_h200"}
    assert {name: suite.name for name, suite in suites.items()} == {name: name for name in suites}
    forward = suites["forward_h200"]
    assert 38 <= len(forward.entries) <= 45
    assert {e.place for e in forward.entries} == {Place()}
    odd = {1000, 1023, 4095, 4097, 8191}
    large = {e.problem.cols for e in forward.entries if e.problem.compulsory_bytes >= 64e6}
    assert large >= odd
    assert any(e.problem.align == 2 for e in forward.entries)
    assert any(e.problem.pitch > e.problem.cols for e in forward.entries)
    decode = suites["decode_h200"]
    assert len(decode.entries) == 16
    assert all(e.place == Place() and e.problem.rows <= 64 for e in decode.entries)
    backward = suites["backward_h200"]
    assert len(backward.entries) == 20
    assert {e.problem.direction for e in backward.entries} == {"backward"}
    fused = suites["fused_h200"]
    assert {e.problem.rows for e in fused.entries} == {1, 16, 64, 256, 1024, 4096}
    assert {e.problem.dtype.name for e in fused.entries} == {"bf16"}
    engines = suites["engines_h200"]
    quantised = {f"vllm_{add}rmsnorm_to_fp8{kind}" for add in ("", "add_") for kind in ("", "_token", "_group")}
    quantised |= {"flashinfer_rmsnorm_to_fp8", "flashinfer_add_rmsnorm_to_fp8"}
    plain = {"gemma_rmsnorm", "vllm_ir_rmsnorm", "vllm_ir_add_rmsnorm", "vllm_add_rmsnorm"}
    assert {e.problem.spec.name for e in engines.entries} == quantised | plain
    with_sums = [e.problem for e in engines.entries if "add_" in e.op and "to_fp8" in e.op]
    assert all(dict(problem.in_place) == {"h": "residual"} for problem in with_sums)
    (norm,) = fused.only("add_rmsnorm bwd").entries
    assert norm.label == "add_rmsnorm bwd 4096x4096 bf16 fresh"
    assert [t.results for t in norm.problem.tensors if t.is_written] == [("dx", "dresidual"), ("dweight",)]


def test_only_keeps_the_entries_that_contain_the_pattern() -> None:
    suite = load_suite("backward_h200")
    assert [e.label for e in suite.only("softmax*bf16").entries] == ["softmax bwd 8192x4096 bf16 fresh"]
    with pytest.raises(UsageError, match="no entry of suite 'backward_h200'"):
        suite.only("softmax*f16 hot")


def test_an_entry_takes_the_path_of_a_users_own_spec(tmp_path: Path) -> None:
    own = tmp_path / "cubes.toml"
    own.write_text(
        'name = "cubes"\nsummary = "x cubed by its length"\n[tensors]\nx = "input"\nw = "parameter"\ny = "output"\n'
        '[formulas]\ny = "x**3 * rsqrt(sum(x*x)) * w"\n'
    )
    text = f'name = "mine"\n[defaults]\ndirection = "backward"\n[[entry]]\nop = "{own}"\nshape = "8x64"\n'
    (entry,) = parse_suite(text).entries
    assert [t.name for t in entry.problem.tensors] == ["dx", "dw", "dy", "x", "w"]
    assert entry.label == "cubes bwd 8x64 f32 fresh"


def test_a_suite_is_found_by_name_or_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(HEAD + 'shape = "8x8"\n')
    assert load_suite(file).entries == load_suite(str(file)).entries
    assert load_suite(str(file)).file == str(file)
    with pytest.raises(UsageError, match="did you mean 'decode_h200'"):
        load_suite("decode_h20")
    with pytest.raises(UsageError, match="No such file"):
        load_suite(tmp_path / "none.toml")
    file.write_bytes(b"name = '\xff'")
    with pytest.raises(SpecError, match="UTF-8"):
        load_suite(file)


def test_a_suite_can_be_held_elsewhere_than_it_says() -> None:
    suite = load_suite("decode_h200")
    assert {str(e.place) for e in suite.at(context="matmul").entries} == {"fresh matmul"}
    assert {str(e.place) for e in suite.at(setting="hot", context="alone").entries} == {"hot alone"}
    assert suite.at() == suite
    with pytest.raises(UsageError, match="setting is one of"):
        suite.at(setting="warm")
