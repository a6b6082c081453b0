"""All modules of these tests, built together."""

from __future__ import annotations

import pytest

from normgen.cpu import Program, build_many
from tests.cpu.cases import SOUND
from tests.cpu.faulty import PLANTED
from tests.cpu.faulty_order import ORDER


@pytest.fixture(scope="session")
def programs() -> dict[str, Program]:
    modules = {**SOUND, **{name: planted.module for name, planted in (PLANTED | ORDER).items()}}
    return dict(zip(modules, build_many(list(modules.values())), strict=True))
