"""M6 and the sizes among the low ones: what is too large, too deep or too long is refused before the work."""

from __future__ import annotations

import lzma
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from normgen.cli.main import LONGEST_LINE
from normgen.files import decoded
from normgen.measure import host_memory
from tests.reproductions.commands import normgen, spec_file, spec_text
from tests.studies.test_hostile_sweeps import SWEEP

SOON_S = 5.0  # on a busy machine too: what is refused by a look at it is refused at once
NINES = "9" * 5000
HEX = f"0x{'f' * 4000}"


def chained(count: int) -> str:
    """So many formulas, each of which reads the one before it."""
    steps = "\n".join(f'f{n} = "f{n - 1} + x * x"' for n in range(1, count))
    return spec_text(f'f0 = "x"\n{steps}\ny = "f{count - 1}"')


def with_eps(value: str) -> str:
    return spec_text('y = "x + eps"', scalars=f"eps = {value}")


# What stands in a file, its line, and what must be said.
BEYOND = {
    "m6 a large exponent": (spec_text('y = "x * 1e999999999"'), 6, "must fit float32"),
    "m6 a small exponent": (spec_text('y = "x * 1e-999999999"'), 6, "must fit float32"),
    "m6 an exponent of seven digits": (spec_text('y = "x * 1e9999999"'), 6, "must fit float32"),
    "m6 an exponent in a scalar": (with_eps("1e999999999"), 6, "a finite number"),
    "low eps beyond float32": (with_eps("1e39"), 6, "must fit float32"),
    "low eps below float32": (with_eps("-1e-60"), 6, "must fit float32"),
    "low 400 digits": (with_eps("9" * 400), 6, "at most 64 bits"),
    "low 5000 digits": (with_eps(NINES), 6, "at most 64 bits"),
    "low 4000 hex digits": (with_eps(HEX), 6, "at most 64 bits"),
    "low a long number for a text": (f"name = {HEX}", 1, "at most 64 bits"),
    "low a long number in a list": (spec_text('y = "x"') + f"[space]\nvector = [1, {HEX}]", 8, "at most 64 bits"),
    "low a long number in a table": (spec_text('y = "x"', f"x = {{ role = {NINES} }}"), 3, "at most 64 bits"),
    "low 100,000 brackets": (f"a = {'[' * 100_000}", 1, "nest at most 16 levels"),
    "low 5,000 inline tables": (f"name = 'a'\na = {'{a=' * 5000}", 2, "nest at most 16 levels"),
    "low a key of 100,000 parts": (f"{'a.' * 100_000}a = 1", 1, "nest at most 16 levels"),
    "low a key of 20,000 parts": (f"{'a.' * 20_000}a = 1", 1, "nest at most 16 levels"),
    "low a key of 3,000 parts": (f"{'a.' * 3000}a = 1", 1, "nest at most 16 levels"),
    "low a table of 3,000 parts": (f"['a'{'.a' * 3000}]", 1, "nest at most 16 levels"),
    "low brackets behind a long string": (f'a = [""" """", {"[" * 3000}', 1, "nest at most 16 levels"),
    "low 20,000 formulas": (chained(20_000), 5, "[formulas] has at most 256 entries"),
    "low 3,000 chained formulas": (chained(3000), 5, "[formulas] has at most 256 entries"),
    "low 200 chained formulas": (chained(200), 49, "the formulas of a spec nest at most 128 levels"),
}


def refused(what: str, folder: Path) -> None:
    text, line, says = BEYOND[what]
    file = spec_file(folder, text)
    began = time.process_time()
    ended = normgen("spec", "check", file)
    assert time.process_time() - began < SOON_S
    assert (ended.code, ended.is_one_error) == (2, True), ended.err
    assert ended.err.startswith(f"error: {file}:{line}: "), ended.err
    assert says in ended.err


@pytest.mark.parametrize("what", [what for what in BEYOND if what.startswith("m6")])
def test_m6_a_number_with_a_giant_exponent_is_refused_at_once(what: str, tmp_path: Path) -> None:
    refused(what, tmp_path)


@pytest.mark.parametrize("what", [what for what in BEYOND if what.startswith("low")])
def test_low_a_spec_beyond_the_limits_is_refused_at_once_with_its_line(what: str, tmp_path: Path) -> None:
    refused(what, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("tune", "--shape", "8x96", "--seed", "-1"), "'--seed'"),
        (("verify", "--shape", "8x96", "--seed", "4294967296"), "'--seed'"),
        (("tune", "--shape", "8x96", "--budget", NINES), "a time is at most 720h"),
        (("tune", "--shape", "8x96", "--budget", "1٠s"), "a time is a number"),
        (("tune", "--suite", "decode_h200", "--gpus", NINES), "GPUs are all, or numbers"),
        (("tune", "--suite", "decode_h200", "--device", "cpu", "--jobs", "1000000000"), "'--jobs'"),
        (("tune", "--shape", "8x96", "--device", NINES), "a device is the number of a GPU"),
        (("show", "--shape", NINES), "a shape is whole numbers"),
        (("show", "--shape", f"8x{NINES}"), "a shape is whole numbers"),
        (("show", "--shape", "٨x٩٦"), "a shape is whole numbers"),
        (("show", "--shape", "8x96", "--schedule", f"vector={NINES}"), "knob 'vector' takes one of"),
        (("show", "--shape", "8x96", "--schedule", "vector=04"), "knob 'vector' takes one of"),
        (("show", "--shape", "8x96", "--schedule", "vector=٤"), "knob 'vector' takes one of"),
        (("show", "--shape", "8x96", "--schedule", "vector=²"), "knob 'vector' takes one of"),
        (("show", "--shape", "8x96", "--op", "a\n#include <x>.toml"), "an argument has no control characters"),
        (("show", "--shape", "8x96", "--op", "\x1b]0;evil\x07"), "an argument has no control characters"),
        (("show", "--shape", "8x96", "--op", "\udc80.toml"), "an argument has no control characters"),
        (("show", "--shape", "8x96", "--op", "\u202elmot.a"), "an argument has no control characters"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value)[:40].encode("ascii", "replace").decode(),
)
def test_low_a_number_or_a_text_beyond_the_limits_is_wrong_usage(arguments: tuple[str, ...], says: str) -> None:
    ended = normgen(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    lines = ended.err.splitlines()
    assert all(len(line) <= LONGEST_LINE + 4 and (line.isprintable() or "²" in line) for line in lines)


@pytest.mark.parametrize("shape", ["3x2147483647", "8x99999999"])
def test_low_a_shape_that_does_not_fit_the_memory_is_refused_before_anything_is_drawn(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 10**9)
    ended = normgen("verify", "--shape", shape, "--device", "cpu")
    assert (ended.code, ended.is_one_error) == (2, True)
    assert ended.err.startswith("error: a check fits the memory of the host\n  received: 1 x ")


@pytest.mark.parametrize("kilobytes", [1_200_000, 2_900_000])
def test_low_a_limit_of_the_address_space_is_no_abort(kilobytes: int) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        pytest.skip("the tests themselves run under such a limit")
    command = f"ulimit -v {kilobytes} && exec {sys.executable} -m normgen verify --shape 8x96 --device cpu"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: a check fits the address space of the process\n  received: 4.8 GB, and ")


READERS = ["replay", "report", "calibrate --evaluate", "calibrate --fit"]


@pytest.mark.parametrize("command", READERS)
def test_low_an_xz_file_that_swells_is_refused_before_it_fills_the_memory(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoded, "LARGEST_UNPACKED", 1 << 20)
    file = tmp_path / "sweep.jsonl.xz"
    file.write_bytes(lzma.compress(bytes(1 << 22)))
    ended = normgen(*command.split(), str(file))
    assert ended.code == 2
    assert "more than 1 MiB when unpacked" in ended.err
    assert ended.err.count("error: ") == 1


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[: len(data) // 2], lambda data: data[:100] + b"\xff" * 8 + data[108:], lambda data: data[:4]],
    ids=["torn", "flipped", "cut short"],
)
@pytest.mark.parametrize("command", READERS)
def test_low_a_damaged_xz_file_is_one_error(command: str, damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    file = tmp_path / "sweep.jsonl.xz"
    file.write_bytes(damage(SWEEP.read_bytes()))
    ended = normgen(*command.split(), str(file))
    assert ended.code == 2
    *before, _error = ended.err.split("error: ")
    assert len(before) == 1
    assert before[0] == "" or str(file) in before[0]  # a reader of many files says which line it left out
