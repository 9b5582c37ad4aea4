"""`cleanba diverge`: planted differences are named at their update, stage and shard."""

import dataclasses
import json
from collections import Counter

import jax
import numpy as np
import pytest
import trainers
from cells import PROFILE, make_spec

from cleanba import envs, streams, training
from runners.cli import main
from runners.record import RecordWriter, prepare, write_machine

UPDATES = 8
SETTINGS = {
    "total_env_steps": UPDATES * 80, "protocol": "classic_control", "network": "mlp", "num_envs": 8,
    "num_actor_groups": 4, "num_shards": 4, "num_minibatches": 1, "rollout_length": 10, "schedule": "sync",
    "fingerprint_every_updates": 1,
}  # fmt: skip
STAGES = [("prng", -1), ("rollout/observations", 0), ("rollout/observations", 1), ("targets", 0), ("targets", 1),
          ("gradient", -1), ("parameters", -1)]  # fmt: skip


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results"


def record(results, rows, *, seed=1, machine=None, experiment="trial", **changes):
    """A run's folder with the given fingerprints."""
    spec = make_spec(seed=seed, experiment=experiment, **({"settings": SETTINGS} | changes))
    folder = spec.folder(results)
    prepare(folder, spec)
    write_machine(folder, 0, machine or {"cpu_model": "A", "packages": {"jax": "0.10.2"}})
    RecordWriter(folder, segment=0).fingerprints(rows)
    return folder


def prints(updates=range(1, 11), *, changed=(), stages=STAGES):
    """Rows of every update, as versions without digests of env steps made them; those at the places `changed` have
    another digest."""
    places = [(update, stage, shard) for update in updates for stage, shard in stages]
    return [
        {
            "update": u, "stage": s, "shard": n, "step_digests": "",
            "digest": f"{hash((u, s, n, (u, s, n) in changed)) % 2**64:016x}",
        }
        for u, s, n in places
    ]  # fmt: skip


def diverge(capsys, *arguments):
    """(exit code, stdout, stderr)"""
    capsys.readouterr()
    code = main(["diverge", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_the_same_run_twice_is_identical(results, capsys):
    a, b = record(results, prints()), record(results, prints(), experiment="again")
    code, out, _ = diverge(capsys, a, b)
    assert code == 0
    assert out.splitlines() == [
        "identical: every stage of the 10 updates fingerprinted in both",
        "setting: no difference",
        "machine: no difference",
    ]
    code, out, _ = diverge(capsys, a, b, "--json")
    assert (code, json.loads(out)) == (
        0, {"identical": True, "update": None, "stage": None, "shard": None, "step": None, "updates_compared": 10}
    )  # fmt: skip


def test_a_planted_digest_is_named_with_what_was_equal_and_what_else_differs(results, capsys):
    later = [(update, stage, shard) for update in (8, 9, 10) for stage, shard in STAGES]
    changed = [(7, "targets", 1), (7, "gradient", -1), (7, "parameters", -1), *later]
    a = record(results, prints())
    b = record(results, prints(changed=changed), seed=2, machine={"cpu_model": "B", "packages": {"jax": "0.10.3"}})
    code, out, _ = diverge(capsys, a.name, b.name)  # by their ids
    assert code == 1
    assert out.splitlines() == [
        "different: first at update 7, stage targets, shard 1",
        "equal before it: 6 fingerprinted updates",
        "of update 7, equal: prng, rollout/observations",
        "of update 7, different: targets, gradient, parameters",
        "setting: seed is 1 in A, 2 in B",
        "machine: cpu_model is A in A, B in B",
        "machine: packages.jax is 0.10.2 in A, 0.10.3 in B",
    ]
    code, out, _ = diverge(capsys, a, b, "--json")
    assert code == 1
    assert json.loads(out) == {
        "identical": False, "update": 7, "stage": "targets", "shard": 1, "step": None, "updates_compared": 10,
    }  # fmt: skip


def test_layouts_are_facts_of_the_profile(results, capsys):
    a = record(results, prints())
    b = record(results, prints(), profile=dataclasses.replace(PROFILE, name="two", layout="a0-l0,1-d1"))
    code, out, _ = diverge(capsys, a, b)
    assert code == 0
    assert "setting: profile.layout is a0-l0-d1 in A, a0-l0,1-d1 in B" in out


def test_runs_are_compared_where_both_have_fingerprints(results, capsys):
    """Other frequencies and lengths; a difference outside is not seen, and the page says how far it saw."""
    a = record(results, prints([1, 2, 3, 4, 5, 6, 7, 8]))
    b = record(results, prints([1, 3, 6, 9], changed=[(9, "prng", -1)]), experiment="other")
    code, out, _ = diverge(capsys, a, b)
    assert code == 0
    assert "identical: every stage of the 3 updates" in out
    assert "fingerprints end at update 8 in A, at update 9 in B" in out


def test_several_optimiser_steps_have_one_digest_a_stage_and_that_is_said(results, capsys):
    settings = SETTINGS | {"num_envs": 16, "num_minibatches": 2}
    a = record(results, prints(), settings=settings)
    b = record(results, prints(changed=[(2, "targets", 0)]), settings=settings, experiment="other")
    _, out, _ = diverge(capsys, a, b)
    assert "a later stage of an earlier step may be first" in out


CANNOT_TELL = {
    "no fingerprints": ({"rows": []}, "the run has no fingerprints; nothing can be compared"),
    "no update in common": ({"rows": prints([11, 12])}, "no update has fingerprints in both; nothing can be compared"),
    "another algorithm": ({"algo": "ppo"}, "the algorithms differ, impala and ppo: no digest is of the same thing"),
    "other shapes": ({"settings": SETTINGS | {"num_shards": 2}}, "num_shards differs, 4 and 2: no digest is of the"),
    "a stage that is missing": ({"rows": prints(stages=STAGES[:-1])}, "update 1: stage parameters, shard -1 has"),
}  # fmt: skip


@pytest.mark.parametrize("case", CANNOT_TELL)
def test_what_cannot_be_told_is_one_sentence_and_exit_code_3(case, results, capsys):
    changes, sentence = CANNOT_TELL[case]
    a = record(results, prints())
    b = record(results, **({"rows": prints(), "experiment": "other"} | changes))
    code, out, err = diverge(capsys, a, b, "--json")
    assert (code, out) == (3, "")
    assert sentence in err
    assert err.startswith("cleanba: ")
    assert err.count("\n") == 1


def test_a_run_that_is_not_there_or_there_twice(results, capsys):
    a = record(results, prints())
    code, _, err = diverge(capsys, a, "0123456789ab")
    assert code == 3
    assert "0123456789ab: no such run; allowed: a run's folder, or the run_id of one under results/runs" in err
    record(results, prints(), experiment="again")
    code, _, err = diverge(capsys, a, a.name)
    assert code == 3
    assert f"{a.name}: 2 runs have this id" in err


# ---- planted in real runs


def train(results, experiment, **changes):
    """Train on CartPole and record it; the run's folder."""
    spec = make_spec(experiment=experiment, settings=SETTINGS | changes)
    folder = spec.folder(results)
    prepare(folder, spec)
    write_machine(folder, 0, {})
    writer = RecordWriter(folder, segment=0)
    trainers.train(spec.config(), writer)
    writer.close("complete")
    return folder


def first(capsys, a, b):
    """(update, stage, shard) of the first difference"""
    code, out, _ = diverge(capsys, a, b, "--json")
    found = json.loads(out)
    assert (code, found["identical"], found["updates_compared"]) == (1, False, UPDATES)
    return found["update"], found["stage"], found["shard"]


@pytest.fixture
def reference(results):
    return train(results, "reference")


def test_one_gradient_entry_by_one_ulp_at_update_7(results, reference, monkeypatch, capsys):
    sum_over_shards, calls = training.sum_over_shards, []

    def planted(learners, fingerprints, slots):
        calls.append(1)
        if len(calls) == 7:  # one sum an update
            slots = list(slots)
            own = np.array(slots[2].gradient)  # one device: slot 2 is shard 2
            own[0, 5] = np.nextafter(own[0, 5], np.float32(np.inf))
            slots[2] = slots[2]._replace(gradient=jax.device_put(own, slots[2].gradient.sharding))
        return sum_over_shards(learners, fingerprints, slots)

    monkeypatch.setattr(training, "sum_over_shards", planted)
    changed = train(results, "changed")
    assert len(calls) == UPDATES
    assert first(capsys, reference, changed) == (7, "shard_gradient", 2)


def planted_policy(monkeypatch, group, update, t):
    """Change the action of the group's first env."""
    make_policy = training.make_policy
    chosen = jax.random.key_data(streams.key(1, streams.Role.ACTIONS, group, update))

    def make(network):
        policy = make_policy(network)

        def changed(params, observations, key, at):
            actions, logits, values = policy(params, observations, key, at)
            if at == t and np.array_equal(jax.random.key_data(key), chosen):
                actions = actions.at[0].set(1 - actions[0])
            return actions, logits, values

        return changed

    monkeypatch.setattr(training, "make_policy", make)


@pytest.mark.parametrize("t", [0, 4, 9])
def test_one_action_at_update_3(t, results, reference, monkeypatch, capsys):
    """It changes all that follows, observations too, with which a rollout begins: the env step tells what was first."""
    planted_policy(monkeypatch, group=1, update=3, t=t)
    changed = train(results, "changed")
    assert first(capsys, reference, changed) == (3, "rollout/actions", 1)
    _, out, _ = diverge(capsys, reference, changed)
    assert f"different: first at update 3, stage rollout/actions, env step {t} of the rollout, shard 1\n" in out
    assert "of update 3, different: rollout/observations, rollout/actions, " in out


def test_one_observation_at_update_3(results, reference, monkeypatch, capsys):
    """The negative control of the test above: an emulator that answers otherwise is not taken for the policy."""
    step, calls = envs.Envs.step, Counter()

    def planted(self, actions):
        answer = step(self, actions)
        calls[id(self)] += 1
        if max(calls.values()) == calls[id(self)] == 25:  # of whichever group is first: two rollouts and five steps
            answer.observations[0, 0] += 0.25
        return answer

    monkeypatch.setattr(envs.Envs, "step", planted)
    changed = train(results, "changed")
    _, out, _ = diverge(capsys, reference, changed)
    assert "different: first at update 3, stage rollout/observations, env step 5 of the rollout, shard " in out


def test_a_rollout_without_digests_of_steps_leaves_the_field_open(results, capsys):
    a = record(results, prints())
    b = record(results, prints(changed=[(2, "rollout/observations", 1)]), experiment="other")
    _, out, _ = diverge(capsys, a, b)
    assert "different: first at update 2, stage rollout/observations, shard 1\n" in out
    assert "a rollout's fields follow from each other at every env step" in out


def test_another_optimisers_eps_first_shows_in_the_parameters_of_update_1(results, reference, capsys):
    """RMSProp's state is the mean square of gradients, without eps; what is added to its root moves the parameters."""
    changed = train(results, "changed", rmsprop_eps=0.02)
    assert first(capsys, reference, changed) == (1, "parameters", -1)
    _, out, _ = diverge(capsys, reference, changed)
    assert "setting: rmsprop_eps is 0.01 in A, 0.02 in B" in out


def test_the_control_a_run_again_is_identical(results, reference, capsys):
    assert diverge(capsys, reference, train(results, "again"))[0] == 0
