"""A frame as CSV (full precision, for machines), Markdown and LaTeX with booktabs (rounded, for readers)."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

MISSING = "–"
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    c: f"\\{c}" for c in "&%$#_{}"
}
LATEX |= {
    "±": r"$\pm$",
    "–": "--",
    "×": r"$\times$",
    "≤": r"$\le$",
    "|": r"$\vert$",
    "<": "$<$",
    ">": "$>$",
    "°": r"$^\circ$",
}


def write(
    frame: pd.DataFrame, stem: Path, *, caption: str, notes: Sequence[str] = (), display: pd.DataFrame | None = None
) -> list[Path]:
    """Writes stem.csv from `frame`, stem.md and stem.tex from `display` (default: the frame), and returns the paths.

    `caption` and `notes` say what the numbers are: n, score definition, HNS table, protocol. A missing value is empty
    in CSV and a dash elsewhere, never a zero.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    shown = frame if display is None else display
    contents = {
        ".csv": frame.to_csv(index=False, lineterminator="\n"),
        ".md": markdown(shown, caption=caption, notes=notes),
        ".tex": latex(shown, caption=caption, notes=notes, label=stem.name),
    }
    paths = [stem.with_name(stem.name + suffix) for suffix in contents]
    for path, text in zip(paths, contents.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def markdown(frame: pd.DataFrame, *, caption: str = "", notes: Sequence[str] = ()) -> str:
    """A pipe table with its caption above and its notes below; numbers to the right."""
    rule = ["---:" if numeric else ":---" for numeric in _numeric(frame)]
    cells = [[str(name) for name in frame.columns], rule, *_cells(frame)]
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in cells]
    lines = ["| " + " | ".join(row) + " |" for row in escaped]
    head = [f"**{caption}**", ""] if caption else []
    return "\n".join([*head, *lines, *(f"\n{note}" for note in notes), ""])


def latex(frame: pd.DataFrame, *, caption: str, notes: Sequence[str] = (), label: str) -> str:
    """A floating table for a document that loads booktabs; the notes follow the rules in small print."""
    columns = "".join("r" if numeric else "l" for numeric in _numeric(frame))
    header, *rows = (_latex_row(row) for row in ([str(name) for name in frame.columns], *_cells(frame)))
    small_print = [rf"\par\smallskip {latex_escape(note)}" for note in notes]
    return f"""\
\\begin{{table}}
\\centering\\footnotesize
\\caption{{{latex_escape(caption)}}}
\\label{{tab:{label.replace("_", "-")}}}
\\begin{{tabular}}{{{columns}}}
\\toprule
{header}
\\midrule
{chr(10).join(rows)}
\\bottomrule
\\end{{tabular}}
{chr(10).join([*small_print, chr(92) + "end{table}"])}
"""


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(latex_escape, cells)) + r" \\"


def latex_escape(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


def number(value: float, decimals: int) -> str:
    """Fixed decimals; a missing value is a dash."""
    return MISSING if pd.isna(value) else f"{value:,.{decimals}f}"


def with_interval(value: float, low: float, high: float, decimals: int) -> str:
    """`1.2 [1.0, 1.4]`; without an interval the value alone, without a value a dash."""
    if pd.isna(value) or pd.isna(low):
        return number(value, decimals)
    return f"{number(value, decimals)} [{number(low, decimals)}, {number(high, decimals)}]"


def _cells(frame: pd.DataFrame) -> list[list[str]]:
    return [[_cell(value) for value in row] for row in frame.itertuples(index=False)]


def _cell(value) -> str:
    if pd.isna(value):
        return MISSING
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _numeric(frame: pd.DataFrame) -> list[bool]:
    """Right-aligned columns: numbers, and texts that all begin like one."""
    return [all(cell == MISSING or cell[:1] in "+-−0123456789" for cell in column) for column in zip(*_cells(frame))]
