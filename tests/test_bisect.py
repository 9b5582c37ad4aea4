"""`cleanba bisect`: a record replayed on this machine, by the real worker."""

import json

import pytest
from cells import ROOT, make_spec

from runners.cli import main
from runners.launcher import launch
from runners.options import Options
from runners.record import read_rows, read_status

SETTINGS = {
    "total_env_steps": 4 * 40, "protocol": "classic_control", "network": "mlp", "num_envs": 4, "num_actor_groups": 2,
    "rollout_length": 10, "num_minibatches": 1, "fingerprint_every_updates": 1,
}  # fmt: skip


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A run's record as text files, as a run that was not compacted leaves them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    spec = make_spec(settings=SETTINGS)
    results = tmp_path / "results"
    assert [outcome.state for outcome in launch([spec], results, jobs=1, options=Options())] == ["complete"]
    return spec.folder(results)


def test_a_record_replayed_is_identical_and_a_changed_one_is_told_where(recorded, tmp_path, capfd):
    assert main(["bisect", recorded.name]) == 0
    out = capfd.readouterr().out
    assert out.startswith("identical: every stage of the 4 updates")
    again = tmp_path / "results" / "runs" / "bisect-1" / recorded.name
    assert read_status(again).state == "complete"

    plant(recorded, update=3, stage="gradient")
    assert main(["bisect", str(recorded), "--json"]) == 1
    assert json.loads(capfd.readouterr().out) == {
        "identical": False, "update": 3, "stage": "gradient", "shard": -1, "step": None, "updates_compared": 3,
    }  # fmt: skip
    stopped = tmp_path / "results" / "runs" / "bisect-2" / recorded.name
    assert read_status(stopped).reason == "DifferenceError: update 3, stage gradient differs from the record"
    assert read_rows(stopped, "fingerprints")["update"].max() == 3  # it did not train on


def plant(folder, *, update, stage):
    """Another digest in the record, as a machine that rounds otherwise would have left."""
    rows = read_rows(folder, "fingerprints")
    rows.loc[(rows["update"] == update) & (rows["stage"] == stage), "digest"] = "0" * 16
    rows.to_parquet(folder / "fingerprints.parquet", index=False)


def test_what_cannot_be_replayed_is_one_sentence(recorded, capsys):
    rows = read_rows(recorded, "fingerprints")
    rows.iloc[:0].to_parquet(recorded / "fingerprints.parquet", index=False)
    assert main(["bisect", recorded.name]) == 3
    assert "the run has no fingerprints; nothing can be compared" in capsys.readouterr().err
