"""`cleanba report`: tables, figures and one self-contained HTML page about the runs of one or more experiments."""

import base64
from collections.abc import Sequence
from pathlib import Path

import jinja2
import pandas as pd

from analysis import curve_figures, curves, figure_style, figures, report_tables, report_words, tables
from analysis.records import SYSTEM
from analysis.report_tables import Table
from analysis.scores import DEFAULT
from analysis.summary import Summary, frames_per_env_step, summarise

TEMPLATES = Path(__file__).parent / "templates"
LAGS = "policy_lags"
MANY_GAMES = 12  # beyond, one page of small panels is worth having


def main(
    experiments: Sequence[str], results: Path = Path("results"), *, table: str = DEFAULT, allow_mixed: bool = False
) -> Path:
    """Writes results/{tables,figures}/<experiment>/ and results/reports/<experiment>.html; returns the page's path.

    `experiments` are names, or paths of experiment files. Raises ValueError for what cannot be reported: no complete
    run, broken rows, or runs of different protocol or budget on one game unless `allow_mixed`.
    """
    summary = summarise(Path(results), experiments, table=table, allow_mixed=allow_mixed)
    name = "+".join(experiment.name for experiment in summary.experiments)
    made = report_tables.all_tables(summary)
    for product in made.values():
        tables.write(
            product.frame,
            Path(results) / "tables" / name / product.name,
            caption=product.caption,
            notes=product.notes,
            display=product.display,
        )
    summary.curves.to_csv(Path(results) / "tables" / name / "curves.csv", index=False)
    drawn = write_figures(summary, Path(results) / "figures" / name, made.get("aggregates"))
    page = Path(results) / "reports" / f"{name}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    lags = Path(results) / "figures" / name / f"{LAGS}.svg"
    page.write_text(render(summary, name, made, drawn, lags if len(summary.lags) else None), encoding="utf-8")
    return page


def write_figures(summary: Summary, folder: Path, aggregates: Table | None = None) -> dict[str, Path]:
    """One learning-curve figure per game as PNG and SVG; returns the SVG files by game.

    Of many games there is also one page of small panels, and of several games one figure of their aggregates.
    """
    drawn = curves.over_seeds(summary.curves)
    systems = [(algorithm, profile) for algorithm, profile in summary.runs[SYSTEM].drop_duplicates().to_numpy()]
    styles = curve_figures.line_styles(systems)
    paths = {}
    for env_id in summary.runs["env_id"].unique():
        figure = curve_figures.learning_curves(
            drawn, env_id, styles, summary.table, frames_per_env_step(summary.runs, env_id)
        )
        _, paths[env_id] = figure_style.save(figure, folder / f"curves_{env_id}")
    if len(summary.lags):
        figure_style.save(curve_figures.lag_histogram(summary.lags, styles), folder / LAGS)
    if len(systems) <= figure_style.MAX_SYSTEMS:
        _write_overviews(summary, drawn, aggregates, folder)
    return paths


def _write_overviews(summary: Summary, drawn: pd.DataFrame, aggregates: Table | None, folder: Path) -> None:
    seeds = curve_figures.seeds_label(drawn)
    if len(summary.runs["env_id"].unique()) > MANY_GAMES:
        named = drawn.assign(system=drawn["algorithm"] + " on " + drawn["profile"]).rename(columns={"mean": "value"})
        caption = f"Mean over {seeds} per system and game; band {curves.BAND}."
        grid = figures.game_grid(named, x="env_steps", label="episode return (points)", caption=caption)
        figure_style.save(grid, folder / "curves_all_games")
    if aggregates is not None and (aggregates.frame["num_games"] > 1).all():
        frame = aggregates.frame.rename(columns={"estimate": "value"})
        caption = " ".join([aggregates.caption, *aggregates.notes])
        intervals = figures.aggregate_intervals(frame, caption=caption, labels=report_tables.STATISTICS)
        figure_style.save(intervals, folder / "aggregates")


def render(
    summary: Summary, name: str, made: dict[str, Table], drawn: dict[str, Path], lags: Path | None = None
) -> str:
    """The page's HTML; every text is escaped, every image is inside."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        name=name,
        questions=[question for question in summary.runs["question"].unique() if question],
        answer=report_words.answer(summary, made.get("aggregates")),
        caveats=report_words.caveats(summary),
        tables=made,
        figures={env_id: _data_uri(path) for env_id, path in drawn.items()},
        lags=_data_uri(lags) if lags else None,
        captions=report_words.figure_captions(summary),
        definitions=report_words.definitions(summary),
        css=(TEMPLATES / "report.css").read_text(encoding="utf-8"),
    )


def _data_uri(svg: Path) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.read_bytes()).decode()}"
