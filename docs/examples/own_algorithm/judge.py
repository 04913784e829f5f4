"""A judge behind HTTP, as small as it can be: 1 for an answer that begins as the ground truth does, else 0."""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Judge(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._say({"is": "up"})

    def do_POST(self) -> None:
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["rows"]
        self._say({"scores": [float(r["solution_str"].strip().startswith(str(r["ground_truth"]))) for r in rows]})

    def _say(self, told: object) -> None:
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    ThreadingHTTPServer((given.host, given.port), Judge).serve_forever()
