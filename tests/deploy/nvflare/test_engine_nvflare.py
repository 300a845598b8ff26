"""A provisioned NVFlare federation: a server and four sites, all over mutual TLS, started once.

Jobs run one after another. Each begins while the engine still tidies up after the one before, when
the processes of its sites have ended: no more than one job's are in memory.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import colonnade
from colonnade import assembly, config
from colonnade.cli.main import main
from colonnade.config import federation
from colonnade.config.federation import Federation
from colonnade.deploy import doctor
from colonnade.deploy.connect import agreed, facts_of
from colonnade.deploy.nvflare import job, kits, machine, sitefile
from colonnade.deploy.nvflare.defaults import ADMIN
from colonnade.deploy.nvflare.machine import Engine
from colonnade.deploy.nvflare.submit import Console, submit
from colonnade.deploy.setup import prepare, read_rows
from colonnade.deploy.supervisor import Options, hand_out
from colonnade.errors import FederationError, RoleFailed, RunError
from colonnade.net import certs
from colonnade.results.result import Result

pytest.importorskip("nvflare")
psutil = pytest.importorskip("psutil")

SITES = ("bank", "shop", "post", "port")
WAIT = 120.0
BYTES = 2 << 30  # of the server, the sites and one job, together


def settings(method: str) -> dict[str, Any]:
    """A small real data set in four parts; the name of the run is that of its method."""
    base: dict[str, Any] = {
        "method": method,
        "name": method,
        "seed": 3,
        "epochs": 3,
        "batch_size": 40,
        "data": {"name": "digits", "train_rows": 400, "test_rows": 120},
        "partition": {"kind": "columns", "parties": len(SITES)},
        "parties": {name: {} for name in SITES},
    }
    if method == "adptvfedconv":
        base["partition"] = {"kind": "strips", "parties": len(SITES)}
        base["model_options"] = {"width": 0.2, "fc": [64], "dropout": 0.1}
        base["epochs"] = 1
        base["adptvfedconv"] = {"pretrain_epochs": 1, "finetune_epochs": 1, "chunk": 150}
    if method == "easter":
        base["epochs"] = 8  # two until it is killed
    return base


def handed_out(folder: Path, method: str, **changes: Any) -> Federation:
    """The files of a federation whose sites lie on this machine."""
    resolved = config.load(settings(method) | changes)
    hand_out(resolved, assembly.from_catalogue(resolved), folder, Options(deadline=30.0))
    return federation.load(folder / "federation.toml")


class Place:
    """The engine, what its sites have, and how much memory all of it took."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kits = folder, folder / "kits"
        self.shared = {
            method: handed_out(folder / method, method)
            for method in ("splitnn", "adptvfedconv", "easter")
        }
        machine.provision(self.kits, self.shared["splitnn"])
        for method in self.shared:
            files = {name: machine.site_file(folder / method, name) for name in SITES}
            machine.settle(self.kits, method, files)
        self.engine = Engine(self.kits, SITES)
        self.bytes = 0
        self._turns = ThreadPoolExecutor(1)

    def submit(self, method: str, relay: bool = False) -> Result:
        out = self.folder / "runs" / method
        return submit(self.shared[method], self.engine.kit, out=out, relay=relay)

    def in_turn(self, work: Callable[[], Any]) -> Future[Any]:
        """Run it when the sites have ended the processes of the job before."""
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except Exception as error:  # noqa: BLE001 - whoever asks gets it
                done.set_exception(error)

        def turn() -> None:
            threading.Thread(target=run, daemon=True).start()
            for busy in (False, True):  # until there are such processes; until there are none
                while busy == self._busy() and not done.done():
                    time.sleep(0.3)

        self._turns.submit(turn)
        return done

    def _busy(self) -> bool:
        return any(self.engine.jobs(name) for name in SITES)

    def watch(self) -> None:
        while self.engine.processes:
            found = [*self.engine.processes.values(), *self.engine.jobs()]
            self.bytes = max(self.bytes, sum(_bytes(process.pid) for process in found))
            time.sleep(2.0)  # looking costs time itself


def _bytes(pid: int) -> int:
    """Memory of a process; what it shares with others counts once for all of them."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0  # it has ended
    return 1024 * int(re.findall(r"^Pss:\s+(\d+)", text, re.M)[0])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("engine"))
    with made.engine:
        threading.Thread(target=made.watch, daemon=True).start()
        yield made
    assert 0 < made.bytes < BYTES


@pytest.fixture(scope="module")
def jobs(place: Place) -> dict[str, Future[Any]]:
    """All jobs, in their order; while they run, the tests make what to compare them with."""
    begun = {
        "splitnn": place.in_turn(lambda: place.submit("splitnn")),
        "adptvfedconv": place.in_turn(lambda: _relayed(place)),
        "killed": place.in_turn(lambda: _killed(place)),
        "refused": place.in_turn(lambda: _refused(place)),
    }

    def resumed() -> int:
        begun["killed"].exception(WAIT)
        run = place.folder / "runs" / "easter"
        return main(["nvflare", "submit", "--resume", str(run), "--quiet"])

    return begun | {"resumed": place.in_turn(resumed)}


def _relayed(place: Place) -> Result:
    """AdptVFedConv, while nobody can listen where its federation file says."""
    shared = place.shared["adptvfedconv"]
    with ExitStack() as taken:
        for name in filter(shared.listens, SITES):
            address = federation.split_address(shared.member(name).binds)
            taken.enter_context(socket.create_server(address))
        return place.submit("adptvfedconv", relay=True)


def _killed(place: Place) -> Result:
    """EASTER, until the process of 'post' is ended between two checkpoints."""
    kept = place.folder / "easter" / "parties" / "post" / "checkpoints"

    def kill() -> None:
        while len(list(kept.glob("*.json"))) < 2:
            time.sleep(0.02)
        for process in place.engine.jobs("post"):
            process.kill()

    threading.Thread(target=kill, daemon=True).start()
    return place.submit("easter")


def _refused(place: Place) -> Result:
    """Split learning, submitted by another version, at sites that were spoilt."""
    _spoil(place)
    newer = replace(place.shared["splitnn"])

    def facts(shared: Federation) -> dict[str, str]:
        other = {"version of Colonnade": "9.9.9"} if shared is newer else {}
        return facts_of(shared) | other

    with mock.patch.object(job, "facts_of", facts):
        return submit(newer, place.engine.kit, out=place.folder / "runs" / "refused")


def _spoil(place: Place) -> None:
    """Another config at the shop, no data at the post."""
    shop, post = (
        place.kits / name / "local" / sitefile.FOLDER / "splitnn" / sitefile.FILE
        for name in ("shop", "post")
    )
    handed_out(place.folder / "other", "splitnn", seed=4)
    shop.write_text(machine.site_file(place.folder / "other", "shop"))
    post.write_text(post.read_text().replace("post-rows.json", "none.csv"))


def local(tmp_path: Path, method: str) -> Result:
    return colonnade.run(settings(method), out=tmp_path / "local")


def test_a_site_is_known_by_its_kit(place: Place) -> None:
    """Mutual TLS, for the engine and for our streams, with the certificates of the kits."""
    for name in SITES:
        kit = place.kits / name / "startup"
        found = certs.check(kit / "client.crt", kit / "rootCA.pem", name)
        assert found.hosts == (name,)
        client = json.loads((kit / "fed_client.json").read_text())["client"]
        assert client["connection_security"] == "mtls"


def test_the_doctor_finds_a_site_in_order(place: Place) -> None:
    checks = doctor.examine_site(own_file(place.kits / "port"))
    assert [check for check in checks if check.verdict not in ("ok", "note")] == []
    assert any("answers, and each accepts the other's" in check.found for check in checks)


def test_no_site_may_build_other_classes_than_ours(place: Place) -> None:
    for name in (*SITES, "localhost"):
        ours = json.loads((place.kits / name / "local" / "resources.json").read_text())
        server = [job.CONDUCTOR, job.TENSORBOARD]
        assert ours["class_allow_list"] == (server if name == "localhost" else [job.SITE])
        assert ours["class_list_enforcement_mode"] == "enforce"


def test_a_job_with_another_class_ends_before_it_begins(place: Place) -> None:
    """Whoever may submit puts a class of the engine, which its own list allows, in place of ours;
    every site refuses to build it."""
    folder = job.write(place.shared["splitnn"], "other", False, place.folder / "other-class")
    file = folder / "app" / "config" / "config_fed_client.json"
    content = json.loads(file.read_text())
    other = "nvflare.app_common.np.np_trainer.NPTrainer"
    content["executors"][0]["executor"] = {"path": other, "args": {}}
    file.write_text(json.dumps(content))
    with Console(place.engine.kit) as session:
        number = session._api.submit_job(str(folder))
        until = time.monotonic() + WAIT
        while not str(session._api.get_job_meta(number)["status"]).startswith("FINISHED"):
            assert time.monotonic() < until
            time.sleep(0.3)
    said = [
        path.read_text(errors="replace")
        for name in SITES
        for path in (place.kits / name).rglob("*.txt")
    ]
    refused = f"Component '{other}' at config path"
    assert any(refused in text and "is not in allow_list" in text for text in said)


def test_a_job_may_not_bring_code(place: Place) -> None:
    folder = job.write(place.shared["splitnn"], "code", False, place.folder / "code")
    (folder / "app" / "custom").mkdir()
    (folder / "app" / "custom" / "x.py").touch()
    with Console(place.engine.kit) as session:
        number = session._api.submit_job(str(folder))
        until = time.monotonic() + WAIT
        while not (told := session._api.get_job_meta(number)).get("job_deploy_detail"):
            assert time.monotonic() < until
            time.sleep(0.1)
    assert told["job_deploy_detail"] == ["server: BYOC not permitted"]


def test_who_submits_may_not_look_at_a_machine(place: Place) -> None:
    from nvflare.fuel.flare_api.api_spec import AuthorizationError

    with Console(place.engine.kit) as session:
        for name in ("bank", "server"):
            with pytest.raises(AuthorizationError, match="not authorized"):
                session._api.ls_target(name)
            with pytest.raises(AuthorizationError, match="not authorized"):
                session._api.head_target(name, file="log.txt")
        assert "is not authorized" in str(session._api.do_command("shutdown client bank"))


def test_every_kit_says_so_itself(place: Place) -> None:
    """A site refuses what the server would have let through."""
    for name in (*SITES, "localhost"):
        local_files = place.kits / name / "local"
        rights = json.loads((local_files / "authorization.json").read_text())["permissions"]
        given = json.loads((local_files / "authorization.json.default").read_text())["permissions"]
        assert rights.keys() == given.keys()
        for role in rights:
            for right in ("byoc", "shell_commands", "clone_job", "operate"):
                assert rights[role][right] == "none"
    for name in SITES:
        resources = json.loads((place.kits / name / "local" / "resources.json").read_text())
        assert resources["allow_log_streaming"] is False


def test_split_learning_gives_the_same_bits(
    place: Place, jobs: dict[str, Future[Any]], tmp_path: Path
) -> None:
    alone = local(tmp_path, "splitnn")
    result: Result = jobs["splitnn"].result(WAIT)
    assert result.weights_sha256 == alone.weights_sha256
    assert result.metrics["test"]["accuracy"] == alone.accuracy
    assert result.content["runtime"] == "nvflare"
    for part in ("bytes", "messages", "rounds", "by_kind", "by_party", "by_phase"):
        assert result.wire[part] == alone.wire[part], part
    assert "finished" in (result.path / "sites" / "shop" / "log.txt").read_text()
    assert not (result.path / "weights").exists()  # they stay where they were trained
    events = list((result.path / "tensorboard" / "bank").iterdir())
    assert events and b"train/loss" in events[0].read_bytes()
    _holds_nothing_of_a_site(result.path / "job", place.folder)


def _holds_nothing_of_a_site(folder: Path, root: Path) -> None:
    """Neither a path nor a file beside those that name components, sites and settings."""
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    kept = {name for name in files if ".__nvfl" not in name}  # signatures of the engine
    assert kept == {
        "meta.json",
        "app/config/config_fed_server.json",
        "app/config/config_fed_client.json",
    }
    text = "".join((folder / name).read_text() for name in kept)
    assert str(root) not in text and "/" not in re.sub(r"127\.0\.0\.1", "", text)


def test_weights_handed_from_site_to_site_through_the_engine_are_the_same(
    jobs: dict[str, Future[Any]], tmp_path: Path
) -> None:
    """Relayed: whoever would bind an address could not."""
    alone = local(tmp_path, "adptvfedconv")
    assert jobs["adptvfedconv"].result(WAIT).weights_sha256 == alone.weights_sha256


def test_a_killed_site_aborts_the_job_and_it_goes_on_later(
    place: Place, jobs: dict[str, Future[Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = local(tmp_path, "easter")
    run = place.folder / "runs" / "easter"
    error = jobs["killed"].exception(WAIT)
    assert isinstance(error, RoleFailed)
    assert re.search(r"nothing came from .*'post'", str(error)), str(error)
    assert f"go on with: colonnade nvflare submit --resume {run}" in error.__notes__
    assert jobs["resumed"].result(WAIT) == 0
    result = json.loads((run / "result.json").read_text())
    assert result["weights_sha256"] == alone.weights_sha256
    log = (run / "sites" / "bank" / "log.txt").read_text()
    assert re.search(r"attempt 2: all start from train-0000\d", log)
    assert main(["nvflare", "submit", "--resume", str(run)]) == 2
    assert "is finished" in capsys.readouterr().err


def test_sites_that_differ_are_refused_before_training(
    place: Place, jobs: dict[str, Future[Any]]
) -> None:
    """Another config at the shop, no data at the post, another version of the submitter."""
    error = jobs["refused"].exception(WAIT)
    assert isinstance(error, FederationError)
    assert "'shop': [run] seed is 4 there, 3 in the job" in error.problems
    said = "'post': its data cannot be used (DataError); see the log at the site"
    assert said in error.problems
    assert str(place.folder) not in str(error) and "none.csv" not in str(error)
    at_the_site, elsewhere = (
        any(b"none.csv" in log.read_bytes() for log in (place.kits / name).rglob("*log*.*"))
        for name in ("post", "localhost")
    )
    assert at_the_site and not elsewhere
    here = colonnade.__version__
    for name in SITES:
        said = f"'{name}': version of Colonnade is {here} there, 9.9.9 in the job"
        assert said in error.problems
    assert not (place.folder / "runs" / "refused").exists()


# ---- without an engine ---------------------------------------------------------------------------


def test_a_site_without_a_file_says_which_it_has(tmp_path: Path) -> None:
    place = sitefile.Workplace(tmp_path, tmp_path, tmp_path)
    with pytest.raises(RunError, match="it has none at all"):
        sitefile.federation_of(place, "scores")
    (tmp_path / "colonnade" / "other").mkdir(parents=True)
    (tmp_path / "colonnade" / "other" / "site.toml").touch()
    with pytest.raises(RunError, match="it has them for other"):
        sitefile.federation_of(place, "scores")


def test_a_member_called_server_has_another_site(tmp_path: Path) -> None:
    """The engine's own server is called so, and its certificate is nobody's."""
    shared = handed_out(tmp_path, "jovefl")
    kits.provision(shared, tmp_path / "kits")
    kit = tmp_path / "kits" / "party-server"
    assert (kit / "local" / sitefile.FOLDER / "jovefl" / "federation.toml").exists()
    keys = sitefile.Workplace(kit / "local", kit / "startup", kit).keys
    certs.check(keys.certificate, keys.authority, keys.common_name("server"))
    assert keys.host_of("server") == "party-server" and keys.host_of("bank") == "bank"
    assert [keys.party(n) for n in ("party-server", "bank", "server")] == ["server", "bank", ""]


def test_each_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    place = sitefile.Workplace(tmp_path, tmp_path, tmp_path / "runs")
    for file, kept in ((sitefile.SiteFile(), "runs"), (sitefile.SiteFile(out="mine"), "mine")):
        found = [sitefile.run_folder(place, file, tmp_path, run) for run in ("a", "b")]
        assert found == [tmp_path / kept / "a", tmp_path / kept / "b"]


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shop's, whose role sends embeddings of width 16 to the bank."""
    folder = tmp_path_factory.mktemp("kit")
    shared = handed_out(folder, "splitnn", splitnn={"dim": 16})
    kits.provision(shared, folder / "kits")
    machine.settle(folder / "kits", "splitnn", {"shop": machine.site_file(folder, "shop")})
    return folder / "kits" / "shop"


def own_file(kit: Path) -> Path:
    return kit / "local" / sitefile.FOLDER / "splitnn" / sitefile.FILE


def test_the_doctor_of_a_site_says_what_is_wrong(
    kit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(kit, tmp_path / "kit")
    file = own_file(tmp_path / "kit")
    startup = tmp_path / "kit" / "startup"
    assert main(["doctor", str(file), "--name", "shop"]) == 2
    assert "omit --name" in capsys.readouterr().err

    def found() -> dict[str, str]:
        assert main(["doctor", str(file), "--json"]) in (0, 1)
        content = json.loads(capsys.readouterr().out)["checks"]
        return {
            check["about"]: check["found"]
            for check in content
            if check["verdict"] not in ("ok", "note")
        }

    (about,) = found()
    assert about == "engine"  # its server does not run
    with mock.patch("colonnade.deploy.doctor.keys.FEW_DAYS", 400):
        assert re.search(r"of 'shop', by 'splitnn', .* days left", found()["certificate"])
    file.write_text(file.read_text() + 'policy = "none.toml"\n')
    (tmp_path / "kit" / "local" / "resources.json").unlink()
    shutil.copyfile(kit.parent / "bank" / "startup" / "client.key", startup / "client.key")
    said = found()
    assert "none.toml: No such file" in said["policy"] and "is not the key of" in said["keys"]
    assert "does not let jobs name colonnade.deploy.nvflare.site.Site" in said["components"]
    (startup / "client.crt").unlink()
    assert "client.crt" in found()["file"]


def asked(kit: Path, policy: str) -> str:
    """What the shop's site answers before a job begins, with a policy of its own."""
    from colonnade.deploy.nvflare.site import Site

    file = own_file(kit)
    (file.parent / "policy.toml").write_text(policy)
    file.write_text(machine.site_file(kit.parent.parent, "shop") + 'policy = "policy.toml"\n')
    context = mock.MagicMock()
    context.get_identity_name.return_value = "shop"
    workspace = context.get_engine.return_value.get_workspace.return_value
    workspace.get_site_config_dir.return_value = str(kit / "local")
    workspace.get_startup_kit_dir.return_value = str(kit / "startup")
    workspace.get_root_dir.return_value = str(kit)
    site = Site("splitnn", "run-1")
    told = json.loads(site.execute(job.CHECK, None, context, None)["told"])
    found = job.complaints(told["facts"], {"shop": told}, ["shop"])
    assert str(kit) not in str(found)
    return "\n".join(found)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("[allow.embedding]\nwidth = 16\nwidth_ratio = 1", ""),
        ("", "policy.toml keeps inside embedding, which this party must send"),
        ("[allow.embedding]\nwidth = 15", "allow.embedding lets out 15 numbers per row; 16 would"),
        ("[allow.embedding]\nwidth_ratio = 0.9", "allow.embedding lets out 14 numbers per row"),
        ("[allow.embedding]\nmin_members = 5", "allow.embedding asks for 5 members; there are 4"),
        ('[allow.embedding]\nto = ["bnak"]', "allow.embedding.to names 'bnak', which is no"),
    ],
)
def test_a_site_refuses_what_its_policy_forbids(kit: Path, policy: str, said: str) -> None:
    """Before its role begins, and so before the first message; who submits is told why."""
    answer = asked(kit, policy)
    assert answer.startswith(f"'shop': its policy forbids this job: {said}") if said else not answer


def test_parties_of_two_jobs_do_not_agree(tmp_path: Path) -> None:
    shared = handed_out(tmp_path, "splitnn")
    rows = read_rows(tmp_path / "parties" / "bank-rows.json", shared, "bank")
    setup = prepare(shared, "bank", rows, tmp_path / "keys" / "bank")
    one, two = (agreed(replace(setup, token=token)) for token in ("x-1", "x-2"))
    assert {key for key in one if one[key] != two[key]} == {"run"}
    assert "run" not in agreed(setup)


def test_another_run_at_the_same_address_is_found_before(tmp_path: Path) -> None:
    from colonnade.deploy.nvflare.site import _taken

    shared = handed_out(tmp_path, "splitnn")
    name = next(name for name in SITES if shared.listens(name))
    assert _taken(shared, name) == ""
    address = shared.member(name).binds
    with socket.create_server(federation.split_address(address)):
        assert _taken(shared, name) == f"another run is using {address} here"
    assert _taken(shared, name) == ""


def test_a_log_is_told_without_what_errors_say_of_a_site(tmp_path: Path) -> None:
    from colonnade.deploy.nvflare.site import LOG_BYTES, _log_of

    now = "2026-01-02 03:04:05"
    kept = f"{now} connected with 'shop'\n{now} FederationError: seed is 4 there\n"
    hidden = f"{now} ConfigError: 2 mistakes\n  - id case-7\n{now} RoleFailed: 'x' has\n"
    hidden += f"{now} 'shop' has stopped: DataError: case-7\n"
    (tmp_path / "log.txt").write_text(hidden + kept + hidden + f"{now} see {tmp_path}\n")
    assert _log_of(tmp_path) == kept + f"{now} see (the run's folder)\n"
    (tmp_path / "log.txt").write_text(f"{now} DataError: {'case-7 ' * LOG_BYTES}\n" + kept)
    assert _log_of(tmp_path) == kept


def test_a_member_called_like_a_machine_or_another_site_is_refused(tmp_path: Path) -> None:
    names = {name: {} for name in ("party-server", "shop")}
    shared = handed_out(
        tmp_path, "splitnn", parties=names, partition={"kind": "columns", "parties": 2}
    )
    with pytest.raises(FederationError, match="'party-server' is the engine's own word"):
        kits.provision(shared, tmp_path / "kits")


def test_kits_that_are_there_stay(tmp_path: Path) -> None:
    shared = handed_out(tmp_path, "splitnn")
    made = {path.name for path in kits.provision(shared, tmp_path / "kits")}
    assert made == {*SITES, "localhost", ADMIN}
    before = (tmp_path / "kits" / "bank" / "startup" / "client.crt").read_bytes()
    assert kits.provision(shared, tmp_path / "kits") == []
    assert (tmp_path / "kits" / "bank" / "startup" / "client.crt").read_bytes() == before


def test_two_federations_have_one_authority(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one folder of kits; a member of both gets a folder for the kit that it has."""
    out = tmp_path / "kits"
    kits.provision(handed_out(tmp_path / "one", "splitnn"), out, "flare.example.org:8002")
    file = handed_out(tmp_path / "two", "jovefl").path
    assert main(["nvflare", "provision", str(file), "--out", str(out), "--server", "x:1"]) == 2
    assert "know the server flare.example.org:8002" in capsys.readouterr().err
    assert main(["nvflare", "provision", str(file), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"kit          {out / 'party-server'}: send it to 'server', who completes" in said
    place = out / "bank" / "local" / sitefile.FOLDER / "jovefl"
    assert f"folder       {place}: send it to 'bank', who puts it at local/colonnade/jovefl" in said
    assert (place / "federation.toml").exists() and (place / sitefile.FILE).exists()
    names = (*SITES, "party-server", "flare.example.org", ADMIN)
    assert len({(out / name / "startup" / "rootCA.pem").read_bytes() for name in names}) == 1
    assert len([path for path in (out / kits.AUTHORITY).iterdir() if path.is_dir()]) == 1
