"""JSON and xz from outside: whatever is wrong with it is a ValueError, and none of it fills the memory."""

from __future__ import annotations

import json
import lzma
from typing import Any

XZ_MAGIC = b"\xfd7zXZ\x00"
LARGEST_UNPACKED = 1 << 28  # bytes; the largest sweep of ours has 2 MiB
LARGEST_MEMORY = 1 << 27  # bytes that unpacking itself may take; xz -9 takes 65 MiB


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: it is nested too deeply") from None


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
