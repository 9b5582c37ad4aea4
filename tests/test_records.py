import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic
from synthetic import Cell, write_run

from analysis import records

PLANNED = 39_680  # 31 updates of 64 envs x 20 within 40,000 env steps
SMALL = {"num_envs": 64, "fingerprint_every_updates": 1}


def cell(**changes) -> Cell:
    return Cell(**{"settings": SMALL, "num_episodes": 50} | changes)


def with_returns(made: Cell, returns: list, env_steps: list[int] | None = None) -> pd.DataFrame:
    rows = synthetic.episodes(made).head(len(returns)).assign(episode_return=returns)
    return rows if env_steps is None else rows.assign(env_steps=env_steps)


def test_complete_runs_count_and_the_others_are_named(tmp_path):
    write_run(tmp_path, cell(seed=1))
    write_run(tmp_path, cell(seed=2), state="failed", reason="actor raised ValueError")
    found = records.load(tmp_path, ["synthetic"])
    assert found.runs["seed"].tolist() == [1]
    named = found.left_out.to_dict("records")
    assert [(run["seed"], run["state"], run["reason"]) for run in named] == [(2, "failed", "actor raised ValueError")]
    assert records.load(tmp_path, ["synthetic"], incomplete=True).runs["seed"].tolist() == [1, 2]


def test_a_complete_run_shorter_than_its_plan_does_not_count(tmp_path):
    folder = write_run(tmp_path, cell())
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps(status | {"env_steps": 20_000}))
    found = records.load(tmp_path, ["synthetic"])
    assert found.runs.empty
    assert found.left_out["state"].tolist() == ["short"]
    assert found.left_out["reason"].tolist() == ["complete at 20,000 of 39,680 planned env steps"]


def test_tables_become_tidy_frames_with_the_runs_keys(tmp_path):
    for seed in (1, 2):
        write_run(tmp_path, cell(seed=seed))
    runs = records.load(tmp_path, ["synthetic"]).runs
    episodes = records.frame(runs, "episodes", ["env_steps", "episode_return"])
    assert list(episodes.columns) == [*records.KEYS, "env_steps", "episode_return"]
    assert episodes.groupby("seed").size().to_dict() == {1: 50, 2: 50}
    assert len(records.frame(runs, "metrics")) == len(records.frame(runs, "timing")) == 2 * 31
    assert len(records.frame(runs, "fingerprints")) == 2 * 31 * len(synthetic.STAGES)


def test_final_score_is_the_mean_over_the_last_tenth_of_the_plan():
    episodes = pd.DataFrame({"env_steps": [1, 900, 901, 1000], "episode_return": [50.0, 70.0, 10.0, 20.0]})
    assert records.final_score(episodes, 1000) == (15.0, 2)
    assert records.final_score(episodes, 1111) == (20.0, 1)  # the last tenth begins after 999.9
    score, count = records.final_score(episodes, 1112)  # and here after 1000.8
    assert np.isnan(score)
    assert count == 0


def test_throughput_leaves_compilation_out_and_adds_segments(tmp_path):
    made = cell()
    rows = synthetic.metrics(made)  # 1,000 env steps/s after 5 s
    folder = write_run(tmp_path, made, metrics=rows)
    [run] = records.load(tmp_path, ["synthetic"]).runs.to_dict("records")
    assert records.throughput(run) == pytest.approx(1000)
    resumed = rows.assign(segment=np.where(rows["update"] > 10, 1, 0))
    resumed["wall_seconds"] += np.where(resumed["segment"] == 1, 1e6, 0)  # each segment has a clock of its own
    resumed.to_parquet(folder / "metrics.parquet", index=False)
    (folder / "machine.1.json").write_text((folder / "machine.0.json").read_text())
    assert records.throughput(run) == pytest.approx(1000)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_return_that_is_no_finite_number_is_refused(tmp_path, bad):
    made = cell()
    write_run(tmp_path, made, episodes=with_returns(made, [1.0, bad, 3.0]))
    [run] = records.load(tmp_path, ["synthetic"]).runs.to_dict("records")
    with pytest.raises(ValueError, match=r"episodes, column episode_return: row 2 is -?(nan|inf); allowed: a finite"):
        records.episodes(run)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "much"])
def test_a_return_that_is_text_is_refused(tmp_path, text):
    made = cell()
    write_run(tmp_path, made, episodes=with_returns(made, ["1.0", text, "3.0"]))
    [run] = records.load(tmp_path, ["synthetic"]).runs.to_dict("records")
    with pytest.raises(ValueError, match=f"row 2 is '{text}'; allowed: a finite number"):
        records.episodes(run)


def test_frames_where_env_steps_belong_are_refused(tmp_path):
    made = cell()
    write_run(tmp_path, made, episodes=with_returns(made, [1.0, 2.0], [100, 4 * PLANNED]))
    [run] = records.load(tmp_path, ["synthetic"]).runs.to_dict("records")
    with pytest.raises(ValueError, match=r"env_steps reaches 158,720, the run planned 39,680; allowed: env steps"):
        records.episodes(run)


def test_two_records_of_one_cell_are_refused(tmp_path):
    write_run(tmp_path, cell())
    write_run(tmp_path, cell(settings={**SMALL, "learning_rate": 0.1}))
    with pytest.raises(ValueError, match="impala on Breakout-v5, cpu-1dev, seed 1 has 2 records of different settings"):
        records.load(tmp_path, ["synthetic"])


def test_runs_of_one_algorithm_with_different_settings_are_refused(tmp_path):
    """Seeds that were run before and after an edit would be pooled; those of another label, or that failed, are not."""
    write_run(tmp_path, cell(seed=1))
    write_run(tmp_path, cell(seed=2, algorithm="other", settings={**SMALL, "learning_rate": 0.1}))
    write_run(tmp_path, cell(seed=3, settings={**SMALL, "learning_rate": 0.1}), state="failed")
    assert records.load(tmp_path, ["synthetic"]).runs["seed"].tolist() == [1, 2]
    edited = cell(seed=4, env_id="Pong-v5", settings={**SMALL, "learning_rate": 0.1})
    write_run(tmp_path, edited)
    both = rf"learning_rate is 0.0006 \(Breakout-v5, seed 1, run {cell().spec.run_id}\) and 0.1 \(Pong-v5, seed 4, run "
    with pytest.raises(
        ValueError, match=rf"synthetic: impala has runs of different settings: {both}{edited.spec.run_id}"
    ):
        records.load(tmp_path, ["synthetic"])


def test_an_experiment_without_records_is_refused_with_the_known_ones(tmp_path):
    write_run(tmp_path, cell())
    with pytest.raises(ValueError, match="syntetic: no run records; allowed: synthetic"):
        records.load(tmp_path, ["syntetic"])


def test_another_schema_is_refused(tmp_path):
    folder = write_run(tmp_path, cell())
    stored = json.loads((folder / "spec.json").read_text())
    (folder / "spec.json").write_text(json.dumps(stored | {"schema": 99}))
    with pytest.raises(ValueError, match=r"spec\.json: .*schema is 99; allowed: 1"):
        records.load(tmp_path, ["synthetic"])


def test_several_experiments_keep_their_labels_apart(tmp_path):
    for experiment in ("one", "two"):
        write_run(tmp_path, cell(experiment=experiment))
    found = records.load(tmp_path, ["one", "two"])
    assert found.runs["algorithm"].tolist() == ["one/impala", "two/impala"]


def test_other_budgets_and_protocols_are_told_per_game(tmp_path):
    write_run(tmp_path, cell())
    write_run(tmp_path, cell(algorithm="slow", total_env_steps=80_000))
    write_run(tmp_path, cell(env_id="Pong-v5"))
    other = {**SMALL, "protocol": "classic_control"}
    write_run(tmp_path, cell(env_id="Pong-v5", algorithm="other", settings=other))
    assert records.differences(records.load(tmp_path, ["synthetic"]).runs) == [
        "Breakout-v5 has runs of different budgets in env steps: 40000, 80000",
        "Pong-v5 has runs of different protocols: classic_control, machado2018",
    ]


def test_product_of_levels_finds_the_absent_cell():
    known = pd.DataFrame(
        [("e", "impala", "Pong-v5", "p", 1), ("e", "impala", "Pong-v5", "p", 2), ("e", "ppo", "Pong-v5", "p", 1)],
        columns=records.CELL,
    )
    full = {tuple(row) for row in records.product_of_levels(known).to_numpy()}
    assert full - {tuple(row) for row in known.to_numpy()} == {("e", "ppo", "Pong-v5", "p", 2)}


def test_machines_are_in_the_order_of_segments(tmp_path):
    folder = write_run(tmp_path, cell())
    for segment in range(1, 11):
        facts = json.loads((folder / "machine.0.json").read_text()) | {"cpus": segment}
        Path(folder / f"machine.{segment}.json").write_text(json.dumps(facts))
    [run] = records.load(tmp_path, ["synthetic"]).runs.to_dict("records")
    assert [facts["cpus"] for facts in records.machines(run)][2:] == [2, 3, 4, 5, 6, 7, 8, 9, 10]
