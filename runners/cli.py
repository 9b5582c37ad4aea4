"""The command line: `cleanba <command>`. Commands import what they need when they run, so that `--help` is fast.

Exit codes: 0 done, 1 runs failed, are worse or differ, 2 cannot tell, 3 invalid input.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional, UseAppendAction, arg

from runners.train import ImpalaFlags, PpoFlags, to_options, to_spec

if TYPE_CHECKING:
    from analysis.foreign import Declared
    from runners.options import Options
    from runners.spec import RunSpec

FAILED, DIFFERENT, INVALID_INPUT = 1, 1, 3
RESULTS = Path("results")
ACCEPTED = Path("baselines") / "accepted"

app = tyro.extras.SubcommandApp()
train = tyro.extras.SubcommandApp()


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. Every refusal is one sentence on stderr."""
    try:
        code = app.cli(prog="cleanba", description="Cleanba PPO and IMPALA on Atari, measured.", args=arguments)
    except ValueError as error:
        print(f"cleanba: {error}", file=sys.stderr)
        return INVALID_INPUT
    except OSError as error:  # a folder that is read-only, a disk that is full
        cause = error.strerror or str(error)
        print(f"cleanba: {error.filename or 'a file'}: cannot be read or written ({cause})", file=sys.stderr)
        return INVALID_INPUT
    except SystemExit as ended:  # tyro's, which has said what is wrong with a flag, or shown the help
        return INVALID_INPUT if ended.code else 0
    except KeyboardInterrupt:
        print("cleanba: stopped", file=sys.stderr)
        return FAILED
    return code or 0


@app.command
def run(
    experiment: Positional[Path],
    /,
    *,
    only: str | None = None,
    jobs: int | None = None,
    retry: Literal["failed"] | None = None,
    launcher: Literal["local", "slurm"] = "local",
    sbatch: tuple[str, ...] = (),
    dry_run: bool = False,
    allow_mismatch: bool = False,
    track: bool = False,
    results: Path = RESULTS,
) -> int:
    """Run the cells of an experiment that have not run or were interrupted.

    Args:
        experiment: File that declares the experiment.
        only: Run cells whose name or run id has this in it, or matches it where it has a * or ?.
        jobs: Runs at a time; 1 when not given, and as many as Slurm allows under slurm.
        retry: failed runs those as well that have failed.
        launcher: local runs the cells here; slurm submits them as job arrays and returns.
        sbatch: Options of sbatch for every job, without their dashes: partition=gpu time=2-00:00:00 account=NAME.
        dry_run: List the cells and their states, run nothing; with slurm, print the scripts.
        allow_mismatch: Run although the machine is not the profile; such runs are filed as invalid.
        track: Send the W&B mirror to the server; it is written offline otherwise.
        results: Folder of the records.
    """
    from runners.launcher import select
    from runners.options import Options
    from runners.spec import load_experiment

    cells = select(load_experiment(experiment).cells, only)
    options = Options(allow_mismatch=allow_mismatch, track=track)
    retry_failed = retry == "failed"
    if launcher == "slurm":
        return _submit(cells, results, sbatch, options, jobs=jobs, retry_failed=retry_failed, dry_run=dry_run)
    if sbatch:
        raise ValueError("--sbatch: options of Slurm's; allowed: with --launcher slurm")
    if dry_run:
        return _dry_run(cells, results)
    return _launch(cells, results, jobs=1 if jobs is None else jobs, options=options, retry_failed=retry_failed)


app.command(train, name="train", help="Train one run with the flags of the original's scripts.")


@app.command
def status(experiment: Positional[str | None] = None, /, *, json: bool = False, results: Path = RESULTS) -> int:
    """What ran, what failed and why, what is left.

    Args:
        experiment: Name of an experiment with records, or its file, which adds what has not run; all when not given.
        json: A list of {run_id, experiment, algorithm, env_id, seed, profile, state, reason}.
        results: Folder of the records.
    """
    from rich.console import Console

    from runners.status import as_json, cells, show

    found = cells(results, experiment)
    if json:
        print(as_json(found))
    else:
        show(found, Console())
    return 0


@app.command
def mirror(
    experiment: Positional[str], /, *, online: bool = False, wandb_project: str | None = None,
    wandb_entity: str | None = None, results: Path = RESULTS,
) -> int:  # fmt: skip
    """Bring the W&B runs of an experiment's records up to date, and count their rows.

    Args:
        experiment: Name of an experiment with records.
        online: Send them to the server; they are written offline, beside the records, otherwise.
        wandb_project: Project of the runs; that of `cleanba run` when not given.
        wandb_entity: Team or user whose project it is; W&B's own default when not given.
        results: Folder of the records.
    """
    from runners.mirror import mirror_experiment
    from runners.options import Options

    failed, project = False, wandb_project or Options().wandb_project
    for is_there, sentence in mirror_experiment(
        results, experiment, online=online, project=project, entity=wandb_entity
    ):
        print(sentence, file=sys.stdout if is_there else sys.stderr)
        failed = failed or not is_there
    return FAILED if failed else 0


@app.command
def report(
    experiments: Positional[list[str]], /, *, score_table: str | None = None, allow_mixed: bool = False,
    results: Path = RESULTS,
) -> int:  # fmt: skip
    """Tables, figures and one self-contained HTML page of one or more experiments.

    Args:
        experiments: Names of experiments with records.
        score_table: Table of random and human scores that returns are normalised with.
        allow_mixed: Compare runs of different protocols or budgets, and say so on the page.
        results: Folder of the records and of the products.
    """
    from analysis import report, scores

    print(report.main(experiments, results, table=score_table or scores.DEFAULT, allow_mixed=allow_mixed))
    return 0


@app.command
def paper(*, score_table: str | None = None, output: Path = RESULTS) -> int:
    """Every table and claim of the paper from its published figures.

    Args:
        score_table: Table of random and human scores that returns are normalised with.
        output: Folder of the products.
    """
    from analysis import paper, scores

    for path in paper.main(output, score_table or scores.DEFAULT):
        print(path)
    return 0


@app.command
def diverge(run_a: Positional[str], run_b: Positional[str], /, *, json: bool = False, results: Path = RESULTS) -> int:
    """The first update, stage and shard at which two runs differ, and the settings and machine facts that do.

    Exit codes: 0 identical, 1 different, 3 cannot tell.

    Args:
        run_a: Folder of a run, or the run_id of one among the records.
        run_b: The run to compare it with.
        json: One {identical, update, stage, shard, updates_compared}; shard -1 is the whole.
        results: Folder of the records.
    """
    from analysis.diverge import as_json, compare, find_run, sentences

    found = compare(find_run(run_a, results), find_run(run_b, results))
    for line in [as_json(found.agreement)] if json else sentences(found):
        print(line)
    return 0 if found.agreement.identical else DIFFERENT


@app.command
def bisect(run: Positional[str], /, *, json: bool = False, results: Path = RESULTS) -> int:
    """Train a recorded run again on this machine, as far as its first fingerprint that differs, and say what `diverge`
    says of the two.

    Exit codes: 0 identical, 1 different, 3 cannot tell.

    Args:
        run: Folder of a run, or the run_id of one among the records.
        json: One {identical, update, stage, shard, updates_compared}; shard -1 is the whole.
        results: Folder of the records; the new one is of experiment bisect-<n>.
    """
    from analysis.diverge import as_json, compare, find_run, sentences
    from runners.replay import replay

    recorded = find_run(run, results)
    found = compare(recorded, replay(recorded, results))
    for line in [as_json(found.agreement)] if json else sentences(found):
        print(line)
    return 0 if found.agreement.identical else DIFFERENT


@app.command
def compare(
    a: Positional[str],
    b: Positional[str],
    /,
    *,
    margin: float | None = None,
    games: tuple[str, ...] = (),
    score_table: str | None = None,
    allow_mixed: bool = False,
    json: bool = False,
    results: Path = RESULTS,
) -> int:
    """How far the learning curves of two run sets are apart, and whether B is the same as A, better or worse.

    A run set is EXPERIMENT[:ALGORITHM][@PROFILE], such as quickstart:impala@cpu-1dev, or the name of ingested curves.
    Exit codes: 0 same or better, 1 worse, 2 cannot tell, 3 invalid.

    Args:
        a: The reference.
        b: What is judged against it.
        margin: Differences that do not matter, in HNS (in points where no game has HNS); the experiment's when not
            given.
        games: Names of games, a subset such as atari5, or shared: those that both sets have.
        score_table: Table of random and human scores that returns are normalised with.
        allow_mixed: Compare although protocol, unit or budget differ, and say so on every product.
        json: Print every number as JSON.
        results: Folder of the records and of the products.
    """
    from json import dumps

    from analysis import compare_products, scores
    from analysis.compare import as_json

    found, folder = compare_products.main(
        a, b, results, margin=margin, table=score_table or scores.DEFAULT, games=games, allow_mixed=allow_mixed
    )
    for line in [dumps(as_json(found), indent=1)] if json else [*compare_products.sentences(found), str(folder)]:
        print(line)
    return found.exit_code


@app.command
def accept(
    experiment: Positional[str], /, *, why: str, replace: bool = False, results: Path = RESULTS,
    accepted: Path = ACCEPTED,
) -> int:  # fmt: skip
    """Store the complete runs of an experiment as the reference that `cleanba regress` judges later ones against.

    Args:
        experiment: Name of an experiment with records, or its file.
        why: Why these runs are the reference; kept with it.
        replace: Take the place of a reference that is there, and keep its reasons.
        results: Folder of the records.
        accepted: Folder of the references.
    """
    from analysis.accepted import accept

    print(accept(experiment, why, results, accepted, replace=replace))
    return 0


@app.command
def regress(
    experiment: Positional[str],
    /,
    *,
    fresh: bool = False,
    exact: bool = False,
    min_speed: float | None = None,
    margin: float | None = None,
    jobs: int = 1,
    json: bool = False,
    results: Path = RESULTS,
    accepted: Path = ACCEPTED,
) -> int:
    """Judge an experiment against its accepted reference: fingerprints, learning curves, throughput.

    Runs of the experiment's file that are not complete are run first. Exit codes: 0 same or better, 1 worse, 2 cannot
    tell, 3 invalid.

    Args:
        experiment: Name of an experiment, or its file.
        fresh: Run all of it anew, in a folder of its own under RESULTS/fresh: records of an earlier source say nothing
            of the present one.
        exact: Fingerprints must be identical, however alike the curves.
        min_speed: The least ratio of throughput to the reference's; without one throughput decides nothing.
        margin: Differences that do not matter, in HNS (in points where no game has HNS); the reference's when not
            given.
        jobs: Runs at a time.
        json: Print every number as JSON.
        results: Folder of the records and of the products.
        accepted: Folder of the references.
    """
    from json import dumps

    from analysis.regress import Demands, as_json, regress
    from analysis.regress_products import sentences, write
    from analysis.summary import find_declared
    from runners.machine import git_state

    declared = find_declared(experiment)
    demands = Demands(exact=exact, min_speed=min_speed)
    records = _run_for_verdict(declared.path, results, fresh=fresh, jobs=jobs)
    found = regress(declared.name, records, accepted, demands=demands, margin=margin)
    folder = write(found, results)
    source = git_state()
    if not fresh and (source["dirty"] or found.commits != [source["commit"]]):
        print("note: the runs may be of another source than the one here; --fresh runs them anew", file=sys.stderr)
    for line in [dumps(as_json(found), indent=1)] if json else [*sentences(found), str(folder)]:
        print(line)
    return found.exit_code


@app.command
def ingest(
    source: Positional[str],
    path: Positional[Path | None] = None,
    /,
    *,
    name: Annotated[str, arg(name="as")],
    unit: str | None = None,
    protocol: str | None = None,
    producer: str | None = None,
    algorithm: str | None = None,
    env_id: str | None = None,
    seed: int | None = None,
    folder_pattern: str | None = None,
    columns: tuple[str, ...] = (),
    tags: tuple[str, ...] = (),
    where: str = "{}",
    filters: UseAppendAction[tuple[tuple[str, ...], ...]] = (),
    env_ids: UseAppendAction[tuple[tuple[str, ...], ...]] = (),
    results: Path = RESULTS,
) -> int:
    """Logs of others become records of their own kind, which only their name brings up.

    Args:
        source: moolib, monobeast, polybeast, tensorboard, sb3, rllib, csv, parquet, dopamine, dreamerv3, wandb or
            openrlbenchmark.
        path: A log, or a folder with the logs of many runs. Of wandb: ENTITY/PROJECT on the server, or a snapshot that
            was fetched before. Of openrlbenchmark: the folder of its offline data; W&B's server when not given.
        name: Name of the records: a new one, or that of earlier runs of the same source.
        unit: What the steps of a source count that does not say it: env_steps or frames.
        protocol: Name of the environments' protocol; unknown when not given.
        producer: What made the logs, where they do not say it.
        algorithm: Label of the runs; the logs' own, or the source, when not given.
        env_id: Game of the runs, where the logs do not name it.
        seed: Seed of the run, where the log does not name it; numbered when unknown.
        folder_pattern: How a run's folder is named, such as '{env_id}-{seed}-*'.
        columns: Of csv and parquet: steps=NAME episode_return=NAME env_id=NAME seed=NAME algorithm=NAME
            num_episodes=NAME (or episodes_done=NAME, a running total) wall_seconds=NAME; of tensorboard:
            episode_return=TAG; of wandb also steps=METRIC, wall_seconds=METRIC and the config's env_id=KEY seed=KEY
            algorithm=KEY.
        tags: Of wandb: tags that the runs have.
        where: Of wandb: a filter in MongoDB's language, as JSON, such as '{"config.env_id.value": "Pong-v5"}'.
        filters: Of openrlbenchmark: its filter strings, '?we=ENTITY&wpn=PROJECT&...' 'EXP_NAME?tag=...&cl=...' ...
        env_ids: Of openrlbenchmark: the games, for all --filters or one list for each.
        results: Folder of the records, and of the snapshots of W&B's runs.
    """
    from analysis.foreign import Declared
    from analysis.ingest import main, parse_columns

    declared = Declared(
        unit=unit, protocol=protocol, producer=producer, algorithm=algorithm, env_id=env_id, seed=seed,
        folder_pattern=folder_pattern, columns=parse_columns(columns), filters=filters, env_ids=env_ids,
    )  # fmt: skip
    if (source == "openrlbenchmark" and path is None) or (source == "wandb" and not _is_snapshot(path)):
        source, path, declared = _fetch_runs(source, path, name, declared, tags, where, results)
    elif path is None:
        raise ValueError(f"{source} needs a path; allowed: a log, or a folder with logs")
    for line in main(source, path, name, declared, results):
        print(line)
    return 0


def _is_snapshot(path: Path | None) -> bool:
    from runners.snapshot import MANIFEST

    return path is not None and (path / MANIFEST).is_file()


def _fetch_runs(
    source: str, path: Path | None, name: str, declared: "Declared", tags: Sequence[str], where: str, results: Path
) -> tuple[str, Path, "Declared"]:
    """Fetch runs from W&B's server. Returns the source, path and declaration that read their snapshot."""
    from dataclasses import replace

    from analysis.foreign_wandb import complete_columns
    from analysis.openrlbenchmark import selections
    from runners.spec import check_name
    from runners.wandb_runs import Query, fetch, parse_filter, parse_project

    check_name(name, where="--as")
    if source == "openrlbenchmark":
        queries = [
            Query(
                entity=found.entity, project=found.project, where=found.where, label=declared.algorithm or found.label,
                columns=complete_columns({**declared.columns, **found.columns}), env_ids=found.env_ids,
            )
            for found in selections(declared.filters, declared.env_ids)
        ]  # fmt: skip
    else:
        entity, project = parse_project(path)
        queries = [
            Query(
                entity=entity, project=project, where=parse_filter(where, tags), label=declared.algorithm,
                columns=complete_columns(declared.columns),
            )
        ]  # fmt: skip
    snapshot = results / "snapshots" / name
    for line in fetch(queries, snapshot):
        print(line)
    return "wandb", snapshot, replace(declared, algorithm=None, columns={})  # both stand in the snapshot


@app.command
def evaluate(
    policy: Positional[Path], /, *, episodes: int = 10, seed: int = 0, platform: str = "cpu", output: Path | None = None
) -> int:
    """Play full games with a trained policy and print their returns.

    Args:
        policy: File that a run saved: results/runs/EXPERIMENT/RUN_ID/checkpoints/policy.msgpack.
        episodes: Full games to play.
        seed: Of the environments and of the sampled actions; apart from the seeds of training.
        platform: cpu or gpu.
        output: CSV file for the episodes' rows.
    """
    if not policy.is_file():
        raise ValueError(f"{policy}: there is no such file; allowed: a policy that a run saved")
    if output and output.exists():
        raise ValueError(f"{output}: there is such a file already; allowed: a new one")
    if output and not os.access(output.parent, os.W_OK):
        raise ValueError(
            f"{output}: its folder is not there, or cannot be written; allowed: a new file in one that can"
        )
    arguments = [str(policy), str(episodes), str(seed), platform, *([str(output)] if output else [])]
    done = subprocess.run([sys.executable, "-m", "runners.evaluation", *arguments])
    return FAILED if done.returncode < 0 else done.returncode


@app.command
def doctor() -> int:
    """The machine, the packages, and which profiles fit."""
    from rich.console import Console

    from runners.doctor import show

    show(Console())
    return 0


@train.command
def impala(flags: Annotated[ImpalaFlags, arg(name="")], *, results: Path = RESULTS) -> int:
    """IMPALA, one run.

    Args:
        results: Folder of the records.
    """
    return _launch([to_spec(flags)], results, jobs=1, options=to_options(flags), retry_failed=True)


@train.command
def ppo(flags: Annotated[PpoFlags, arg(name="")], *, results: Path = RESULTS) -> int:
    """PPO, one run.

    Args:
        results: Folder of the records.
    """
    return _launch([to_spec(flags)], results, jobs=1, options=to_options(flags), retry_failed=True)


def _dry_run(cells: Sequence["RunSpec"], results: Path) -> int:
    from runners.launcher import check_machine
    from runners.status import state_of

    for cell in cells:
        state, _ = state_of(cell.folder(results))
        print(f"{cell.run_id}  {state:8}  {cell.planned_env_steps:>12,}  {cell.name}")
    print(f"{len(cells)} runs, {sum(cell.planned_env_steps for cell in cells):,} env steps")
    for sentence in check_machine(cells):
        print(f"note: {sentence}")
    return 0


def _run_for_verdict(file: Path | None, results: Path, *, fresh: bool, jobs: int) -> Path:
    """Run what is not complete, its output on stderr; returns the folder of the records."""
    from contextlib import redirect_stdout
    from datetime import UTC, datetime

    from runners.launcher import unfinished
    from runners.options import Options
    from runners.spec import load_experiment

    if file is None:
        if fresh:
            raise ValueError("--fresh needs the experiment's file; allowed: its path, or its name in experiments/")
        return results
    folder = results / "fresh" / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ") if fresh else results
    if todo := unfinished(load_experiment(file).cells, folder, retry_failed=True):
        with redirect_stdout(sys.stderr):
            _launch(todo, folder, jobs=jobs, options=Options(mirror=not fresh), retry_failed=True)
    return folder


def _launch(cells: Sequence["RunSpec"], results: Path, *, jobs: int, options: "Options", retry_failed: bool) -> int:
    """Check, run, and tell how it ended. Returns the exit code."""
    from runners.launcher import check_machine, launch, share_cpus
    from runners.machine import usable_cpus

    if jobs < 1:
        raise ValueError(f"--jobs is {jobs}; allowed: 1 or more")
    todo, left_failed = _todo(cells, results, options, retry_failed)
    if (wrong := check_machine(todo)) and not options.allow_mismatch:
        raise ValueError(f"{wrong[0]}; allowed: another profile, or --allow-mismatch to file the runs as invalid")
    jobs = min(jobs, len(todo))
    if jobs > 1 and share_cpus(todo, jobs):
        print(f"note: {jobs} jobs share {usable_cpus()} CPUs; the speeds of these runs will not be their profiles'")
    outcomes = launch(todo, results, jobs=jobs, options=options) if todo else []
    failed = [outcome for outcome in outcomes if outcome.state not in ("complete", "invalid")]
    for outcome in failed:
        print(f"{outcome.state}: {outcome.spec.name}: {outcome.reason}\n  log: {outcome.log}", file=sys.stderr)
    if not_started := len(todo) - len(outcomes):
        print(f"stopped: {not_started} runs not started", file=sys.stderr)
    return FAILED if failed or not_started or left_failed else 0


def _submit(
    cells: Sequence["RunSpec"], results: Path, sbatch: Sequence[str], options: "Options",
    *, jobs: int | None, retry_failed: bool, dry_run: bool,
) -> int:  # fmt: skip
    """Hand the cells to Slurm, or print what would be handed over. The machine is checked where the runs start."""
    from runners import slurm

    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs is {jobs}; allowed: 1 or more")
    flags = slurm.parse_options(sbatch)
    todo, left_failed = _todo(cells, results, options, retry_failed)
    if dry_run:
        for text in slurm.scripts(todo, results, options, flags, jobs=jobs):
            print(text)
        return 0
    todo, queued = slurm.not_queued(todo, results)
    if queued:
        print(f"{queued} runs are in Slurm's queue: skipped")
    for line in slurm.submit(todo, results, options, flags, jobs=jobs):
        print(line)
    return FAILED if left_failed else 0


def _todo(
    cells: Sequence["RunSpec"], results: Path, options: "Options", retry_failed: bool
) -> tuple[list["RunSpec"], int]:
    """The cells to run, and how many failed ones are left alone; tells what is skipped, and why."""
    from runners.launcher import unfinished

    either = unfinished(cells, results, retry_failed=True, allow_mismatch=options.allow_mismatch)
    todo = either if retry_failed else unfinished(cells, results, allow_mismatch=options.allow_mismatch)
    if len(either) < len(cells):
        print(f"{len(cells) - len(either)} of {len(cells)} runs have a record already: skipped")
    if left_failed := len(either) - len(todo):
        print(
            f"{left_failed} of {len(cells)} runs have failed before: skipped, see `cleanba status`; "
            "--retry failed runs them again",
            file=sys.stderr,
        )
    return todo, left_failed


if __name__ == "__main__":
    sys.exit(main())
