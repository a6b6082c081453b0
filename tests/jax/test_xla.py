"""XLA's calls of our handler: real call frames of XLA for the CPU, decoded, and launched as emitted text."""

from __future__ import annotations

import ctypes
import json
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

import jax.numpy as jnp  # noqa: E402

import normgen.jax as nj  # noqa: E402
from normgen.errors import UsageError  # noqa: E402
from normgen.jax import target  # noqa: E402
from normgen.python import xla  # noqa: E402
from tests.jax.host import NAME, Host, built, host  # noqa: E402, F401
from tests.python.devices import NEEDS_COMPILER  # noqa: E402
from tests.python.launching import NEEDS_BUILD, REFUSED  # noqa: E402

pytestmark = [NEEDS_BUILD, NEEDS_COMPILER]
DRAW = np.random.default_rng(11)


def drawn(*sizes: int, dtype: Any = np.float32) -> Any:
    return jnp.asarray(DRAW.standard_normal(sizes), dtype)


CALLS: dict[str, tuple[Any, tuple[Any, ...], tuple[int, ...]]] = {  # function, arguments, those differentiated by
    "statistics that are saved": (nj.layer_norm, (drawn(3, 2, 64), drawn(64), drawn(64)), (0, 1, 2)),
    "an input alone": (nj.layer_norm, (drawn(5, 64), drawn(64), drawn(64)), (0,)),
    "two outputs": (nj.add_layer_norm, (drawn(3, 64), drawn(3, 64), drawn(64), drawn(64)), (0, 1, 3)),
    "a row of values": (nj.softmax_sink, (drawn(4, 48), drawn(4)), (0, 1)),
    "batches": (nj.ada_layer_norm, (drawn(2, 3, 64), drawn(2, 64), drawn(2, 64)), (0,)),
    "a number": (nj.dyt, (drawn(6, 64), drawn(1)), (0, 1)),
    "a seed": (nj.dropout_add_rms_norm, (drawn(3, 64), drawn(3, 64), -5), (0, 1)),
    "16 bits": (nj.rms_norm, (drawn(3, 64, dtype=jnp.bfloat16), drawn(64)), (0, 1)),
    "deterministic sums": (nj.operator("rmsnorm", deterministic=True), (drawn(40, 64), drawn(64)), (1,)),
    "labels": (nj.cross_entropy, (drawn(5, 64), jnp.arange(5, dtype=np.int32)), (0,)),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_and_its_gradients_are_those_of_the_formulas(call: str, host: Host) -> None:  # noqa: F811
    function, arguments, wrt = CALLS[call]
    by = [DRAW.standard_normal(y.shape) for y in jax.tree.leaves(jax.eval_shape(function, *arguments))]

    def both() -> Any:
        def loss(*some: Any) -> Any:
            given = [*arguments]
            for place, value in zip(wrt, some, strict=True):
                given[place] = value
            found = function(*given)
            return sum((y * c).sum() for y, c in zip(jax.tree.leaves(found), by, strict=True)), found

        return jax.value_and_grad(loss, tuple(range(len(wrt))), has_aux=True)(*[arguments[place] for place in wrt])

    got = both()
    assert len(host.device.seen) >= 2  # forward and backward
    with pytest.MonkeyPatch.context() as without:
        without.setattr(target, "device", lambda: None)
        jax.clear_caches()
        launches = len(host.device.seen)
        want = both()
    assert len(host.device.seen) == launches
    for ours, formula in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert ours.dtype == formula.dtype
        rough = 2.0**-7 if formula.dtype == jnp.bfloat16 else 2e-6
        ours, formula = np.asarray(ours, np.float64), np.asarray(formula, np.float64)
        np.testing.assert_allclose(ours, formula, rtol=rough, atol=4 * rough * np.abs(formula).max(initial=1))


ALONG: dict[str, tuple[Any, tuple[Any, ...], int]] = {  # function, arguments, the axis of their columns
    "channels": (nj.layer_norm, (drawn(2, 12, 3, 8), drawn(12), drawn(12)), 1),
    "rows of a matrix": (nj.softmax, (drawn(40, 9),), 0),
    "the axis in front of the last": (nj.log_softmax, (drawn(2, 3, 16, 5),), -2),
    "two outputs": (nj.add_rms_norm, (drawn(3, 8, 4), drawn(3, 8, 4), drawn(8)), 1),
    "16 bits": (nj.rms_norm, (drawn(3, 8, 4, dtype=jnp.bfloat16), drawn(8)), 1),
    "labels": (nj.operator("cross_entropy"), (drawn(4, 10, 6), jnp.arange(24, dtype=np.int32).reshape(4, 6) % 10), 1),
}


@pytest.mark.parametrize("call", ALONG)
def test_rows_along_another_axis_are_read_and_written_where_they_lie(call: str, host: Host) -> None:  # noqa: F811
    function, arguments, axis = ALONG[call]
    wrt = tuple(place for place, a in enumerate(arguments) if jnp.issubdtype(a.dtype, jnp.floating))
    shapes = jax.tree.leaves(jax.eval_shape(lambda *a: function(*a, axis=axis), *arguments))
    by = [DRAW.standard_normal(y.shape) for y in shapes]

    def loss(*given: Any) -> Any:
        found = function(*given, axis=axis)
        return sum((y * c).sum() for y, c in zip(jax.tree.leaves(found), by, strict=True)), found

    run = jax.jit(jax.value_and_grad(loss, wrt, has_aux=True))
    got = jax.block_until_ready(run(*arguments))
    questions = [json.loads(question) for question in host.questions]
    size, place = arguments[0].shape, axis % arguments[0].ndim
    assert {q["beside"] for q in questions} == {int(np.prod(size[place + 1 :]))}
    assert {q["direction"] for q in questions} == {"forward", "backward"}
    assert len(host.device.seen) >= 2
    with pytest.MonkeyPatch.context() as without:
        without.setattr(target, "device", lambda: None)
        jax.clear_caches()
        want = jax.value_and_grad(loss, wrt, has_aux=True)(*arguments)
    for ours, formula in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert ours.dtype == formula.dtype
        rough = 2.0**-7 if formula.dtype == jnp.bfloat16 else 2e-6
        ours, formula = np.asarray(ours, np.float64), np.asarray(formula, np.float64)
        np.testing.assert_allclose(ours, formula, rtol=rough, atol=4 * rough * np.abs(formula).max(initial=1))


@pytest.mark.usefixtures("host")
def test_xla_copies_nothing_around_a_call_along_another_axis() -> None:
    x, weight = drawn(2, 12, 3, 8), drawn(12)

    def program(run: Any) -> tuple[int, int]:
        """How many calls of ours, and moves of elements, XLA's program has."""
        text = jax.jit(jax.grad(lambda x: (run(x) ** 2).sum())).lower(x).compile().as_text()
        return text.count(f'custom_call_target="{NAME}"'), len(re.findall(r"[\]}] (?:transpose|copy)\(", text))

    assert program(lambda x: nj.rms_norm(x, weight, axis=1)) == (2, 0)
    calls, moves = program(lambda x: jnp.moveaxis(nj.rms_norm(jnp.moveaxis(x, 1, -1), weight), -1, 1))
    assert calls == 2
    assert moves > 0


def test_under_vmap_rows_along_another_axis_are_one_call(host: Host) -> None:  # noqa: F811
    x = drawn(3, 2, 6, 4)
    for in_axis in (0, 1):
        host.device.seen.clear()
        got = jax.vmap(lambda x: nj.softmax(x, 1), in_axis)(x)
        assert jax.block_until_ready(got) is not None
        assert len(host.device.seen) == 1
        assert json.loads(host.questions[-1])["beside"] == 4
        np.testing.assert_allclose(got, jax.vmap(lambda x: jax.nn.softmax(x, 1), in_axis)(x), rtol=1e-5, atol=1e-6)


def test_batches_along_another_axis_are_moved(host: Host) -> None:  # noqa: F811
    x, scale, shift = drawn(2, 12, 3), drawn(2, 12), drawn(2, 12)
    got = nj.ada_layer_norm(x, scale, shift, axis=1)
    assert json.loads(host.questions[-1])["beside"] == 1
    want = jnp.moveaxis(nj.ada_layer_norm.operator.decomposition(jnp.moveaxis(x, 1, -1), scale, shift), -1, 1)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_small_numbers_leave_as_they_are_stored(host: Host) -> None:  # noqa: F811
    x = drawn(4, 256, dtype=jnp.bfloat16)
    made = nj.operator("quantize_to_fp8_token")
    got = dict(zip(made.returns, made(x), strict=True))
    assert host.device.seen
    want = dict(zip(made.returns, made.decomposition(x), strict=True))
    assert got["q"].dtype == jnp.float8_e4m3fn
    np.testing.assert_allclose(got["scale"], want["scale"], rtol=1e-6)
    same = np.asarray(got["q"], np.float32) == np.asarray(want["q"], np.float32)
    assert same.mean() > 0.99  # the others lie between two numbers, and their scales' last bits decide


def test_under_vmap_it_is_one_call_on_all_rows(host: Host) -> None:  # noqa: F811
    x, weight = drawn(3, 2, 4, 64), drawn(64)
    got = jax.vmap(jax.vmap(lambda x: nj.rms_norm(x, weight, 1e-6)))(x)
    assert len(host.device.seen) == 1
    np.testing.assert_allclose(got, nj.rms_norm.operator.decomposition(x, weight, 1e-6), rtol=1e-5, atol=1e-5)
    jax.vmap(nj.ada_layer_norm, (0, None, 0))(x, drawn(2, 64), drawn(3, 2, 64))
    assert len(host.device.seen) == 2
    jax.vmap(nj.causal_softmax)(x)  # numbers its rows
    jax.vmap(nj.rms_norm)(x, drawn(3, 64))  # each has its own parameters
    assert len(host.device.seen) == 2


def test_under_shard_map_it_runs_on_each_part(host: Host) -> None:  # noqa: F811
    mesh, spec = jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), ("d",)), jax.sharding.PartitionSpec
    x, weight = drawn(4, 64), drawn(64)
    sharded = jax.shard_map(nj.rms_norm, mesh=mesh, in_specs=(spec("d"), spec()), out_specs=spec("d"))
    jax.grad(lambda x, w: (sharded(x, w) ** 2).sum(), (0, 1))(x, weight)
    assert len(host.device.seen) >= 2


def test_a_call_that_no_plan_is_known_for_is_prepared_from_its_question(
    host: Host,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So is that of an executable which another process compiled, or on another device."""
    x = drawn(7, 96)
    planned = target.planned
    monkeypatch.setattr(target, "planned", lambda *_: 0)
    compiled = jax.jit(nj.softmax).lower(x).compile()
    monkeypatch.setattr(target, "planned", planned)
    for _ in range(2):
        np.testing.assert_allclose(compiled(x), jax.nn.softmax(x), rtol=1e-5)
    ((question, context),) = host.asked
    assert context == 0
    assert json.loads(question)["spec"] == "softmax"
    assert json.loads(question)["rows"] == 7


def test_a_spec_of_the_users_own_is_in_the_question(host: Host) -> None:  # noqa: F811
    text = 'name = "twice"\n[tensors]\nx = "input"\ny = "output"\n[scalars]\nby = 2\n[formulas]\ny = "by * x"\n'
    x = drawn(3, 32)
    np.testing.assert_array_equal(nj.operator(text)(x, by=3.0), 3 * x)
    assert host.device.seen
    lowered = jax.jit(lambda x: nj.operator(text)(x)).lower(x).as_text()
    assert "by * x" in lowered


def test_calls_on_many_threads_find_their_plans(host: Host) -> None:  # noqa: F811
    x = drawn(4, 64)
    run = jax.jit(lambda x: nj.softmax(nj.softmax(x)))
    want = np.asarray(run(x))
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(np.asarray(run(x)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all((one == want).all() for one in found)
    assert len(host.device.seen) == 10


# ---- What goes wrong ----


def direct(x: Any, results: Any, **attributes: Any) -> Any:
    return jax.block_until_ready(jax.jit(lambda x: jax.ffi.ffi_call(NAME, results)(x, **attributes))(x))


def unprepared(host: Host, x: Any) -> Any:  # noqa: ARG001, F811
    return direct(x, x, digest=np.int64(1), question='{"spec": "softmax"}')


def another_size(host: Host, x: Any) -> Any:  # noqa: F811
    nj.softmax(x)
    (question,) = set(host.questions)
    return direct(x[:2], x[:2], digest=np.int64(target.digest_of(question)), question=question)


def another_count(host: Host, x: Any) -> Any:  # noqa: F811
    nj.softmax(x)
    (question,) = set(host.questions)
    return direct(x, [x, x], digest=np.int64(target.digest_of(question)), question=question)


def refused_launch(host: Host, x: Any) -> Any:  # noqa: F811
    host.device.answer = REFUSED
    return jax.block_until_ready(nj.softmax(x))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (unprepared, "normgen: .*missing .* required"),
        (another_size, "normgen: buffer 0 of a call has 512 bytes, not 1280"),
        (another_count, "normgen: a call has 1 arguments and 1 results, not 1 and 2"),
        (refused_launch, f"normgen: the CUDA driver refused kernel 0 of a call with code {REFUSED}"),
        (lambda _, x: direct(x, x, digest=np.int64(1)), "attributes are a digest and a question"),
        (lambda _, x: direct(x, x, digest=np.int32(1), question=""), "attributes are a digest and a question"),
    ],
)
def test_what_goes_wrong_is_said_by_xla(call: Callable[[Host, Any], Any], says: str, host: Host) -> None:  # noqa: F811
    with pytest.raises(jax.errors.JaxRuntimeError, match=says):
        call(host, drawn(5, 64))


def test_a_call_of_no_stream_is_refused_by_what_runs_on_a_gpu() -> None:
    with pytest.raises(UsageError, match="runs on a CUDA stream"):
        target.prepare("{}", 0)


# ---- Versions ----


def asked_for_its_version(handler: Any, major: int, minor: int, *, missing: int = 0) -> tuple[int, int, int]:
    """(major, minor, traits) that the handler answers an XLA of that version; `missing`: bytes of its structures."""
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    words = ctypes.c_uint64 * 32
    version = major | minor << 32
    api, metadata, extension, call = words(), words(), words(), words()
    api[:5] = (26 * 8 - missing, 0, 24, 0, version)
    metadata[:6] = (48, 24, 0, 0, 0, 0)
    extension[:4] = (24, 1, 0, ctypes.addressof(metadata))
    call[:3] = (176, ctypes.addressof(extension), ctypes.addressof(api))
    answer = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(get(handler, None))(ctypes.addressof(call))
    assert answer is None
    return metadata[3] & 0xFFFFFFFF, metadata[3] >> 32, metadata[4]


def test_xlas_own_version_was_seen_when_the_handler_was_registered(host: Host) -> None:  # noqa: F811
    nj.softmax(drawn(2, 32))
    major, minor, is_known = host.version
    assert (major, is_known) == (0, True)
    assert minor >= 1


@pytest.mark.parametrize(("version", "missing"), [((1, 0), 0), ((0, 0), 0), ((0, 3), 26 * 8 - 64)])
def test_a_version_with_other_structures_is_refused_in_one_line(
    version: tuple[int, int],
    missing: int,
    built: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(xla, "native", built[0])
    handler = xla.handler(lambda *_: None, str(built[1]))
    assert asked_for_its_version(handler, *version, missing=missing) == (0, 0, 0)
    with pytest.raises(UsageError, match=r"version 0\.1 and later of XLA's call interface") as refused:
        xla.checked_version()
    assert refused.value.received == f"{version[0]}.{version[1]}"
    assert asked_for_its_version(handler, 0, 7) == (0, 7, 1)  # a later one has more members behind those we know
    xla.checked_version()
