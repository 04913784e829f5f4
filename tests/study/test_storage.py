"""Optuna's index in a database: SQLite, and a real PostgreSQL that the tests start."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import optuna
import pytest

from hysweep.cli import study as verbs
from hysweep.compose import Composer
from hysweep.schema import BadInput, Study
from hysweep.study import begin as begin_study
from hysweep.study import controller
from hysweep.study.controller import Controller
from hysweep.study.rebuild import rebuild
from hysweep.study.storage import Unreachable, open_storage
from hysweep.study.storage_url import check_storage, hidden, network_file_system
from hysweep.track import Cause, StudyDirectory

from .fake import FakeLauncher
from .test_controller import LR, begin, by_lr, causes, finish, rising

IN_CI = os.environ.get("CI") == "true"
WANTED = IN_CI or os.environ.get("WITH_POSTGRES") == "1"


@dataclass
class Server:
    """A PostgreSQL of one test session, on a socket of its own."""

    directory: Path
    programs: Path
    as_user: list[str]

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@/optuna?host={self.directory}"

    def start(self) -> None:
        self.ctl("start", "-w", "-o", f"-c listen_addresses= -c unix_socket_directories={self.directory} -c fsync=off")

    def stop(self) -> None:
        self.ctl("stop", "-w", "-m", "immediate")

    def ctl(self, *words: str) -> None:
        log = self.directory / "server.log"
        self.run(self.programs / "pg_ctl", "-D", self.directory / "data", "-l", log, *words)

    def run(self, *argv: object) -> None:
        done = subprocess.run(
            [*self.as_user, *map(str, argv)], cwd=self.directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, (argv, done.stderr)


def programs() -> Path | None:
    """Of the newest PostgreSQL that is installed; brought where this is root."""
    for attempt in range(2):
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda p: int(p.parents[1].name))
        if found:
            return found[-1].parent
        if attempt == 0 and os.geteuid() == 0 and shutil.which("apt-get"):
            for words in (["update"], ["install", "--yes", "--no-install-recommends", "postgresql"]):
                environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
                subprocess.run(["apt-get", "-qq", *words], env=environment, capture_output=True, timeout=600)
    return None


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not WANTED:
        pytest.skip("NO TEST ON POSTGRESQL: WITH_POSTGRES=1 (as root, Debian) installs it and starts one")
    if (found := programs()) is None:
        assert not IN_CI, "there is no PostgreSQL, and none could be installed"
        pytest.skip("NO TEST ON POSTGRESQL: it is not installed, and this is not root on Debian")
    # a socket's path has 107 bytes; an unprivileged user must reach it
    directory = Path("/tmp") / f"hysweep-postgres-{os.getpid()}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    as_user: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to be root
        as_user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"]
        shutil.chown(directory, "nobody", "nogroup")
    server = Server(directory, found, as_user)
    server.run(found / "initdb", "-D", directory / "data", "-U", "postgres", "-A", "trust", "--no-sync")
    server.start()
    try:
        server.run(found / "createdb", "-h", directory, "-U", "postgres", "optuna")
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def in_database(url: str) -> dict[str, list[str]]:
    storage = optuna.storages.RDBStorage(url)
    names = optuna.study.get_all_study_names(storage)
    found = {n: [t.state.name for t in optuna.load_study(study_name=n, storage=storage).trials] for n in names}
    storage.remove_session()
    storage.engine.dispose()
    return found


def lives_in(url: str, composer: Composer) -> None:
    """A study from its start over a restart, a lost database, and beside another one of its name."""
    stored = f"study.storage='{url}'"
    directory = begin(composer, LR, "study.n_trials=4", "study.name=mine", stored)
    fake = FakeLauncher(by_lr)
    finish(directory, fake, {"n_trials": 2})
    finish(directory, fake, {"n_trials": 4})
    assert causes(directory) == [Cause.COMPLETED] * 4
    assert not directory.journal.exists()
    other = begin(composer, LR, "study.n_trials=1", "study.name=mine", "study.root=elsewhere", stored)
    finish(other, FakeLauncher(by_lr))
    found = in_database(url)
    assert sorted(map(len, found.values())) == [1, 4] and all(n.startswith("mine ") for n in found)
    optuna.delete_study(study_name=next(n for n, t in found.items() if len(t) == 4), storage=url)
    assert rebuild(directory, launchers=lambda name: fake).trials == {"completed": 4}
    rebuild(directory, launchers=lambda name: fake)
    assert sorted(map(len, in_database(url).values())) == [1, 4]
    # the same points as with a journal
    journal = begin(composer, LR, "study.n_trials=4", "study.name=mine", "study.root=third")
    finish(journal, FakeLauncher(by_lr))
    assert [t.point() for t in journal.trials()] == [t.point() for t in directory.trials()]


def test_sqlite(composer: Composer, tmp_path: Path) -> None:
    lives_in(f"sqlite:///{tmp_path}/optuna.db", composer)


@pytest.mark.postgres
def test_postgresql(composer: Composer, postgres: Server) -> None:
    lives_in(postgres.url, composer)


@pytest.mark.postgres
def test_a_database_that_goes_away_stops_nothing_for_good(composer: Composer, postgres: Server) -> None:
    directory = begin(composer, "rollout.n=2,4,8", "study.name=away", f"study.storage='{postgres.url}'")
    fake = FakeLauncher(rising)
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
        postgres.stop()
        try:
            with pytest.raises(Unreachable, match="does not answer"):
                for _ in range(9):
                    c.tick()
            assert fake.submitted, "what ran went on"
        finally:
            postgres.start()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                if not c.tick():
                    break
            except Unreachable:
                time.sleep(0.2)
    assert causes(directory) == [Cause.COMPLETED] * 3 and len(fake.submitted) == 3
    (states,) = [t for n, t in in_database(postgres.url).items() if n.startswith("away ")]
    assert states == ["COMPLETE"] * 3


@pytest.mark.postgres
def test_a_controller_that_is_killed_leaves_a_database_that_goes_on(composer: Composer, postgres: Server) -> None:
    directory = begin(composer, LR, "study.n_trials=6", "study.name=killed", f"study.storage='{postgres.url}'")
    fake = FakeLauncher(by_lr)
    for pause in (0.3, 0.6, 0.9):
        child = os.fork()
        if child == 0:
            try:
                finish(directory, fake)
            finally:
                os._exit(0)
        time.sleep(pause)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        fake = FakeLauncher(by_lr)
        for trial in directory.trials():  # this launcher's jobs live in its process
            for attempt in trial.attempts():
                if attempt.claimed():
                    fake.jobs[str(attempt.path)] = len(attempt.metrics())
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 6
    (states,) = [t for n, t in in_database(postgres.url).items() if n.startswith("killed ")]
    assert states == ["COMPLETE"] * 6


@pytest.mark.postgres
def test_a_database_restarted_again_and_again_in_the_middle_of_a_study(
    composer: Composer, postgres: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At any instant, under whatever statement: whoever drives the study waits for it and goes on."""
    words = ("algorithm=grpo,rloo", LR, "study.n_trials=12", "study.max_parallel=3", "study.seed=5")
    calm = begin(composer, *words, "study.name=calm")
    finish(calm, FakeLauncher(by_lr))
    directory = begin(composer, *words, "study.name=restarted", f"study.storage='{postgres.url}'")
    fake = FakeLauncher(by_lr)
    is_over = threading.Event()

    def restart() -> None:
        moments = random.Random(11)
        while not is_over.wait(moments.uniform(0.05, 0.8)):
            postgres.stop()
            is_over.wait(moments.choice([0.0, 0.3]))
            postgres.start()

    monkeypatch.setattr(
        controller, "Controller", lambda d, changes: Controller(d, changes, launchers=lambda name: fake)
    )
    weather = threading.Thread(target=restart)
    weather.start()
    try:
        for _ in range(20):  # one that finds it gone as it begins says so, and is run again
            try:
                code = verbs.drive(directory, {})
                break
            except BadInput as e:
                assert len(e.problems) == 1 and "study.storage" in str(e), e
                assert not directory.driver_file.exists(), "it leaves the study to whoever goes on"
    finally:
        is_over.set()
        weather.join()
    assert code == 0
    assert "does not answer" in capsys.readouterr().err
    assert causes(directory) == [Cause.COMPLETED] * 12
    assert len(fake.submitted) == len(set(fake.submitted)) == 12, "none is lost, none runs twice"
    assert [t.state().value for t in directory.trials()] == [by_lr(t.point(), 1)[-1] for t in directory.trials()]
    (states,) = [t for n, t in in_database(postgres.url).items() if n.startswith("restarted ")]
    assert sorted(states) == ["COMPLETE"] * 12
    points = [t.point() for t in directory.trials()]
    assert points[0] == calm.trials()[0].point() and len({str(p) for p in points}) == 12


@pytest.mark.postgres
def test_a_database_that_goes_as_a_study_is_entered(
    composer: Composer, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = begin(composer, "rollout.n=2,4", "study.name=entered", f"study.storage='{postgres.url}'")

    def going(*arguments: object) -> object:
        opened = open_storage(*arguments)  # type: ignore[arg-type]
        postgres.stop()
        return opened

    with monkeypatch.context() as patched:
        patched.setattr(controller, "open_storage", going)
        with pytest.raises(BadInput, match=r"study\.storage = .*does not answer"):
            Controller(directory).__enter__()
    postgres.start()
    finish(directory, fake := FakeLauncher(rising))
    assert causes(directory) == [Cause.COMPLETED] * 2 and len(fake.submitted) == 2


# --- the URL


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://me:geheim@host/db",
        "postgresql://me:geheim@host:5432/db",
        "postgresql+psycopg://host/db?user=me&password=geheim",
        "mysql://me:geheim@host/db",
    ],
)
def test_a_password_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(BadInput, match="PGPASSWORD") as e:
        check_storage(Study(storage=url))
    assert "geheim" not in str(e.value) and "***" in str(e.value)
    assert "geheim" not in hidden(f"could not connect to {url}")


@pytest.mark.parametrize(
    "url", ["", "optuna.db", "sqlite://", "mysql://me@host/db", "redis://h", "file:///x", "postgresql://["]
)
def test_what_is_no_url_of_ours_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match=r"study\.storage"):
        check_storage(Study(storage=url))


def test_a_server_that_is_not_there_is_said(composer: Composer, tmp_path: Path) -> None:
    for url, said in (
        (f"sqlite:///{tmp_path}/no/such/optuna.db", "unable to open"),
        (f"postgresql+psycopg://me@/db?host={tmp_path}", "does not open"),
    ):
        directory = begin(composer, "study.name=nowhere", f"study.storage='{url}'")
        with pytest.raises(BadInput, match=said):
            Controller(directory).__enter__()
        assert not directory.driver_file.exists(), "and leaves the study to others"
        shutil.rmtree(directory.path)


def test_a_study_whose_database_does_not_open_is_not_begun(composer: Composer, tmp_path: Path) -> None:
    place = tmp_path / "db"
    words = ["rollout.n=2,4", "study.name=s", f"study.storage=sqlite:///{place}/optuna.db"]
    with pytest.raises(BadInput, match="unable to open"):
        begin_study(composer.compose(words), composer, [])
    assert not Path("outputs/s").exists()
    place.mkdir()
    assert begin_study(composer.compose(words), composer, []).is_new


def test_sqlite_on_a_network_file_system_is_refused_unless_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 37."""
    from hysweep.study import storage_url

    monkeypatch.setattr(storage_url, "network_file_system", lambda path: "nfs4")
    study = Study(storage="sqlite:////shared/optuna.db")
    with pytest.raises(BadInput, match=r"SQLite on nfs4.*force_sqlite"):
        check_storage(study)
    study.force_sqlite = True
    check_storage(study)


def test_the_kind_of_a_file_system_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    mounts = """21 1 8:1 / / rw - ext4 /dev/sda1 rw
30 21 0:44 / /shared rw,noatime shared:5 - nfs4 server:/export rw
31 30 0:45 / /shared/scratch rw - lustre mgs:/x rw
32 30 8:2 / /shared/my\\040disk rw - xfs /dev/sdb rw
torn"""
    kinds = {
        "/home/me/x.db": None, "/shared/x.db": "nfs4", "/shared/scratch/a/b": "lustre", "/sharedx": None,
        "/shared/my disk/x": None,
    }  # fmt: skip
    assert {p: network_file_system(Path(p), mounts) for p in kinds} == kinds
    assert network_file_system(tmp_path) in (None, "9p")


def test_the_url_stays_as_it_was_given(composer: Composer, tmp_path: Path) -> None:
    directory: StudyDirectory = begin(composer, f"study.storage=sqlite:///{tmp_path}/o.db")
    assert f"sqlite:///{tmp_path}/o.db" in directory.config_file.read_text()
