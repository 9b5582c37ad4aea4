"""`cleanba train` takes the original's flags and means by them what the original meant."""

from dataclasses import fields

import pytest
import tyro

from cleanba.config import CONFIGS
from runners import machine
from runners.train import ImpalaFlags, PpoFlags, to_options, to_spec

FLAGS = {"impala": ImpalaFlags, "ppo": PpoFlags}
# Every flag of cleanba_impala.py and cleanba_ppo.py that says how to train, with a value that is not the default.
COMMON = (
    "--exp-name mine --env-id Pong-v5 --seed 7 --total-timesteps 1000000 --learning-rate 0.001 --local-num-envs 60 "
    "--num-actor-threads 1 --num-steps 32 --no-anneal-lr --gamma 0.9 --num-minibatches 2 "
    "--gradient-accumulation-steps 3 --ent-coef 0.02 --vf-coef 0.25 --max-grad-norm 1.5 --actor-device-ids 0 "
    "--learner-device-ids 1 2 --track --wandb-project-name p --wandb-entity e --no-save-model --log-frequency 5"
)
PPO_ONLY = "--gae-lambda 0.8 --update-epochs 2 --no-norm-adv --clip-coef 0.2"


def parse(algo, line):
    return tyro.cli(FLAGS[algo], args=line.split())


@pytest.mark.parametrize("algo", ["impala", "ppo"])
def test_without_flags_the_settings_are_the_trainers_defaults(algo):
    spec = to_spec(parse(algo, "--platform cpu"))
    defaults = {field.name: field.default for field in fields(CONFIGS[algo]) if field.name not in ("env_id", "seed")}
    assert spec.settings == defaults
    assert (spec.env_id, spec.seed, spec.experiment, spec.algorithm) == ("Breakout-v5", 1, "train", algo)
    assert spec.profile.layout == "a0-l0-d1"
    assert spec.profile.cpus == machine.usable_cpus()


def test_every_common_flag_arrives():
    spec = to_spec(parse("impala", COMMON + " --no-concurrency"))
    assert (spec.algorithm, spec.env_id, spec.seed) == ("mine", "Pong-v5", 7)
    assert spec.profile.layout == "a0-l1,2-d1"
    assert spec.profile.threads_per_actor_device == 1
    stated = {
        "total_env_steps": 1_000_000, "learning_rate": 0.001, "num_envs": 60, "num_actor_groups": 1, "num_shards": 2,
        "rollout_length": 32, "anneal_learning_rate": False, "gamma": 0.9, "num_minibatches": 2,
        "gradient_accumulation_steps": 3, "entropy_coefficient": 0.02, "value_coefficient": 0.25, "max_grad_norm": 1.5,
        "schedule": "sync",
    }  # fmt: skip
    assert {name: spec.settings[name] for name in stated} == stated


def test_every_flag_of_ppo_arrives():
    spec = to_spec(parse("ppo", f"{COMMON} {PPO_ONLY} --concurrency"))
    stated = {
        "gae_lambda": 0.8, "num_epochs": 2, "normalize_advantages": False, "clip_epsilon": 0.2, "schedule": "cleanba",
    }  # fmt: skip
    assert {name: spec.settings[name] for name in stated} == stated


def test_envs_are_counted_per_actor_thread_of_every_actor_device():
    spec = to_spec(parse("impala", "--local-num-envs 60 --num-actor-threads 2 --actor-device-ids 0 1"))
    assert (spec.settings["num_envs"], spec.settings["num_actor_groups"]) == (240, 4)


@pytest.mark.parametrize(("line", "threads"), [("", 6), ("--num-actor-threads 4", 3), ("--num-actor-threads 16", 1)])
def test_the_emulators_share_the_cpus(monkeypatch, line, threads):
    """12 CPUs, which as many EnvPool threads use."""
    monkeypatch.setattr(machine, "usable_cpus", lambda: 12)
    assert to_spec(parse("impala", f"--local-num-envs 60 {line}")).profile.envpool_threads == threads


def test_what_the_original_has_at_one_value_only_is_taken():
    stated = parse("impala", "--channels 16 32 32 --hiddens 256 --no-capture-video")
    assert to_spec(stated) == to_spec(parse("impala", ""))


def test_our_own_flags():
    line = "--network nature_cnn --num-shards 4 --protocol classic_control --platform gpu"
    spec = to_spec(parse("ppo", line))
    assert (spec.settings["network"], spec.settings["num_shards"]) == ("nature_cnn", 4)
    assert (spec.settings["protocol"], spec.profile.platform) == ("classic_control", "gpu")


def test_how_the_run_is_followed_is_no_part_of_its_meaning():
    options = to_options(parse("impala", COMMON))
    assert options.track
    assert (options.wandb_project, options.wandb_entity) == ("p", "e")
    assert (options.save_policy, options.log_frequency) == (False, 5)
    assert to_spec(parse("impala", "--track")).run_id == to_spec(parse("impala", "")).run_id


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--distributed", "--distributed: one command starts one process"),
        ("--env-id Brekout-v5", "--env-id: unknown game 'Brekout-v5'; nearest: Breakout-v5"),
        ("--exp-name a/b", "--exp-name is 'a/b', a text; allowed: letters"),
        ("--network big", "network is 'big'; allowed: resnet"),
        ("--learner-device-ids 1 2 --num-shards 3", "num_shards"),
        ("--learner-device-ids 1 1", "name a device twice"),
        ("--platform tpu", "platform is 'tpu'; allowed: cpu, gpu"),
        ("--num-shards 0", "num_shards is 0"),
        ("--num-actor-threads 0", "threads_per_actor_device is 0; allowed: a number above 0"),
        ("--channels 32 64", r"--channels is \(32, 64\); allowed: \(16, 32, 32\), the only one there is"),
        ("--hiddens 512", r"--hiddens is \(512,\); allowed: \(256,\)"),
        ("--capture-video", "--capture-video is True; allowed: False"),
        ("--upload-model", "--upload-model is True; allowed: False"),
        ("--hf-entity me", "--hf-entity is 'me'; allowed: ''"),
    ],
)
def test_what_cannot_be_is_refused(line, message):
    with pytest.raises(ValueError, match=message):
        to_spec(parse("impala", line))


@pytest.mark.parametrize("updates", [0, -1])
def test_a_log_frequency_that_cannot_be_is_refused(updates):
    with pytest.raises(ValueError, match=f"--log-frequency is {updates}; allowed: 1 or more"):
        to_options(parse("impala", f"--log-frequency {updates}"))
