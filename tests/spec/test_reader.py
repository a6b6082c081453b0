from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from normgen.errors import SpecError, UsageError
from normgen.knobs import TABLE
from normgen.spec.formula import FUNCTIONS
from normgen.spec.names import refusal
from normgen.spec.reader import builtin_folder, list_specs, load, parse
from normgen.spec.spec import Kind, Role
from normgen.spec.toml_lines import LARGEST_FILE

TEN_LINES = """\
name = "l2norm"
[tensors]
x = "input"
y = "output"
[formulas]
y = "x * rsqrt(sum(x*x))"
"""

FULL = """\
name = "made_up"
summary = "A norm."

[tensors]
x = { role = "input", dtypes = ["float32", "half"] }
weight = { role = "parameter", optional = true, absent = "1" }
scale = { role = "statistic", optional = true, doc = "1 / largest" }
y = { role = "output", follows = "x" }

[scalars]
eps = 1e-6

[formulas]
y = "x * scale * weight"
scale = "1 / (absmax(x) + eps)"

[space]
vector = ["float4", "half8", "bfloat16", 2]
hold = "registers"

[backward]
saved = ["scale"]

[accuracy]
rows = ["normal", "large_mean"]

[space.backward]
columns = ["atomic", "partials_two_kernels"]
vector = "float4"
"""
FORWARD_ONLY = FULL.partition("[space.backward]")[0]


def test_a_short_spec_gets_the_defaults() -> None:
    spec = parse(TEN_LINES)
    x, y = spec.tensors
    assert (x.role, x.kind, x.dtypes, x.follows) == (Role.INPUT, Kind.ELEM, ("f32", "f16", "bf16"), None)
    assert (y.role, y.dtypes, y.follows, y.optional) == (Role.OUTPUT, ("f32", "f16", "bf16"), "x", False)
    assert (spec.summary, spec.scalars, spec.knobs, spec.saved, spec.accuracy_rows) == ("", (), {}, (), ())
    assert spec.backward_knobs == {}


def test_a_full_spec_is_read_as_written() -> None:
    spec = parse(FULL, file="made_up.toml")
    assert spec.tensor("x").dtypes == ("f32", "f16")
    assert (spec.tensor("weight").absent, spec.tensor("weight").follows) == ("1", "x")
    assert (spec.tensor("scale").dtypes, spec.tensor("scale").doc) == (("f32",), "1 / largest")
    assert spec.scalars == (("eps", 1e-6),)
    assert [(f.name, f.line) for f in spec.formulas] == [("y", 14), ("scale", 15)]
    assert spec.knobs == {"vector": (4, 8, 1, 2), "hold": ("registers",)}
    assert spec.backward_knobs == {"columns": ("atomic", "partials_two_kernels"), "vector": (4,)}
    assert (spec.saved, spec.accuracy_rows) == (("scale",), ("normal", "large_mean"))
    assert spec.file == "made_up.toml"


def test_axes_that_are_the_roles_own_say_nothing() -> None:
    said = FULL.replace('role = "input"', 'role = "input", axes = ["rows", "cols"]')
    assert parse(said).tensors == parse(FULL).tensors


def test_the_hash_is_that_of_what_a_spec_says_of_its_kernel() -> None:
    """Neither its layout nor what is searched: results of a narrower space stay results of the same spec."""
    same = (TEN_LINES.replace("\n", "\r\n"), "# a comment\n" + TEN_LINES, TEN_LINES + "\n[space]\nvector = 4\n")
    assert {parse(text).sha256 for text in same} == {parse(TEN_LINES).sha256}
    assert parse(TEN_LINES.replace("x*x", "x*x*x")).sha256 != parse(TEN_LINES).sha256


def test_the_built_in_specs_are_found_by_name() -> None:
    assert list(list_specs()) == sorted(list_specs())
    assert {"layernorm", "rmsnorm", "softmax", "log_softmax", "row_max_sum", "row_sum"} <= set(list_specs())
    for name, file in list_specs().items():
        spec = load(name)
        assert (spec.name, Path(spec.file)) == (name, file)
        assert spec.summary.endswith(".")
        assert spec == load(file) == load(str(file))
    assert load("layernorm").saved == ("mean", "rstd")
    assert load("layernorm").scalars == (("eps", 1e-5),)
    assert builtin_folder().is_dir()


def test_a_folder_of_the_user_comes_before_the_built_in_specs(tmp_path) -> None:
    (tmp_path / "softmax.toml").write_text(TEN_LINES.replace("l2norm", "softmax"))
    assert load("softmax", folders=[tmp_path]).formulas[0].text == "x * rsqrt(sum(x*x))"
    assert load("softmax").formulas[0].text == "max(x)"
    assert list_specs([tmp_path])["softmax"].parent == tmp_path


def test_a_spec_found_by_name_must_have_that_name(tmp_path) -> None:
    (tmp_path / "other.toml").write_text(TEN_LINES)
    assert load(tmp_path / "other.toml").name == "l2norm"
    with pytest.raises(SpecError, match=r"other\.toml:1: a spec that is found by name has the name of its file"):
        load("other", folders=[tmp_path])


def test_unknown_names_and_files_are_usage_errors(tmp_path) -> None:
    with pytest.raises(UsageError, match="did you mean 'layernorm'"):
        load("layernrom")
    with pytest.raises(UsageError, match="cannot read the spec file"):
        load(tmp_path / "missing.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(SpecError, match=r"a spec is UTF-8 text\n  received: the byte 0xe9 at 8"):
        load(tmp_path / "latin.toml")
    (tmp_path / "marked.toml").write_bytes(b"\xef\xbb\xbf" + TEN_LINES.encode())  # as editors on Windows write it
    assert load(tmp_path / "marked.toml").name == parse(TEN_LINES).name
    (tmp_path / "large.toml").write_bytes(b"#" * (LARGEST_FILE + 1))
    with pytest.raises(SpecError, match=f"a spec file has at most {LARGEST_FILE} bytes"):
        load(tmp_path / "large.toml")
    with pytest.raises(UsageError, match=r"a path has no control characters\n  received: '"):
        load(tmp_path / "a\n#include <x>.toml")


def changed(old: str, new: str) -> str:
    assert FULL.count(old) == 1, old
    return FULL.replace(old, new)


# text, line of the error, what its message says
BROKEN = [
    (changed('name = "made_up"', 'name = "Made Up"'), 1, "a spec's name is lower-case"),
    (changed('name = "made_up"\n', ""), 1, "a spec has a name"),
    (changed("[space]", "[spaces]"), 17, "did you mean 'space'?"),
    (changed("[space]", "[space"), 17, "not valid TOML"),
    (changed('summary = "A norm."', "summary = 3"), 2, "'summary' is a text"),
    (changed("[accuracy]", "[accuracy]\nrow = []"), 25, "did you mean 'rows'?"),
    (changed('"large_mean"', '"large_means"'), 25, "did you mean 'large_mean'?"),
    (changed('saved = ["scale"]', 'saved = ["x"]'), 22, "known names: scale, y"),
    # tensors
    (changed('role = "statistic"', 'role = "statistics"'), 7, "did you mean 'statistic'?"),
    (changed('role = "statistic", ', ""), 7, "a tensor has a role"),
    (changed("optional = true, doc", "optinal = true, doc"), 7, "did you mean 'optional'?"),
    (changed("optional = true, doc", 'optional = "yes", doc'), 7, "'optional' is true or false"),
    (changed(', absent = "1"', ""), 6, "says what it is when absent"),
    (changed('optional = true, absent = "1"', 'absent = "1"'), 6, "only an optional tensor that is read"),
    (changed('doc = "1 / largest"', 'absent = "1"'), 7, "only an optional tensor that is read"),
    (changed('"half"', '"f64"'), 5, "unknown dtype"),
    (changed('["float32", "half"]', "[]"), 5, "'dtypes' is a list"),
    (changed('doc = "1 / largest"', 'dtypes = ["f16"]'), 7, "statistics are always f32"),
    (changed('follows = "x"', 'follows = "z"'), 8, "'follows' names a tensor"),
    (changed('follows = "x"', 'follows = "weight"'), 8, "follows the dtype of an input"),
    (changed("weight = {", "lambda = {"), 6, "it is a keyword of Python"),
    (changed("weight = {", "cols = {"), 6, "it is the length of a row"),
    (changed("weight = {", "tanh = {"), 6, "it is a function of the formula language"),
    (changed("weight = {", "stream = {"), 6, "a call of a kernel takes its stream"),
    (changed("weight = {", "dx = {"), 6, "kept for the gradient of 'x'"),
    (changed("weight = {", '"a b" = {'), 6, "a name is letters, digits"),
    (changed("weight = {", "a__b = {"), 6, "a name is letters, digits"),
    (changed("weight = {", f"{'w' * 41} = {{"), 6, "at most 40 characters"),
    (changed('role = "input"', 'role = "parameter"'), 5, "at least one tensor with role input"),
    (changed('x = { role = "input"', 'x = { optional = true, absent = "1", role = "input"'), 5, "not optional"),
    (changed('y = { role = "output"', 'y = { optional = true, role = "output"'), 5, "that is not optional"),
    (changed('y = { role = "output", follows = "x" }', "y = 3"), 8, "a tensor is a role or a table"),
    (changed('role = "parameter"', 'role = "parameter", group = 0'), 6, "'group' is a number of columns from 1"),
    (changed('role = "parameter"', 'role = "parameter", group = 2147483648'), 6, "received: 2147483648"),
    (changed('role = "parameter"', 'role = "parameter", group = "4"'), 6, "hint: group = 128"),
    (changed('role = "parameter"', 'role = "parameter", group = true'), 6, "received: True"),
    (changed('role = "parameter"', 'role = "parameter", group = 4.0'), 6, "received: 4.0"),
    (changed('role = "parameter"', 'role = "parameter", block_size = 4'), 6, "hint: group = 128 of a parameter"),
    (changed('role = "parameter"', 'role = "block_scale"'), 6, "hint: group = 128 of a parameter"),
    (changed('role = "parameter"', 'role = "row_input", group = 4'), 6, "has 'group', not a row_input"),
    (changed('role = "parameter"', 'role = "scalar_parameter", group = 4'), 6, "hint: group = 128 of a parameter"),
    (changed('role = "input"', 'role = "input", group = 4'), 5, "with a batch for each row, [rows, cols / 128]"),
    (changed('role = "statistic"', 'role = "statistic", group = 4'), 7, "hint: a reduction says its groups"),
    (changed('role = "output"', 'role = "output", group = 4'), 8, "only a parameter of columns has 'group'"),
    (
        changed('role = "input"', 'role = "input", axes = "rows"'),
        5,
        "are [rows, cols] or [rows, inner]\n  received: 'rows'",
    ),
    (changed('role = "input"', 'role = "input", axes = ["cols", "rows"]'), 5, "role input are [rows, cols] or"),
    (changed('role = "output"', 'role = "output", axes = ["rows", "inner"]'), 8, "role output are [rows, cols]\n"),
    (changed('role = "parameter"', 'role = "parameter", group = 4, axes = ["inner"]'), 6, "has the axes of its role"),
    (
        changed('role = "input"', 'role = "input", axes = ["rows", "inner"]'),
        5,
        "'x' varies along inner, which no formula",
    ),
    (changed('summary = "A norm."', 'summary = "A\\u001b[2J norm."'), 2, "holds no control character"),
    (changed('doc = "1 / largest"', 'doc = "1 \\u202e largest"'), 7, "holds no control character"),
    # scalars
    (changed("eps = 1e-6", "eps = true"), 11, "a finite number"),
    (changed("eps = 1e-6", "eps = inf"), 11, "a finite number"),
    (changed("eps = 1e-6", "eps = 1e-6\nx = 1.0"), 12, "a scalar and something else"),
    (changed("eps = 1e-6", "eps = 1e-6\ntau = 1"), 12, "scalar 'tau' is not used"),
    # formulas
    (changed('y = "x * scale * weight"', 'y = "x * scal * weight"'), 14, "did you mean 'scale'?"),
    (changed('y = "x * scale * weight"', 'y = "x * scale"'), 6, "parameter 'weight' is not used"),
    (changed('y = "x * scale * weight"\n', ""), 8, "output 'y' has no formula"),
    (changed('y = "x * scale * weight"', "y = 1"), 14, "a formula is a text"),
    (changed('y = "x * scale * weight"', 'y = "x * scale * weight"\nx = "y"'), 15, "'x' is read (line 5)"),
    (changed('y = "x * scale * weight"', 'y = "x * scale * weight"\nz = "y"'), 15, "formula 'z' is not used"),
    (changed('"1 / (absmax(x) + eps)"', '"1 / (absmax(y) + eps)"'), 14, "y -> scale -> y"),
    (changed('absent = "1"', 'absent = "weight"'), 6, "absent(weight) -> absent(weight)"),
    (changed('"1 / (absmax(x) + eps)"', '"x + eps"'), 15, "has one value per row, but its formula is [rows, cols]"),
    (changed("absmax(x)", "absmax(weight)"), 15, "absmax reduces a row"),
    (changed("absmax(x)", "absmax(sum(x))"), 15, "absmax reduces a row"),
    (changed("absmax(x)", "__import__('os').system('ls')"), 15, "only the known functions can be called"),
    (changed('absent = "1"', 'absent = "x.real"'), 6, "Attribute is not part of the formula language"),
    # space
    (changed("hold =", "holds ="), 19, "did you mean 'hold'?"),
    (changed('"registers"', '"register"'), 19, "did you mean 'registers'?"),
    (changed('"half8"', '"half3"'), 18, "knob 'vector' takes one of: 1, 2, 4, 8, 16"),
    (changed("bfloat16", "double2"), 18, "knob 'vector' takes one of"),
    (changed('hold = "registers"', "unroll = [true]"), 19, "knob 'unroll' takes one of"),
    (changed('hold = "registers"', "unroll = []"), 19, "at least one value"),
    (changed("[space.backward]", "[space.backwards]"), 27, "did you mean 'backward'?"),
    (changed("columns =", "colums ="), 28, "unknown key 'colums' in [space.backward]"),
    (changed('"partials_two_kernels"', '"partials"'), 28, "knob 'columns' takes one of"),
    (FORWARD_ONLY.replace('hold = "registers"', "backward = 2"), 19, "[space.backward] is a table"),
]


@pytest.mark.parametrize(("text", "line", "says"), BROKEN, ids=[says[:40] for _, _, says in BROKEN])
def test_a_broken_spec_is_refused_with_its_line(text: str, line: int, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text, file="broken.toml")
    assert str(caught.value).startswith(f"broken.toml:{line}: ")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("formula", "axes"), [("mean(x)", "rows"), ("x", "rows, cols"), ("2", ""), ("x * absmax(x, 4)", "rows, cols")]
)
def test_what_is_no_value_of_a_group_is_refused_where_it_is_one_with_its_line(formula: str, axes: str) -> None:
    text = 'name = "a"\nsummary = "s"\n[tensors]\nx = "input"\ns = "group_statistic"\ny = "output"\n'
    text += f'[formulas]\ny = "x / max(x, 4)"\ns = "{formula}"\n'
    with pytest.raises(SpecError, match=rf"^a\.toml:9: .* one value per group, but its formula is \[{axes}\]") as error:
        parse(text, file="a.toml")
    assert error.value.received == formula
    assert str(error.value.hint).endswith("reduced in groups: absmax(x, 4)")


@pytest.mark.parametrize("name", ["gamma", "mask", "half", "float", "load", "begin", "rows", "i", "shift", "x_pitch"])
def test_names_that_only_emitted_text_uses_are_free(name: str) -> None:
    text = re.sub(r"\bx\b", name, TEN_LINES)
    assert parse(text).tensors[0].name == name


def test_every_function_is_reserved_but_those_that_statistics_are_named_after() -> None:
    assert {name for name in FUNCTIONS if refusal(name) is None} == {"sum", "mean", "total"}


def test_every_value_of_every_knob_can_be_written() -> None:
    for knob, values in ((k.name, k.values) for k in TABLE):
        listed = json.dumps(values)
        text = f"{TEN_LINES}[space]\n{knob} = {listed}\n"
        assert parse(text.replace('"""', '"')).knobs[knob] == values


@pytest.mark.parametrize(
    "written", ["1 #\\n#include <cstdlib>\\nint x;", "1 # one", "1 +\\u000b 1", "1\\r+ 1", "1\\u2028"]
)
@pytest.mark.parametrize("where", ["formula", "absent"])
def test_a_formula_with_a_comment_or_a_control_character_is_refused_with_file_and_line(
    where: str, written: str
) -> None:
    absent, formula = (written, "x * w") if where == "absent" else ("1", f"x * w * ({written})")
    text = 'name = "a"\n[tensors]\nx = "input"\ny = "output"\n'
    text += f'w = {{ role = "parameter", optional = true, absent = "{absent}" }}\n[formulas]\n\ny = "{formula}"\n'
    line = 5 if where == "absent" else 8
    with pytest.raises(SpecError, match=rf"^a\.toml:{line}: a formula holds no comment and no control character"):
        parse(text, file="a.toml")


@pytest.mark.parametrize("role", ["parameter", "batch_parameter", "head_parameter"])
@pytest.mark.parametrize("group", [1, 6, 128, 4096])
def test_a_parameter_of_groups_is_read_as_a_value_for_each_column(role: str, group: int) -> None:
    spec = parse(changed('role = "parameter"', f'role = "{role}", group = {group}'))
    weight, plain = spec.tensor("weight"), parse(changed('role = "parameter"', f'role = "{role}"')).tensor("weight")
    assert (weight.group, plain.group) == (group, 0)
    assert weight.kind.in_rows is plain.kind
    assert weight.kind.axes == (*plain.kind.axes[:-1], "groups")
    assert weight.has_gradient
    assert (spec.group, spec.groups, spec.whole_cols) == (0, (group,), group)
    assert spec.sha256 != parse(FULL).sha256


def test_a_formula_of_several_lines_is_one_line_for_all_who_read_the_spec() -> None:
    text = 'name = "a"\n[tensors]\nx = "input"\ny = "output"\n[formulas]\nm = "mean(x)"\ny = """\nx *\n\tm"""\n'
    for ending in ("\n", "\r\n"):
        assert parse(text.replace("\n", ending)).formulas[1].text == "x * \tm"
