"""Declared settings: the original's defaults, and one clear sentence for what cannot be."""

import pytest

from cleanba.config import ImpalaConfig, PPOConfig
from cleanba.layout import Layout

HERE = {"env_id": "Breakout-v5", "seed": 1}


def test_the_defaults_are_the_originals():
    impala, ppo = ImpalaConfig(**HERE), PPOConfig(**HERE)
    assert (impala.num_envs, impala.num_actor_groups, impala.rollout_length) == (128, 2, 20)
    assert (impala.learning_rate, impala.rmsprop_eps, impala.rmsprop_decay) == (6e-4, 0.01, 0.99)
    assert (impala.max_grad_norm, impala.num_minibatches, impala.schedule) == (40.0, 4, "cleanba")
    assert (ppo.num_envs, ppo.rollout_length, ppo.learning_rate, ppo.adam_eps) == (128, 128, 2.5e-4, 1e-5)
    assert (ppo.max_grad_norm, ppo.num_minibatches, ppo.num_epochs, ppo.schedule) == (0.5, 4, 4, "sync")
    assert (ppo.gae_lambda, ppo.clip_epsilon, ppo.normalize_advantages) == (0.95, 0.1, True)
    for config in (impala, ppo):
        assert (config.gamma, config.entropy_coefficient, config.value_coefficient) == (0.99, 0.01, 0.5)
        assert (config.network, config.protocol, config.total_env_steps) == ("resnet", "machado2018", 50_000_000)


def test_what_is_derived():
    derived = ImpalaConfig(**HERE, num_shards=4).derived()
    assert derived == {
        "envs_per_group": 64,
        "envs_per_shard": 32,
        "env_steps_per_update": 2560,
        "num_updates": 19531,  # 50M / 2560 = 19531.25
        "planned_env_steps": 49_999_360,
    }


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"num_envs": 129}, "num_envs is 129; allowed: a multiple of num_actor_groups"),
        ({"num_shards": 3}, "num_envs is 128; allowed: a multiple of num_shards"),
        ({"num_minibatches": 3}, "is 3, which does not divide the 128 envs of a shard"),
        ({"num_minibatches": "4"}, "num_minibatches is '4', a str; allowed: a int"),
        ({"schedule": "lazy"}, "schedule is 'lazy'; allowed: sync, cleanba, async"),
        ({"actor_delay_seconds": -0.1}, "actor_delay_seconds is -0.1; allowed: a number of at least 0"),
        ({"learner_delay_seconds": -1}, "learner_delay_seconds is -1.0; allowed: a number of at least 0"),
        ({"delay_kind": "poisson"}, "delay_kind is 'poisson'; allowed: fixed, random"),
        ({"network": "vit"}, "network is 'vit'; allowed: resnet, impala_shallow, nature_cnn, mlp"),
        ({"total_env_steps": 100}, "total_env_steps is 100; allowed: at least one update's 2560"),
        ({"gamma": 1.5}, "gamma is 1.5; allowed: a number from 0 to 1"),
        ({"seed": -1}, "seed is -1"),
        ({"anneal_learning_rate": 1}, "anneal_learning_rate is 1, a int; allowed: a bool"),
    ],
)
def test_what_cannot_be_is_said(setting, message):
    with pytest.raises(ValueError, match=message):
        ImpalaConfig(**(HERE | setting))


def test_whole_numbers_are_numbers():
    assert ImpalaConfig(**HERE, max_grad_norm=40) == ImpalaConfig(**HERE)


def test_layouts_read_as_they_are_written():
    for notation in ("a0-l0-d1", "a0-l1,2,3-d1", "a0,1-l2,3-d2"):
        assert str(Layout.parse(notation)) == notation
    assert Layout.parse("a0,1-l2,3-d2").devices_per_process == 4


@pytest.mark.parametrize("notation", ["a0l0d1", "a0-l0", "a-l0-d1", "a0-l0-d0", "a0,0-l1-d1"])
def test_layouts_that_cannot_be(notation):
    with pytest.raises(ValueError, match="layout"):
        Layout.parse(notation)


def test_parts_that_do_not_divide():
    with pytest.raises(ValueError, match="num_shards 4 does not divide over the 3 learner devices of a0-l1,2,3-d1"):
        Layout.parse("a0-l1,2,3-d1").check(num_actor_groups=2, num_shards=4)
    with pytest.raises(ValueError, match="num_actor_groups 1 does not divide over the 2 actor devices"):
        Layout.parse("a0,1-l2-d1").check(num_actor_groups=1, num_shards=4)
