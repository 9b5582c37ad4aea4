"""Strict YAML: what a declaration says is what is meant, or one sentence says what to change."""

import difflib
import math
import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml


class _StrictLoader(yaml.SafeLoader):
    """YAML's safe types, a repeated key refused, `6e-4` read as a number (YAML 1.1 as PyYAML has it reads a string)."""

    def construct_mapping(self, node, deep=False):
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise ValueError(f"line {key_node.start_mark.line + 1}: a key is {key!r}; allowed: text")
            if key in seen:
                raise ValueError(f"line {key_node.start_mark.line + 1}: key {key!r} stands twice; state it once")
            seen.add(key)
        return super().construct_mapping(node, deep)


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def load_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds. Raises ValueError that names the file."""
    try:
        content = yaml.load(path.read_text(), Loader=_StrictLoader)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: is not valid YAML ({' '.join(str(error).split())})") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds {describe(content)}; allowed: a mapping of keys to values")
    return content


def check_keys(
    mapping: Mapping[str, Any], *, where: str, required: Iterable[str], optional: Iterable[str] = ()
) -> None:
    """Raise ValueError for a key that is not known (with the nearest) or one that is missing."""
    required = tuple(required)
    allowed = (*required, *optional)
    for key in mapping:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ValueError(f"{where}: unknown key {key!r}; {hint}allowed: {', '.join(allowed)}")
    if missing := [key for key in required if key not in mapping]:
        raise ValueError(f"{where}: key {missing[0]!r} is missing; needed: {', '.join(required)}")


def check_type(value: Any, kind: type, *, where: str) -> None:
    """Raise ValueError unless the value is of exactly `kind`; a whole number passes for a float, `.inf` and `.nan` for
    nothing."""
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise ValueError(f"{where} is {describe(value)}; allowed: {_KINDS[kind]}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{where} is {value}; allowed: a finite number")


def check_list(value: Any, kind: type, *, where: str) -> None:
    """Raise ValueError unless the value is a list of at least one `kind`, none of them twice."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where} is {describe(value)}; allowed: a list of at least one {_KINDS[kind]}")
    for item in value:
        check_type(item, kind, where=f"{where}: an entry")
    for item in value:
        if value.count(item) > 1:
            raise ValueError(f"{where}: {item!r} stands {value.count(item)} times; state it once")


_KINDS = {str: "text", int: "whole number", float: "number", dict: "mapping", bool: "true or false"}


def describe(value: Any) -> str:
    if value is None:
        return "empty"
    return f"{value!r}, a {_KINDS[type(value)]}" if type(value) in _KINDS else f"{value!r}"
