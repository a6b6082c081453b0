"""`normgen engines`: what an engine would run of ours, and what is untuned."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import click

from normgen.cli.options import CommandGroup, json_option, parse_device, show, target_option
from normgen.cuda.driver import device_facts, devices
from normgen.device import Device, target
from normgen.engines.vllm_sizes import Coverage, calls_of, coverage, coverage_text, read_config
from normgen.errors import NoDeviceError, UsageError
from normgen.suites.bands import parse_rows

GROUP = "vllm.general_plugins"


@click.group("engines", cls=CommandGroup)
def engines() -> None:
    """What inference engines run of ours. Each uses normgen where its own configuration names it, and nowhere else."""


@engines.command("vllm")
@click.option("--check", is_flag=True, help="Say what would be used, and what is untuned; it changes nothing.")
@click.option("--model", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A model's config.json.")
@click.option("--tp", type=click.IntRange(1, 1024), default=1, show_default=True, help="GPUs that share each layer.")
@click.option("--rows", default="1..16384", show_default=True, help="Tokens of a step.")
@click.option("--device", default=None, help="Number of a GPU, or cpu (default: the first GPU, else --target).")
@target_option
@json_option
def vllm(check: bool, model: Path | None, tp: int, rows: str, device: str | None, target: str, as_json: bool) -> None:
    """Whether vLLM finds the provider "normgen", and which kernels it would run for a model.

    With --model: a line for each operation and size that vLLM calls for it, with the row counts that are tuned and
    those that are not; `normgen tune --engine vllm --model CONFIG.json` tunes them.

    \b
    --json prints {engine, version, plugin, device, calls: [{name, spec, cols, dtype, dtypes, tuned, untuned, reason}]}.
    """
    if not check:
        raise UsageError("say what to do with the engine", hint="normgen engines vllm --check --model CONFIG.json")
    facts = {"engine": "vllm", "version": _version("vllm"), "plugin": is_plugged_in()}
    if model is None:
        show(facts | {"device": None, "calls": []} if as_json else _about(facts))
        return
    where = _device(device, target)
    asked = parse_rows(rows)
    found = [coverage(call, where, rows=asked) for call in calls_of(read_config(model), tp=tp)]
    if as_json:
        show(facts | {"device": where.name, "calls": found})
    else:
        show("\n".join((_about(facts), f"on {where.name}, {tp} to share each layer:", "", _text(found, model, tp))))


def is_plugged_in() -> bool:
    """Whether an engine finds our entry point: not in a source tree that was never installed."""
    return any(point.name == "normgen" for point in metadata.entry_points(group=GROUP))


def _about(facts: dict[str, Any]) -> str:
    version, is_found = facts["version"], facts["plugin"]
    lines = [f"vllm {version} is installed" if version else "vllm is not installed here"]
    lines.append(
        f"its processes find the provider normgen, by the entry point group {GROUP}"
        if is_found
        else f"no entry point of normgen stands in the group {GROUP}: pip install normgen"
    )
    lines.append('a server uses it where it is named: --ir-op-priority \'{"rms_norm": ["normgen"], ...}\'')
    return "\n".join(lines)


def _text(found: list[Coverage], model: Path, tp: int) -> str:
    lines = [coverage_text(found)]
    if any(one.untuned for one in found):
        share = f" --tp {tp}" if tp > 1 else ""
        lines.append("\nuntuned rows run the nearest record's schedule, or the default; to tune them:")
        lines.append(f"  normgen tune --engine vllm --model {model}{share}")
    return "\n".join(lines)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _device(asked: str | None, named: str) -> Device:
    number = parse_device(asked)
    if number == "cpu":
        return target(named)
    try:
        here = devices()
    except NoDeviceError:
        here = []
    if number is None and not here:
        return target(named)
    return device_facts(number or 0) if isinstance(number, int) or number is None else target(named)
