"""Views of foreign arrays. numpy is a real consumer of DLPack, and a producer, on the host."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.cuda import arrays, dlpack
from normgen.cuda.arrays import ON_CPU, DeviceArray, view
from normgen.errors import UsageError


class _Dlpack:
    """What a library with only DLPack offers: the array's own capsules, whose memory nobody else keeps."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **_: object) -> Any:
        return self.array.__dlpack__()


@pytest.mark.parametrize("offered", [np.asarray, _Dlpack])
def test_a_strided_array_of_the_host_is_read_as_it_is_or_through_dlpack(offered: Any) -> None:
    base = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    part = base[:, 1:, :4]
    facts = view(offered(part))
    assert (facts.pointer, facts.shape, facts.strides) == (part.ctypes.data, (3, 3, 4), (20, 5, 1))
    assert (facts.dtype, facts.device, facts.readonly) == ("f32", ON_CPU, False)


@pytest.mark.parametrize("offered", [np.asarray, _Dlpack])
@pytest.mark.parametrize(
    ("numpy_name", "name"), [("float16", "f16"), ("float64", "float64"), ("int32", "i32"), ("int16", "int16")]
)
def test_dtypes_have_our_name_or_their_own(numpy_name: str, name: str, offered: Any) -> None:
    assert view(offered(np.zeros(3, dtype=numpy_name))).dtype == name


def test_what_numpy_cannot_export_is_read_all_the_same() -> None:
    array = np.zeros((2, 3), dtype=ml_dtypes.bfloat16)
    array.flags.writeable = False
    assert view(array)[1:6] == ((2, 3), (3, 1), "bf16", ON_CPU, True)


def test_numbers_with_swapped_bytes_are_of_a_dtype_we_do_not_have() -> None:
    assert view(np.zeros(3, np.float32).astype(np.dtype(np.float32).newbyteorder())).dtype in (">f4", "<f4")


@dataclass
class _Interface:
    """What a library with only the CUDA array interface offers."""

    facts: dict[str, Any]
    device: int = 0

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.facts

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device


def _interface(**changes: Any) -> _Interface:
    facts = {"shape": (2, 3), "typestr": "<f4", "data": (4096, False), "strides": None, "version": 3}
    return _Interface({**facts, **changes}, device=1)


def test_the_cuda_array_interface_gives_pointer_strides_and_stream() -> None:
    facts = view(_interface(strides=(64, 4), stream=7, data=(8192, True)))
    assert (facts.pointer, facts.shape, facts.strides, facts.dtype) == (8192, (2, 3), (16, 1), "f32")
    assert (facts.device, facts.readonly, facts.ready_stream) == (1, True, 7)
    assert view(_interface()).strides == (3, 1)
    assert view(_interface()).ready_stream is None


def test_bfloat16_is_recognised_by_the_type_string_ml_dtypes_writes() -> None:
    typestr = np.dtype(ml_dtypes.bfloat16).str
    assert view(_interface(typestr=typestr)).dtype == "bf16"


def test_strides_between_elements_are_refused() -> None:
    with pytest.raises(UsageError, match="whole elements"):
        view(_interface(strides=(13, 4)))
    fields = np.zeros(4, dtype=[("value", "<f4"), ("mark", "u1")])
    with pytest.raises(UsageError, match=r"\(5,\) bytes of 4-byte elements"):
        view(fields["value"])


@pytest.mark.parametrize("thing", [[1.0, 2.0], 3.5, "x", None])
def test_what_is_no_array_is_named(thing: object) -> None:
    with pytest.raises(UsageError, match=f"received: {type(thing).__name__}"):
        view(thing)


class _Exporter:
    """Host memory offered through our own DLPack producer."""

    def __init__(self, array: np.ndarray[Any, Any], dtype: str) -> None:
        self.array, self.dtype = array, dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU, 0

    def __dlpack__(self, **_: object) -> Any:
        return dlpack.export(
            pointer=self.array.ctypes.data,
            shape=self.array.shape,
            dtype=self.dtype,
            device_type=dlpack.CPU,
            device_id=0,
            owner=self.array,
        )


def test_numpy_reads_what_we_export_and_shares_its_memory() -> None:
    array = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    taken = np.from_dlpack(_Exporter(array, "f32"))
    np.testing.assert_array_equal(taken, array)
    assert taken.ctypes.data == array.ctypes.data


def test_numpy_reads_an_export_of_strides_of_its_own() -> None:
    memory = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)

    class _Columns(_Exporter):
        def __dlpack__(self, **_: object) -> Any:
            where = {"device_type": dlpack.CPU, "device_id": 0, "owner": memory}
            return dlpack.export(pointer=memory.ctypes.data, shape=(6, 3), strides=(1, 8), dtype="f32", **where)

    np.testing.assert_array_equal(np.from_dlpack(_Columns(memory, "f32")), memory[:, :6].T)
    np.testing.assert_array_equal(arrays.with_strides(memory.reshape(-1), (6, 3), (1, 8)), memory[:, :6].T)
    assert [
        arrays.extent_of(*shaped) for shaped in (((6, 3), (1, 8)), ((2, 3), (3, 1)), ((0, 3), (3, 1)), ((), ()))
    ] == [*(24, 6, 0, 1)]


def test_an_export_lives_as_long_as_its_consumer_and_no_longer() -> None:
    before = len(dlpack._exported)
    taken = np.from_dlpack(_Exporter(np.ones((2, 2), np.float16), "f16"))
    assert len(dlpack._exported) == before + 1
    del taken
    gc.collect()
    assert len(dlpack._exported) == before
    unused = _Exporter(np.ones(3, np.float32), "f32").__dlpack__()
    assert len(dlpack._exported) == before + 1
    del unused
    gc.collect()
    assert len(dlpack._exported) == before


def test_our_reader_understands_our_export() -> None:
    array = np.zeros((4, 6), dtype=ml_dtypes.bfloat16)
    facts = view(_Exporter(array, "bf16"))
    assert (facts.pointer, facts.shape, facts.strides, facts.dtype) == (array.ctypes.data, (4, 6), (6, 1), "bf16")


def test_a_used_capsule_is_refused() -> None:
    exporter = _Exporter(np.zeros(3, np.float32), "f32")
    capsule = exporter.__dlpack__()

    class _Again:
        def __dlpack_device__(self) -> tuple[int, int]:
            return dlpack.CPU, 0

        def __dlpack__(self, **_: object) -> Any:
            return capsule

    taken = np.from_dlpack(_Again())
    with pytest.raises(UsageError, match="unused 'dltensor' capsule"):
        view(_Again())
    assert taken.shape == (3,)


def test_contiguous_strides_of_empty_and_scalar_shapes() -> None:
    assert dlpack.contiguous_strides(()) == ()
    assert dlpack.contiguous_strides((4, 0, 3)) == (3, 3, 1)


@pytest.mark.gpu
def test_a_device_array_round_trips_through_its_own_protocols() -> None:
    values = np.random.default_rng(3).standard_normal((5, 7)).astype(ml_dtypes.bfloat16)
    array = DeviceArray.of(values)
    np.testing.assert_array_equal(array.numpy().view(np.uint16), values.view(np.uint16))
    expected = (array.buffer.pointer, (5, 7), (7, 1), "bf16", 0)
    assert view(array)[:5] == expected
    through_dlpack = arrays._view_dlpack(array, 0)
    assert through_dlpack[:5] == expected
    columns = DeviceArray((6, 3), "f32", strides=(1, 8))
    columns.buffer.write(np.arange(24, dtype=np.float32))
    np.testing.assert_array_equal(columns.numpy(), np.arange(24).reshape(3, 8)[:, :6].T)
    assert arrays._view_dlpack(columns, 0)[:3] == view(columns)[:3] == (columns.buffer.pointer, (6, 3), (1, 8))
    assert arrays._view_interface(columns, columns.__cuda_array_interface__)[1:3] == ((6, 3), (1, 8))
