"""What a training run is: every setting that its result depends on, checked when it is stated.

The defaults are the original's (github.com/vwxyzjn/cleanba, commit d1f8979; the two papers' appendices). Where a run's
parts sit is no part of it: see `layout`. Imports nothing outside the standard library, so that a launcher can check
settings without starting JAX.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, TypeVar, get_args, get_type_hints

from cleanba.layout import Layout

NUM_SEGMENTS = 512  # that an env's stream can be addressed with, see cleanba.streams


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings that both algorithms have. Counts are of the whole run, over all groups, shards and processes."""

    algo: ClassVar[str]

    env_id: str
    seed: int
    total_env_steps: int = 50_000_000  # 200M frames
    protocol: Literal["machado2018", "classic_control"] = "machado2018"
    schedule: Literal["sync", "cleanba", "async"]
    network: Literal["resnet", "impala_shallow", "nature_cnn", "mlp"] = "resnet"
    num_envs: int = 128
    num_actor_groups: int = 2
    num_shards: int = 1
    rollout_length: int
    num_minibatches: int = 4
    gradient_accumulation_steps: int = 1
    learning_rate: float
    anneal_learning_rate: bool = True
    max_grad_norm: float
    gamma: float = 0.99
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    reduction: Literal["invariant", "fast"] = "invariant"  # fast: one gradient a device, so that the layout counts
    seeding: Literal["addressed", "original"] = "addressed"  # original: the overlapping streams of the original
    segment_updates: int = 0  # fresh envs after so many updates, where a run can resume exactly; 0: never
    fingerprint_every_updates: int = 10  # 0: none
    actor_delay_seconds: float = 0.0  # slept by every actor group before each env step
    learner_delay_seconds: float = 0.0  # slept by the learner in each update
    delay_kind: Literal["fixed", "random"] = "fixed"  # random: uniform from 0 to the seconds stated

    def __post_init__(self):
        _check_types(self)
        positive = (
            "total_env_steps num_envs num_actor_groups num_shards rollout_length num_minibatches "
            "gradient_accumulation_steps learning_rate max_grad_norm"
        )
        for name in positive.split():
            _require(self, name, getattr(self, name) > 0, "a number above 0")
        for name in ("entropy_coefficient", "value_coefficient", "actor_delay_seconds", "learner_delay_seconds"):
            _require(self, name, getattr(self, name) >= 0, "a number of at least 0")
        _require(self, "fingerprint_every_updates", self.fingerprint_every_updates >= 0, "0 (none) or more")
        self._check_segments()
        _require(self, "gamma", 0 <= self.gamma <= 1, "a number from 0 to 1")
        _require(self, "seed", 0 <= self.seed < 1024, "a whole number from 0 to 1023")
        _require(self, "num_envs", self.num_envs <= 2048, "at most 2048 (see cleanba.streams)")
        for parts in ("num_actor_groups", "num_shards"):
            _require(self, "num_envs", self.num_envs % getattr(self, parts) == 0, f"a multiple of {parts}")
        pieces = self.num_minibatches * self.gradient_accumulation_steps
        what, divisible = self._divided_in_minibatches
        if divisible % pieces:
            raise ValueError(
                f"num_minibatches x gradient_accumulation_steps is {pieces}, which does not divide the {divisible} "
                f"{what} of a shard; allowed: a divisor of {divisible}"
            )
        if self.num_updates < 1:
            raise ValueError(
                f"total_env_steps is {self.total_env_steps}; allowed: at least one update's {self.env_steps_per_update}"
            )

    @property
    def envs_per_group(self) -> int:
        return self.num_envs // self.num_actor_groups

    @property
    def envs_per_shard(self) -> int:
        return self.num_envs // self.num_shards

    @property
    def env_steps_per_update(self) -> int:
        return self.num_envs * self.rollout_length

    @property
    def num_updates(self) -> int:
        """Whole updates within the budget; what is left over of `total_env_steps` is not trained."""
        return self.total_env_steps // self.env_steps_per_update

    def segment_of(self, update: int) -> int:
        """The segment, from 0, that an update (from 1) belongs to; each has fresh envs."""
        return (update - 1) // self.segment_updates if self.segment_updates else 0

    @property
    def _divided_in_minibatches(self) -> tuple[str, int]:
        raise NotImplementedError

    def _check_segments(self) -> None:
        _require(self, "segment_updates", self.segment_updates >= 0, "0 (one segment) or more")
        if not self.segment_updates:
            return
        for name, lacks in (("schedule", "async"), ("seeding", "original")):
            if getattr(self, name) == lacks:
                raise ValueError(
                    f"segment_updates is {self.segment_updates}; allowed: 0 with {name} {lacks}, "
                    "which cannot be resumed exactly"
                )
        least = -(-self.num_updates // NUM_SEGMENTS)
        allowed = f"at least {least} for {self.num_updates} updates ({NUM_SEGMENTS} segments)"
        _require(self, "segment_updates", self.segment_updates >= least, allowed)

    def derived(self) -> dict[str, int]:
        """What follows from the settings, recorded beside them."""
        names = "envs_per_group envs_per_shard env_steps_per_update num_updates"
        counts = {name: getattr(self, name) for name in names.split()}
        return counts | {"planned_env_steps": self.num_updates * self.env_steps_per_update}


@dataclass(frozen=True, kw_only=True)
class ImpalaConfig(Config):
    """IMPALA (Espeholt et al. 2018) as Cleanba trains it."""

    algo: ClassVar[str] = "impala"

    schedule: Literal["sync", "cleanba", "async"] = "cleanba"
    rollout_length: int = 20
    learning_rate: float = 6e-4
    max_grad_norm: float = 40.0
    rmsprop_decay: float = 0.99
    rmsprop_eps: float = 0.01  # outside the root, as torch has it
    clip_rho: float = 1.0  # rho-bar of V-trace; c-bar is 1

    def __post_init__(self):
        super().__post_init__()
        _require(self, "rmsprop_decay", 0 <= self.rmsprop_decay < 1, "a number from 0 to below 1")
        for name in ("rmsprop_eps", "clip_rho"):
            _require(self, name, getattr(self, name) > 0, "a number above 0")

    @property
    def _divided_in_minibatches(self) -> tuple[str, int]:
        return "envs", self.envs_per_shard  # whole sequences, since V-trace runs along time


@dataclass(frozen=True, kw_only=True)
class PPOConfig(Config):
    """PPO (Schulman et al. 2017) as Cleanba trains it."""

    algo: ClassVar[str] = "ppo"

    schedule: Literal["sync", "cleanba", "async"] = "sync"
    rollout_length: int = 128
    learning_rate: float = 2.5e-4
    max_grad_norm: float = 0.5
    adam_eps: float = 1e-5
    num_epochs: int = 4
    gae_lambda: float = 0.95
    clip_epsilon: float = 0.1
    normalize_advantages: bool = True

    def __post_init__(self):
        super().__post_init__()
        for name in ("adam_eps", "num_epochs", "clip_epsilon"):
            _require(self, name, getattr(self, name) > 0, "a number above 0")
        _require(self, "gae_lambda", 0 <= self.gae_lambda <= 1, "a number from 0 to 1")

    @property
    def _divided_in_minibatches(self) -> tuple[str, int]:
        return "env steps", self.envs_per_shard * self.rollout_length


CONFIGS: dict[str, type[Config]] = {"impala": ImpalaConfig, "ppo": PPOConfig}

C = TypeVar("C", bound=Config)


def as_laid_out(config: C, layout: Layout) -> C:
    """The settings as this layout trains them: with `reduction: fast` every learner device has one shard. Raises
    ValueError where they do not divide over it."""
    if config.reduction == "fast":
        devices = len(layout.learner_device_ids) * layout.num_processes
        try:
            config = replace(config, num_shards=devices)
        except ValueError as error:
            raise ValueError(
                f"reduction is 'fast', with which num_shards is the {devices} learner devices of {layout}: {error}"
            ) from error
    layout.check(num_actor_groups=config.num_actor_groups, num_shards=config.num_shards)
    return config


def _require(config: Config, name: str, holds: bool, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {getattr(config, name)}; allowed: {allowed}")


def _check_types(config: Config) -> None:
    """Dataclasses do not check types; a string where a number belongs would otherwise surface deep inside JAX."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        choices = get_args(hint)
        if hint is float and type(value) is int:
            value = float(value)  # YAML reads `1` as int; same meaning, one spelling
            object.__setattr__(config, field.name, value)
        if choices and value not in choices:
            raise ValueError(f"{field.name} is {value!r}; allowed: {', '.join(choices)}")
        if not choices and type(value) is not hint:
            raise ValueError(f"{field.name} is {value!r}, a {type(value).__name__}; allowed: a {hint.__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{field.name} is {value}; allowed: a finite number")
