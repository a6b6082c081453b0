"""What the process that owns a device does while kernels are judged: it builds a bench and does what it is told.

A message is (verb, positional, named arguments). `open` builds a bench of its named arguments and `close` ends it;
between them a verb is a method of the bench, or `race`, else one of the factory. For each message there are any number
of ("at", key), the kernel that runs next, and then one of

    ("ok", value)               what the call returned
    ("refused", (rule, received, hint))   the device refused the kernel; the bench goes on
    ("fault", (key, outcome, text))   a KernelFaultError; the bench goes on
    ("lost", text)              the context is gone; the process ends
    ("bug", text)               any other exception, with its traceback; the process ends
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from normgen.errors import NormgenError
from normgen.files.loading import load_module
from normgen.measure import timing
from normgen.measure.faults import DeviceLostError, KernelFaultError
from normgen.measure.protocol import Bench
from normgen.records.record import Outcome


class _Announcing:
    """A bench's timer that says which kernel runs next, so that the one that ends the process is known."""

    def __init__(self, bench: Bench, announce: Callable[[str], None]) -> None:
        self._bench = bench
        self._announce = announce
        self.bases = bench.bases
        self.twin = bench.twin

    def warm_up(self, key: str) -> None:
        self._announce(key)
        with _blamed_on(key):
            self._bench.warm_up(key)

    def sample(self, key: str) -> float:
        self._announce(key)
        with _blamed_on(key):
            return self._bench.sample(key)

    def disturbance(self) -> str:
        return self._bench.disturbance() if isinstance(self._bench, timing.WatchedTimer) else ""


@contextlib.contextmanager
def _blamed_on(key: str) -> Iterator[None]:
    """What the device refuses within a race is the fault of the kernel that ran."""
    try:
        yield
    except (KernelFaultError, DeviceLostError):
        raise
    except NormgenError as error:
        raise KernelFaultError(str(error), key=key, outcome=Outcome.LAUNCH_ERROR) from error


class Server:
    """Answers the messages of one parent."""

    def __init__(self, link: Connection, factory: Callable[..., Bench]) -> None:
        self._link = link
        self._factory = factory
        self._bench: Bench | None = None

    def serve(self) -> None:
        """Until the parent closes its end, or is gone when it is to be answered, or the device is lost."""
        goes_on = True
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
            while goes_on:
                verb, args, named = self._link.recv()
                goes_on = self._answer(verb, args, named)

    def _answer(self, verb: str, args: Sequence[Any], named: dict[str, Any]) -> bool:
        try:
            answer: tuple[str, Any] = ("ok", self._do(verb, args, named))
        except KernelFaultError as fault:
            answer = ("fault", (fault.key, fault.outcome.value, str(fault)))
        except DeviceLostError as error:
            answer = ("lost", str(error))
        except NormgenError as error:
            answer = ("refused", (error.rule, error.received, error.hint))
        except Exception:
            answer = ("bug", traceback.format_exc())
        self._link.send(answer)
        return answer[0] not in ("lost", "bug")

    def _do(self, verb: str, args: Sequence[Any], named: dict[str, Any]) -> Any:
        if verb == "open":
            self._bench = self._factory(**named)
            return tuple(self._bench.roofs), tuple(self._bench.bases)
        bench = self._bench
        if verb == "race":
            assert bench is not None, "a race is held on an open bench"
            return timing.race(_Announcing(bench, self._announce), *args, **named)
        if verb == "close":
            self._bench = None
        return getattr(bench or self._factory, verb)(*args, **named)

    def _announce(self, key: str) -> None:
        self._link.send(("at", key))


def bench_of(factory: str) -> Callable[..., Bench]:
    """What builds a bench, by its name: `module:class`."""
    module, _, name = factory.partition(":")
    bench: Callable[..., Bench] = getattr(load_module(module), name)
    return bench


def serve(descriptor: int, factory: Callable[..., Bench]) -> None:
    """Answer the parent at the other end of a socket pair until it is gone."""
    with Connection(descriptor) as link:
        Server(link, factory).serve()
