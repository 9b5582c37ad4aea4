"""Tables as CSV, Markdown and LaTeX: exact text, nothing rounded in CSV, nothing unescaped in LaTeX."""

import pandas as pd
import pytest

from analysis import tables

FRAME = pd.DataFrame({"system_name": ["A & B", "50 % | x_1"], "hns": [1 / 3, float("nan")], "n": [57, 53]})


def test_three_files_with_one_meaning(tmp_path):
    paths = tables.write(FRAME, tmp_path / "new" / "aggregate", caption="HNS, n = 3", notes=["std: ddof 0"])
    assert [path.name for path in paths] == ["aggregate.csv", "aggregate.md", "aggregate.tex"]
    assert paths[0].read_text() == "system_name,hns,n\nA & B,0.3333333333333333,57\n50 % | x_1,,53\n"
    assert pd.read_csv(paths[0]).equals(FRAME)


def test_markdown():
    assert tables.markdown(FRAME, caption="HNS", notes=["n = 3"]).splitlines() == [
        "**HNS**", "", "| system_name | hns | n |", "| :--- | ---: | ---: |", "| A & B | 0.3333 | 57 |",
        "| 50 % \\| x_1 | – | 53 |", "", "n = 3",
    ]  # fmt: skip


def test_latex_is_booktabs_and_escaped():
    text = tables.latex(FRAME, caption="50 %", notes=["n_1 ± 2"], label="aggregate_base")
    assert text.splitlines() == [
        r"\begin{table}", r"\centering\footnotesize", r"\caption{50 \%}", r"\label{tab:aggregate-base}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        r"\begin{tabular}{lrr}", r"\toprule", r"system\_name & hns & n \\", r"\midrule", r"A \& B & 0.3333 & 57 \\",
        r"50 \% $\vert$ x\_1 & -- & 53 \\", r"\bottomrule", r"\end{tabular}}", r"\par\smallskip n\_1 $\pm$ 2",
        r"\end{table}",
    ]  # fmt: skip


def test_display_leaves_the_csv_alone(tmp_path):
    shown = FRAME[["n"]].rename(columns={"n": "games"})
    csv, md, tex = tables.write(FRAME, tmp_path / "t", caption="c", display=shown)
    assert "0.3333333333333333" in csv.read_text()
    assert "games" in md.read_text()
    assert "hns" not in tex.read_text()


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (1.234, 1.0, 2.0, "1.23 [1.00, 2.00]"),
        (1234.5, float("nan"), float("nan"), "1,234.50"),
        (float("nan"), 1, 2, "–"),
    ],
)
def test_interval_text(value, low, high, text):
    assert tables.with_interval(value, low, high, 2) == text


def test_backslash_and_braces():
    assert tables.latex_escape(r"a\b{c}^~#$") == r"a\textbackslash{}b\{c\}\textasciicircum{}\textasciitilde{}\#\$"


def test_numbers_to_the_right_texts_to_the_left_sentences_as_paragraphs():
    frame = pd.DataFrame({
        "interval": ["1,234.5 [1.0, 2.0]", "–"], "spread": ["-3.0 ± 0.5", "1e-05"], "percent": ["50 %", "1"],
        "hardware": ["1 A100, 10 CPU", "8 A100, 46 CPU"], "why": ["x" * 41, "short"],
    })  # fmt: skip
    assert tables.markdown(frame).splitlines()[1] == "| ---: | ---: | ---: | :--- | :--- |"
    assert r"\begin{tabular}{rrrlp{0.25\linewidth}}" in tables.latex(frame, caption="c", label="l")
