"""M7: an output that overlaps another tensor in part is refused, on each device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as every
from hypothesis import strategies as st

from normgen.errors import UsageError
from normgen.python.arguments import Reach
from normgen.python.handle import Kernel, kernel
from tests.python.devices import Place
from tests.python.test_plans import COLS, ROWS, Given

pytestmark = pytest.mark.filterwarnings("ignore:no record for")


@pytest.fixture
def norm(place: Place) -> Kernel:
    return kernel("layernorm", shape=(ROWS, COLS), device=place.device)


@pytest.mark.parametrize("behind", [1, COLS, (ROWS - 1) * COLS, ROWS * COLS - 1])
@pytest.mark.parametrize("is_before", [False, True])
def test_m7_an_output_that_overlaps_an_input_in_part_is_refused(
    behind: int, is_before: bool, norm: Kernel, place: Place
) -> None:
    given, flat = Given(place), np.zeros(2 * ROWS * COLS, np.float32)
    memory = place.array(flat)
    starts = (behind, 0) if is_before else (0, behind)
    x, y = (place.part(memory, (ROWS, COLS), (COLS, 1), start) for start in starts)
    outputs = {**given.outputs(), "out": y}
    with pytest.raises(UsageError, match=f"'y' and 'x' {4 * behind} bytes apart"):
        norm(**{**given.arrays, "x": x}, **outputs)


def test_m7_rows_that_lie_side_by_side_or_behind_each_other_are_no_overlap(norm: Kernel, place: Place) -> None:
    for start, pitch in ((ROWS * COLS, COLS), (COLS, 2 * COLS)):
        given = Given(place)
        flat = np.zeros(2 * ROWS * COLS, np.float32)
        np.lib.stride_tricks.as_strided(flat, (ROWS, COLS), (4 * pitch, 4))[...] = given.x
        memory = place.array(flat)
        x, y = (place.part(memory, (ROWS, COLS), (pitch, 1), at) for at in (0, start))
        given.check(norm(**{**given.arrays, "x": x}, **{**given.outputs(), "out": y}))


REACHES = st.builds(
    lambda rows, gap, width: Reach(rows=rows, pitch=width + gap, width=width),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(1, 5),
)


@every(REACHES, REACHES, st.integers(-60, 60))
def test_m7_two_reaches_meet_exactly_where_they_share_a_byte(a: Reach, b: Reach, apart: int) -> None:
    def taken(reach: Reach, start: int) -> set[int]:
        return {start + row * reach.pitch + byte for row in range(reach.rows) for byte in range(reach.width)}

    shares = bool(taken(a, 0) & taken(b, apart))
    pitches = {reach.pitch for reach in (a, b) if reach.rows > 1}
    assert a.meets(b, apart) == shares or (len(pitches) == 2 and a.meets(b, apart))
