"""Code that somebody else has sent is not executed before this party has approved its bytes."""

from __future__ import annotations

import hashlib
import json
import py_compile
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import colonnade
from colonnade import config, methods, plugin
from colonnade.cli.main import main
from colonnade.config.federation import load
from colonnade.deploy.nvflare import job, sitefile
from colonnade.deploy.nvflare.machine import Engine
from colonnade.errors import ColonnadeError, FederationError
from colonnade.methods import splitnn
from colonnade.net import certs

HONEST = Path(splitnn.__file__).read_text(encoding="utf-8")
NET = "from torch import nn\ndef build(shape, out):\n    return nn.Linear(shape[0], out)\n"
ROWS = "id,a,b,label\n" + "".join(f"{n},{n % 7},{n % 5},{n % 2}\n" for n in range(40))


class Sent:
    """A folder that somebody has sent, with code that leaves a mark when it is executed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, folder.parent / "executed"
        folder.mkdir()

    def evil(self, text: str) -> str:
        return f"open({str(self.mark)!r}, 'w').close()\n" + text.replace(
            "from __future__ import annotations\n", ""
        )

    def federation(self, run: dict[str, Any]) -> list[str]:
        """The arguments with which 'bank' takes part."""
        members: dict[str, Any] = {}
        certs.init(self.folder / "keys")
        for name in ("bank", "shop"):
            certs.party(self.folder / "keys", name)
            key = certs.public_text(self.folder / "keys" / name / f"{name}.sign")
            members[name] = {"signing_key": key}
        members["bank"]["address"] = "127.0.0.1:1"
        tree = {"name": "ours", "deadline": 1.0, "run": run, "parties": members}
        (self.folder / "federation.toml").write_text(tomli_w.dumps(tree))
        (self.folder / "bank.csv").write_text(ROWS)
        (self.folder / "policy.toml").write_text("[allow.embedding]\n")
        return [
            *("--name", "bank", "--keys", str(self.folder / "keys" / "bank")),
            *("--data", str(self.folder / "bank.csv")),
            *("--policy", str(self.folder / "policy.toml")),
        ]

    def refused(self, *words: object, capsys: pytest.CaptureFixture[str]) -> str:
        """What a command says that must not execute anything."""
        try:
            code = main([str(word) for word in words])
        except Exception as error:  # evil code may end in anything
            raise AssertionError(f"it went as far as {error!r}") from error
        assert not self.mark.exists(), "it was executed"
        assert code, "nothing was refused"
        told = capsys.readouterr()
        return " ".join((told.out + told.err).split())


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sent:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))  # where nothing is approved
    return Sent(tmp_path / "received")


@pytest.fixture(params=["method", "network"])
def run(request: pytest.FixtureRequest, sent: Sent) -> dict[str, Any]:
    """What a received federation file asks for: both call themselves what everybody knows."""
    run: dict[str, Any] = {"method": "splitnn", "data": {"name": "digits"}}
    if request.param == "method":
        (sent.folder / "evil.py").write_text(sent.evil(HONEST))
        return run | {"method": "evil.py"}
    (sent.folder / "evil.py").write_text(sent.evil(NET))
    return run | {"model": "evil.py:build"}


def test_the_doctor_executes_nothing(
    sent: Sent, run: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A partner sends a federation file with a method or a network; this party asks the doctor."""
    mine = sent.federation(run)
    for words in ((), mine):
        said = sent.refused("doctor", sent.folder / "federation.toml", *words, capsys=capsys)
        assert "evil.py" in said and "colonnade trust" in said


@pytest.mark.parametrize("command", ["party", "align"])
def test_a_party_executes_nothing(
    command: str, sent: Sent, run: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A partner sends a federation file with code, and this party starts without a look at it."""
    mine = sent.federation(run)
    file = sent.folder / "federation.toml"
    first = ("party", "--federation", file) if command == "party" else ("align", file)
    said = sent.refused(*first, *mine, "--out", sent.folder / "run", capsys=capsys)
    assert "evil.py" in said and "colonnade trust" in said


@pytest.mark.parametrize("command", ["predict", "resume", "doctor"])
@pytest.mark.parametrize("kind", ["method", "network"])
def test_a_run_folder_executes_nothing(
    kind: str, command: str, sent: Sent, capsys: pytest.CaptureFixture[str]
) -> None:
    """A partner sends a run folder; the code in it is not what this party has ever seen."""
    own = sent.folder.parent / "own"
    own.mkdir()
    tree: dict[str, Any] = {"method": "splitnn", "epochs": 1, "data": {"name": "breast-cancer"}}
    if kind == "method":
        (own / "mine.py").write_text(HONEST.replace('name="splitnn"', 'name="mine"'))
        tree |= {"method": "mine.py"}
    else:
        (own / "mine.py").write_text(NET)
        tree |= {"model": "mine.py:build"}
    (own / "run.toml").write_text(tomli_w.dumps(tree))
    assert main(["run", str(own / "run.toml"), "--out", str(own / "run"), "--quiet"]) == 0
    folder = sent.folder / "run"
    shutil.copytree(own / "run", folder)
    (folder / "mine.py").write_text(sent.evil((folder / "mine.py").read_text()))
    if command == "resume":
        shutil.rmtree(folder / "weights")
    words: dict[str, tuple[object, ...]] = {
        "predict": ("predict", folder),
        "resume": ("run", "--resume", folder),
        "doctor": ("doctor", folder / "config.toml"),
    }
    said = sent.refused(*words[command], capsys=capsys)
    assert "mine.py" in said and "colonnade trust" in said


@pytest.mark.parametrize("name", ["splitnn", "alignment"])
def test_a_file_does_not_take_the_name_of_a_method_that_everybody_knows(
    name: str, tmp_path: Path
) -> None:
    """A file calls itself `splitnn`, so that the doctor, the log and the report say so."""
    (tmp_path / "mine.py").write_text(HONEST.replace('name="splitnn"', f'name="{name}"'))
    tree = {"method": str(tmp_path / "mine.py"), "epochs": 1, "data": {"name": "breast-cancer"}}
    try:
        colonnade.run(tree, out=tmp_path / "run")
    except ColonnadeError as refusal:
        assert f"'{name}'" in str(refusal) and "another name" in str(refusal)
        return
    raise AssertionError("it ran under a name that is not its own")


def test_a_plugin_does_not_take_the_name_of_a_method_that_everybody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed package has a method `better`, which calls itself `splitnn`."""
    (tmp_path / "better_method.py").write_text(HONEST)
    info = tmp_path / "better-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: better\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[colonnade.methods]\nbetter = better_method\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        colonnade.run(
            {"method": "better", "epochs": 1, "data": {"name": "breast-cancer"}},
            out=tmp_path / "run",
        )
    except ColonnadeError as refusal:
        assert "'splitnn'" in str(refusal) and "another name" in str(refusal)
        return
    raise AssertionError("it ran under a name that is not its own")


def test_a_plugin_that_is_called_like_a_method_is_not_loaded(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed package registers an entry point `splitnn`."""
    (sent.folder / "false_method.py").write_text(sent.evil(HONEST))
    info = sent.folder / "false-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: false\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[colonnade.methods]\nsplitnn = false_method\n")
    monkeypatch.syspath_prepend(str(sent.folder))
    assert methods.names().count("splitnn") == 2
    assert methods.find("splitnn").method is splitnn.METHOD
    assert main(["methods", "--quiet"]) == 0
    assert not sent.mark.exists(), "it was executed"


def test_what_python_has_cached_beside_a_file_is_not_executed(sent: Sent) -> None:
    """The file that a person reads is harmless; the compiled one in __pycache__ is not."""
    file = sent.folder / "net.py"
    file.write_text(sent.evil(NET))
    py_compile.compile(
        str(file), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH, doraise=True
    )
    file.write_text(NET)
    tree = {"method": "splitnn", "model": f"{file}:build", "epochs": 1}
    colonnade.run(tree | {"data": {"name": "breast-cancer"}}, out=sent.folder / "run")
    assert not sent.mark.exists(), "it was executed"
    assert json.loads((sent.folder / "run" / "result.json").read_text())["status"] == "finished"


# ---- what a person reads ------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-7", "unicode_escape"])
def test_a_comment_is_not_executed_by_way_of_an_encoding(encoding: str, sent: Sent) -> None:
    """The first line names an encoding in which a harmless comment holds the end of its line, and
    code behind that. Editors and `colonnade trust` show UTF-8."""
    net, line = sent.folder / "net.py", f"open({str(sent.mark)!r}, 'w').close()"
    end = {"utf-7": "+AAo-", "unicode_escape": "\\n"}[encoding]
    net.write_text(f"# coding: {encoding}\n# as in the paper {end}{line}\n{NET}")
    plugin.approve(plugin.read(net, "model", FederationError))
    plugin.load_module(net, "model", FederationError)
    assert not sent.mark.exists(), "a comment was executed"


HIDING = {
    "a return": "exec(x) #\r" + " " * 40,  # a terminal writes the rest of the line over it
    "an escape": "exec(x) # \x1b[2K\x1b[1A",
    "a letter without a shape": "\u3164 = exec; \u3164(x)",
    "a line's end that few editors show": "# \u2028",
    "a blank pattern": "x = '\u2800'",
    "a variation": "x = '\U000e0101'",
}


@pytest.mark.parametrize("how", HIDING)
def test_what_hides_code_from_a_reader_is_counted(
    how: str, sent: Sent, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that looks harmless in an editor or a terminal, and is not."""
    net = sent.folder / "net.py"
    net.write_bytes(f"{HIDING[how]}\n{NET}".encode())
    assert main(["trust", str(net), "--yes"]) == 0
    assert "invisible" in capsys.readouterr().out
    net.write_bytes(NET.replace("\n", "\r\n").encode())  # as Windows ends lines
    assert main(["trust", str(net), "--yes"]) == 0
    assert "invisible" not in capsys.readouterr().out


def test_a_file_that_no_folder_could_hold_does_not_break_the_doctor(
    sent: Sent, capsys: pytest.CaptureFixture[str]
) -> None:
    """It imports a module whose name is longer than that of any file."""
    (sent.folder / "evil.py").write_text(f"import {'a' * 300}\n{sent.evil(NET)}")
    sent.federation(RUN | {"model": "evil.py:build"})
    said = sent.refused("doctor", sent.folder / "federation.toml", capsys=capsys)
    assert "colonnade trust" in said


def test_the_advice_to_trust_a_file_executes_nothing_else(
    sent: Sent, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file's name holds a command, and the error says what to type."""
    name = f"n$(touch {sent.mark.name}).py"
    (sent.folder / name).write_text(NET)
    mine = sent.federation(RUN | {"model": f"{name}:build"})
    file = sent.folder / "federation.toml"
    said = sent.refused("party", "--federation", file, *mine, capsys=capsys)
    typed = said[said.index("colonnade trust") :]
    stub = "colonnade() { :; }; "
    subprocess.run(["sh", "-c", stub + typed], check=False, capture_output=True)
    assert not sent.mark.exists(), "the advice executes what the file's name says"
    assert shlex.split(typed)[:3] == ["colonnade", "trust", str(sent.folder / name)]


# ---- after an approval ---------------------------------------------------------------------------


def approved(sent: Sent, run: dict[str, Any]) -> tuple[Path, list[str], str]:
    """A federation file that pins a harmless network, which this party has approved."""
    net = sent.folder / "net.py"
    net.write_text(NET)
    mine = sent.federation(run | {"model": "net.py:build"})
    digest = hashlib.sha256(net.read_bytes()).hexdigest()
    file = sent.folder / "federation.toml"
    with file.open("a") as more:
        more.write(f'\n[code]\n"net.py" = "{digest}"\n')
    assert main(["trust", str(net), "--yes", "--quiet"]) == 0
    assert load(file).run.own_models()
    return file, mine, digest


RUN = {"method": "splitnn", "data": {"name": "digits"}}


def test_a_file_that_was_changed_after_it_was_approved(
    sent: Sent, capsys: pytest.CaptureFixture[str]
) -> None:
    """The partner sends another version under the same name, with and without its digest."""
    file, mine, digest = approved(sent, RUN)
    (sent.folder / "net.py").write_text(sent.evil(NET))
    said = sent.refused("doctor", file, *mine, capsys=capsys)
    assert "nobody has approved" in said
    changed = hashlib.sha256((sent.folder / "net.py").read_bytes()).hexdigest()
    file.write_text(file.read_text().replace(digest, changed))
    said = sent.refused("party", "--federation", file, *mine, capsys=capsys)
    assert "nobody has approved" in said and changed in said


def test_an_approved_file_that_is_not_the_one_the_others_mean(
    sent: Sent, capsys: pytest.CaptureFixture[str]
) -> None:
    """Approved here, but the federation file names other bytes, or none: nobody agreed on that."""
    file, mine, digest = approved(sent, RUN)
    for line, why in ((f'"net.py" = "{"0" * 64}"', "says that its sha256 is 000"), ("", "[code]")):
        text = file.read_text()
        file.write_text(text.replace(f'"net.py" = "{digest}"', line))
        said = sent.refused("party", "--federation", file, *mine, capsys=capsys)
        assert why in said and digest in said
        file.write_text(text)


def test_a_file_that_is_swapped_between_the_look_and_the_execution(sent: Sent) -> None:
    """Whoever can write the file does so right after its digest was taken."""
    net = sent.folder / "net.py"
    net.write_text(NET)

    def rule(source: plugin.Source) -> str:
        net.write_text(sent.evil(NET))
        return ""

    tree = {"method": "splitnn", "model": f"{net}:build", "data": {"name": "breast-cancer"}}
    settings = config.load(tree | {"epochs": 1}, rule=rule)
    colonnade.run(settings, out=sent.folder / "run")
    assert not sent.mark.exists(), "it was executed"
    assert (sent.folder / "run" / "net.py").read_text() == NET
    assert settings.pins() == {"net.py": hashlib.sha256(NET.encode()).hexdigest()}


def test_a_federation_file_does_not_approve_its_own_code(
    sent: Sent, run: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """The partner's file says that its code is trusted; only a party's own policy may say so."""
    mine = sent.federation(run)
    file = sent.folder / "federation.toml"
    digest = hashlib.sha256((sent.folder / "evil.py").read_bytes()).hexdigest()
    text = f'\n[code]\n"evil.py" = "{digest}"\n'
    trust = f'sha256 = ["{digest}"]\n'
    for table in ("[trust]", "[policy.trust]"):
        file.write_text(file.read_text() + f"{text}{table}\n{trust}")
        text = ""
        sent.refused("party", "--federation", file, *mine, capsys=capsys)
        file.write_text(file.read_text().replace(f"{table}\n{trust}", ""))
    policy = sent.folder / "policy.toml"
    policy.write_text(policy.read_text() + f"[trust]\n{trust}")
    assert main(["doctor", str(file), *mine]) == 1  # for other reasons: see the addresses
    assert sent.mark.exists(), "this party's own policy approves it"


def test_a_site_of_an_engine_executes_nothing(sent: Sent, run: dict[str, Any]) -> None:
    """The federation file of a startup kit names code, and a job makes the site read that file."""
    sent.federation(run)
    place = sent.folder / "local" / sitefile.FOLDER / "ours"
    place.mkdir(parents=True)
    for name in ("federation.toml", "evil.py"):
        shutil.copy(sent.folder / name, place)
    (place / sitefile.FILE).write_text('data = "rows.csv"\n')
    kit = sitefile.Workplace(sent.folder / "local", sent.folder / "startup", sent.folder / "runs")
    with pytest.raises(FederationError, match="colonnade trust"):
        sitefile.federation_of(kit, "ours")
    assert not sent.mark.exists(), "it was executed"


@pytest.mark.slow
def test_an_engine_that_is_started_in_a_folder_of_others_executes_nothing_there(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder holds a module that is called like one of the engine's."""
    pytest.importorskip("nvflare")
    (sent.folder / "nvflare.py").write_text(f"open({str(sent.mark)!r}, 'w').close()\n")
    monkeypatch.chdir(sent.folder)
    engine = Engine(sent.folder, ())
    (sent.folder / "site-bank").mkdir()
    monkeypatch.setattr(job, "site_of", lambda name: "site-bank")
    engine._start("bank", "client")
    assert engine.processes["bank"].wait(60) != 0  # there is no kit
    assert not sent.mark.exists(), "it was executed"


@pytest.mark.slow
def test_what_the_user_runs_by_name_needs_no_word_more(sent: Sent) -> None:
    """The own method of `colonnade run FILE` trains in processes, goes on and predicts."""
    (sent.folder / "mine.py").write_text(HONEST.replace('name="splitnn"', 'name="mine"'))
    tree = {"method": "mine.py", "epochs": 1, "data": {"name": "breast-cancer"}}
    (sent.folder / "run.toml").write_text(tomli_w.dumps(tree))
    folder = sent.folder / "run"
    words = ["run", str(sent.folder / "run.toml"), "--runtime", "process", "--out", str(folder)]
    assert main([*words, "--quiet"]) == 0
    assert main(["predict", str(folder), "--quiet"]) == 0
    assert main(["doctor", str(folder / "config.toml")]) == 0
