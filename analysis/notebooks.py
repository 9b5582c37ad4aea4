"""`make notebooks`: executes the notebooks and writes copies with their output to results/notebooks/.

The notebooks in git have no output; a kernel in the repository's root runs them, so that they find `results` there.
"""

import argparse
import sys
from pathlib import Path

NOTEBOOKS = Path("notebooks")
CELL_SECONDS = 600  # a report's tables of hundreds of runs


def execute(notebook: Path, folder: Path) -> Path:
    """Run one notebook from top to bottom; returns its executed copy. Raises ValueError naming the cell that failed."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    content = nbformat.read(notebook, as_version=4)
    client = NotebookClient(content, timeout=CELL_SECONDS, kernel_name="python3", resources={"metadata": {"path": "."}})
    client.create_kernel_manager().transport = "ipc"  # a socket of this user, not a port of the machine
    copy = folder / notebook.name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        client.execute()
    except CellExecutionError as error:
        raise ValueError(f"{notebook}: {error.ename}: {error.evalue}; its copy has the output so far: {copy}") from None
    finally:
        nbformat.write(content, copy)
    return copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", type=Path, nargs="*", help="all of them when not given")
    parser.add_argument("--output", type=Path, default=Path("results") / "notebooks")
    args = parser.parse_args()
    try:
        for notebook in args.notebooks or sorted(NOTEBOOKS.glob("*.ipynb")):
            print(execute(notebook, args.output))
    except ValueError as error:
        sys.exit(f"notebooks: {error}")


if __name__ == "__main__":
    main()
