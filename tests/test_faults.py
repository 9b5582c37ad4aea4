"""Faults: what is promised in docs/reliability.md, provoked. Run by `make test-faults`."""

import json
from dataclasses import replace
from time import process_time

import pytest
from cells import make_spec

from runners import status
from runners.record import prepare, read_status, write_status

pytestmark = pytest.mark.faults


def test_a_thousand_runs_are_told_in_two_seconds(tmp_path):
    for i in range(1026):
        cell = make_spec(seed=i % 513, algorithm=f"impala{i // 513}", experiment=f"trial{i // 513}")
        prepare(cell.folder(tmp_path), cell)
        state = "running" if i % 2 else "complete"
        write_status(
            cell.folder(tmp_path), replace(read_status(cell.folder(tmp_path)), state=state, env_steps=20, sps=3.0)
        )
    began = process_time()
    assert len(json.loads(status.as_json(status.cells(tmp_path, None)))) == 1026
    assert process_time() - began < 2
