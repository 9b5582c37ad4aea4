"""What `cleanba regress` writes and prints: JSON, a Markdown summary for a pull request, JUnit XML, curves."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd

from analysis import compare_products, regress, tables
from analysis.compare import CANNOT_TELL, SAME, WORSE
from analysis.regress import DIFFERENT, IDENTICAL, Regression
from analysis.report_tables import gap_words
from analysis.tables import number, with_interval


def write(found: Regression, results: Path) -> Path:
    """results/verdicts/regress-<experiment>/: verdict.json, summary.md, junit.xml, a folder of curves per system."""
    folder = results / "verdicts" / f"regress-{found.reference.experiment}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "verdict.json").write_text(json.dumps(regress.as_json(found), indent=1) + "\n", encoding="utf-8")
    (folder / "summary.md").write_text(markdown(found), encoding="utf-8")
    junit(found).write(folder / "junit.xml", encoding="utf-8", xml_declaration=True)
    for system, comparison in found.comparisons.items():
        compare_products.write(comparison, folder / compare_products.file_name("@".join(system)))
    return folder


def sentences(found: Regression) -> Iterator[str]:
    """The report line by line, in the order fingerprints, curves, throughput."""
    yield f"{found.reference.experiment}: {found.verdict}"
    yield f"reference: {_why(found)}"
    yield f"fingerprints: {fingerprint_words(found.cells)}"
    for system, comparison in found.comparisons.items():
        for row in comparison.games.to_dict("records"):
            yield f"curves: {'@'.join(system)}, {row['env_id']}: {row['word']}; {_curve_words(row)}"
    for row in found.throughput.to_dict("records"):
        yield f"throughput: {row['algorithm']}@{row['profile']}: {throughput_words(row)}"
    for row in found.settings.to_dict("records"):
        yield f"setting: {row['algorithm']}@{row['profile']}: {_setting_words(row)}"
    yield f"source: {', '.join(found.commits)}"
    yield from (f"note: {note}" for note in found.notes)


def markdown(found: Regression) -> str:
    """For a pull request: the verdict first, then a table, then what differs."""
    escape = tables.markdown_escape
    parts = [f"## {escape(found.reference.experiment)}: {found.verdict}", f"Reference: {escape(_why(found))}"]
    parts.append(f"Fingerprints: {escape(fingerprint_words(found.cells))}.")
    parts.append(tables.markdown(_table(found)))
    if len(found.settings):
        parts.append(tables.markdown(found.settings.astype(str), caption="Settings that differ"))
    details = [f"source: {', '.join(found.commits)}", *(f"judged: {n}: {_WORDS[c]}" for n, c in found.verdicts.items())]
    parts += [escape(line) + "." for line in (*details, *found.notes)]
    return "\n\n".join(parts) + "\n"


def junit(found: Regression) -> ElementTree.ElementTree:
    """A test case per verdict: worse is a failure, cannot tell an error; what decides nothing is skipped, and said."""
    suite = ElementTree.Element("testsuite", name=f"cleanba regress {found.reference.experiment}")
    said = _said(found)
    for name, code in found.verdicts.items():
        case = ElementTree.SubElement(suite, "testcase", classname=found.reference.experiment, name=name)
        if code == WORSE:
            ElementTree.SubElement(case, "failure", message=said[name])
        elif code == CANNOT_TELL:
            ElementTree.SubElement(case, "error", message=said[name])
        else:
            ElementTree.SubElement(case, "system-out").text = said[name]
    for name in (name for name in said if name not in found.verdicts):
        case = ElementTree.SubElement(suite, "testcase", classname=found.reference.experiment, name=name)
        ElementTree.SubElement(case, "skipped", message=said[name])
    for tag in ("failure", "error", "skipped"):
        suite.set({"failure": "failures", "error": "errors"}.get(tag, tag), str(len(suite.findall(f"*/{tag}"))))
    suite.set("tests", str(len(suite)))
    return ElementTree.ElementTree(suite)


def fingerprint_words(cells: pd.DataFrame) -> str:
    """`identical, 10 of 10 runs`, or where the first difference is."""
    identical = int((cells["fingerprints"] == IDENTICAL).sum())
    said = f"{IDENTICAL}, {identical} of {len(cells)} runs" if identical else f"0 of {len(cells)} runs identical"
    differ = cells.loc[cells["fingerprints"] == DIFFERENT].sort_values(by="update", kind="stable").to_dict("records")
    if differ:
        first = differ[0]
        run = f"{first['algorithm']} on {first['env_id']}, {first['profile']}, seed {first['seed']}"
        said += f"; first difference at update {first['update']:.0f}, {first['stage']} ({run})"
    if other := int((cells["machine"] == "other").sum()):
        said += f"; {other} runs on another kind of machine than the reference"
    return said


def throughput_words(row: Mapping[Any, Any]) -> str:
    if pd.isna(row["ratio"]):
        return f"not compared ({row['reason']})"
    return f"{row['ratio']:.2f} times the reference's {row['reference']:,.0f} env steps/s"


def _said(found: Regression) -> dict[str, str]:
    said = {"fingerprints": fingerprint_words(found.cells)}
    for system, comparison in found.comparisons.items():
        games = (f"{row['env_id']}: {row['word']}; {_curve_words(row)}" for row in comparison.games.to_dict("records"))
        said[f"curves of {'@'.join(system)}"] = "\n".join(games)
    for row in found.throughput.to_dict("records"):
        said[f"throughput of {row['algorithm']}@{row['profile']}"] = throughput_words(row)
    return said


def _table(found: Regression) -> pd.DataFrame:
    speeds = {(row["algorithm"], row["profile"]): row for row in found.throughput.to_dict("records")}
    rows = []
    for system, comparison in found.comparisons.items():
        for row in comparison.games.to_dict("records"):
            decimals = 3 if row["unit"] == "HNS" else 1
            cells = found.cells.query("algorithm == @system[0] and profile == @system[1] and env_id == @row['env_id']")
            rows.append(
                {
                    "system": "@".join(system),
                    "game": row["env_id"],
                    "n (seeds)": f"{row['seeds_b']}",
                    "fingerprints": f"{(cells['fingerprints'] == IDENTICAL).sum()} of {len(cells)} identical",
                    "curves": row["word"],
                    "difference": with_interval(row["difference"], row["low"], row["high"], decimals),
                    "margin": compare_products.margin_words(comparison),
                    "largest gap": gap_words(row),
                    "throughput": throughput_words(speeds[system]),
                }
            )
    return pd.DataFrame(rows)


def _curve_words(row: Mapping[Any, Any]) -> str:
    decimals = 3 if row["unit"] == "HNS" else 1
    difference = with_interval(row["difference"], row["low"], row["high"], decimals)
    return (
        f"difference {difference} {row['unit']}, area {number(row['area'], decimals)}, largest gap {gap_words(row)}, "
        f"n = {row['seeds_b']} seeds"
    )


def _setting_words(row: Mapping[Any, Any]) -> str:
    return f"{row['setting']} was {row['reference']}, is {row['now']}"


def _why(found: Regression) -> str:
    last = found.reference.history[-1]
    commits = last["commits"] if "commits" in last else [last["commit"] or "unknown"]  # older ones have their first
    named = [commit[:12] + dirty for commit, dirty, _ in (text.partition("-dirty") for text in commits)]
    return f"{last['why']} ({last['accepted_at'][:10]}, commit {', '.join(named)})"


_WORDS = {SAME: "passed", WORSE: "worse", CANNOT_TELL: "cannot tell"}
