"""The benchmark of the statistics compares like with like: both sides make the same figures of the same matrices."""

import numpy as np
import pytest

from analysis import bench


@pytest.fixture
def tasks(monkeypatch):
    monkeypatch.setattr(bench, "REPETITIONS", 64)
    return bench._tasks()


def test_both_sides_make_the_same_figures(tasks):
    for task in tasks:
        ours, (theirs, _) = task.ours(), task.theirs(2)
        np.testing.assert_allclose(
            ours["estimate"], np.concatenate(list(theirs.values())), atol=1e-12, err_msg=task.name
        )


def test_the_least_ratios_are_those_asked_for(tasks):
    assert [task.wanted for task in tasks] == [100, 300, 200, 300]


def test_times_are_scaled_to_the_full_repetitions(tasks, monkeypatch):
    monkeypatch.setattr(bench, "_seconds", lambda function: (2.0, 1.0))
    scaled = bench._scaled_seconds(tasks[0])
    assert scaled == (2.0 * 64 / 2000, 1.0 * 64 / 2000)
    row = bench._measured(tasks[0], 0.5, (0.1, 0.2), (20.0, 10.0))
    assert (row.ratio, row.cpu_ratio) == (200.0, 50.0)
