"""Hardware counters: what ncu's CSV says, which row is whose, what refuses, and the command line of it all."""

from __future__ import annotations

import json
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from normgen.cli.main import cli
from normgen.cli.profile import command as profile_command
from normgen.device import target
from normgen.errors import NoDeviceError, UsageError
from normgen.program.source import problem_for
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.studies import counters
from normgen.studies.counters import Counters, Profiled, counted, read

H200 = target("h200")
WARP = Schedule(threads_per_row=32, rows_per_block=4, vector=4, hold="registers", unroll=0)
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
# Name of a column, its unit, and the cells of two kernels as ncu writes them with --print-units base.
COLUMNS = (
    ("ID", "", "0", "1"),
    ("Process ID", "", "4711", "4711"),
    ("Process Name", "", "python3.11", "python3.11"),
    ("Host Name", "", "127.0.0.1", "127.0.0.1"),
    ("thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg", "", '"<default>:normgen:ab"', ""),
    ("Kernel Name", "", "FIRST<Config>(float *, int)", "SECOND"),
    ("Block Size", "", "(128, 1, 1)", "(256, 1, 1)"),
    ("dram__bytes_read.sum", "byte", "25,165,824", "1,000"),
    ("dram__bytes_write.sum", "byte", "1048576", "24"),
    ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "%", "91.25", "3.5"),
    ("gpu__time_duration.sum", "nsecond", "13,000", "2,500"),
    ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "", "512", "0"),
    ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", "", "4,096", "16"),
    ("lts__t_sector_hit_rate.pct", "%", "50.5", "n/a"),
    ("lts__t_sectors.sum", "sector", "1,000,000", "2"),
    ("sm__warps_active.avg.pct_of_peak_sustained_active", "%", "61.5", "10"),
    (STALL.format("barrier"), "inst", "1.5", "0"),
    (STALL.format("long_scoreboard"), "inst", "7.25", "0"),
    (STALL.format("long_scoreboard_not_issued"), "inst", "7.2", "0"),
    (STALL.format("selected"), "inst", "1", "1"),
)


def csv_of(*kernels: str, columns: Any = COLUMNS) -> str:
    """What ncu prints of these kernels, whose figures are those of the two in turns."""

    def line(cells: Any) -> str:
        return ",".join('"' + str(cell).replace('"', '""') + '"' for cell in cells)

    rows = [line(column[0] for column in columns), line(column[1] for column in columns)]
    for number, kernel in enumerate(kernels):
        cells = [kernel if column[0] == "Kernel Name" else column[2 + number % 2] for column in columns]
        rows.append(line(cells))
    before = "==PROF== Connected to process 4711 (/usr/bin/python3.11)\n"
    before += "".join(f'==PROF== Profiling "{kernel}": 0%....50%....100% - 9 passes\n' for kernel in kernels)
    return before + "\n".join(rows) + "\n==PROF== Disconnected from process 4711\n"


def profiled(*schedules: Schedule, op: str = "layernorm", **asked: Any) -> list[Profiled]:
    problem = problem_for(load(op), **{"shape": "64x768", **asked})
    return [Profiled.of(problem, schedule, H200, hot=False) for schedule in schedules]


def names(found: list[Profiled]) -> list[str]:
    return [kernel.name for one in found for kernel in one.module.kernels]


def test_the_rows_of_a_csv_are_read_with_commas_quotes_and_words_for_missing_numbers() -> None:
    first, second = read(csv_of("first", "second"))
    assert (first.kernel, second.kernel) == ("first", "second")
    assert first.values["dram__bytes_read.sum"] == 25165824
    assert first.values["lts__t_sector_hit_rate.pct"] == 50.5
    assert "lts__t_sector_hit_rate.pct" not in second.values  # n/a
    assert "Process ID" not in first.values


def test_other_units_than_the_base_ones_are_brought_to_them() -> None:
    other = {"byte": ("Mbyte", "25.165824"), "nsecond": ("usecond", "13")}
    columns = [(name, *other.get(unit, (unit, one)), *rest) for name, unit, one, *rest in COLUMNS]
    (row,) = read(csv_of("first", columns=columns))
    assert row.values["dram__bytes_read.sum"] == pytest.approx(25165824)
    assert row.values["gpu__time_duration.sum"] == pytest.approx(13000)


def test_the_kernels_of_a_call_add_up_and_the_longest_gives_the_rates() -> None:
    found = Counters.of(read(csv_of("first", "second")))
    assert (found.dram_read_bytes, found.dram_write_bytes, found.dram_bytes) == (25166824, 1048600, 26215424)
    assert (found.conflicts, found.wavefronts, found.ns) == (512, 4112, 15500)
    assert (found.dram_percent, found.l2_hit_percent, found.occupancy_percent) == (91.25, 50.5, 61.5)
    assert list(found.stalls.items()) == [("long_scoreboard", 7.25), ("barrier", 1.5)]  # the largest first


def test_a_counter_that_ncu_lacks_is_none_and_no_zero() -> None:
    columns = [column for column in COLUMNS if not column[0].startswith(("dram__bytes_read", "l1tex"))]
    found = Counters.of(read(csv_of("first", columns=columns)))
    assert (found.dram_read_bytes, found.dram_bytes, found.conflicts) == (None, None, None)
    text = counters.lines(profiled(WARP), [found])
    assert "- bytes, 91.2 % of its peak" in text
    assert "- of - wavefronts" in text


def test_rows_go_to_the_schedules_in_their_order() -> None:
    """A backward pass has two kernels where another schedule of it has one."""
    two, one = profiled(
        Schedule(), Schedule(columns="partials_last_tile"), direction="backward"
    )  # fmt: skip
    assert [len(found.module.kernels) for found in (two, one)] == [2, 1]
    rows = read(csv_of(*names([two, one])))
    assert [found.ns for found in counted(rows, [two, one])] == [15500, 13000]


def test_rows_of_other_kernels_are_refused_and_the_kernels_named() -> None:
    (one,) = profiled(WARP)
    for text in (csv_of("elementwise"), csv_of(*names([one]) * 2)):
        with pytest.raises(UsageError, match="the rows of ncu are those") as refused:
            counted(read(text), [one])
        assert names([one])[0] in str(refused.value.hint)


def test_counters_that_are_forbidden_are_an_error_that_says_what_would_allow_them() -> None:
    text = (
        "==PROF== Connected to process 7 (/usr/bin/python3.11)\n"
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on "
        "the target device 0.\n==PROF== Disconnected from process 7\n==WARNING== No kernels were profiled.\n"
    )
    with pytest.raises(NoDeviceError, match="must be allowed to read the GPU's counters") as refused:
        read(text)
    assert "ERR_NVGPUCTRPERM" in str(refused.value.received)
    assert "NVreg_RestrictProfilingToAdminUsers=0" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("==ERROR== Failed to find metric dram__bytes_read.sum\n", "Failed to find metric dram__bytes_read.sum"),
        ("error: no usable GPU\n  hint: none\n==WARNING== No kernels were profiled.\n", "error: no usable GPU"),
        ("", "nothing"),
    ],
)
def test_any_other_end_of_ncu_is_an_error_in_its_own_words(text: str, said: str) -> None:
    with pytest.raises(NoDeviceError) as refused:
        read(text)
    assert said in str(refused.value.received)


ASKED = ("profile", "--shape", "64x768", "--schedule", "plain", "--schedule", "plain,vector=4")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, [*ASKED, *arguments], catch_exceptions=False)


def kernels_of(*schedules: Schedule) -> list[str]:
    return names(profiled(*schedules))


def test_without_a_gpu_the_command_is_printed_and_runs_the_same_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_command, "find_gpu", lambda _: None)
    done = run("--setting", "hot")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("ncu ")]
    words = shlex.split(line.removesuffix(" > ncu.csv"))
    assert done.exit_code == 0
    assert words[words.index("normgen") :] == ["normgen", *ASKED, "--setting", "hot", "--launch"]
    assert words[words.index("--cache-control") + 1] == "none"  # all would empty what is to be hot
    assert "there is no GPU here" in done.stdout
    assert "512" not in done.stdout


def test_what_ncu_printed_elsewhere_is_shown_beside_what_is_derived(tmp_path: Path) -> None:
    file = tmp_path / "ncu.csv"
    file.write_text(csv_of(*kernels_of(Schedule(), Schedule(vector=4))))
    text = run("--from", str(file)).stdout
    for said in ("26,214,400 bytes, 91.2 % of its peak", "32,000,000 bytes, 50.5 % of the sectors hit", "61.5 %"):
        assert said in text
    assert "long_scoreboard 7.2, barrier 1.5" in text
    assert "512 of 4,096 wavefronts" in text
    assert "13.00 us under ncu, not comparable with a bench" in text
    answer = json.loads(run("--from", str(file), "--json").stdout)
    first, second = answer["kernels"]
    assert (first["counters"]["ns"], second["counters"]["ns"]) == (13000, 2500)
    assert set(first["derived"]) == {"DRAM", "L2", "occupancy", "stalls", "bank conflicts", "time"}
    assert first["schedule"]["vector"] != second["schedule"]["vector"]


def test_where_a_gpu_and_ncu_are_it_is_run_and_its_answer_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_command, "find_gpu", lambda _: (0, H200))
    (tmp_path / "out.csv").write_text(csv_of(*kernels_of(Schedule(), Schedule(vector=4))))
    ncu = tmp_path / "my_ncu"
    ncu.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/asked\ncat {tmp_path}/out.csv\n')
    ncu.chmod(ncu.stat().st_mode | stat.S_IXUSR)
    done = run("--ncu", str(ncu))
    assert "512 of 4,096 wavefronts" in done.stdout
    assert "> ncu.csv" not in done.stdout
    asked = (tmp_path / "asked").read_text().split("\n")
    assert asked[asked.index(sys.executable) :] == [sys.executable, "-m", "normgen", *ASKED, "--launch", ""]
    assert asked[asked.index("--cache-control") + 1] == "all"
    (tmp_path / "out.csv").write_text("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
    with pytest.raises(NoDeviceError, match="must be allowed"):
        run("--ncu", str(ncu))


def test_the_cpu_has_no_counters() -> None:
    with pytest.raises(UsageError, match="counters are a GPU's"):
        run("--device", "cpu")


@pytest.mark.gpu
def test_the_program_that_ncu_runs_launches_each_schedule_once_between_start_and_stop() -> None:
    """ncu itself need not be there: without it cuProfilerStart does nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "normgen", *ASKED, "--launch"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
