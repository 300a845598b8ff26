"""A party's own folder: what an attempt that never began leaves to the next one."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from nursery import Nursery
from test_doctor import Two, two  # noqa: F401

from colonnade.config import federation
from colonnade.deploy import member
from colonnade.deploy.records import Records
from colonnade.deploy.setup import Setup, prepare
from colonnade.errors import ConfigError, RunError
from colonnade.journal import Journal
from colonnade.net import certs
from colonnade.results.observer import Observer
from colonnade.wire.policy import Policy


def setup(two: Two, name: str = "shop", limits: str = "", **run: object) -> Setup:  # noqa: F811
    two.write(run={"method": "splitnn", "epochs": 3, **run})
    shared = federation.load(two.file)
    (two.folder / "policy.toml").write_text(f"[allow.embedding]\n{limits}\n")
    rows = two.mine(name).rows
    assert rows is not None
    return prepare(
        shared, name, rows(shared), two.keys(name), Policy.load(two.folder / "policy.toml")
    )


def test_a_refused_attempt_does_not_block_the_next_one(two: Two) -> None:  # noqa: F811
    """Both correct the file that they disagreed on, and type the same command again."""
    out = two.folder / "run"
    member._opened(out, setup(two))
    (out / "log.txt").write_text("refused: epochs is 3 here and 4 there")
    corrected = setup(two, epochs=4)
    assert member._opened(out, corrected) == {"run": "", "attempt": 0}
    manifest = json.loads((out / "run.json").read_text())
    assert manifest["config_sha256"] == corrected.settings.sha256()
    assert "epochs = 4" in (out / "config.toml").read_text()


def test_a_run_that_has_begun_is_not_replaced(two: Two) -> None:  # noqa: F811
    out = two.folder / "run"
    begun = setup(two)
    member._opened(out, begun)
    manifest = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(manifest | {"run": "ab12"}))
    assert member._opened(out, begun)["run"] == "ab12"
    with pytest.raises(RunError, match=r"another federation file.*give another --out"):
        member._opened(out, setup(two, epochs=4))


def test_a_file_that_was_exchanged_after_the_alignment_is_refused(two: Two) -> None:  # noqa: F811
    """Its rows are found by their places, and others would be blamed for those that do not fit."""
    out = two.folder / "run"
    kinds = ("psi_opening", "psi_announcement", "psi_points", "psi_places")
    begun = setup(two, limits="".join(f"[allow.{k}]\n" for k in kinds), align={"minimum": 10})
    member._opened(out, begun)
    manifest = {"run": "ab12", "attempt": 1, "file_sha256": begun.rows.sha256}
    with closing(Journal(two.folder / "journal")) as journal:
        Records(begun, out, manifest, journal, Observer(), None).book.close()
        manifest["file_sha256"] = "ab" * 32
        with pytest.raises(RunError, match=r"is not the file that the run .* began with"):
            Records(begun, out, manifest, journal, Observer(), None)


def test_what_the_policy_would_stop_does_not_begin(two: Two) -> None:  # noqa: F811
    out: Path = two.folder / "run"
    with pytest.raises(ConfigError, match=r"3 epochs release a row 3 times.*`releases` = 3"):
        member.take_part(setup(two, limits="releases = 2"), out)
    assert not out.exists()


def test_what_an_alignment_may_need_is_a_warning(two: Two) -> None:  # noqa: F811
    """How many ids the others bring is not known before they are asked."""
    kinds = ("psi_opening", "psi_announcement", "psi_places")
    limits = "".join(f"[allow.{kind}]\n" for kind in kinds) + "[allow.psi_points]\nbytes = 3000"
    heard: list[str] = []
    member._foresee(
        setup(two, limits=limits, align={"minimum": 10}), two.folder / "x", heard.append
    )
    (said,) = heard
    assert said.startswith("warning: ") and "the alignment needs 3,878 if all have 60 ids" in said
    assert said.endswith("allow `bytes` = 3878, for [allow.psi_points]")


def command(two: Two, nursery: Nursery, name: str, file: Path, out: str) -> list[str]:  # noqa: F811
    own = ["--data", f"{two.folder / name}.csv", "--policy", f"{two.folder / name}.toml"]
    more = ["--keys", f"{two.keys(name)}", "--out", f"{two.folder / out}-{name}", *own]
    return [*nursery.command(), "party", "--federation", f"{file}", "--name", name, *more]


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=60)
    return process.returncode, " ".join(said.split())


@pytest.mark.slow
def test_after_a_refused_handshake_the_same_command_goes_on(two: Two, nursery: Nursery) -> None:  # noqa: F811
    """And a further run has no more releases than the first one has left."""

    def start(name: str, file: Path, out: str = "first") -> subprocess.Popen[str]:
        words = command(two, nursery, name, file, out)
        pipe = subprocess.PIPE
        return subprocess.Popen(words, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    limits = f'journal = "{two.folder / "journal"}"\n[allow.embedding]\nreleases = 3\n'
    (two.folder / "shop.toml").write_text(limits)
    two.write(run={"method": "splitnn", "epochs": 3, "splitnn": {"dim": 4}})
    other = two.folder / "other.toml"
    other.write_text(two.file.read_text().replace("epochs = 3", "epochs = 2"))
    bank = start("bank", two.file)
    code, said = ended(start("shop", other))
    bank.terminate()  # it goes on waiting for a shop that agrees
    ended(bank)
    assert code != 0 and "epochs" in said and (two.folder / "first-shop").exists()
    bank = start("bank", two.file)
    assert ended(start("shop", two.file))[0] == 0
    assert ended(bank)[0] == 0
    code, said = ended(start("shop", two.file, "second"))
    assert code != 0 and "up to 3 times, and this run needs 3 more" in said
    assert "allow `releases` = 6" in said and not (two.folder / "second-shop").exists()


def party(two: Two, nursery: Nursery, name: str, file: Path) -> subprocess.Popen[str]:  # noqa: F811
    words = command(two, nursery, name, file, "door")
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
def test_a_hub_that_refused_a_partner_says_what_to_do(two: Two, nursery: Nursery) -> None:  # noqa: F811
    """At once and at its deadline; nothing was reached, so nobody is told where that lies."""
    two.write(run={"method": "splitnn", "epochs": 3})
    two.file.write_text(two.file.read_text().replace("deadline = 600", "deadline = 6"))
    other = two.folder / "other.toml"
    other.write_text(two.file.read_text().replace("epochs = 3", "epochs = 2"))
    bank = party(two, nursery, "bank", two.file)
    code, said = ended(party(two, nursery, "shop", other))
    assert code == 1 and said.count("do not fit together") == 1
    assert "no run has begun: " in said and "what was reached" not in said
    code, said = ended(bank)
    advice = "Correct that at one of them, and start both again with the same commands"
    at_once, _, at_last = said.partition("PeerLost")
    assert code == 1 and "waiting for shop, for 6 s at most" in at_once
    assert "'bank' goes on waiting: correct it at 'shop', and start that again; or" in at_once
    assert advice in at_last and "own commands" not in at_last
    assert "no run has begun: " in at_last and "what was reached" not in at_last


@pytest.mark.slow
def test_waiting_does_not_mend_a_certificate_of_another_authority(
    two: Two,  # noqa: F811
    nursery: Nursery,
) -> None:
    certs.init(two.folder / "other")
    certs.party(two.folder / "other", "shop")
    for name in ("shop.pem", "shop.key", "ca.pem"):
        shutil.copyfile(two.folder / "other" / "shop" / name, two.keys("shop") / name)
    two.file.write_text(two.file.read_text().replace("deadline = 600", "deadline = 9"))
    both = {name: party(two, nursery, name, two.file) for name in ("bank", "shop")}
    for name, process in both.items():
        code, said = ended(process)
        assert code == 1, said
        at_last = said.partition("PeerLost")[2]
        assert "Both need certificates of one authority" in at_last, name
        assert "own commands" not in at_last and "colonnade certs show" in said
