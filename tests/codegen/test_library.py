"""The device library: every file compiles by itself, and is included by need."""

from __future__ import annotations

import ctypes
import re
import subprocess
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from normgen.codegen.library import files, in_order, made, needed
from normgen.codegen.module import Module, inverse_of
from normgen.codegen.statements import identifiers
from normgen.cuda import nvrtc
from normgen.cuda.compiler import compile_module
from normgen.errors import NormgenError
from normgen.knobs import LoadHint, StoreHint

FOLDER = Path(str(resources.files("normgen.codegen") / "library"))
OVERLOADED = {"element", "pack"}  # one of each for a stored type
SHIM = Path(str(resources.files("normgen.cpu") / "shim" / "include"))


def on_the_host(name: str, text: str, folder: Path) -> ctypes.CDLL:
    """`text`, compiled behind one file of the library."""
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    words = "#include <cmath>\n#define __device__\n#define __forceinline__ inline\n"
    source.write_text(words + files()[name].text + text, encoding="utf-8")
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return ctypes.CDLL(str(library))


def nvrtc_loads() -> bool:
    try:
        return nvrtc.version() > (0, 0)
    except NormgenError:
        return False


@pytest.mark.skipif(not nvrtc_loads(), reason="NVRTC does not load on this machine")
@pytest.mark.parametrize("name", files())
def test_a_file_compiles_by_itself(name: str) -> None:
    module = Module(instructions="", text=made().get(name) or f'#include "{name}.cuh"\n', kernels=())
    assert "error" not in compile_module(module, 90, options=[f"--include-path={FOLDER}"]).log


@pytest.mark.parametrize("name", files())
def test_a_file_reads_well_and_names_all_that_it_needs(name: str) -> None:
    text = made().get(name) or (FOLDER / f"{name}.cuh").read_text(encoding="utf-8")
    defined = re.findall(r"^__(?:device|host)__[^(\n]*?(\w+)\(", text, re.MULTILINE)
    defined += re.findall(r"^(?:template <[^\n]*>\s)?(?:struct|using) (\w+)\b(?!<)", text, re.MULTILINE)
    assert text.startswith("#pragma once  // ")
    assert text.endswith("\n")
    assert all(len(line) <= 120 and line == line.rstrip() for line in text.splitlines())
    file = files()[name]
    assert file.defines == {*defined} != set(), "the head names them"
    assert "//" in file.text or name.endswith("_bits"), "what it is for"
    within = {defined for other in in_order([file]) for defined in other.defines}
    elsewhere = {defined for other in files().values() for defined in other.defines} - within
    # `State` and `Hint` are what a caller brings; a word of a comment, or of PTX, is none of the code's
    assert not identifiers(re.sub(r'//.*|"[^"\n]*"', "", file.text)) & elsewhere


def test_a_quotient_is_that_of_whole_numbers(tmp_path: Path) -> None:
    """Ends, powers of two and their neighbours, and what is drawn: 2^31 - 1 is the largest number of rows."""
    text = 'extern "C" void quotients(const int* n, const unsigned long long* inverse, int* found, int count) {\n'
    text += "  for (int i = 0; i < count; ++i) found[i] = quotient(n[i], inverse[i]);\n}\n"
    library = on_the_host("quotient", text, tmp_path)
    rng, largest = np.random.default_rng(), 2**31 - 1
    ends = np.array([0, 1, 2, 3, largest - 1, largest, *(2**k + d for k in range(2, 31) for d in (-1, 0, 1))])
    drawn = np.exp2(rng.uniform(0, 31, (2, 100_000))).astype(np.int64)
    n = np.concatenate([np.repeat(ends, len(ends)), drawn[0], drawn[0] // drawn[1] * drawn[1]]).astype(np.int32)
    d = np.concatenate([np.tile(ends, len(ends)), drawn[1], drawn[1]])
    n, d = n[d > 0], d[d > 0]
    inverse = np.array([inverse_of(int(one)) for one in d], dtype=np.uint64)
    found = np.empty_like(n)
    library.quotients(*(ctypes.c_void_p(a.ctypes.data) for a in (n, inverse, found)), len(n))
    np.testing.assert_array_equal(found, n // d)


def test_a_quotient_by_the_remainder_is_that_of_a_division(tmp_path: Path) -> None:
    """To the last bit but rarely, where no step is subnormal (Markstein 1990); the product errs in a quarter.

    A product with 1 / b has two roundings, which together pass half an ulp that often.
    """
    text = (
        'extern "C" void quotients(const float* a, const float* b, const float* inverse, float* found, int count) {\n'
    )
    text += "  for (int i = 0; i < count; ++i) found[i] = divide_by_remainder(a[i], b[i], inverse[i]);\n}\n"
    library = on_the_host("divide_by_remainder", text, tmp_path)

    def quotients(a: np.ndarray, b: np.ndarray, inverse: np.ndarray) -> np.ndarray:
        found = np.full_like(a, np.nan)
        library.quotients(*(ctypes.c_void_p(x.ctypes.data) for x in (a, b, inverse, found)), len(a))
        return found

    rng = np.random.default_rng()
    a, b = np.exp2(rng.uniform(-60, 0, 1_000_000)).astype(np.float32), (1 + 4095 * rng.random(1_000_000, np.float32))
    assert np.mean(quotients(a, b, 1 / b) != a / b) < 1e-3
    assert np.mean(a * (1 / b) != a / b) > 0.1
    for off in (-1, 0, 1):  # a reciprocal that is off by an ulp, as the hardware's may be, is corrected as well
        near = ((1 / b).view(np.int32) + off).view(np.float32)
        assert np.mean(quotients(np.ones_like(b), b, near) != 1 / b) < 1e-3
    every = (np.arange(1 << 23, dtype=np.uint32) | 0x3F800000).view(np.float32)  # from 1 to 2
    for code in np.float32([448, 57344, 127]):  # a scale has the bits of the division, whatever its row holds
        np.testing.assert_array_equal(
            quotients(every, np.full_like(every, code), np.full_like(every, 1 / code)), every / code
        )
    ends = np.float32([0, 1, 1e-40, 3e38, np.inf, np.nan, -1])
    a, b = np.repeat(ends, len(ends)), np.tile(ends, len(ends))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(quotients(a, b, 1 / b), a * (1 / b), rtol=1e-6)


def test_no_name_is_defined_twice() -> None:
    defined = [name for file in files().values() for name in file.defines if name not in OVERLOADED]
    assert len(defined) == len(set(defined))
    assert {file.name for file in needed(OVERLOADED)} == {"words", "default", "vec"}


def test_what_is_needed_comes_with_what_that_needs_and_nothing_else() -> None:
    names = [file.name for file in needed({"Block", "int", "kVector"})]
    assert names == ["reduce_lanes", "share_of_slots", "threads", "block"]
    assert {file.name for file in needed({"bfloat16"})} == {"bfloat16", "bfloat16_bits", "vec", "default", "words"}
    assert needed({"threadIdx", "x_row"}) == []


def test_hardware_comes_first_and_every_file_behind_those_it_includes() -> None:
    ordered = in_order(files().values())
    assert len(ordered) == len(files())
    kinds = [file.is_hardware for file in ordered]
    assert kinds == sorted(kinds, reverse=True)
    places = {file.name: place for place, file in enumerate(ordered)}
    assert all(places[other] < places[file.name] for file in ordered for other in file.needs)


def test_the_executor_has_every_function_of_the_hardware() -> None:
    shim = "\n".join(path.read_text(encoding="utf-8") for path in sorted(SHIM.glob("*.h")))
    called = {name for file in files().values() if not file.is_hardware for name in identifiers(file.text)}
    kernels = {
        "griddepcontrol_wait",
        "griddepcontrol_launch_dependents",
        "mbarrier_init",
        "mbarrier_wait",
        "bulk_load",
        "bulk_load_by",
    }
    for file in files().values():
        if file.is_hardware:
            for name in file.defines & (called | kernels):
                assert re.search(rf"\b{name}\b", shim), name


@pytest.mark.parametrize("hint", sorted({h.value for h in (*LoadHint, *StoreHint)}))
def test_every_cache_hint_is_a_type_of_its_file(hint: str) -> None:
    kind = "".join(word.capitalize() for word in hint.split("_"))
    [*_, file] = needed({kind})
    assert (file.name, file.defines) == (hint, {kind})
