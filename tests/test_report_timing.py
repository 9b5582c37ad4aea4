"""What a report says of delays, policy lags and seeding: identical or not, in words, tables and a figure."""

import numpy as np
import pytest
import synthetic
from synthetic import Cell, write_run

from analysis import divergence, report, report_words
from analysis.summary import summarise

SETTINGS = {"num_envs": 64, "fingerprint_every_updates": 1}


def cell(label, *, seed=1, **settings):
    return Cell(algorithm=label, seed=seed, num_episodes=200, settings=SETTINGS | settings)


def write_delayed(results):
    """`cleanba` with a delay and without: the same rows. `async`: other rows, and lags of 0, 1 and 3 updates."""
    plain = cell("cleanba")
    same = {name: getattr(synthetic, name)(plain) for name in ("episodes", "fingerprints")}
    write_run(results, plain)
    write_run(results, cell("cleanba-delayed", learner_delay_seconds=1.0), **same)
    for label, delay in (("async", 0.0), ("async-delayed", 1.0)):
        made = cell(label, schedule="async", learner_delay_seconds=delay)
        metrics = synthetic.metrics(made).assign(**{"stats/policy_lag_0": 600.0, "stats/policy_lag_1": 400.0})
        metrics["stats/policy_lag_3"] = np.nan
        metrics.loc[0, "stats/policy_lag_3"] = 280.0
        write_run(results, made, metrics=metrics)


def test_delays_are_told_identical_or_not(tmp_path):
    write_delayed(tmp_path)
    summary = summarise(tmp_path, ["synthetic"])
    pairs = {(row["algorithm_a"], row["algorithm_b"]): row for row in summary.delays.to_dict("records")}
    assert set(pairs) == {("cleanba", "cleanba-delayed"), ("async", "async-delayed")}  # not cleanba against async
    assert pairs["cleanba", "cleanba-delayed"]["word"] == "identical"
    assert pairs["async", "async-delayed"]["identical"] is False
    words = {said.partition(" on ")[0]: said for said in report_words.answer(summary, None)}
    assert "(learner_delay_seconds 0.0 and 1.0): identical bit for bit" in words["cleanba against cleanba-delayed"]
    assert "The bits differ first at update" in words["async against async-delayed"]


def test_lags_are_counted_drawn_and_told(tmp_path):
    write_delayed(tmp_path)
    page = report.main(["synthetic"], tmp_path)
    summary = summarise(tmp_path, ["synthetic"])
    updates = cell("async", schedule="async").config.num_updates
    lags = summary.lags.set_index(["algorithm", "policy_lag"])["env_steps"]
    assert lags["async", 0] == 600 * updates
    assert lags["async", 3] == 280
    assert summary.lags.groupby("algorithm")["share"].sum().tolist() == pytest.approx([1.0, 1.0])
    mean = (400 * updates + 3 * 280) / (1000 * updates + 280)
    sentence = f"made 0 to 3 updates behind the learner, {mean:.2f} on average"
    assert any(sentence in said for said in report_words.answer(summary, None))
    assert (tmp_path / "figures" / "synthetic" / "policy_lags.png").stat().st_size > 5000
    assert 'alt="Policy lag of env steps"' in page.read_text()
    assert (tmp_path / "tables" / "synthetic" / "delays.csv").exists()


def test_without_async_there_is_no_such_section(tmp_path):
    write_run(tmp_path, cell("cleanba"))
    assert "Policy lag of env steps" not in report.main(["synthetic"], tmp_path).read_text()


def test_seedings_are_compared_by_their_variance(tmp_path):
    for seed in (1, 2, 3):
        write_run(tmp_path, cell("ours", seed=seed))
        write_run(tmp_path, cell("theirs", seed=seed, seeding="original"))
    summary = summarise(tmp_path, ["synthetic"])
    (row,) = summary.seedings.to_dict("records")
    assert (row["seeding_a"], row["seeding_b"], row["seeds_a"]) == ("addressed", "original", 3)
    scores = {label: part["final_score"].to_numpy() for label, part in summary.runs.groupby("algorithm")}
    assert row["ratio"] == pytest.approx(np.var(scores["theirs"], ddof=1) / np.var(scores["ours"], ddof=1))
    assert any("the variance of final scores over seeds is" in s for s in report_words.answer(summary, None))


def test_variance_ratio_by_hand():
    """Variances 1 and 4 of 3 seeds each; F(2, 2) has its 97.5 % point at 39."""
    found = divergence.variance_ratio(np.array([0.0, 1.0, 2.0]), np.array([0.0, 2.0, 4.0]))
    assert (found.ratio, found.low, found.high) == pytest.approx((4.0, 4 / 39, 4 * 39))
    assert np.isnan(divergence.variance_ratio(np.array([1.0]), np.array([1.0, 2.0])).ratio)
    assert np.isnan(divergence.variance_ratio(np.array([1.0, 1.0]), np.array([1.0, 2.0])).ratio)


def test_a_run_resumed_inexactly_is_not_compared(tmp_path):
    folder = write_run(tmp_path, cell("cleanba"))
    plain = cell("cleanba")
    same = {name: getattr(synthetic, name)(plain) for name in ("episodes", "fingerprints")}
    write_run(tmp_path, cell("cleanba-delayed", learner_delay_seconds=1.0), **same)
    status = folder / "status.json"
    status.write_text(status.read_text().replace('"pid"', '"inexact_resume": true, "pid"'))
    summary = summarise(tmp_path, ["synthetic"])
    (row,) = summary.delays.to_dict("records")
    assert row["identical"] is None
    assert any("Resumed without segments" in sentence for sentence in report_words.caveats(summary))
