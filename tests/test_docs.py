"""The commands that docs show about logs of others work as they stand, one after the other, on small logs."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from cells import ROOT
from synthetic import Cell, write_run

from runners.cli import main

SEEDS = (1, 2, 3, 4)


def commands(document: str, *, after: str = "") -> list[list[str]]:
    """The words of each `cleanba ...` line of a document's first code block after a text."""
    text = (
        (ROOT / "docs" / document).read_text().partition(after)[2] if after else (ROOT / "docs" / document).read_text()
    )
    block = re.search(r"(?:^(?: {4}.*)?\n)+", text[text.index("\n    cleanba ") + 1 :], re.MULTILINE)[0]
    lines = re.findall(r"^ {4}cleanba (.*)$", block, re.MULTILINE)
    return [[os.path.expanduser(word) for word in shlex.split(line)] for line in lines]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Logs of Pong where the documents have them, and complete runs of our own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for seed in SEEDS:
        for folder in ("moolib-runs", "moolib-1gpu", "moolib-8gpu"):
            write_moolib(tmp_path / folder / f"Pong-{seed}-a")
        write_monobeast(tmp_path / "logs" / "torchbeast" / f"run-{seed}", seed)
        write_run(Path("results"), Cell(experiment="paper_10cpu", env_id="Pong-v5", seed=seed))


def write_moolib(folder: Path) -> None:
    names = ("local/mean_episode_return", "local/env_train_steps", "local/optimizer_steps", "local/episodes_done")
    rows = ["\t".join(names), *(f"{row / 10}\t{1000 * row}\t{row}\t{10 * row}" for row in range(1, 41))]
    folder.mkdir(parents=True)
    (folder / "logs.tsv").write_text("".join(f"{row}\n" for row in rows))


def write_monobeast(folder: Path, seed: int) -> None:
    rows = [
        "# _tick,_time,step,mean_episode_return",
        *(f"{row},{row}.0,{1000 * row},{row / 10}" for row in range(1, 41)),
    ]
    folder.mkdir(parents=True)
    (folder / "logs.csv").write_text("".join(f"{row}\n" for row in rows))
    (folder / "meta.json").write_text(json.dumps({"args": {"env": "PongNoFrameskip-v4", "seed": seed}}))


@pytest.mark.parametrize(
    ("document", "after", "kinds"),
    [
        ("compare.md", "", ["ingest", "ingest", "compare", "compare"]),
        ("is-it-the-hardware.md", "## With moolib on the other side", ["ingest", "ingest", "compare"]),
    ],
)
def test_what_is_shown_works(document, after, kinds, capsys):
    shown = commands(document, after=after)
    assert [words[0] for words in shown] == kinds
    for words in shown:
        verdicts = {0} if words[0] == "ingest" else {0, 1, 2}  # 3: refused
        assert main(words) in verdicts, capsys.readouterr().err


def test_a_comparison_that_is_refused_would_be_seen(capsys):
    """As the documents had it: without a protocol, and without --allow-mixed."""
    for words in commands("is-it-the-hardware.md", after="## With moolib on the other side")[:2]:
        assert main(words[: words.index("--protocol")]) == 0
    assert main(["compare", "moolib-1gpu", "moolib-8gpu", "--margin", "0.1"]) == 3
    assert "protocols differ or are unknown: unknown in moolib-1gpu" in capsys.readouterr().err
