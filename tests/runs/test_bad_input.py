"""Bad input: a message that names who, what and the way out, exit code 2, and nothing written."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import colonnade
from colonnade import data
from colonnade.cli.main import main
from colonnade.errors import (
    ColonnadeError,
    ConfigError,
    DataError,
    Deadlock,
    KindError,
    MethodError,
    PartitionError,
    RunError,
)
from colonnade.methods import splitnn
from colonnade.wire import store

SCREEN = 24
DIGITS = """
method = "splitnn"
epochs = 1
[data]
name = "digits"
train_rows = 100
test_rows = 50
[splitnn]
dim = 4
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, with no data sets but those that come with Colonnade."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLONNADE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "here"


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command that must fail; what it said, as one line."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert code == 2, (code, out, err)
    assert 0 < len(err.splitlines()) <= SCREEN
    assert "Traceback" not in out + err
    assert out == "" or arguments[0] == "data"
    return " ".join(err.split())


def refused_run(
    capsys: pytest.CaptureFixture[str], config: str, *more: object, name: str = "bad.toml"
) -> str:
    """The same for `colonnade run`, which must also leave no trace."""
    Path(name).write_text(config, encoding="utf-8")
    before = everything()
    message = refused(capsys, "run", name, *more)
    assert everything() == before
    return message


def everything() -> dict[str, bytes | None]:
    """All files and folders of the working folder and around it."""
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in sorted(Path("..").rglob("*"))
        if "cache" not in path.parts
    }


# --- configurations, through the command line -----------------------------------------------------


def top(text: str) -> str:
    """The digits configuration with lines added at the top level."""
    return text + DIGITS


def tables(text: str) -> str:
    return DIGITS + text


CONFIGS = [
    pytest.param(
        'method = "splitn"', ["no method 'splitn'", "did you mean 'splitnn'?"], id="unknown method"
    ),
    pytest.param(
        'method = "xyz"', ["'xyz'", "splitnn", "file's name ends in .py"], id="unlike any method"
    ),
    pytest.param("epochs = 3", ["method is missing", "splitnn"], id="no method"),
    pytest.param(
        'method = "local"\n[data]\nname = "mnits"',
        ["no data set 'mnits' as data.name", "did you mean 'mnist'?"],
        id="unknown data set",
    ),
    pytest.param(
        top("batchsize = 3"), ["'batchsize' at the top level", "'batch_size'"], id="unknown key"
    ),
    pytest.param(tables("cutt = 1"), ["'cutt' in [splitnn]", "'cut'"], id="unknown option"),
    pytest.param(
        top('batch_size = "64"'), ["batch_size = '64'", "a whole number"], id="wrong type"
    ),
    pytest.param(top("lr = nan"), ["lr = nan", "must be a number"], id="not a number"),
    pytest.param(tables("hidden = -1"), ["splitnn.hidden = -1", "at least 0"], id="wrong value"),
    pytest.param(
        'method = "splitnn"\nmodel = "cnn"\n[data]\nname = "breast-cancer"',
        ["party 'party1'", "party 'party2'", "cnn", "mlp"],
        id="cnn on a table",
    ),
    pytest.param(
        'method = "splitnn"\n[data]\nname = "breast-cancer"\n[partition]\nkind = "tiles"',
        ["'breast-cancer' is a table of 30 columns", 'Use kind = "columns"'],
        id="tiles of a table",
    ),
    pytest.param(
        tables('[partition]\nkind = "tiles"\ngrid = [9, 9]'), ["9", "8"], id="too many tiles"
    ),
    pytest.param(
        tables('[partition]\nkind = "columns"\ngroups = {a = ["x"], b = ["y"]}'),
        ["'digits' has no column names", "sizes or parties"],
        id="groups of pixels",
    ),
    pytest.param(
        tables('[partition]\nkind = "rows"\nparties = 2'),
        ["different", "rows", "party1", "party2", "a partition that keeps all rows"],
        id="rows for an aligned method",
    ),
    pytest.param(
        'method = "local"\n[data]\nname = "mnist"',
        ["'mnist' is not on this machine", "COLONNADE_DATA", "colonnade data fetch mnist"],
        id="missing data",
    ),
    pytest.param(
        DIGITS.replace("train_rows = 100", "train_rows = 99999"),
        ["data.train_rows = 99999", "1438", "use fewer or 0"],
        id="more rows than there are",
    ),
    pytest.param(
        DIGITS.replace("train_rows = 100", "train_rows = 5"),
        ["no row has the class", "Add rows of it"],
        id="empty class in a split",
    ),
    pytest.param("method = splitnn", ["not valid TOML", "line 1"], id="invalid TOML"),
    pytest.param(
        tables("[parties.bank]\n[parties.bank]\n"),
        ["[parties.bank] is there twice"],
        id="duplicate party",
    ),
    pytest.param(
        tables("[parties.bank]\n[parties.Bank]\n"),
        ["'bank' and 'Bank' differ in case only", "rename one"],
        id="names that differ in case",
    ),
    pytest.param(
        tables('[parties."../../etc"]\n'),
        ["party name '../../etc'", "use letters, digits"],
        id="party name with ../",
    ),
    pytest.param(
        top('name = "../../etc"'), ["name '../../etc'", "use letters, digits"], id="run name"
    ),
    pytest.param(
        tables('[partition]\nkind = "whole"'),
        ["'party1' is the only party", "at least one passive", 'method = "local"'],
        id="no passive party",
    ),
    pytest.param(
        tables("[parties.a]\n[parties.b]\n[parties.c]\n[partition]\nkind = 'tiles'"),
        ["names 3 parties (a, b, c)", "makes 4", "name all of them"],
        id="wrong number of parties",
    ),
    pytest.param(
        top('label_holder = "bank"'),
        ["no party 'bank' as label_holder: one of party1, party2, party3, party4"],
        id="unknown label holder",
    ),
    pytest.param(
        top('label_only = true\nlabel_holder = "party2"'),
        ["label_only", "'party1'"],
        id="label holder with features",
    ),
    pytest.param(
        DIGITS.replace("splitnn", "local", 1) .replace("[splitnn]", "[local]")
        .replace("epochs = 1", "epochs = 1\nlabel_only = true"),
        ["party 'party1' brings no features", "'alone'", "give it columns"],
        id="nothing to learn from",
    ),
    pytest.param(
        top('record = ["gradients"]'),
        ["no Kind 'gradients'", "did you mean 'gradient'?"],
        id="unknown Kind",
    ),
    pytest.param(
        DIGITS.replace("splitnn", "local", 1).replace("epochs", 'record = ["gradient"]\nepochs', 1),
        ["no Kind 'gradient' in record, for local", "none"],
        id="a Kind of another method",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("config", "says"), CONFIGS)
def test_a_wrong_configuration(
    config: str, says: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused_run(capsys, config)
    for part in says:
        assert part in message


def test_forty_mistakes_still_fit_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused_run(capsys, top("".join(f"wrong{number} = 1\n" for number in range(40))))
    assert "40 mistakes" in message and message.endswith("and 20 more")


def test_a_missing_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "run", "nowhere.toml")
    assert "nowhere.toml" in message and "No such file" in message
    assert list(Path().iterdir()) == []


def test_a_damaged_data_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for file in data.source_named("mnist").layouts[0].files:
        (tmp_path / "data" / file.path).write_bytes(gzip.compress(b"not an image"))
    message = refused_run(capsys, 'method = "local"\n[data]\nname = "mnist"')
    assert message.startswith("DataCorrupt") and "train-images-idx3-ubyte.gz" in message
    assert "Delete it" in message and "colonnade data fetch mnist" in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused_run(capsys, DIGITS, "--device", "cuda")
    assert 'device = "cuda": this machine has no CUDA device; use "cpu"' in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("epochs", "--set epochs: write it as key=value"),
        ("epochs.a=1", "--set epochs.a=1: 'epochs' is a value"),
        ("splitnn.dim=big", "splitnn.dim = 'big': must be a whole number"),
    ],
)
def test_a_wrong_override(text: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refused_run(capsys, DIGITS, "--set", text)


# --- folders --------------------------------------------------------------------------------------


def test_out_is_a_folder_of_something_else(capsys: pytest.CaptureFixture[str]) -> None:
    for file in ("cat.jpg", "config.toml"):  # a configuration does not make a folder a run
        Path(file[:3]).mkdir()
        (Path(file[:3]) / file).write_text("mine")
        message = refused_run(capsys, DIGITS, "--out", file[:3])
        assert f"{file[:3]} exists and is not a run" in message and "another --out" in message


@pytest.mark.parametrize("out", ["file", "file/run"])
def test_out_cannot_be_made(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("in the way")
    message = refused_run(capsys, DIGITS, "--out", out)
    assert f"{out} cannot be made" in message and "another --out" in message


def test_out_may_not_be_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)  # the tests may run as root, whom nothing stops
    message = refused_run(capsys, DIGITS, "--out", "closed")
    assert "closed cannot be made: Permission denied; choose another --out" in message


def test_a_disk_that_fills_up_while_the_folder_is_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(text: str, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_text", full)
    Path("good.toml").write_text(DIGITS)
    message = refused(capsys, "run", "good.toml", "--out", "full")
    assert "full cannot be made: No space left on device" in message


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run and its configuration; copy it before you break it."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "good.toml").write_text(DIGITS)
    colonnade.run(folder / "good.toml", out=folder / "run")
    return folder


@pytest.fixture
def run(finished: Path, here: Path) -> Path:
    """A finished run of one's own."""
    shutil.copytree(finished / "run", here / "run")
    shutil.copy(finished / "good.toml", here / "good.toml")
    return Path("run")


def resumed(capsys: pytest.CaptureFixture[str], folder: object, *more: object) -> str:
    before = everything()
    message = refused(capsys, "run", "good.toml", "--resume", folder, *more)
    assert everything() == before
    return message


def test_resume_of_what_is_no_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere is not a run" in resumed(capsys, "nowhere")
    Path("photos").mkdir()
    assert "photos is not a run" in resumed(capsys, "photos")
    assert "good.toml is not a run" in resumed(capsys, "good.toml")


def test_resume_of_a_finished_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "run is finished: there is nothing to resume" in resumed(capsys, run)


def test_resume_with_another_configuration(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "weights")
    message = resumed(capsys, run, "--set", "seed=5")
    assert "run was made by another configuration" in message and "--resume run" in message


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"attempt": "1"}'])
def test_resume_of_a_damaged_run(
    content: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "weights")
    (run / "run.json").write_text(content)
    assert "run.json is damaged" in resumed(capsys, run)


def test_resume_without_the_ledger(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "weights")
    (run / "ledger.jsonl").unlink()
    assert "run has lost its ledger.jsonl" in resumed(capsys, run)


# --- runs that cannot be read ---------------------------------------------------------------------

READERS = ("predict", "report", "ledger", "compare")


@pytest.mark.parametrize("command", READERS)
def test_a_run_that_is_not_there(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, command, "runs/nowhere")
    assert "runs/nowhere is not a run: result.json: No such file" in message
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", "{}", '{"schema": 1}', '{"schema": 2}', b"\xff\xfe"],
    ids=lambda c: repr(c),
)
def test_a_damaged_result(
    command: str, content: str | bytes, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = content if isinstance(content, bytes) else content.encode()
    (run / "result.json").write_bytes(raw)
    message = refused(capsys, command, run)
    assert message.startswith("RunError") and "result" in message


def test_a_run_without_models(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "weights")
    message = refused(capsys, "predict", run)
    assert "no trained models" in message and "--resume run" in message


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("weights/party2.safetensors", None, "party2.safetensors"),
        ("weights/party2.json", None, "party2.json"),
        ("weights/party2.safetensors", b"\0" * 20, "party2.safetensors is damaged"),
        ("weights/party2.json", b"[]", "party2.json is damaged"),
        ("weights/party2.json", b'{"value": 3}', "party2.json is damaged"),
        ("weights/party2.json", b'{"dict": []}', "party2.json is damaged: it holds no models"),
        ("config.toml", None, "config.toml: No such file"),
        ("config.toml", b"method = ", "config.toml is not valid TOML"),
    ],
)
def test_damaged_models(
    file: str, content: bytes | None, says: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is None:
        (run / file).unlink()
    else:
        (run / file).write_bytes(content)
    assert says in refused(capsys, "predict", run)
    assert not (run / "predictions.csv").exists()


def test_models_of_another_shape(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Valid files of another run: a failure of the role that loads them, by name."""
    saved = store.load(run / "weights" / "party2")
    saved["weights"]["bottom"] = {k: v[:1] for k, v in saved["weights"]["bottom"].items()}
    store.save(saved, run / "weights" / "party2")
    assert main(["predict", str(run)]) == 1
    message = capsys.readouterr().err
    assert (
        message.startswith("RoleFailed: 'party2' (passive) failed") and "size mismatch" in message
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.__setitem__(1, t[1].replace("party1", "party2")), "the chain breaks at row 2"),
        (lambda t: t.__delitem__(0), "the chain breaks at row 0"),
        (lambda t: t.__setitem__(0, "[]\n"), "the chain breaks at row 0"),
        (lambda t: t.pop(), "is not the one the run ended with"),
        (lambda t: t.__setitem__(-1, t[-1].replace("party", "spy")), "the run ended with"),
    ],
)
def test_a_tampered_ledger(
    change: Any, says: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run / "ledger.jsonl"
    text = file.read_text().splitlines(keepends=True)
    change(text)
    file.write_text("".join(text))
    for more in ([], ["--json"]):
        message = refused(capsys, "ledger", run, *more)
        assert says in message and "ledger.jsonl" in message


def test_a_lost_ledger(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "ledger.jsonl").unlink()
    assert "run has no ledger" in refused(capsys, "ledger", run)


def test_outputs_that_cannot_be_written(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "report", run, "--out", "good.toml/page.html")
    assert "good.toml/page.html cannot be written" in message
    assert "no/where.csv cannot" in refused(capsys, "predict", run, "--out", "no/where.csv")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("party1", "write PARTY=FILE"),
        ("party1=none.npy", "--data party1=none.npy: No such file"),
        ("party1=text.csv", "Give a .npy array, or a .csv of numbers"),
        ("party1=pickle.npy", "--data party1=pickle.npy"),
        ("stranger=good.npy", "no party 'stranger' in this run: one of party1, party2"),
        ("party1=good.npy", "rows of party2, party3, party4 are missing"),
    ],
)
def test_wrong_rows_to_predict(
    text: str, says: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save("good.npy", np.zeros((2, 1, 4, 4), np.uint8))
    np.save("pickle.npy", np.array([object()]), allow_pickle=True)
    Path("text.csv").write_text("a,b\nx,y\n")
    assert says in refused(capsys, "predict", run, "--data", text)


def test_data_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert "which one?" in refused(capsys, "data", "check")
    assert "did you mean 'mnist'" in refused(capsys, "data", "check", "mnits")
    assert "not on this machine" in refused(capsys, "data", "check", "mnist")


# --- method files ---------------------------------------------------------------------------------

METHOD = Path(splitnn.__file__).read_text(encoding="utf-8")
METHOD = METHOD.replace('name="splitnn"', 'name="mine"')


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise RuntimeError('the GPU is on fire')", ["RuntimeError: the GPU is on fire"]),
        ("import nothing_of_that_name", ["ModuleNotFoundError", "nothing_of_that_name"]),
        ("def broken(:", ["SyntaxError"]),
        ("x = 1", ["mine.py has no METHOD = Method(…)"]),
        ("METHOD = 'splitnn'", ["mine.py has no METHOD = Method(…)"]),
        (
            METHOD.replace("(EMBEDDING, GRADIENT)", "(EMBEDDING, EMBEDDING)"),
            ["method 'mine' declares two Kinds of one name", "embedding"],
        ),
        (METHOD.replace('"the labels, through dL/dh_k"', '""'), ["must say what it reveals"]),
    ],
    ids=["raises", "imports", "syntax", "no METHOD", "text", "two Kinds", "bad Kind"],
)
def test_a_wrong_method_file(
    source: str, says: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text(source, encoding="utf-8")
    message = refused_run(capsys, DIGITS.replace('"splitnn"', '"mine.py"'))
    assert "mine.py" in message
    for part in says:
        assert part in message


def test_a_missing_method_file(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused_run(capsys, 'method = "gone.py"')
    assert "gone.py" in message and "there is no such file" in message


def test_a_role_that_fails_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not the user's input: exit code 1, whose role and where, and a result that says so."""
    broken = METHOD.replace("loss.backward()", "loss.backwards()")
    Path("mine.py").write_text(broken, encoding="utf-8")
    Path("bad.toml").write_text(DIGITS.replace('"splitnn"', '"mine.py"'))
    assert main(["run", "bad.toml", "--quiet"]) == 1
    message = capsys.readouterr().err
    assert "RoleFailed: 'party1' (active) failed in 'train', epoch 1, step 1" in message
    assert "backwards" in message and "Traceback" not in message
    result = json.loads(Path("runs/bad/result.json").read_text())
    assert result["status"] == "failed" and "backwards" in result["error"]


# --- in-memory parties, through Python ------------------------------------------------------------

CONFIG: dict[str, Any] = {"method": "splitnn", "epochs": 1, "splitnn": {"dim": 4}}
ROWS = 40
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
Y = np.arange(ROWS) % 2
IMAGES = np.random.default_rng(1).random((ROWS, 1, 6, 6), np.float32)


def spoilt(array: np.ndarray, place: Any, value: float) -> np.ndarray:
    copy = array.copy()
    copy[place] = value
    return copy


PARTIES: list[Any] = [
    pytest.param(
        {"bank": (X, Y), "shop": spoilt(X, (37, 1), np.nan)}, None, DataError,
        ["party 'shop'", "'column 1'", "nan in row 37", "Fill or remove"], id="NaN",
    ),
    pytest.param(
        {"bank": (spoilt(X, (2, 0), np.inf), Y), "shop": X}, None, DataError,
        ["party 'bank'", "'column 0'", "inf in row 2"], id="infinity",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": spoilt(IMAGES, (9, 0, 1, 1), np.nan)}, None, DataError,
        ["party 'shop'", "the image in row 9 has NaN", "Fill or remove"], id="NaN pixels",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": X}, {"bank": (X, Y), "shop": spoilt(X, (3, 2), np.nan)},
        DataError, ["party 'shop'", "'column 2'", "row 3"], id="NaN in test",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": IMAGES},
        {"bank": (X, Y), "shop": spoilt(IMAGES, (4, 0, 0, 0), np.inf)},
        DataError, ["party 'shop'", "image in row 4"], id="infinite pixels in test",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": X}, {"bank": (X, spoilt(Y, 5, 7)), "shop": X}, DataError,
        ["party 'bank'", "row 5 is '7'", "not one of the classes 0, 1"], id="unknown test label",
    ),
    pytest.param(
        {"bank": (X, [None, *Y[1:]]), "shop": X}, None, DataError,
        ["party 'bank'", "the label in row 0 is missing"], id="missing label",
    ),
    pytest.param(
        {"bank": (X, [(n, 0, 0) for n in range(40)]), "shop": X}, None, DataError,
        ["party 'bank'", "labels of shape (40, 3)", "not one per row"], id="three labels a row",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": X[:-1]}, None, DataError,
        ["different numbers of rows", "'bank' 40, 'shop' 39", "align them first"], id="row counts",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": X}, {"bank": (X, Y), "shop": X[:5]}, DataError,
        ["different numbers of rows in test", "'bank' 40, 'shop' 5"], id="row counts in test",
    ),
    pytest.param(
        {"bank": (X, Y[:-1]), "shop": X}, None, DataError,
        ["party 'bank' has 40 rows of features and 39 labels"], id="x and y",
    ),
    pytest.param(
        {"bank": (X, (np.arange(ROWS) == 3).astype(int)), "shop": X}, None, DataError,
        ["class '1' of party 'bank'", "too few rows (1)", "Add rows"], id="class of one row",
    ),
    pytest.param(
        {"bank": X, "shop": X}, None, DataError,
        ["no party has labels", "(x, y)"], id="no labels",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": (None, None)}, None, DataError,
        ["party 'shop' has neither features nor labels"], id="nothing",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": None}, None, DataError,
        ["party 'shop' has neither features nor labels"], id="None",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": (None, Y)}, None, ConfigError,
        ["party 'shop' brings no features", "'passive'"], id="a passive party without features",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": X[:, :0]}, None, ConfigError,
        ["party 'shop' brings no features"], id="no columns",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": object()}, None, DataError,
        ["party 'shop'", "type object have no rows", "Accepted are"], id="an object",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": [["a"]] * ROWS}, None, DataError,
        ["party 'shop'", "are not numbers", "DataFrame"], id="text",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": [[1, 2], [3]]}, None, DataError,
        ["party 'shop'", "differ in length"], id="ragged",
    ),
    pytest.param(
        {"bank": (X, 3), "shop": X}, None, DataError,
        ["party 'bank': labels of type int. Give one per row"], id="one label for all",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": X.astype(complex)}, None, DataError,
        ["party 'shop'", "complex128 are not numbers"], id="complex",
    ),
    pytest.param(
        {"bank": (X[:0], Y[:0]), "shop": X[:0]}, None, DataError, ["party 'bank'"], id="no rows",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": X}, {"bank": (X, Y)}, DataError,
        ["test has no rows of shop"], id="test rows of a party missing",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": X}, {"bank": (X, Y), "shop": X, "spy": X}, DataError,
        ["no party 'spy' for rows in test", "bank, shop"], id="test rows of a stranger",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": X}, {"bank": X, "shop": X}, DataError,
        ["test of 'bank' has no labels"], id="test labels missing",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": X}, {"bank": (X, Y), "shop": X[:, :2]}, DataError,
        ["party 'shop'", "2 columns given, 3 in training"], id="test columns missing",
    ),
    pytest.param(
        {"bank": (X, Y), "shop": IMAGES}, {"bank": (X, Y), "shop": IMAGES[..., :3]}, DataError,
        ["party 'shop'", "(1, 6, 6)", "(1, 6, 3)"], id="test images of another size",
    ),
    pytest.param({}, None, ConfigError, ["parties is empty"], id="nobody"),
    pytest.param(
        {"bank": (X, Y)}, None, MethodError, ["'bank' is the only party"], id="no passive party"
    ),
    pytest.param(
        {"bank": (X, Y), "../shop": X}, None, ConfigError, ["party name '../shop'"], id="../"
    ),
    pytest.param(
        {"bank": (X, Y), "Bank": X}, None, ConfigError, ["differ in case only"], id="case"
    ),
    pytest.param({"bank": (X, Y), 2: X}, None, DataError, ["by party name"], id="a number"),
    pytest.param([(X, Y), X], None, DataError, ["by party name"], id="a list"),
    pytest.param(
        {"bank": (X, Y), "shop": X}, [(X, Y), X], DataError, ["test: ", "by party name"],
        id="a list of test rows",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("parties", "test", "error", "says"), PARTIES)
def test_wrong_parties(
    parties: Any, test: Any, error: type[ColonnadeError], says: list[str], here: Path
) -> None:
    with pytest.raises(error) as caught:
        colonnade.run(CONFIG, parties=parties, test=test)
    for part in says:
        assert part in str(caught.value)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        (
            {"label_holder": "shop"},
            DataError,
            "label_holder = 'shop' brings no labels; with labels: bank",
        ),
        (
            {"label_holder": "spy"},
            DataError,
            "label_holder = 'spy' brings no labels; with labels: bank",
        ),
        (
            {"parties": {"spy": {}}},
            ConfigError,
            "no party 'spy' for a table in [parties]: one of bank, shop",
        ),
        ({"partition": {"kind": "tiles"}}, ConfigError, "there is nothing to divide"),
        ({"label_only": True}, ConfigError, "label_only has no meaning"),
        ({"model": "cnn"}, ConfigError, "party 'bank'"),
        ({"data": {"test": 1.5}}, ConfigError, "data.test = 1.5"),
    ],
)
def test_settings_that_do_not_go_with_parties(
    more: dict[str, Any], error: type[ColonnadeError], says: str, here: Path
) -> None:
    with pytest.raises(error, match=re.escape(says)):
        colonnade.run(CONFIG | more, parties={"bank": (X, Y), "shop": X})
    assert list(here.iterdir()) == []


def test_a_pooled_method_names_the_party_whose_column_is_wrong(here: Path) -> None:
    parties = {"bank": (X, Y), "shop": spoilt(X, (3, 1), np.nan)}
    with pytest.raises(DataError, match="party 'shop': column 'column 1' has nan in row 3"):
        colonnade.run({"method": "centralised", "epochs": 1}, parties=parties)


def test_too_many_tiles(here: Path) -> None:
    with pytest.raises(PartitionError):
        colonnade.run({"method": "splitnn", "data": {"name": "digits"},
                       "partition": {"kind": "tiles", "grid": [9, 9]}})  # fmt: skip
    assert list(here.iterdir()) == []


# --- prediction, through Python -------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> colonnade.Trained:
    out = tmp_path_factory.mktemp("trained") / "run"
    parties = {"bank": (X, Y), "shop": IMAGES}
    return colonnade.load(colonnade.run(CONFIG, parties=parties, out=out).path)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ({"bank": X}, "rows of shop are missing: all parties take part"),
        ({"bank": X, "shop": IMAGES, "spy": X}, "no party 'spy' in this run: one of bank, shop"),
        ({"bank": X[:, :2], "shop": IMAGES}, "party 'bank': 2 columns given, 3 in training"),
        ({"bank": X, "shop": IMAGES[..., :3]}, "'shop' was trained on rows of shape (1, 6, 6)"),
        ({"bank": X, "shop": X}, "party 'shop'"),
        ({"bank": X, "shop": (IMAGES * 255).astype(np.uint8)}, "party 'shop': images are"),
        ({"bank": X, "shop": IMAGES[:3]}, "different numbers of rows: 'bank' 40, 'shop' 3"),
        ({"bank": X[:0], "shop": IMAGES[:0]}, "no rows to predict"),
        ({"bank": spoilt(X, (6, 2), np.nan), "shop": IMAGES}, "'column 2' has nan in row 6"),
        ({"bank": X, "shop": spoilt(IMAGES, 8, np.nan)}, "party 'shop': the image in row 8"),
        ({}, "rows of bank, shop are missing"),
        ([X, X], "by party name"),
        (None, "was trained on in-memory data, which is not kept"),
    ],
)
def test_wrong_rows(rows: Any, says: str, trained: colonnade.Trained) -> None:
    with pytest.raises(DataError, match=re.escape(says)):
        trained.predict(rows)


def test_rows_of_the_only_party_that_can_predict(tmp_path: Path) -> None:
    """`local` needs only the rows of those who learnt; without them it says so."""
    config = {"method": "local", "epochs": 1, "local": {"dim": 4}}
    out = colonnade.run(config, parties={"bank": (X, Y), "shop": X}, out=tmp_path / "r").path
    with pytest.raises(DataError, match="rows of bank are missing"):
        colonnade.load(out).predict({"shop": X})
    assert list(colonnade.load(out).predict({"bank": X})) == ["bank"]


def test_a_run_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run"):
        colonnade.load(tmp_path)


# --- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "error", "says"),
    [
        (
            "active.send(EMBEDDING, embedding.detach())",
            "active.send(EMBEDDING, embedding)",
            KindError,
            r"'shop' sent a tensor that is still attached to its autograd graph as 'embedding': "
            r"send value\.detach\(\)",
        ),
        (
            "active.send(EMBEDDING, embedding.detach())",
            "active.send(EMBEDDING, embedding.detach()[0])",
            KindError,
            r"'shop' sent a tensor of shape \(4,\) as 'embedding'.*batch × dim",
        ),
        ("kinds=(EMBEDDING, GRADIENT)", "kinds=(EMBEDDING,)", KindError, "'gradient', which the"),
        (
            "peer.send(GRADIENT, leaf.grad)",
            "pass",
            Deadlock,
            "shop waits for 'gradient' from bank",
        ),
    ],
)
def test_a_method_that_breaks_its_own_declaration(
    old: str, new: str, error: type[ColonnadeError], says: str, here: Path
) -> None:
    assert old in METHOD
    Path("mine.py").write_text(METHOD.replace(old, new), encoding="utf-8")
    config = CONFIG | {"method": "mine.py", "mine": CONFIG["splitnn"]}
    with pytest.raises(error, match=says):
        colonnade.run(config, parties={"bank": (X, Y), "shop": X})


def test_the_folder_of_one_party_of_many(tmp_path: Path) -> None:
    """A run with a folder for each party: one of them predicts nothing by itself."""
    tree = {"method": "splitnn", "epochs": 1, "data": {"name": "digits", "train_rows": 100}}
    run = colonnade.run(tree | {"partition": {"kind": "columns", "parties": 2}}, out=tmp_path / "r")
    manifest = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps(manifest | {"party": "party2"}))
    with pytest.raises(RunError, match=r"one party, 'party2'.*colonnade party --predict"):
        colonnade.load(run.path)
