"""`cleanba train`: one run from the command line, with the flags of the original's scripts.

github.com/vwxyzjn/cleanba at d1f8979, `cleanba_impala.py` and `cleanba_ppo.py`; the defaults of the training are
theirs, but for PPO's `--concurrency`, which the paper's runs had off. The flags are translated into a run spec, and
the run goes the way of every other: worker, record, mirror.
"""

from dataclasses import dataclass
from typing import Any

from runners import machine
from runners.options import Options
from runners.profiles import Profile
from runners.spec import RunSpec, check_game, check_name, resolve

EXPERIMENT = "train"  # that such runs are filed under
PROFILE = "adhoc"  # of this machine, as it is


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags that both algorithms have."""

    exp_name: str | None = None
    """The label of these settings, `exp_name` in W&B; the algorithm's name when not given."""
    env_id: str = "Breakout-v5"
    seed: int = 1
    total_timesteps: int = 50_000_000
    """Env steps over all envs (in Atari 4 frames each)."""
    learning_rate: float
    local_num_envs: int = 64
    """Envs of each actor thread."""
    num_actor_threads: int = 2
    """Actor threads on each actor device."""
    num_steps: int
    """Env steps of a rollout."""
    anneal_lr: bool = True
    gamma: float = 0.99
    num_minibatches: int = 4
    gradient_accumulation_steps: int = 1
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float
    actor_device_ids: tuple[int, ...] = (0,)
    learner_device_ids: tuple[int, ...] = (0,)
    distributed: bool = False
    """Several processes; not for this command (an experiment's profile states them)."""
    concurrency: bool
    """Actor and learner overlap: schedule `cleanba`; without: `sync`."""
    network: str = "resnet"
    """resnet, impala_shallow, nature_cnn or mlp."""
    num_shards: int | None = None
    """Learner shards; one per learner device when not given."""
    channels: tuple[int, ...] = (16, 32, 32)
    """The ResNet's, as they are; --network takes another network."""
    hiddens: tuple[int, ...] = (256,)
    """The ResNet's hidden layer, as it is."""
    platform: str | None = None
    """cpu or gpu; what the machine has when not given."""
    protocol: str = "machado2018"
    """Environment protocol: machado2018 or classic_control."""
    track: bool = False
    """Send the W&B mirror to the server; it is written offline otherwise."""
    wandb_project_name: str = "cleanba-bench"
    wandb_entity: str | None = None
    save_model: bool = True
    log_frequency: int = 10
    """Updates between two rows of W&B; the record has every update."""
    capture_video: bool = False
    """Not for this command."""
    upload_model: bool = False
    """Not for this command: the policy is saved in the record."""
    hf_entity: str = ""
    """Not for this command."""


@dataclass(frozen=True, kw_only=True)
class ImpalaFlags(Flags):
    """Train IMPALA."""

    learning_rate: float = 6e-4
    num_steps: int = 20
    max_grad_norm: float = 40.0
    concurrency: bool = True


@dataclass(frozen=True, kw_only=True)
class PpoFlags(Flags):
    """Train PPO."""

    learning_rate: float = 2.5e-4
    num_steps: int = 128
    max_grad_norm: float = 0.5
    concurrency: bool = False
    gae_lambda: float = 0.95
    update_epochs: int = 4
    norm_adv: bool = True
    clip_coef: float = 0.1


def to_spec(flags: ImpalaFlags | PpoFlags) -> RunSpec:
    """The run that the flags state, on a profile of this machine. Raises ValueError for what cannot be."""
    if flags.distributed:
        raise ValueError("--distributed: one command starts one process; allowed: an experiment with a profile of -d2")
    for name in ("channels", "hiddens", "capture_video", "upload_model", "hf_entity"):
        if (value := getattr(flags, name)) != (default := getattr(Flags, name)):
            raise ValueError(f"--{name.replace('_', '-')} is {value!r}; allowed: {default!r}, the only one there is")
    algo = "impala" if isinstance(flags, ImpalaFlags) else "ppo"
    label = flags.exp_name or algo
    check_name(label, where="--exp-name")
    check_game(flags.env_id, where="--env-id")
    return resolve(
        experiment=EXPERIMENT,
        algorithm=label,
        algo=algo,
        env_id=flags.env_id,
        seed=flags.seed,
        profile=_profile(flags),
        settings=_settings(flags) | (_ppo_settings(flags) if isinstance(flags, PpoFlags) else {}),
    )


def to_options(flags: Flags) -> Options:
    """How the run is followed. Raises ValueError for what cannot be."""
    if flags.log_frequency < 1:
        raise ValueError(f"--log-frequency is {flags.log_frequency}; allowed: 1 or more")
    return Options(
        save_policy=flags.save_model,
        track=flags.track,
        wandb_project=flags.wandb_project_name,
        wandb_entity=flags.wandb_entity,
        log_frequency=flags.log_frequency,
    )


def _profile(flags: Flags) -> Profile:
    actors = ",".join(map(str, flags.actor_device_ids))
    learners = ",".join(map(str, flags.learner_device_ids))
    return Profile(
        name=PROFILE,
        platform=flags.platform or machine.default_platform(),
        layout=f"a{actors}-l{learners}-d1",
        cpus=machine.usable_cpus(),
        memory_gib=1,  # no demand: whoever states flags takes the machine as it is
        threads_per_actor_device=flags.num_actor_threads,
        envpool_threads=max(1, machine.usable_cpus() // max(1, _num_groups(flags))),
    )


def _settings(flags: Flags) -> dict[str, Any]:
    """The original's names -> ours."""
    groups = _num_groups(flags)
    return {
        "total_env_steps": flags.total_timesteps,
        "protocol": flags.protocol,
        "schedule": "cleanba" if flags.concurrency else "sync",
        "network": flags.network,
        "num_envs": flags.local_num_envs * groups,
        "num_actor_groups": groups,
        "num_shards": len(flags.learner_device_ids) if flags.num_shards is None else flags.num_shards,
        "rollout_length": flags.num_steps,
        "num_minibatches": flags.num_minibatches,
        "gradient_accumulation_steps": flags.gradient_accumulation_steps,
        "learning_rate": flags.learning_rate,
        "anneal_learning_rate": flags.anneal_lr,
        "max_grad_norm": flags.max_grad_norm,
        "gamma": flags.gamma,
        "entropy_coefficient": flags.ent_coef,
        "value_coefficient": flags.vf_coef,
    }


def _num_groups(flags: Flags) -> int:
    """One for each actor thread, as the original's envs are divided."""
    return flags.num_actor_threads * len(flags.actor_device_ids)


def _ppo_settings(flags: PpoFlags) -> dict[str, Any]:
    return {
        "gae_lambda": flags.gae_lambda,
        "num_epochs": flags.update_epochs,
        "normalize_advantages": flags.norm_adv,
        "clip_epsilon": flags.clip_coef,
    }
