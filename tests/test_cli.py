"""The command line: exit codes, one sentence for each refusal, and a real run from end to end."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from cells import ROOT

from runners import machine
from runners.cli import main
from runners.evaluation import summary, write_csv
from runners.record import prepare, read_rows, read_status, write_status
from runners.spec import load_experiment

PROFILE = {"name": "tiny", "platform": "cpu", "layout": "a0-l0,1-d1", "cpus": 1, "memory_gib": 1}
EXPERIMENT = {
    "name": "tiny",
    "question": "Does it run?",
    "env_ids": ["CartPole-v1"],
    "seeds": [1],
    "profiles": ["tiny"],
    "total_env_steps": 640,
    "algorithms": {
        "impala": {
            "algo": "impala", "protocol": "classic_control", "network": "mlp", "num_envs": 16, "num_actor_groups": 2,
            "num_shards": 2, "rollout_length": 10, "fingerprint_every_updates": 1,
        },
        "ppo": {
            "algo": "ppo", "protocol": "classic_control", "network": "mlp", "num_envs": 16, "num_actor_groups": 2,
            "num_shards": 2, "rollout_length": 10, "fingerprint_every_updates": 1,
        },
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def suite(tmp_path, monkeypatch):
    """A folder like a user's: experiments/, experiments/profiles/; results come here."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments" / "profiles").mkdir(parents=True)
    write("experiments/profiles/tiny.yaml", PROFILE)
    write("experiments/tiny.yaml", EXPERIMENT)
    return tmp_path


def write(name, content):
    with open(name, "w") as file:
        yaml.safe_dump(content, file, sort_keys=False)


def test_run_status_and_a_second_run(suite, capfd):
    assert main(["run", "experiments/tiny.yaml", "--only", "impala"]) == 0
    capfd.readouterr()
    assert main(["status", "experiments/tiny.yaml", "--json"]) == 0
    listed = json.loads(capfd.readouterr().out)
    assert [(cell["algorithm"], cell["state"], cell["reason"]) for cell in listed] == [
        ("impala", "complete", ""), ("ppo", "pending", ""),
    ]  # fmt: skip
    (folder,) = (suite / "results" / "runs" / "tiny").iterdir()
    assert read_rows(folder, "metrics")["env_steps"].tolist() == [160, 320, 480, 640]
    assert len(read_rows(folder, "episodes")) > 10
    assert read_rows(folder, "fingerprints")["update"].max() == 4
    facts = json.loads((folder / "machine.0.json").read_text())
    assert facts["devices"] == {"platform": "cpu", "kind": "cpu", "count": 2}
    assert (facts["usable_cpus"], facts["cpus_shared"]) == (1, False)
    assert (folder / "checkpoints" / "policy.msgpack").stat().st_size > 1000
    assert main(["run", "experiments/tiny.yaml", "--only", "impala"]) == 0
    assert capfd.readouterr().out == "1 of 1 runs have a record already: skipped\n"


def test_train_then_evaluate(suite, capfd):
    flags = "--env-id CartPole-v1 --protocol classic_control --network mlp --total-timesteps 640 --local-num-envs 8"
    assert main(["train", "ppo", *flags.split(), "--num-steps", "10", "--platform", "cpu"]) == 0
    (policy,) = suite.glob("results/runs/train/*/checkpoints/policy.msgpack")
    capfd.readouterr()
    assert main(["evaluate", str(policy), "--episodes", "3", "--output", "episodes.csv"]) == 0
    assert capfd.readouterr().out.startswith("CartPole-v1: mean return ")
    assert len((suite / "episodes.csv").read_text().splitlines()) == 4
    assert main(["evaluate", str(policy), "--episodes", "3", "--output", "episodes.csv"]) == 3  # never overwritten


def test_ctrl_c_is_one_line(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("runners.cli.subprocess.run", interrupted)
    Path("policy.msgpack").touch()
    assert main(["evaluate", "policy.msgpack"]) == 1
    assert capsys.readouterr().err == "cleanba: stopped\n"


def test_ctrl_c_ends_the_process_of_an_evaluation_without_a_word():
    os.mkfifo("policy")  # which keeps its reader waiting
    process = subprocess.Popen(
        [sys.executable, "-m", "runners.evaluation", "policy", "1", "0", "cpu"], stderr=subprocess.PIPE, text=True
    )
    writer = writer_once_there_is_a_reader("policy")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[1] == ""
    assert process.returncode == 1
    os.close(writer)


def writer_once_there_is_a_reader(fifo):
    deadline = time.monotonic() + 60
    while True:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def test_a_run_that_fails_is_told_with_its_log_and_exit_code_1(capfd):
    wrong = EXPERIMENT["algorithms"]["ppo"] | {"network": "nature_cnn"}  # which wants images
    write("experiments/tiny.yaml", EXPERIMENT | {"algorithms": {"ppo": wrong}})
    assert main(["run", "experiments/tiny.yaml"]) == 1
    message = capfd.readouterr().err
    assert (
        "failed: ppo-CartPole-v1-a0-l0,1-d1-tiny-s1: ValueError: network is 'nature_cnn', which is not for" in message
    )
    log = message.split("log: ")[1].strip()
    assert "Traceback" in Path(log).read_text()


def test_a_run_that_has_failed_is_told_and_left_alone_until_it_is_asked_for(suite, capfd):
    (_, cell) = load_experiment(Path("experiments/tiny.yaml")).cells
    prepare(cell.folder(Path("results")), cell)
    failed = replace(read_status(cell.folder(Path("results"))), state="failed", reason="the disk was full")
    write_status(cell.folder(Path("results")), failed)
    assert main(["run", "experiments/tiny.yaml", "--only", "ppo"]) == 1
    assert capfd.readouterr().err == (
        "1 of 1 runs have failed before: skipped, see `cleanba status`; --retry failed runs them again\n"
    )
    assert main(["run", "experiments/tiny.yaml", "--only", "ppo", "--retry", "failed"]) == 0
    assert read_status(cell.folder(Path("results"))).state == "complete"


def test_dry_run_lists_every_cell_and_touches_nothing(suite, capsys):
    assert main(["run", "experiments/tiny.yaml", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].split()[1:] == ["pending", "640", "impala-CartPole-v1-a0-l0,1-d1-tiny-s1"]
    assert lines[2] == "2 runs, 1,280 env steps"
    assert not (suite / "results").exists()


def test_dry_run_and_status_say_the_same_of_a_run_whose_process_is_gone(suite, capsys):
    (cell,) = load_experiment(Path("experiments/tiny.yaml")).cells[:1]
    prepare(cell.folder(Path("results")), cell)
    gone = replace(read_status(cell.folder(Path("results"))), state="running")  # and nobody holds the record
    write_status(cell.folder(Path("results")), gone)
    assert main(["run", "experiments/tiny.yaml", "--dry-run"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[:2]] == ["interrupted", "pending"]
    assert main(["status", "experiments/tiny.yaml"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "1 interrupted, 1 pending"


def test_dry_run_notes_what_would_be_refused(capsys):
    write("experiments/profiles/tiny.yaml", PROFILE | {"cpus": 4096, "layout": "a0-l0-d2"})
    assert main(["run", "experiments/tiny.yaml", "--dry-run"]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1
    assert notes[0].startswith("note: the machine is not profile tiny: 8192 usable CPUs declared for 2 processes, ")


def test_only_selects(capsys):
    assert main(["run", "experiments/tiny.yaml", "--dry-run", "--only", "ppo-*"]) == 0
    assert "1 runs, 640 env steps" in capsys.readouterr().out


REFUSED = [
    (["run", "experiments/none.yaml"], "experiments/none.yaml: cannot be read (No such file or directory)"),
    (["run", "experiments/tiny.yaml", "--only", "pong"], "--only pong: no run has such a name"),
    (["run", "experiments/tiny.yaml", "--jobs", "0"], "--jobs is 0; allowed: 1 or more"),
    (
        ["run", "experiments/tiny.yaml", "--sbatch", "time=5"],
        "--sbatch: options of Slurm's; allowed: with",
    ),
    (
        ["run", "experiments/tiny.yaml", "--launcher", "slurm", "--sbatch", "ntasks=5"],
        "--sbatch ntasks=5: the profile or the launcher decides it; allowed: any other option",
    ),
    (["run", "experiments/tiny.yaml", "--results", "/proc"], "/proc/runs: cannot be read or written"),
    (["status", "none"], "no experiment 'none'; allowed: none yet"),
    (["train", "impala", "--env-id", "Brekout-v5"], "unknown game 'Brekout-v5'; nearest: Breakout-v5"),
    (["evaluate", "none.msgpack"], "none.msgpack: there is no such file"),
    (
        ["evaluate", "experiments/tiny.yaml", "--output", "none/games.csv"],
        "none/games.csv: its folder is not there, or cannot be written",
    ),
]


@pytest.mark.parametrize(("line", "sentence"), REFUSED, ids=[" ".join(line) for line, _ in REFUSED])
def test_a_refusal_is_one_sentence_and_exit_code_3(line, sentence, capsys):
    assert main(line) == 3
    message = capsys.readouterr().err
    assert message.startswith("cleanba: ")
    assert sentence in message
    assert message.count("\n") == 1


@pytest.mark.skipif(machine.default_platform() == "gpu", reason="needs a machine without a GPU")
def test_evaluation_on_a_gpu_that_is_not_there_is_one_sentence(capfd):
    assert main(["evaluate", "experiments/tiny.yaml", "--platform", "gpu"]) == 3
    said = capfd.readouterr().err.splitlines()[-1]
    assert said.startswith("cleanba: --platform gpu: JAX cannot start on cuda")


def test_a_mistyped_flag_is_invalid_input_and_no_cannot_tell(capsys):
    assert main(["run", "experiments/tiny.yaml", "--exakt"]) == 3
    assert "--exakt" in capsys.readouterr().err
    assert main(["regress", "--help"]) == 0


def test_an_error_of_a_file_format_is_told_in_its_own_words(capsys, monkeypatch):
    def corrupt(*_, **__):
        raise OSError("Corrupt snappy compressed data.")  # as pyarrow has it: no number, no file

    monkeypatch.setattr("runners.cli.app.cli", corrupt)
    assert main(["report", "tiny"]) == 3
    assert capsys.readouterr().err == "cleanba: a file: cannot be read or written (Corrupt snappy compressed data.)\n"


def test_only_the_runs_that_are_left_need_the_machine(capsys):
    """Both cells of a profile that this machine is not have their records: there is nothing to refuse."""
    write("experiments/profiles/tiny.yaml", PROFILE | {"cpus": 4096})
    for cell in load_experiment(Path("experiments/tiny.yaml")).cells:
        folder = cell.folder(Path("results"))
        prepare(folder, cell)
        write_status(folder, replace(read_status(folder), state="complete"))
    assert main(["run", "experiments/tiny.yaml"]) == 0
    assert "2 of 2 runs have a record already: skipped" in capsys.readouterr().out


def test_a_machine_that_is_not_the_profile_is_refused(capsys):
    write("experiments/profiles/tiny.yaml", PROFILE | {"cpus": 4096})
    assert main(["run", "experiments/tiny.yaml"]) == 3
    message = capsys.readouterr().err
    assert "the machine is not profile tiny: 4096 usable CPUs declared, " in message
    assert "--allow-mismatch" in message


def test_status_of_an_experiments_file(capsys):
    assert main(["status", "experiments/tiny.yaml"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "2 pending"


def test_doctor_tells_what_a_run_sets_and_what_of_the_shell_it_replaces(capsys, monkeypatch):
    monkeypatch.setenv("JAX_DEFAULT_MATMUL_PRECISION", "bfloat16")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "numerics  JAX_DEFAULT_MATMUL_PRECISION=default (in place of 'bfloat16' in this shell)\n" in out
    assert "numerics  OPENBLAS_NUM_THREADS=1\n" in out


def test_doctor_tells_the_machine_and_which_profiles_fit(capsys):
    write("experiments/profiles/big.yaml", PROFILE | {"name": "big", "cpus": 4096})
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "profile   tiny: fits" in lines
    assert any(line.startswith("profile   big: 4096 usable CPUs declared, ") for line in lines)
    assert any(line.startswith("package   jax ") for line in lines)


def test_help_lists_the_commands():
    done = subprocess.run(
        [sys.executable, "-m", "runners.cli", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for command in ("run", "train", "status", "report", "paper", "evaluate", "doctor"):
        assert command in done.stdout


def test_evaluation_is_summed_up_and_written(tmp_path):
    assert summary("Pong-v5", [-21.0, -20.0, 1.0]) == (
        "Pong-v5: mean return -13.3 over 3 episodes (lowest -21.0, highest 1.0)"
    )
    write_csv(tmp_path / "x.csv", [{"episode_return": 1.0, "episode_length": 5}])
    assert (tmp_path / "x.csv").read_text().split() == ["episode_return,episode_length", "1.0,5"]
    with pytest.raises(FileExistsError):
        write_csv(tmp_path / "x.csv", [])
