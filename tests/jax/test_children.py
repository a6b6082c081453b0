"""A program of the tests that hangs costs its limit, no more, and says where it stood."""

from __future__ import annotations

import pytest

from tests.jax.children import run

WAITS = """
import threading, time
print("so far", flush=True)

def waits_aside():
    time.sleep(60)

threading.Thread(target=waits_aside, daemon=True).start()
"""
HOLDS_THE_LOCK = "import ctypes\nprint('so far', flush=True)\nctypes.PyDLL(None).sleep(60)"  # without letting it go


@pytest.mark.parametrize("program", [f"{WAITS}\ntime.sleep(60)", HOLDS_THE_LOCK], ids=["waits", "holds the lock"])
def test_a_program_that_hangs_says_where_it_stood(program: str) -> None:
    with pytest.raises(AssertionError, match="so far") as error:
        run(program, limit_s=2.0)
    assert "Timeout" in str(error.value)
    assert 'File "<string>", line' in str(error.value)
    if program != HOLDS_THE_LOCK:
        assert "in waits_aside" in str(error.value)


def test_a_program_that_leaves_its_pipes_to_another_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.jax.children.LATE_S", 0.5)
    left = "import subprocess; subprocess.Popen(['sleep', '8']); print('so far', flush=True)"
    with pytest.raises(AssertionError, match=r"no end after 2\.5 s; it said:\nso far"):
        run(left, limit_s=2.0)


def test_a_program_that_fails_tells_what_it_said() -> None:
    with pytest.raises(AssertionError, match=r"(?s)exit code 1; it said:\nso far\n.*ZeroDivisionError"):
        run("print('so far')\n1 / 0")
    assert run("import os, sys; print(sys.argv[1], os.environ['WORD'])", "a", WORD="b") == "a b\n"
