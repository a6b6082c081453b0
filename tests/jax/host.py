"""XLA's calls without a GPU: our handler on XLA for the CPU, above the driver of the tests.

Its kernels are the emitted text, which the CPU's executor runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pytest

from normgen.jax import target
from normgen.python import handle as handles
from normgen.python import kernels, repeat, xla
from tests.python.launching import HERE, INCLUDE, LAUNCHER, LauncherCpu, compiled, loaded

NAME = "normgen_launch_of_the_tests"


class Built(NamedTuple):
    """The launcher's module, the driver of the tests, XLA's version as the handler saw it, and the device."""

    native: Any
    driver: Path
    version: tuple[int, int, bool]
    device: LauncherCpu


@dataclass
class Host:
    """asked: (question, context) of calls that no plan was known for, questions: of those that were traced."""

    device: LauncherCpu
    version: tuple[int, int, bool]
    asked: list[tuple[str, int]] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)

    def prepare(self, question: str, context: int) -> None:
        self.asked.append((question, context))
        target.planned(question, context, 0)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """XLA keeps one handler of a name, and the handler its plans: both are those of the whole session."""
    folder = tmp_path_factory.mktemp("xla")
    native = loaded(compiled(LAUNCHER, folder / "_launcher.so", f"-I{INCLUDE}"))
    driver = compiled([HERE / "driver.c"], folder / "libdriver.so")
    handler = native.xla_start(str(driver), lambda *_: None)
    jax.ffi.register_ffi_target(NAME, handler, platform="cpu")
    return Built(native, driver, native.xla_version(), LauncherCpu(driver))


@pytest.fixture
def host(built: Built, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """Operators of JAX on the CPU take kernels."""
    made, digest_of = Host(built.device, built.version), target.digest_of
    built.device.seen.clear()
    built.device.answer = 0

    def noted(question: str) -> int:
        made.questions.append(question)
        return digest_of(question)

    for module, name in ((repeat, "_launcher"), (xla, "native")):
        monkeypatch.setattr(module, name, built.native)
    for module in (handles, kernels):
        monkeypatch.setattr(module, "executor_for", lambda _: built.device)
    answers = {"NAME": NAME, "PLATFORM": "cpu", "device": lambda: 0, "context_of": lambda _: 0, "digest_of": noted}
    for name, answer in answers.items():
        monkeypatch.setattr(target, name, answer)
    xla.handler(made.prepare, str(built.driver))
    jax.clear_caches()
    yield made
    jax.clear_caches()
