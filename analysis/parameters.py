"""The parameters that two runs ended with, and how far they are apart. Reads the trainers' files without Flax."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

POLICY = Path("checkpoints") / "policy.msgpack"
_ARRAY = 1  # Flax's extension type: (shape, name of the dtype, bytes)


@dataclass(frozen=True, kw_only=True)
class Distance:
    """Parameters B minus A."""

    differing: int  # entries
    entries: int
    largest: float  # absolute difference of an entry
    relative: float  # norm of B - A over the norm of A

    def __str__(self) -> str:
        if not self.differing:
            return f"equal in all {self.entries:,} entries"
        return (
            f"{self.differing:,} of {self.entries:,} entries differ, by {self.largest:.3g} at most; "
            f"|B - A| / |A| is {self.relative:.3g}"
        )


def distance(a: Path, b: Path) -> Distance | None:
    """Of the runs in two folders; None unless both saved a policy of one form."""
    if not ((a / POLICY).exists() and (b / POLICY).exists()):
        return None
    in_a, in_b = read_parameters(a / POLICY), read_parameters(b / POLICY)
    if {name: x.shape for name, x in in_a.items()} != {name: x.shape for name, x in in_b.items()}:
        return None
    vector_a, vector_b = (np.concatenate([own[name].ravel() for name in sorted(own)]) for own in (in_a, in_b))
    gap = vector_b.astype(np.float64) - vector_a
    return Distance(
        differing=int(np.count_nonzero(gap)),
        entries=gap.size,
        largest=float(np.abs(gap).max()),
        relative=float(np.linalg.norm(gap) / np.linalg.norm(vector_a.astype(np.float64))),
    )


def read_parameters(path: Path) -> dict[str, np.ndarray]:
    """Every array of a saved policy by the path to it, such as `params/torso/Dense_0/kernel`."""
    try:
        content = msgpack.unpackb(path.read_bytes(), ext_hook=_extension, raw=False)
        return dict(_flat(content["params"], ""))
    except (OSError, ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"{path}: cannot be read as a policy ({error})") from error


def _extension(code: int, data: bytes) -> Any:
    if code != _ARRAY:
        raise ValueError(f"extension type {code}; allowed: {_ARRAY}, an array")
    shape, dtype, raw = msgpack.unpackb(data, raw=False)
    return np.frombuffer(raw, np.dtype(dtype)).reshape(shape)


def _flat(tree: Mapping[str, Any], prefix: str):
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value
