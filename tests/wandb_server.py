"""A server on this machine that speaks the part of W&B's API that `wandb.Api().runs` and `scan_history` of 0.31 use.

Runs in pages, by filters in MongoDB's language; histories as Parquet files of what is exported and as live pages of the
rest, the rows of a page in any order. `faults` are what goes wrong next: (operation, what) pairs, each used once.
"""

import io
import json
import random
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

HANG = "hang"
HANG_SECONDS = 3.0  # longer than the tests let a request take


@dataclass
class StoredRun:
    run: str
    config: dict[str, Any]
    rows: list[dict[str, Any]]  # as logged; a row has _step and some metrics
    tags: list[str] = field(default_factory=list)
    state: str = "finished"
    username: str = "someone"
    entity: str = "them"
    project: str = "atari"
    summary: dict[str, Any] | None = None  # the last values of the rows when not given
    exported: int = 0  # so many of the first rows lie in a Parquet file
    heartbeat: str = "2023-01-02T00:00:00"

    @property
    def last_step(self) -> int:
        return max((row["_step"] for row in self.rows), default=-1)

    def node(self) -> dict[str, Any]:
        summary = self.summary
        if summary is None:
            summary = {key: value for row in self.rows for key, value in row.items()}
        return {
            "projectId": "1", "id": f"id-{self.run}", "tags": self.tags, "name": self.run, "readOnly": True,
            "displayName": f"n-{self.run}", "sweepName": None, "state": self.state, "group": None, "jobType": None,
            "config": json.dumps({key: {"desc": None, "value": value} for key, value in self.config.items()}),
            "createdAt": "2023-01-01T00:00:00", "heartbeatAt": self.heartbeat, "description": "", "notes": "",
            "systemMetrics": "{}", "summaryMetrics": json.dumps(summary), "historyLineCount": len(self.rows),
            "user": {"name": self.username, "username": self.username}, "historyKeys": {"lastStep": self.last_step},
            "commit": None,
        }  # fmt: skip


class WandbServer:
    """`with WandbServer() as server`: runs until the block ends."""

    def __init__(self, page_size: int = 2):
        self.runs: list[StoredRun] = []
        self.faults: list[tuple[str, Any]] = []
        self.asked: list[tuple[float, str]] = []  # (when, operation)
        self.page_size = page_size
        self.shuffle = random.Random(0).shuffle
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def __enter__(self) -> "WandbServer":
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.http.shutdown()
        self.http.server_close()

    def reset(self, *runs: StoredRun) -> None:
        self.runs, self.faults, self.asked = list(runs), [], []

    def count(self, operation: str) -> int:
        return sum(asked == operation for _, asked in self.asked)

    def fault(self, operation: str) -> Any:
        """What goes wrong with this request, if anything."""
        self.asked.append((time.monotonic(), operation))
        for index, (name, what) in enumerate(self.faults):
            if name == operation:
                del self.faults[index]
                return what
        return None

    def answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        if operation in ("Viewer", "GetDefaultEntity"):
            viewer = {
                "id": "1",
                "entity": "me",
                "username": "me",
                "email": "me@x",
                "flags": "{}",
                "teams": {"edges": []},
            }
            return {"viewer": viewer}
        if operation == "Runs":
            return {"project": self._page_of_runs(variables)}
        run = next(
            run for run in self.runs if run.run == variables.get("name", variables.get("runName", variables.get("run")))
        )
        if operation == "RunHistoryKeys":
            return {"project": {"run": {"historyKeys": {"lastStep": run.last_step}}}}
        if operation == "RunParquetHistory":
            live = [{"_step": row["_step"]} for row in run.rows[run.exported :]][:1]
            urls = [f"{self.url}/{run.run}.parquet"] if run.exported else []
            return {"project": {"run": {"parquetHistory": {"parquetUrls": urls, "liveData": live}}}}
        if operation == "SampledHistoryPage":
            return {"project": {"run": {"sampledHistory": [self._live_page(run, json.loads(variables["spec"]))]}}}
        raise NotImplementedError(operation)

    def parquet(self, name: str) -> bytes:
        run = next(run for run in self.runs if f"/{run.run}.parquet" == name)
        rows = run.rows[: run.exported]
        columns = {key: [row.get(key) for row in rows] for key in {key for row in rows for key in row}}
        content = io.BytesIO()
        pq.write_table(pa.table(columns), content)
        return content.getvalue()

    def _page_of_runs(self, variables: dict[str, Any]) -> dict[str, Any] | None:
        project = [run for run in self.runs if (run.entity, run.project) == (variables["entity"], variables["project"])]
        if not project:
            return None
        found = [run for run in project if matches(run, json.loads(variables["filters"]))]
        start = int(variables.get("cursor") or 0)
        edges = [
            {"node": run.node(), "cursor": str(start + i + 1)} for i, run in enumerate(found[start:][: self.page_size])
        ]
        more = start + self.page_size < len(found)
        page = {"endCursor": edges[-1]["cursor"] if edges else None, "hasNextPage": more}
        return {"internalId": "1", "runCount": len(found), "readOnly": True, "runs": {"edges": edges, "pageInfo": page}}

    def _live_page(self, run: StoredRun, spec: dict[str, Any]) -> list[dict[str, Any]]:
        """Rows that have all keys, from minStep to maxStep, both included; a sample if they are more than `samples`."""
        live = run.rows[run.exported :]
        rows = [row for row in live if spec["minStep"] <= row["_step"] <= spec["maxStep"]]
        rows = [{key: row[key] for key in spec["keys"]} for row in rows if all(key in row for key in spec["keys"])]
        if any(a["_step"] == b["_step"] for a, b in pairwise(rows)):
            return rows  # two rows of one step are told apart by their order alone
        self.shuffle(rows)
        return rows[: spec["samples"]]


def matches(run: StoredRun, condition: dict[str, Any]) -> bool:
    """MongoDB's $and, $in and equality over config, tags and username: what the project's filters are made of."""
    for key, wanted in condition.items():
        if key == "$and":
            if not all(matches(run, part) for part in wanted):
                return False
            continue
        allowed = wanted["$in"] if isinstance(wanted, dict) else [wanted]
        if key.startswith("config."):
            found = [run.config.get(key.removeprefix("config.").removesuffix(".value"))]
        else:
            found = {"tags": run.tags, "username": [run.username], "state": [run.state]}[key]
        if not set(found) & set(allowed):
            return False
    return True


def _handler(server: WandbServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer in one piece: in two, each waits 40 ms for the other end

        def log_message(self, *_) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path != "/graphql":  # the client's own telemetry
                self._send(200, b"{}")
                return
            request = json.loads(body)
            operation = request["query"].split("query", 1)[1].split("(")[0].split("{")[0].strip()
            if not self._fails(operation):
                data = server.answer(operation, request.get("variables") or {})
                self._send(200, json.dumps({"data": data}).encode())

        def do_GET(self) -> None:
            if self._fails("download"):
                return
            content = server.parquet(self.path)
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last), len(content) - 1)
            self._send(206, content[start : end + 1], {"Content-Range": f"bytes {start}-{end}/{len(content)}"})

        def _fails(self, operation: str) -> bool:
            what = server.fault(operation)
            if what == HANG:
                time.sleep(HANG_SECONDS)
                self.close_connection = True
            elif what is not None:
                status, headers = what if isinstance(what, tuple) else (what, {})
                self._send(status, b'{"errors": [{"message": "not now"}]}', headers)
            return what is not None

        def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    return Handler
