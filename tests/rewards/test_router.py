"""Rows find their reward by data_source; what cannot be scored ends the trial with its row."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hysweep.check import check_trial, errors
from hysweep.compile import compile_trial, trainer_values
from hysweep.rewards import encode, knows, read_routes, route_for
from hysweep.rewards.endpoint import Endpoint, EndpointFailed, Limits
from hysweep.rewards.router import RewardError, close, compute_score, reward_error
from hysweep.schema import BadInput


def score(routes: dict[str, Any], data_source: str, answer: str, truth: Any = "1", **more: Any) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        try:
            return await compute_score(data_source, answer, truth, {"index": 7}, routes=encode(routes, str), **more)
        finally:
            await close()

    return asyncio.run(ask())


def test_a_row_goes_where_its_data_source_says() -> None:
    routes = {"a": "exact_match", "b*": {"reward": "length", "most": 1}, "*": {"reward": "exact_match", "weight": 2}}
    assert score(routes, "a", "1")["score"] == 1
    assert score(routes, "b/any", "one")["score"] == 1
    assert score(routes, "b/any", "one two")["score"] == 0
    assert score(routes, "other", "1") == {"score": 2.0, "acc": 1.0}
    assert route_for(read_routes({"b*": "math", "b/x": "format"}), "b/x").pattern == "b/x"  # type: ignore[union-attr]


def test_several_are_added_up_and_each_is_a_metric() -> None:
    routes = {"*": [{"reward": "exact_match", "weight": 0.75}, {"reward": "length", "most": 0, "weight": 0.25}]}
    assert score(routes, "a", "1") == {"score": 0.75, "acc": 1.0, "exact_match": 1.0, "length": 0.0}


@pytest.mark.parametrize(
    ("rewards", "names"),
    [
        (["mine.py:score", "exact_match"], ("mine_score", "exact_match")),
        (["/a/one.py:grade", "/b/two.py:grade"], ("one_grade", "two_grade")),
        (["http://scores.example/score", "server:judge/acc"], ("scores_example_score", "judge_acc")),
        (["length", "length", "pkg.rules:pred"], ("length", "length_2", "pkg_rules_pred")),
    ],
)
def test_parts_of_a_sum_have_names_of_their_own(rewards: list[str], names: tuple[str, ...]) -> None:
    [route] = read_routes({"*": rewards})
    assert route.labels == names


def test_a_part_that_is_called_score_leaves_the_sum_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(**row):\n    return 0.5\ndef acc(**row):\n    return 0.25\n")
    parts = [{"reward": f"{tmp_path}/mine.py:{name}", "weight": 0.5} for name in ("score", "acc")]
    told = score({"*": [{"reward": "exact_match", "weight": 2}, *parts], "a": "exact_match"}, "b", "1")
    assert told == {"score": 2.375, "acc": 1.0, "exact_match": 1.0, "mine_score": 0.5, "mine_acc": 0.25}


def test_every_row_names_the_same_metrics() -> None:
    """verl puts a batch's rows together by the metrics that its first row has."""
    routes = {"a": [{"reward": "exact_match", "weight": 0.5}, {"reward": "length"}], "b": "format"}
    assert score(routes, "b", "1") == {"score": 0.0, "acc": 0.0, "exact_match": None, "length": None}
    assert set(score(routes, "a", "1")) == set(score(routes, "b", "1"))


@pytest.fixture
def functions(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(
        "async def later(data_source, solution_str, ground_truth, extra_info=None, bonus=0):\n"
        "    return {'score': len(solution_str) + bonus, 'pred': solution_str, 'index': extra_info['index']}\n"
        "def raises(**row):\n    raise ZeroDivisionError('no such luck')\n"
        "def nothing(**row):\n    return None\n"
        "def nan(**row):\n    return float('nan')\n"
        "def bare(**row):\n    return {'acc': 1}\n"
        "def true(**row):\n    return True\n"
        "def leaves(**row):\n    raise SystemExit(0)\n"
    )
    return str(tmp_path / "own.py")


def test_functions_sync_and_async_with_options_of_their_own(functions: str) -> None:
    told = score({"*": {"reward": f"{functions}:later", "bonus": 3}}, "a", "ab")
    assert told == {"score": 5.0, "pred": "ab", "index": 7, "acc": 5.0}
    assert score({"*": f"{functions}:true"}, "a", "ab") == {"score": 1.0, "acc": 1.0}


@pytest.mark.parametrize(
    ("name", "said"),
    [("raises", "ZeroDivisionError: no such luck"), ("nothing", "no number"), ("nan", "not finite"),
     ("bare", "no score"), ("missing", "no function missing"), ("leaves", "SystemExit: 0")],
)  # fmt: skip
def test_what_cannot_be_used_is_written_down_with_its_row(
    functions: str, name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYSWEEP_ATTEMPT", str(tmp_path))
    assert reward_error(tmp_path) == ""
    with pytest.raises(RewardError, match=said):
        score({"*": f"{functions}:{name}"}, "a", "my answer")
    told = reward_error(tmp_path)
    assert said in told and '"solution_str": "my answer"' in told and '"data_source": "a"' in told
    with pytest.raises(RewardError):
        score({"*": f"{functions}:raises"}, "a", "a later one")
    assert reward_error(tmp_path) == told, "the first row stays"
    assert [p.name for p in tmp_path.iterdir() if "reward_error" in p.name] == ["reward_error.json"]


def test_a_data_source_that_has_no_route() -> None:
    with pytest.raises(RewardError, match="no route"):
        score({"a": "exact_match"}, "b", "1")


# --- endpoints


class Judge(BaseHTTPRequestHandler):
    seen: ClassVar[list[int]] = []
    at_once = most = 0
    lock = threading.Lock()
    fails = 0
    answer: Any = None
    sleep_s = 0.0

    def do_POST(self) -> None:
        kind = type(self)
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["rows"]
        with kind.lock:
            kind.at_once += 1
            kind.most = max(kind.most, kind.at_once)
            kind.seen.append(len(rows))
            fails, kind.fails = kind.fails > 0, kind.fails - 1
        time.sleep(kind.sleep_s)
        with kind.lock:
            kind.at_once -= 1
        body = (
            kind.answer if kind.answer is not None else json.dumps({"scores": [len(r["solution_str"]) for r in rows]})
        )
        self.send_response(503 if fails else 200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Judge]]]:
    kind = type("OneJudge", (Judge,), {"seen": [], "lock": threading.Lock()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("hysweep.rewards.endpoint.FIRST_PAUSE_S", 0.01)
    yield f"http://127.0.0.1:{server.server_port}/score", kind
    server.shutdown()


def ask(url: str, count: int, limits: Limits) -> list[Any]:
    async def all_of_them() -> list[Any]:
        endpoint = Endpoint(url, limits)
        try:
            rows = [{"solution_str": "x" * i} for i in range(count)]
            return await asyncio.gather(*(endpoint.score(row) for row in rows), return_exceptions=True)
        finally:
            await endpoint.close()

    return asyncio.run(all_of_them())


def test_rows_share_requests_and_few_run_at_once(judge: tuple[str, type[Judge]]) -> None:
    url, kind = judge
    kind.sleep_s = 0.05
    assert ask(url, 40, Limits(batch=8, concurrent=2)) == list(range(40))
    assert sum(kind.seen) == 40 and max(kind.seen) == 8
    assert kind.most <= 2


def test_what_fails_is_tried_again_and_what_stays_broken_is_said(judge: tuple[str, type[Judge]]) -> None:
    url, kind = judge
    kind.fails = 2
    assert ask(url, 1, Limits(retries=2)) == [0]
    kind.fails = 99
    [error] = ask(url, 1, Limits(retries=1))
    assert isinstance(error, EndpointFailed) and "HTTP 503" in str(error) and "2 times" in str(error)
    kind.fails, kind.sleep_s = 0, 0.5
    [error] = ask(url, 1, Limits(retries=0, timeout_s=0.1))
    assert "no answer within 0.1 s" in str(error)
    kind.sleep_s, kind.answer = 0, '{"scores": []}'
    [error] = ask(url, 1, Limits(retries=0))
    assert "asked of 1 rows" in str(error)


def test_an_endpoint_and_a_server_of_the_trials_own(
    judge: tuple[str, type[Judge]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = judge
    assert score({"*": url}, "a", "abc")["score"] == 3
    monkeypatch.setenv("HYSWEEP_SERVER_MY_JUDGE", url.removesuffix("/score"))
    assert score({"*": "server:my-judge/score"}, "a", "abc")["score"] == 3
    with pytest.raises(RewardError, match="HYSWEEP_SERVER_OTHER is not set"):
        score({"*": "server:other/score"}, "a", "abc")


# --- configuration


@pytest.mark.parametrize(
    ("routes", "said"),
    [({"a": "maths"}, "did you mean math"), ({"a": {"weight": 1}}, "names no reward"), ({"a": []}, "names no reward"),
     ({"a": {"reward": "math", "weight": "much"}}, "is no number"), ({"a": 3}, "names no reward"),
     ({"a": {"reward": "math", "weight": float("nan")}}, "is no number"), ({"a": "http://"}, "no URL with a host"),
     ({"a": "http://[::1"}, "no URL with a host"), ({"a": {"reward": "length", "mots": 4}}, "did you mean most"),
     ({"a": {"reward": "verl", "timeout_s": 4}}, "nothing that verl reads"),
     ({"a": {"reward": "length", "most": "abc"}}, "another type than int"),
     ({"a": {"reward": "length", "least": True}}, "another type than int"),
     ({"a": {"reward": "code", "is_partial": 1}}, "another type than bool"),
     ({"a": {"reward": "format", "regex": "("}}, "no regular expression")],
)  # fmt: skip
def test_routes_that_say_nothing(routes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read_routes(routes)


def routed(folder: Path, routes: dict[str, Any], servers: dict[str, Any] | None = None) -> list[str]:
    import yaml

    (folder / "reward").mkdir(exist_ok=True)
    told = {"name": "mine", "routes": routes, "servers": servers or {}, "workers": 1}
    (folder / "reward" / "mine.yaml").write_text(yaml.safe_dump(told))
    return ["reward=mine"]


def test_routes_reach_the_trainer_as_they_are_written(tmp_path: Path) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from hysweep.compose import Composer

    (tmp_path / "own.py").write_text("def f(**row):\n    return 1.0\n")
    (tmp_path / "judge.py").write_text("")
    routes = {
        "openai/gsm8k": "own.py:f",
        "it's ${odd}": ["math", {"reward": "server:judge/s", "weight": 0.5}],
        "tiny_copy": "format",
        "*": "verl",
    }
    servers = {"judge": {"command": "python judge.py --port {port}"}}
    trial = Composer([tmp_path]).compose(routed(tmp_path, routes, servers)).trial
    assert errors(check_trial(trial)) == []
    job = compile_trial(trial, Path("/t"))
    assert job.services["judge"]["command"] == ["python", str(tmp_path / "judge.py"), "--port", "{port}"]
    [line] = [o for o in job.overrides if "routes=" in o]
    read = json.loads(OverridesParser.create().parse_override(line).value().replace("\\${", "${"))
    assert read["openai/gsm8k"] == [{"reward": f"{tmp_path}/own.py:f", "weight": 1.0}]
    assert read["it's ${odd}"][1] == {"reward": "server:judge/s", "weight": 0.5}
    assert knows(trial.reward)("openai/gsm8k") and not knows(trial.reward)("nobody's")


@pytest.mark.parametrize(
    ("routes", "servers", "said"),
    [
        ({"a": "none.py:f"}, {}, "no such file"),
        ({"a": "own.py:g"}, {}, "no such function"),
        ({"a": {"reward": "json_schema", "schema_file": "/none.json"}}, {}, "no such file"),
        ({"a": "server:judge/s"}, {}, "no server that the trial starts"),
        ({"a": "server:judge/s"}, {"judge": {"comand": "x"}}, "says no command"),
        ({"a": "server:judge/s"}, {"judge": {"command": "x", "heath": "/h"}}, "nothing that a server has"),
        ({"a": "math"}, {"judge": {"command": "x"}}, "no route asks it"),
    ],
)
def test_check_looks_at_routes_and_servers(routes: Any, servers: Any, said: str, tmp_path: Path) -> None:
    from hysweep.compose import Composer

    (tmp_path / "own.py").write_text("def f(**row):\n    return 1.0\n")
    trial = Composer([tmp_path]).compose(routed(tmp_path, routes, servers)).trial
    assert said in " ".join(str(p) for p in check_trial(trial))


def test_a_function_is_called_by_the_router_too(trial_of, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def f(**row):\n    return 1.0\n")
    values = trainer_values(trial_of("reward=function", "reward.function_path=own.py", "reward.function_name=f",
                                     "reward.function_kwargs={bonus: 2}"))  # fmt: skip
    prefix = "reward.custom_reward_function"
    assert values[f"{prefix}.path"] == "pkg://hysweep.rewards.router"
    assert values[f"{prefix}.reward_kwargs.function"] == f"{tmp_path}/own.py:f"
    assert values[f"{prefix}.reward_kwargs.bonus"] == 2


@pytest.mark.parametrize(
    ("text", "is_said"),
    [
        ("from hs_helper import norm\n", True),
        ("import hs_helper.part\n", True),
        ("from .hs_helper import norm\n", True),
        ("import json, numpy\n", False),
        ("import sys\nsys.path.insert(0, '/x')\nimport hs_helper\n", False),
        ("try:\n    import hs_helper\nexcept ImportError:\n    pass\n", False),
    ],
)
@pytest.mark.parametrize("way", ["function", "routes"])
def test_a_functions_neighbours_are_not_found_by_its_path(
    way: str, text: str, is_said: bool, trial_of, tmp_path: Path
) -> None:
    (tmp_path / "hs_helper.py").write_text("def norm(text):\n    return text\n")
    (tmp_path / "own.py").write_text(f"{text}def f(**row):\n    return 1.0\n")
    words = ["reward.function_path=null", f"reward.routes={{tiny_copy: '{tmp_path}/own.py:f'}}"]
    if way == "function":
        words = ["reward=function", f"reward.function_path={tmp_path}/own.py", "reward.function_name=f"]
    found = [p for p in check_trial(trial_of(*words)) if "without its directory" in p.why]
    assert len(found) == is_said
    assert all(f"cluster.env.PYTHONPATH={tmp_path}" in p.cure for p in found)
    if "from ." not in text:
        assert not [p for p in check_trial(trial_of(*words, f"cluster.env.PYTHONPATH={tmp_path}"))
                    if "without its directory" in p.why]  # fmt: skip


def test_a_functions_file_is_a_file(trial_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    found = check_trial(trial_of("reward=function", "reward.function_path=folder"))
    assert [p.key for p in found if p.why == "is no file"] == ["reward.function_path"]
