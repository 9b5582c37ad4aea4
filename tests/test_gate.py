"""The gate of `make regress`: planted regressions are caught, harmless re-runs are not. Real training, here."""

import dataclasses
from functools import cache
from pathlib import Path

import pytest
import trainers
from cells import ROOT

from analysis import accepted, regress
from cleanba import envs, losses
from runners import machine
from runners.cli import main
from runners.record import RecordWriter, prepare, write_machine
from runners.spec import load_experiment

GATE = ROOT / "experiments" / "gate.yaml"
REFERENCE = Path("accepted")


@cache
def facts():
    return machine.measure() | {"cpus_shared": False}


def changed(spec, **settings):
    """The cell with other settings under the same label."""
    other = dataclasses.replace(spec, settings={**spec.settings, **settings})
    return dataclasses.replace(other, derived=other.config().derived())


def record(results, cells):
    for spec in cells:
        folder = spec.folder(results)
        prepare(folder, spec)
        write_machine(folder, 0, facts())
        writer = RecordWriter(folder, segment=0)
        trainers.train(spec.config(), writer, spec.profile.layout, spec.profile.threads_per_actor_device)
        writer.close("complete")


def gate(algorithm, **settings):
    return [changed(spec, **settings) for spec in load_experiment(GATE).cells if spec.algorithm == algorithm]


def judge(results, *, exact=False):
    margin = load_experiment(GATE).margin
    return regress.regress("gate", Path(results), REFERENCE, margin=margin, demands=regress.Demands(exact=exact))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def accept(cells):
    record(Path("old"), cells)
    accepted.accept("gate", "before the change", Path("old"), REFERENCE)


def negated_vtrace(*arguments, vtrace=losses.vtrace, **settings):
    targets = vtrace(*arguments, **settings)
    return targets._replace(policy_advantages=-targets.policy_advantages)


def negated_ppo(logits, values, actions, before, advantages, *others, ppo_loss=losses.ppo_loss, **settings):
    return ppo_loss(logits, values, actions, before, -advantages, *others, **settings)


def untruncated_vtrace(*arguments, clip_rho, vtrace=losses.vtrace):
    return vtrace(*arguments, clip_rho=1e9 * clip_rho)


@pytest.mark.skipif(not (ROOT / accepted.FOLDER / "gate").is_dir(), reason="no reference of the gate is accepted yet")
def test_the_committed_reference_is_of_the_declared_experiment():
    """Every cell that `make regress` runs has its reference, of the same settings."""
    reference = accepted.load("gate", ROOT / accepted.FOLDER)
    declared = {(c.algorithm, c.env_id, c.profile.name, c.seed): c for c in load_experiment(GATE).cells}
    assert set(declared) == set(reference.specs)
    for cell, spec in declared.items():
        assert reference.specs[cell]["settings"] == spec.settings
    assert reference.margin == load_experiment(GATE).margin


def test_fresh_runs_everything_in_a_folder_of_its_own(monkeypatch, capsys):
    """`--fresh` leaves the records that there are alone; the second call, without it, runs nothing."""
    launched = []

    def launch(cells, results, *, jobs, options, retry_failed):
        launched.append((len(cells), results.parent))
        return 0

    monkeypatch.setattr("runners.cli._launch", launch)
    assert main(["regress", str(GATE), "--fresh"]) == 3  # nothing was written
    assert main(["regress", str(GATE)]) == 3
    cells = len(load_experiment(GATE).cells)
    assert launched == [(cells, Path("results/fresh")), (cells, Path())]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("algorithm", ["impala", "ppo"])
def test_curves_catch_entropy_and_the_sign_of_the_advantage(algorithm, monkeypatch):
    accept(gate(algorithm))
    declared = gate(algorithm)[0].settings["entropy_coefficient"]
    record(Path("entropy"), gate(algorithm, entropy_coefficient=10 * declared))
    found = judge("entropy")
    assert found.exit_code == 1
    assert found.settings["setting"].unique().tolist() == ["entropy_coefficient"]
    monkeypatch.setattr(losses, "vtrace", negated_vtrace)
    monkeypatch.setattr(losses, "ppo_loss", negated_ppo)
    record(Path("sign"), gate(algorithm))
    assert judge("sign").exit_code == 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fingerprints_catch_vtrace_without_truncation(monkeypatch):
    """At a lag of one update the weights are near 1: CartPole's curves do not show it, its fingerprints do."""
    cells = gate("impala")[:1]
    accept([changed(spec, fingerprint_every_updates=1) for spec in cells])
    monkeypatch.setattr(losses, "vtrace", untruncated_vtrace)
    record(Path("new"), [changed(spec, fingerprint_every_updates=1) for spec in cells])
    found = judge("new", exact=True)
    assert found.exit_code == 1
    (cell,) = found.cells.to_dict("records")
    assert cell["fingerprints"] == "different"
    assert cell["update"] == 2  # the first whose rollout is not of the parameters that learn from it
    assert cell["stage"].startswith("targets")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fingerprints_catch_rewards_that_are_not_clipped(monkeypatch):
    """CartPole's rewards are 1: on MsPacman, where a dot is worth 10."""
    tiny = {
        "protocol": "machado2018", "network": "impala_shallow", "total_env_steps": 3_200,
        "fingerprint_every_updates": 1,
    }  # fmt: skip
    spec = next(spec for spec in load_experiment(GATE).cells if spec.algorithm == "impala")
    cells = [changed(dataclasses.replace(spec, env_id="MsPacman-v5"), **tiny)]
    accept(cells)
    monkeypatch.setitem(envs.PROTOCOLS["machado2018"], "reward_clip", False)
    record(Path("new"), cells)
    found = judge("new", exact=True)
    assert found.exit_code == 1
    assert found.cells["stage"].tolist() == ["rollout/rewards"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("algorithm", ["impala", "ppo"])
def test_ten_harmless_runs_pass(algorithm):
    """Identical again; then nine times other bits of the same algorithm: a learning rate changed in its sixth digit."""
    accept(gate(algorithm))
    record(Path("again"), gate(algorithm))
    assert judge("again", exact=True).exit_code == 0
    declared = gate(algorithm)[0].settings["learning_rate"]
    for i in range(1, 10):
        record(Path(str(i)), gate(algorithm, learning_rate=declared * (1 + i * 1e-6)))
        found = judge(str(i))
        assert not (found.cells["fingerprints"] == "identical").any()
        assert found.exit_code == 0
