"""What an operator is in every framework: a function of a spec's tensors, and what a call of it returns."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from normgen.errors import UsageError
from normgen.operators.forms import Forms, writes_of
from normgen.operators.signature import Beside, as_called, functions_of


class OperatorOf(ABC):
    """An operation on a framework's arrays; call it as `function`, whose arguments it documents.

    returns  what a call returns, by name
    """

    def __init__(
        self,
        calls: Forms,
        returns: tuple[str, ...],
        *,
        name: str,
        takes: Mapping[str, str] | None,
        beside: Beside | None,
        **signature: Any,
    ) -> None:
        """As `functions_of`, of what its `signature` names; without a name, the spec's."""
        self.spec, self.returns, self._calls = calls.spec, returns, calls
        self._name, self._takes = name or calls.spec.name, takes or {}
        self._writes = writes_of(calls.spec, returns)
        self._of_plain = tuple(self._writes.plainly.index(output) for output in returns)
        self._of_saving = tuple(self._writes.saving.index(output) for output in returns)
        self.function, self.bound = functions_of(
            calls.spec, calls.reads, self.run, name=self._name, takes=self._takes, beside=beside, **signature
        )
        self.function.operator = self  # type: ignore[attr-defined]
        self.__signature__ = inspect.signature(self.function)  # what help and editors show of a call

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.function(*args, **named)

    def __repr__(self) -> str:
        return f"<normgen operator {self.function.__name__}: {self.spec.summary}>"

    def run(self, arrays: Sequence[Any], scalars: Any, dtype: Any, option: Any) -> Any:
        """A call. Its refusals are in the words of the function that was called."""
        try:
            return self._run(arrays, scalars, dtype, option)
        except UsageError as error:
            raise self.as_called(error) from error

    def as_called(self, error: UsageError) -> UsageError:
        """The refusal in the words of the function that was called."""
        return as_called(error, self.spec, self._name, self._takes)

    @abstractmethod
    def _run(self, arrays: Any, scalars: Any, dtype: Any, option: Any, /) -> Any: ...


def picked(results: Any, places: tuple[int, ...]) -> Any:
    """Of what was written, what is returned: one by itself, several as a tuple."""
    if not isinstance(results, tuple):
        return results
    return results[places[0]] if len(places) == 1 else tuple([results[i] for i in places])
