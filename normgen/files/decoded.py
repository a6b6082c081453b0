"""JSON and xz from outside: whatever is wrong with it is a ValueError, and none of it fills the memory."""

from __future__ import annotations

import json
import lzma
from typing import Any

XZ_MAGIC = b"\xfd7zXZ\x00"
LARGEST_UNPACKED = 1 << 28  # bytes; the largest sweep of ours has 2 MiB
DEEPEST = 100  # lists and objects within each other; ours have 6
MOST_DIGITS = 100  # of a whole number; ours have 20
LARGEST_MEMORY = 1 << 27  # bytes that unpacking itself may take; xz -9 takes 65 MiB


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text: one that can be walked, computed with and written again. Raises ValueError."""
    try:
        found = json.loads(text, parse_int=_whole)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise _too_deep() from None
    data = text.encode(errors="replace") if isinstance(text, str) else text
    if data.count(b"[") + data.count(b"{") > DEEPEST and _is_deep(found):
        raise _too_deep()
    if b"\\u" in data:
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("not JSON that can be written again: half a surrogate pair") from None
    return found


def _whole(digits: str) -> int:
    """Larger ones overflow where they meet floats."""
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def _is_deep(value: Any) -> bool:
    layer, depth = [value], 0
    while layer and depth <= DEEPEST:
        layer = [v for one in layer for v in _within(one)]
        depth += 1
    return bool(layer)


def _within(value: Any) -> list[Any]:
    inside = list(value.values()) if isinstance(value, dict) else value
    return inside if isinstance(inside, list) else []


def _too_deep() -> ValueError:
    return ValueError("not JSON that can be read: it is nested too deeply")


def unpacked(data: bytes) -> bytes:
    """The bytes of an xz file, and any others as they are. Raises ValueError, also where they are too many."""
    if not data.startswith(XZ_MAGIC):
        return data
    reader = lzma.LZMADecompressor(memlimit=LARGEST_MEMORY)
    try:
        found = reader.decompress(data, max_length=LARGEST_UNPACKED)
    except lzma.LZMAError as error:
        raise ValueError(f"damaged xz: {error}") from None
    if not reader.eof:
        what = "cut off" if reader.needs_input else f"more than {LARGEST_UNPACKED >> 20} MiB when unpacked"
        raise ValueError(f"damaged xz: {what}")
    return found
