"""A trained policy as one file: the settings it was trained with and its parameters (Flax msgpack)."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from flax import serialization

from cleanba.config import CONFIGS, Config

_FORMAT = 1


def save(path: Path, config: Config, params: Any) -> None:
    """Write the file in one step: it is whole or it is not there."""
    content = {
        "format": _FORMAT,
        "algo": config.algo,
        "settings": dataclasses.asdict(config),
        "params": serialization.to_state_dict(params),
    }
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_bytes(serialization.msgpack_serialize(content))
    os.replace(unfinished, path)


def load(path: Path) -> tuple[Config, Any]:
    """What `save` wrote. Raises ValueError where the file is no policy."""
    try:
        content: Any = serialization.msgpack_restore(path.read_bytes())
        if content["format"] != _FORMAT:
            raise ValueError(f"{path}: format is {content['format']}; allowed: {_FORMAT}")
        return CONFIGS[content["algo"]](**content["settings"]), content["params"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a policy that this version can read ({error})") from error
