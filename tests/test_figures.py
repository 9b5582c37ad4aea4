"""Figures: what is drawn is what the frame says; twelve systems are told apart, a thirteenth is refused."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.container import BarContainer

from analysis import figures
from analysis.figure_style import MAX_SYSTEMS, save, styles
from analysis.scores import ATARI57

SYSTEMS = ["Cleanba IMPALA", "Cleanba PPO (Sync)", "Moolib IMPALA"]
CAPTION = "n = 3 seeds, 57 games; 95 % intervals over seeds."


def curves(x: str, largest: float) -> pd.DataFrame:
    places = np.linspace(0, largest, 20)
    parts = [
        pd.DataFrame({"system": system, x: places, "value": places + i, "low": places + i - 1, "high": places + i + 1})
        for i, system in enumerate(SYSTEMS)
    ]
    return pd.concat(parts, ignore_index=True)


def test_twelve_styles_differ_in_every_pair():
    look = styles([f"system {i}" for i in range(MAX_SYSTEMS)])
    assert len({style.marker for style in look.values()}) == 12
    assert len({(style.color, style.linestyle) for style in map(hashable, look.values())}) == 12
    assert all(a.linestyle != b.linestyle for a, b in zip(list(look.values()), list(look.values())[1:6]))
    with pytest.raises(ValueError, match="a figure of 13 systems; allowed: at most 12"):
        styles([f"system {i}" for i in range(13)])


def hashable(style):
    return style._replace(color=to_rgb(style.color))


def test_styles_hold_apart_in_a_grey_print():
    """Two systems may share a lightness only where marker or dashes tell them apart."""
    look = list(styles([str(i) for i in range(12)]).values())
    greys = [np.dot(to_rgb(style.color), (0.299, 0.587, 0.114)) for style in look]
    for i, one in enumerate(look):
        for j in range(i):
            assert abs(greys[i] - greys[j]) > 0.05 or one.marker != look[j].marker


def test_aggregate_intervals_draws_value_and_interval():
    frame = pd.DataFrame([
        {"system": "a", "statistic": "IQM", "value": 2.0, "low": 1.5, "high": 2.5},
        {"system": "b", "statistic": "IQM", "value": 3.0, "low": np.nan, "high": np.nan},
    ])  # fmt: skip
    (axis,) = figures.aggregate_intervals(frame, caption=CAPTION, labels={"IQM": "IQM HNS (%)"}).axes
    drawn = [line.get_xdata() for line in axis.get_lines()]
    assert [list(np.ravel(x)) for x in drawn] == [[1.5, 2.5], [2.0], [3.0]]  # b has no interval: none is drawn
    assert axis.get_xlabel() == "IQM HNS (%)"
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["a", "b"]


@pytest.mark.parametrize(
    ("x", "largest", "last", "unit"),
    [
        ("env_steps", 5e7, 50, "env steps (millions)"),
        ("env_steps", 4e4, 40, "env steps (thousands)"),
        ("wall_seconds", 1800, 30, "wall-clock time (minutes)"),
        ("wall_seconds", 36000, 10, "wall-clock time (hours)"),
    ],
)
def test_efficiency_scales_its_axis_and_names_the_unit(x, largest, last, unit):
    (axis,) = figures.efficiency(curves(x, largest), x=x, label="IQM HNS", caption=CAPTION).axes
    assert axis.get_xlabel() == unit
    assert [line.get_xdata()[-1] for line in axis.get_lines()] == [last] * 3
    assert len(axis.collections) == 3  # a band each


def test_efficiency_refuses_a_bare_step():
    with pytest.raises(ValueError, match="x is 'step'; allowed: env_steps, wall_seconds"):
        figures.efficiency(curves("step", 1.0), x="step", label="HNS", caption=CAPTION)


def test_a_gap_in_a_curve_stays_a_gap():
    frame = curves("env_steps", 1e6)
    frame.loc[5, ["value", "low", "high"]] = np.nan
    (axis,) = figures.efficiency(frame, x="env_steps", label="HNS", caption=CAPTION).axes
    assert np.isnan(axis.get_lines()[0].get_ydata()).sum() == 1


def test_performance_profiles():
    frame = pd.DataFrame({"system": "a", "threshold": [0.0, 1.0], "fraction": [1.0, 0.4], "low": 0.3, "high": 1.0})
    (axis,) = figures.performance_profiles(frame, caption=CAPTION).axes
    assert list(axis.get_lines()[0].get_ydata()) == [1.0, 0.4]
    assert axis.get_ylabel() == "fraction of runs with HNS > τ"


def test_game_grid_has_a_panel_per_game_of_57():
    frame = pd.concat([curves("env_steps", 1e6).query("system == @SYSTEMS[0]").assign(env_id=g) for g in ATARI57])
    figure = figures.game_grid(frame, x="env_steps", label="episode return (points)", caption=CAPTION)
    visible = [axis for axis in figure.axes if axis.get_visible()]
    assert [axis.get_title() for axis in visible] == [game.removesuffix("-v5") for game in ATARI57]
    assert all(len(axis.get_lines()) == 1 for axis in visible)


def test_game_dots_are_sorted_by_the_best_system():
    frame = pd.DataFrame({
        "env_id": ["Pong-v5", "Alien-v5", "Pong-v5", "Alien-v5"], "system": ["a", "a", "b", "b"],
        "value": [0.5, 0.1, 2.0, 0.2], "low": 0.0, "high": 3.0,
    })  # fmt: skip
    (axis,) = figures.game_dots(frame, caption=CAPTION).axes
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["Alien", "Pong"]


def test_improvement_probability():
    frame = pd.DataFrame([{"x": "a", "y": "b", "probability": 0.7, "low": 0.6, "high": 0.8}])
    (axis,) = figures.improvement_probability(frame, caption=CAPTION).axes
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["a  >  b"]
    assert axis.get_xlim() == (0, 1)


def test_speedups_write_their_numbers_and_skip_the_reference_itself():
    frame = pd.DataFrame({
        "system": ["a", "b"], "reference": "b", "speedup": [6.811, np.nan], "low": [6.6, np.nan], "high": [7.0, np.nan],
    })  # fmt: skip
    (axis,) = figures.speedups(frame, caption=CAPTION).axes
    assert [text.get_text() for text in axis.texts] == ["6.81"]
    assert [bar.get_width() for group in axis.containers if isinstance(group, BarContainer) for bar in group] == [6.811]
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["a", "b"]


def test_save_writes_the_same_bytes_twice_with_the_caption(tmp_path: Path):
    def draw(stem: str) -> list[Path]:
        figure = figures.efficiency(curves("env_steps", 1e6), x="env_steps", label="HNS", caption=CAPTION)
        assert figure.get_supxlabel() == CAPTION
        return save(figure, tmp_path / stem / "curve")

    first, second = draw("one"), draw("two")
    assert [path.suffix for path in first] == [".png", ".svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_long_caption_stays_inside_the_page():
    words = "final raw return, 200M frames, sticky actions; HNS table atari57_dqn_zoo v1 (7ca7c807470a) " * 5
    figure = figures.efficiency(curves("env_steps", 1e6), x="env_steps", label="HNS", caption=words)
    figure.draw_without_rendering()
    (caption,) = (text for text in figure.texts if text.get_text().startswith("final raw"))
    box = caption.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
