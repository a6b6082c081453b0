from collections.abc import Callable
from typing import Any

class Launcher:
    def __new__(
        cls,
        names: tuple[str, ...],
        inputs: int,
        out: int,
        written: bytes,
        results: bytes,
        defaults: bytes,
        context: int,
        library: str,
        fail: Callable[[int, int], object],
        /,
    ) -> Launcher: ...
    def call(self, inputs: tuple[Any, ...], named: dict[str, Any], stream: int | None, /) -> Any: ...
    def program(self, is_serial: bool, words: bytes, /) -> int: ...
    def learn(
        self,
        inputs: tuple[Any, ...],
        named: dict[str, Any],
        stream: int | None,
        outputs: tuple[Any, ...] | None,
        fresh: tuple[Any, ...] | None,
        program: int,
        cells: bytes,
        grids: bytes,
        extents: bytes,
        /,
    ) -> bool: ...
    def forget(self) -> None: ...

def admit(kind: type, capsule: object, /) -> bool: ...
def xla_start(library: str | None, prepare: Callable[[str, int], object], /) -> object: ...
def xla_plan(
    digest: int,
    context: int,
    program: bytes,
    cells: bytes,
    grids: bytes,
    bytes: bytes,
    alignments: bytes,
    arguments: int,
    zeroed: int,
    /,
) -> None: ...
def xla_version() -> tuple[int, int, bool]: ...
