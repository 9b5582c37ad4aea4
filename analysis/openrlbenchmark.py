"""openrlbenchmark's filter strings (github.com/openrlbenchmark/openrlbenchmark, `rlops`), read strictly.

    --filters '?we=ENTITY&wpn=PROJECT&ceik=env_id&cen=exp_name&metric=charts/avg_episodic_return'
        'EXP_NAME?tag=v1.0.0b2&cl=LABEL' 'EXP_NAME' --env-ids Alien-v5 Pong-v5

The first string of a group names the project and its keys: ceik is the config's key of the game, cen that of the
experiment's name. The others are selections: an experiment's name, with tags that the runs have, a user, a label, and
settings (seed=1&seed=2). A group has env ids of its own, or all groups share one list.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from runners.snapshot import setting

GROUP = {  # the key of a group -> its default in openrlbenchmark; None: needed
    "we": None, "wpn": None, "ceik": "env_id", "cen": "exp_name", "metric": "charts/episodic_return",
    "xaxis": "global_step",
}  # fmt: skip
ONCE = ("user", "cl")  # of a selection; tag can be repeated, every other key is one of the runs' settings


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Runs of one experiment's name on some games, and which of their metrics and settings are what."""

    text: str
    entity: str
    project: str
    exp_name: str
    env_ids: tuple[str, ...]
    tags: tuple[str, ...]  # a run has all of them
    user: str | None
    label: str | None
    settings: Mapping[str, tuple[Any, ...]]  # the config's key -> allowed values
    columns: Mapping[str, str]  # what it is -> the name of the metric, or the config's key

    @property
    def where(self) -> dict[str, Any]:
        """The filter as W&B's server takes it, in MongoDB's language."""
        settings = {self.columns["algorithm"]: (self.exp_name,), self.columns["env_id"]: self.env_ids, **self.settings}
        conditions: list[dict[str, Any]] = [
            {f"config.{_with_value(key)}": {"$in": list(values)}} for key, values in settings.items()
        ]
        conditions += [{"tags": {"$in": [tag]}} for tag in self.tags]
        return {"$and": [*conditions, *([{"username": self.user}] if self.user else [])]}

    def matches(self, config: Mapping[str, Any], tags: set[str], user: str | None) -> bool:
        """Whether `where` holds for a run of which this is known."""
        settings = {self.columns["algorithm"]: (self.exp_name,), self.columns["env_id"]: self.env_ids, **self.settings}
        return (
            all(setting(config, key) in values for key, values in settings.items())
            and tags >= set(self.tags)
            and self.user in (None, user)
        )


def selections(filters: Sequence[Sequence[str]], env_ids: Sequence[Sequence[str]]) -> list[Selection]:
    """The selections of all groups. Raises ValueError naming the string, what was found and what is allowed."""
    if not filters:
        raise ValueError("openrlbenchmark needs --filters '?we=ENTITY&wpn=PROJECT&...' 'EXP_NAME?tag=...&cl=...'")
    if len(env_ids) not in (1, len(filters)):
        raise ValueError(
            f"--env-ids stands {len(env_ids)} times; allowed: once, or once for each of {len(filters)} --filters"
        )
    games = [*env_ids] * (len(filters) if len(env_ids) == 1 else 1)
    return [found for group, names in zip(filters, games) for found in _group(group, tuple(names))]


def _group(group: Sequence[str], env_ids: tuple[str, ...]) -> Iterator[Selection]:
    head, *items = group
    keys = {**GROUP, **_group_keys(head)}
    if not items:
        raise ValueError(f"--filters {head!r} selects nothing; needed: EXP_NAME, or EXP_NAME?tag=...&cl=...")
    if not env_ids:
        raise ValueError("--env-ids names no game; allowed: at least one")
    columns = {
        "steps": keys["xaxis"],
        "episode_return": keys["metric"],
        "env_id": keys["ceik"],
        "algorithm": keys["cen"],
    }
    for item in items:
        name, _, query = item.partition("?")
        stated = _query(item, query)
        if not name:
            raise ValueError(f"--filters {item!r} has no name; allowed: EXP_NAME?..., after one group's ?we=...")
        for key in ONCE:
            if len(stated.get(key, ())) > 1:
                raise ValueError(f"--filters {item!r} states {key} twice; allowed: once")
        yield Selection(
            text=item, entity=keys["we"], project=keys["wpn"], exp_name=name, env_ids=env_ids,
            tags=tuple(stated.get("tag", ())),
            user=stated.get("user", [None])[0],
            label=stated.get("cl", [None])[0],
            settings={key: tuple(map(_literal, values)) for key, values in stated.items() if key not in ("tag", *ONCE)},
            columns=columns,
        )  # fmt: skip


def _group_keys(head: str) -> dict[str, str]:
    if not head.startswith("?"):
        raise ValueError(f"--filters begins with {head!r}; allowed: ?we=ENTITY&wpn=PROJECT&...")
    stated = _query(head, head[1:])
    for key, values in stated.items():
        if key not in GROUP:
            raise ValueError(f"--filters {head!r}: {key!r} is unknown; allowed: {', '.join(GROUP)}")
        if len(values) > 1:
            raise ValueError(f"--filters {head!r} states {key} twice; allowed: once")
    for key, default in GROUP.items():
        if default is None and key not in stated:
            raise ValueError(f"--filters {head!r} has no {key}; needed: ?we=ENTITY&wpn=PROJECT&...")
    return {key: values[0] for key, values in stated.items()}


def _query(text: str, query: str) -> dict[str, list[str]]:
    try:
        stated = parse_qs(query, keep_blank_values=True, strict_parsing=True) if query else {}
    except ValueError:
        stated = {"": [""]}
    if not all(key and all(values) for key, values in stated.items()):
        raise ValueError(f"--filters {text!r}: cannot be read; allowed: KEY=VALUE joined by &")
    return stated


def _literal(value: str) -> Any:
    """1, 0.5, True and None as Python writes them; text otherwise."""
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


def _with_value(key: str) -> str:
    """W&B keeps a setting as {"value": ...}; a key that says so itself is taken as it is."""
    return key if ".value" in key else f"{key}.value"
