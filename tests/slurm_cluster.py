"""A Slurm of one node on this machine: munged, slurmctld and slurmd, with all their files in one folder."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
PACKAGES = ("slurm-wlm", "munge")  # Debian's
CPUS = 8  # that the node is said to have: its jobs count and sleep
# A job in `urgent` takes the node from one in `spare`, which goes back into the queue; one that ran into its grace time
# was asked to end by SIGTERM.
CONFIGURATION = """
ClusterName=faults
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2,batch_sched_delay=0,bf_interval=2
MinJobAge=3600
KillWait=10
JobRequeue=1
SlurmdParameters=config_overrides
NodeName=node CPUs={cpus} RealMemory=4000 NodeHostname={host} NodeAddr=127.0.0.1 State=UNKNOWN
PartitionName=spare Nodes=node Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=10 State=UP
PartitionName=urgent Nodes=node PriorityTier=2 State=UP
"""


def why_not() -> str:
    """Why there can be no such Slurm here; empty where there can. Installs Debian's packages where root may."""
    if os.geteuid():
        return "a Slurm of its own needs root"
    if _missing():
        if not shutil.which("apt-get"):
            return f"{_missing()[0]} is not installed, and there is no apt-get"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(["apt-get", "update"], **quiet)
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES], **quiet)
    return f"{_missing()[0]} is not installed, and apt-get cannot" if _missing() else ""


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Environment variables under which Slurm's commands speak to this cluster."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    ports = {"controller_port": _free_port(), "node_port": _free_port()}
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(folder=folder, host=host, cpus=CPUS, **ports))
    environment = os.environ | {"SLURM_CONF": str(configuration)}
    munge = [f"--{name}={folder}/munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    started = []
    try:
        for command in (
            ["munged", "--foreground", "--force", f"--key-file={folder}/munge.key", *munge],
            ["slurmctld", "-D", "-i", "-f", str(configuration)],
            ["slurmd", "-D", "-f", str(configuration), "-N", "node"],
        ):
            with (folder / f"{command[0]}.out").open("wb") as output:
                started.append(subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT))
            time.sleep(0.5)
        _wait_for_the_node(environment, folder)
        yield environment
    finally:
        subprocess.run(["scancel", "--user=root"], env=environment, capture_output=True)
        for process in reversed(started):
            process.terminate()
            process.wait()


def _missing() -> list[str]:
    return [program for program in PROGRAMS if not shutil.which(program)]


def _wait_for_the_node(environment: dict[str, str], folder: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        told = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True)
        if "idle" in told.stdout:
            return
        time.sleep(0.5)
    logs = "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(folder.glob("*.log")))
    raise RuntimeError(f"the node is not up after a minute: {told.stdout} {told.stderr}\n{logs}")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
