"""What the notebooks call: the package's tables, figures and sentences, as a notebook shows them."""

import base64
import html
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis import curve_figures, curves, figures, records, report_tables, report_words, wall_clock
from analysis.report_tables import Table
from analysis.summary import Summary, frames_per_env_step, summarise
from analysis.tables import MISSING
from runners.record import read_status

PNG_DPI = 110  # a page-wide figure is 770 pixels on a screen
FIRST = ("quickstart", "learn_cpu")  # shown before other experiments that have records
NO_RECORDS = (
    "No complete run of an experiment was found in {}. `make reproduce` makes the quickstart's records (some ten "
    "minutes on two cores); `cleanba run experiments/learn_cpu.yaml` makes those of the learning proofs."
)


@dataclass(frozen=True)
class Shown:
    """Something that a notebook shows as HTML."""

    html: str

    def _repr_html_(self) -> str:
        return self.html


@dataclass(frozen=True)
class Report:
    """The records of one experiment. Without any, whatever is asked for is the sentence that says how to make some."""

    results: Path
    summary: Summary | None
    tables: Mapping[str, Table]

    def answer(self) -> Shown:
        """The experiment's question, what its records answer, and what to know before quoting that."""
        return self._show(lambda summary: _answer(summary, self.tables.get("aggregates")))

    def definitions(self) -> Shown:
        return self._show(lambda summary: sentences(": ".join(pair) for pair in report_words.definitions(summary)))

    def table(self, name: str) -> Shown:
        """A table of `cleanba report` by its name, such as divergence."""
        return self._show(lambda _: table(self.tables.get(name), name))

    def learning_curves(self) -> Shown:
        """A figure per game."""
        return self._show(_learning_curves)

    def curves_over_time(self) -> Shown:
        """A panel per game, over each run's own clock."""
        return self._show(_curves_over_time)

    def wall_clock(self) -> Shown:
        return self._show(lambda summary: table(wall_clock.seconds_of_runs(summary), "wall_clock"))

    def phases(self) -> Shown:
        return self._show(lambda summary: table(wall_clock.phases(summary), "phases"))

    def _show(self, make: Callable[[Summary], Shown]) -> Shown:
        return sentences([NO_RECORDS.format(self.results / "runs")]) if self.summary is None else make(self.summary)


def open_report() -> Report:
    """The records of the experiment that CLEANBA_EXPERIMENT names, or of the first that has complete runs.

    They lie below CLEANBA_RESULTS, which is `results` beside the notebook's folder when not set.
    """
    results = Path(os.environ.get("CLEANBA_RESULTS", "results"))
    experiment = os.environ.get("CLEANBA_EXPERIMENT") or next(iter(experiments(results)), None)
    if experiment is None:
        return Report(results, None, {})
    summary = summarise(results, [experiment])
    return Report(results, summary, report_tables.all_tables(summary))


def experiments(results: Path) -> list[str]:
    """Names of the experiments of our own with complete runs: quickstart, learn_cpu, then the others by name."""
    folders = (path.parent for path in results.glob("runs/*/*/status.json"))
    names = {folder.parent.name for folder in folders if (found := read_status(folder)) and found.state == "complete"}
    return sorted(names, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))


def table(made: Table | None, name: str = "") -> Shown:
    """A table with its caption and notes; a sentence where there is nothing to put into it."""
    if made is None:
        return sentences([f"These records have nothing for the table {name}."])
    return frame(made.display, caption=made.caption, notes=made.notes)


def frame(shown: pd.DataFrame, *, caption: str = "", notes: Sequence[str] = ()) -> Shown:
    """Every text is escaped: names come from logs."""
    parts = [f"<p><b>{html.escape(caption)}</b></p>", shown.to_html(index=False, escape=True, border=0, na_rep=MISSING)]
    return Shown("\n".join([*parts, *(f"<p><small>{html.escape(note)}</small></p>" for note in notes)]))


def sentences(lines: Iterable[str]) -> Shown:
    return Shown("\n".join(["<ul>", *(f"<li>{html.escape(line)}</li>" for line in lines), "</ul>"]))


def picture(figure: Figure) -> Shown:
    """A figure as a PNG inside the page."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=PNG_DPI)
    encoded = base64.b64encode(content.getvalue()).decode()
    return Shown(f'<img alt="figure" src="data:image/png;base64,{encoded}">')


def _answer(summary: Summary, made: Table | None) -> Shown:
    questions = [question for question in summary.runs["question"].unique() if question]
    return sentences([*questions, *report_words.answer(summary, made), *report_words.caveats(summary)])


def _learning_curves(summary: Summary) -> Shown:
    drawn = curves.over_seeds(summary.curves)
    systems = summary.runs[records.SYSTEM].drop_duplicates().itertuples(index=False, name=None)
    styles, games = curve_figures.line_styles(list(systems)), summary.runs["env_id"].unique()
    frames = [frames_per_env_step(summary.runs, env_id) for env_id in games]
    made = [
        curve_figures.learning_curves(drawn, env_id, styles, summary.table, frames[i]) for i, env_id in enumerate(games)
    ]
    return Shown("\n".join(picture(figure).html for figure in made))


def _curves_over_time(summary: Summary) -> Shown:
    caption = (
        f"Mean over {curve_figures.seeds_label(curves.over_seeds(summary.curves))} per system; band {curves.BAND}. "
        "Each run is placed by its own clock, with compilation; a run that has ended is missing, not extended."
    )
    drawn = wall_clock.curves_over_time(summary)
    return picture(figures.game_grid(drawn, x="wall_seconds", label="episode return (points)", caption=caption))
