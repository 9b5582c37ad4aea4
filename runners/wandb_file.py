"""W&B's own file of a run (`run-<id>.wandb`), read back: the library ships no reader of it in Python."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7  # bytes; LevelDB's log format: pieces of a record never cross a block
WHOLE, LAST = 1, 4  # kinds of pieces that end a record; 2 and 3 are a first and a middle one


def records(path: Path) -> Iterator[Any]:
    """The protobuf records of a .wandb file: a header of 7 bytes, then pieces of checksum, length, kind and content.
    A record that was cut off by the end of its writer is left out."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    content, place, parts = path.read_bytes(), HEADER, b""
    while place + HEADER <= len(content):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        if kind == 0 or place + HEADER + length > len(content):
            return
        parts += content[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (WHOLE, LAST):
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def count_rows(path: Path) -> int:
    return sum(record.WhichOneof("record_type") == "history" for record in records(path))
