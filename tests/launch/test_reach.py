"""Weights & Biases where nobody answers: a trial does not fail for it, nor hang."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from hysweep.launch import reach
from hysweep.launch.local import LocalLauncher
from hysweep.track import AttemptDirectory, Cause
from tests.launch.attempts import end_of, over

New = Callable[..., AttemptDirectory]


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Answers, be it with an error."""
    with HTTPServer(("127.0.0.1", 0), Answer) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_address[1]}"
        served.shutdown()


@pytest.fixture
def refusing() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def hanging() -> Iterator[str]:
    """Takes every call and says nothing."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(16)
        yield f"http://127.0.0.1:{deaf.getsockname()[1]}"


def test_who_answers_is_reached(server: str, refusing: str, hanging: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "WITHIN_S", 0.5)
    assert reach.why_unreachable({"WANDB_BASE_URL": server}) is None
    assert "refused" in (reach.why_unreachable({"WANDB_BASE_URL": refusing}) or "")
    assert "no answer within" in (reach.why_unreachable({"WANDB_BASE_URL": hanging}) or "")
    for url in ("http://nowhere.invalid", "not a url", "http://[", "ftp://127.0.0.1:1"):
        assert reach.why_unreachable({"WANDB_BASE_URL": url}), url


def test_by_the_way_that_its_client_goes(server: str, refusing: str, tmp_path: Path) -> None:
    far = {"WANDB_BASE_URL": "http://wandb.invalid"}
    assert reach.why_unreachable(far | {"HTTP_PROXY": server}) is None
    assert reach.why_unreachable(far | {"http_proxy": refusing})
    assert reach.why_unreachable({"WANDB_BASE_URL": server, "http_proxy": refusing, "NO_PROXY": "127.0.0.1"}) is None
    assert reach.base_url({"HOME": str(tmp_path)}) == "https://api.wandb.ai"
    noted = tmp_path / ".config" / "wandb" / "settings"
    noted.parent.mkdir(parents=True)
    noted.write_text(f"[default]\nbase_url = {server}\n")
    assert reach.base_url({"HOME": str(tmp_path)}) == server
    noted.write_bytes(b"\x80 torn")
    assert reach.base_url({"HOME": str(tmp_path)}) == "https://api.wandb.ai"


def test_a_trial_is_written_offline_where_nobody_answers(
    local: LocalLauncher, new_attempt: New, server: str, refusing: str, hanging: str
) -> None:
    def mode(url: str, **more: str) -> tuple[str, str]:
        env = {"WANDB_BASE_URL": url, "WANDB_RUN_ID": "abc"} | more
        attempt = new_attempt("environment=WANDB_MODE", "exit=0", env=env)
        over(local, local.submit(attempt))
        assert end_of(attempt).cause is Cause.COMPLETED
        return attempt.driver_log.read_text().strip(), attempt.node_log.read_text()

    for url in (refusing, hanging):
        said, told = mode(url)
        assert said == "WANDB_MODE=offline"
        assert f"Weights & Biases does not answer ({url}" in told and "hysweep wandb sync" in told
    assert mode(server)[0] == "WANDB_MODE=None"
    for of_users in ("disabled", "offline"):
        said, told = mode(refusing, WANDB_MODE=of_users)
        assert said == f"WANDB_MODE={of_users}" and "Biases" not in told
