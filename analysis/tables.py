"""A frame as CSV (full precision, for machines), Markdown and LaTeX with booktabs (rounded, for readers)."""

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

MISSING = "–"
NUMBER = re.compile(r"[-+−]?[\d.,]+(e[-+]?\d+)?( ?%)?( ± [\d.,]+| \[.*\])?")
SENTENCE = 40  # characters above which a LaTeX column is set as a paragraph
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
    """A pipe table with its caption above and its notes below; numbers to the right.

    A name from a log is shown as it is: what Markdown would take for HTML is escaped.
    """
    rule = ["---:" if numeric else ":---" for numeric in _numeric(frame)]
    cells = [[str(name) for name in frame.columns], rule, *_cells(frame)]
    escaped = [[markdown_escape(cell).replace("|", "\\|") for cell in row] for row in cells]
    lines = ["| " + " | ".join(row) + " |" for row in escaped]
    head = [f"**{markdown_escape(caption)}**", ""] if caption else []
    return "\n".join([*head, *lines, *(f"\n{markdown_escape(note)}" for note in notes), ""])


def markdown_escape(text: str) -> str:
    """One line of text, in which no `<` begins a tag of HTML."""
    return text.replace("\n", " ").replace("<", "&lt;")


def latex(frame: pd.DataFrame, *, caption: str, notes: Sequence[str] = (), label: str) -> str:
    """A floating table, shrunk to the line where it is wider, notes below; the document loads booktabs and graphicx."""
    body = [[str(name) for name in frame.columns], *_cells(frame)]
    header, *rows = (" & ".join(map(latex_escape, row)) + r" \\" for row in body)
    lines = [
        r"\begin{table}", r"\centering\footnotesize", rf"\caption{{{latex_escape(caption)}}}",
        rf"\label{{tab:{label.replace('_', '-')}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{_column_types(frame)}}}", r"\toprule", header, r"\midrule", *rows, r"\bottomrule",
        r"\end{tabular}}", *(rf"\par\smallskip {latex_escape(note)}" for note in notes), r"\end{table}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _column_types(frame: pd.DataFrame) -> str:
    """Numbers to the right, texts to the left, sentences as paragraphs of a quarter of the line."""
    longest = [max(map(len, column), default=0) for column in zip(*_cells(frame))]
    kinds = [r"p{0.25\linewidth}" if length > SENTENCE else "l" for length in longest]
    return "".join("r" if numeric else kind for numeric, kind in zip(_numeric(frame), kinds, strict=True))


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
    """Which columns hold numbers alone, with ± or brackets or not, and are set to the right."""
    return [all(cell == MISSING or NUMBER.fullmatch(cell) for cell in column) for column in zip(*_cells(frame))]
