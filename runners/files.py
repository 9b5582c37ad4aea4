"""Files that appear whole or not at all, on local and on network file systems."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: Mapping[str, Any]) -> None:
    """Readers see the old content or the new, never a part."""
    with _written_beside(path, json.dumps(content, indent=1) + "\n") as temporary:
        os.replace(temporary, path)


def create(path: Path, text: str) -> None:
    """Make a file that nobody has made before. Raises FileExistsError when it is there.

    By a hard link, as open(2) advises for NFS: of several processes on several machines one makes it, and nobody sees a
    part of it.
    """
    with _written_beside(path, text) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            # A server's reply that was lost makes the client ask twice: the count of links tells whose file it is.
            if temporary.stat().st_nlink != 2:
                raise


@contextmanager
def _written_beside(path: Path, text: str) -> Iterator[Path]:
    """A file of this process' own with the text; gone in the end."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        temporary.write_text(text)
        yield temporary
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
