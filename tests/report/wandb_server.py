"""A stand-in of the W&B server on the loopback: it keeps what clients send, and gives it back as the real one would.

It answers the calls that wandb 0.31 and wandb-workspaces 0.4 make for runs, files, artifacts and reports. What it was
asked is in `calls`; one that it does not know is an error that names it.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ENTITY = "me"
KEY = "k" * 40


@dataclass
class Run:
    """What arrived of one run. `lines`: of its history, by the place in it that the client gave."""

    id: str
    fields: dict[str, Any] = field(default_factory=dict)
    lines: dict[int, dict[str, Any]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    starts: int = 0
    exit_code: int | None = None

    @property
    def steps(self) -> list[int]:
        return [int(self.lines[at]["_step"]) for at in sorted(self.lines)]

    def node(self, project: str) -> dict[str, Any]:
        given = self.fields
        history = [json.dumps(self.lines[at]) for at in sorted(self.lines)]
        return {
            "id": f"node-{self.id}", "name": self.id, "displayName": given.get("displayName") or self.id,
            "description": None, "notes": given.get("notes"), "config": given.get("config") or "{}",
            "group": given.get("groupName"), "jobType": given.get("jobType"), "tags": given.get("tags") or [],
            "sweepName": None, "state": "finished", "commit": None, "readOnly": False,
            "createdAt": "2026-01-01T00:00:00", "heartbeatAt": "2026-01-01T00:00:00", "systemMetrics": "{}",
            "summaryMetrics": json.dumps(self.summary),
            "historyLineCount": len(history), "eventsLineCount": 0, "logLineCount": 0,
            "historyTail": json.dumps(history[-1:]),
            "eventsTail": "[]", "wandbConfig": json.dumps({"t": {}}), "tags_": [], "projectId": "1",
            "historyKeys": {"lastStep": max(self.steps, default=-1), "keys": {}, "sets": []},
            "user": {"name": ENTITY, "username": ENTITY},
            "project": {"id": "1", "name": project, "entity": {"id": "1", "name": ENTITY}},
            "sampledHistory": [self.sampled()],
            "history": history, "events": [],
        }  # fmt: skip

    def sampled(self) -> list[dict[str, Any]]:
        return [{"_step": step} for step in self.steps]


class WandbServer:
    """Entered, it serves; `url` is what clients are told.

    loses   steps of a history that it throws away, as a server that fails would
    """

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.projects: set[str] = set()
        self.views: dict[str, dict[str, Any]] = {}
        self.artifacts: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.received: list[str] = []  # every body, for whoever looks for what must not be in one
        self.loses: set[int] = set()
        self.unknown: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.handle_error = lambda request, address: None  # type: ignore[method-assign] # clients hang up
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> WandbServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    # --- GraphQL

    def answer(self, query: str, given: dict[str, Any]) -> Any:
        found = re.search(r"\b(query|mutation)\s+(\w+)", query)
        name = found[2] if found else "?"
        self.calls.append(name)
        method: Callable[..., Any] | None = getattr(self, f"on_{name}", None)
        if method is None:
            self.unknown.append(f"{name}: {query[:600]} {json.dumps(given)[:300]}")
            return {"errors": [{"message": f"the stand-in does not know {name}"}]}
        with self._lock:
            return {"data": method(given, query)}

    def on_Viewer(self, given: Any, query: str) -> Any:
        teams = {"edges": [{"node": {"id": "1", "name": ENTITY}}]}
        return {"viewer": {"id": "1", "entity": ENTITY, "name": ENTITY, "username": ENTITY, "email": "", "flags": "{}",
                           "admin": False, "apiKeys": {"edges": []}, "teams": teams}}  # fmt: skip

    on_GetDefaultEntity = on_GetViewer = on_Viewer

    def on_ServerFeaturesQuery(self, given: Any, query: str) -> Any:
        return {"serverInfo": {"features": []}}

    def on_UpsertBucket(self, given: dict[str, Any], query: str) -> Any:
        run = self.runs.setdefault(given["name"], Run(given["name"]))
        run.starts += 1
        run.fields |= {k: v for k, v in given.items() if v is not None}
        self.projects.add(given.get("project") or given.get("modelName") or "uncategorized")
        return {"upsertBucket": {"inserted": run.starts == 1, "bucket": run.node(str(run.fields.get("project")))}}

    def on_RunResumeStatus(self, given: dict[str, Any], query: str) -> Any:
        run = self.runs.get(given["name"])
        bucket = run.node(str(given.get("project"))) if run and run.starts else None
        return {
            "model": {"id": "1", "name": given.get("project"), "entity": {"id": "1", "name": ENTITY}, "bucket": bucket}
        }

    def on_CreateRunFiles(self, given: dict[str, Any], query: str) -> Any:
        files = [{"name": name, "uploadUrl": f"{self.url}/upload/{given['run']}/{name}"} for name in given["files"]]
        return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": files}}

    def _run(self, given: dict[str, Any]) -> Any:
        run = self.runs.get(given.get("name") or given.get("run") or "")
        return {"project": {"internalId": "1", "id": "1", "run": run and run.node(str(given.get("project")))}}

    def on_Run(self, given: dict[str, Any], query: str) -> Any:
        return self._run(given)

    on_RunSampledHistory = on_RunHistoryKeys = on_RunState = on_RunFullHistory = on_Run

    # --- artifacts

    def on_ArtifactType(self, given: dict[str, Any], query: str) -> Any:
        return {"project": {"artifact": None}}

    def on_CreateArtifact(self, given: dict[str, Any], query: str) -> Any:
        made = {
            "id": f"artifact-{len(self.artifacts)}",
            "state": "PENDING",
            "artifactSequence": {"id": "s", "latestArtifact": None},
        }
        self.artifacts.append({**given["input"], "files": {}})
        return {"createArtifact": {"artifact": made}}

    def on_CreateArtifactFiles(self, given: dict[str, Any], query: str) -> Any:
        nodes = []
        for spec in given["input"]["artifactFiles"]:
            at = int(spec["artifactID"].rpartition("-")[2])
            url = f"{self.url}/artifact/{at}/{spec['name']}"
            file = {"id": "f", "name": spec["name"], "displayName": spec["name"], "storagePath": "p"}
            file |= {"uploadUrl": url, "uploadHeaders": [], "uploadMultipartUrls": None}
            nodes.append({"node": file | {"artifact": {"id": spec["artifactID"]}}})
        return {"createArtifactFiles": {"files": {"edges": nodes}}}

    def on_CreateArtifactManifest(self, given: dict[str, Any], query: str) -> Any:
        file = {"id": "m", "name": given["name"], "displayName": given["name"], "uploadHeaders": [],
                "uploadUrl": f"{self.url}/manifest/{given['name']}"}  # fmt: skip
        return {"createArtifactManifest": {"artifactManifest": {"id": "m", "file": file}}}

    def on_UpdateArtifactManifest(self, given: dict[str, Any], query: str) -> Any:
        return {
            "updateArtifactManifest": self.on_CreateArtifactManifest({"name": "manifest", **given}, query)[
                "createArtifactManifest"
            ]
        }

    def on_CommitArtifact(self, given: dict[str, Any], query: str) -> Any:
        return {"commitArtifact": {"artifact": {"id": given["artifactID"], "digest": "d"}}}

    # --- reports

    def on_ProjectInternalId(self, given: dict[str, Any], query: str) -> Any:
        known = given["projectName"] in self.projects
        return {"project": {"id": "1", "internalId": "1"} if known else None}

    def on_GetProjects(self, given: dict[str, Any], query: str) -> Any:
        user = {
            "id": "1",
            "name": ENTITY,
            "username": ENTITY,
            "email": "",
            "admin": False,
            "flags": "{}",
            "entity": ENTITY,
            "deletedAt": None,
            "apiKeys": {"edges": []},
            "teams": {"edges": []},
        }
        about = {"entityName": ENTITY, "createdAt": "2026-01-01T00:00:00", "isBenchmark": False, "user": user}
        edges = [{"cursor": p, "node": {"id": p, "name": p, **about}} for p in sorted(self.projects)]
        return {"models": {"edges": edges, "pageInfo": {"endCursor": None, "hasNextPage": False}}}

    def on_upsertView(self, given: dict[str, Any], query: str) -> Any:
        id = given.get("id") or base64.b64encode(f"View:{len(self.views)}".encode()).decode().rstrip("=")
        is_new = id not in self.views
        self.views[id] = given
        view = {k: given.get(k) for k in ("name", "displayName", "description", "spec", "type")}
        project = {"id": "1", "name": given["projectName"], "entityName": given["entityName"]}
        return {
            "upsertView": {
                "inserted": is_new,
                "view": {**view, "id": id, "updatedAt": "2026-01-01T00:00:00", "project": project},
            }
        }

    # --- streams and files

    def take_stream(self, run_id: str, body: dict[str, Any]) -> None:
        run = self.runs.setdefault(run_id, Run(run_id))
        for name, part in (body.get("files") or {}).items():
            lines, at = part.get("content") or [], int(part.get("offset") or 0)
            if name == "wandb-history.jsonl":
                for place, line in enumerate(lines, start=at):
                    row = json.loads(line)
                    if row.get("_step") not in self.loses:
                        run.lines[place] = row
            elif name == "wandb-summary.json" and lines:
                run.summary = json.loads(lines[-1])
        if "exitcode" in body:
            run.exit_code = body["exitcode"]

    def _handler(server) -> type[BaseHTTPRequestHandler]:  # `self` is a request
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                    body = b""
                    while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
                        body += self.rfile.read(size)
                        self.rfile.readline()
                    self.rfile.readline()
                else:
                    body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                server.received.append(body.decode(errors="replace"))
                return body

            def _say(self, value: Any, status: int = 200) -> None:
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                body = self._body()
                if self.path == "/graphql":
                    asked = json.loads(body)
                    self._say(server.answer(asked["query"], asked.get("variables") or {}))
                elif self.path.endswith("/file_stream"):
                    with server._lock:
                        server.take_stream(self.path.split("/")[-2], json.loads(body))
                    self._say({"exitcode": None, "limits": {}})
                else:
                    self._say({})

            def do_PUT(self) -> None:
                body, (_, where, of, *name) = self._body(), self.path.split("/")
                if where == "upload":
                    server.runs[of].files["/".join(name)] = body
                elif where == "artifact":
                    server.artifacts[int(of)]["files"]["/".join(name)] = body
                self._say({})

            def do_GET(self) -> None:
                self._say({})

            def log_message(self, *_: object) -> None:
                return

        return Handler
