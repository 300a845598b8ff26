"""The federation file: every rule, every mistake at once, and what all parties must agree on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import colonnade
from colonnade import assembly, plugin
from colonnade.config import code
from colonnade.config.federation import Federation, Member, load, split_address, write
from colonnade.errors import ConfigError, FederationError
from colonnade.methods import splitnn
from colonnade.wire.policy import Policy

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_method.py"
KEYS = ["ab" * 32, "cd" * 32, "ef" * 32, "12" * 32]
TEXT = f"""
name = "bank-and-shop"
on_lost = "stop"
deadline = 60
patience = 30.5

[run]
method = "splitnn"
epochs = 3
[run.splitnn]
dim = 16
[run.parties.shop]
lr = 0.02

[parties.bank]
address = "bank.example.org:7443"
listen = "0.0.0.0:7443"
signing_key = "{KEYS[0].upper()}"
[parties.shop]
signing_key = "{KEYS[1]}"

[policy.allow.embedding]
to = ["bank"]
bytes = "1 GB"
[policy.allow.gradient]
"""


def parties(*addresses: str) -> dict[str, dict[str, str]]:
    """a, b, c … with these addresses, or none."""
    return {
        name: {"signing_key": key} | ({"address": address} if address else {})
        for name, key, address in zip("abcd", KEYS, addresses, strict=False)
    }


def tree(**more: Any) -> dict[str, Any]:
    given = {"name": "ours", "run": {"method": "splitnn"}, "parties": parties("a.org:1", "")}
    return {key: value for key, value in (given | more).items() if value is not None}


def loaded(folder: Path, **more: Any) -> Federation:
    path = folder / "federation.toml"
    path.write_text(tomli_w.dumps(tree(**more)), encoding="utf-8")
    pins = {}
    for named in code.named_by(path):
        if named.path.exists():
            source = plugin.read(named.path, named.what, FederationError)
            plugin.approve(source)
            pins[source.path.name] = source.sha256
    path.write_text(tomli_w.dumps(tree(**{"code": pins} | more)), encoding="utf-8")
    return load(path)


def problems(folder: Path, **more: Any) -> list[str]:
    with pytest.raises(FederationError) as caught:
        loaded(folder, **more)
    return caught.value.problems


def only_problem(folder: Path, **more: Any) -> str:
    found = problems(folder, **more)
    assert len(found) == 1, found
    return found[0]


def test_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(TEXT)
    ours = load(str(path))
    assert (ours.name, ours.on_lost, ours.deadline, ours.patience) == (
        "bank-and-shop", "stop", 60.0, 30.5,
    )  # fmt: skip
    assert ours.members == (
        Member("bank", "bank.example.org:7443", "0.0.0.0:7443", KEYS[0]),
        Member("shop", "", "", KEYS[1]),
    )
    assert ours.names == ("bank", "shop") and ours.hub == "bank" and ours.path == path
    assert ours.member("bank").binds == "0.0.0.0:7443" and ours.member("shop").binds == ""
    assert ours.member("shop").public_key == bytes.fromhex(KEYS[1])
    assert ours.run.run.epochs == 3 and ours.run.options.dim == 16
    assert ours.policy is not None and ours.policy.allow["embedding"].bytes == 10**9
    assert ours.policy.source == str(path)
    with pytest.raises(FederationError, match=r"no member 'shap' in .* did you mean 'shop'\?"):
        ours.member("shap")


def test_the_least(tmp_path: Path) -> None:
    ours = loaded(tmp_path)
    assert (ours.on_lost, ours.deadline, ours.patience) == ("wait", 600.0, 3600.0)
    assert ours.policy is None
    assert ours.run.run.name == "ours" and list(ours.run.parties) == ["a", "b"]


def test_the_run_can_be_simulated_with_the_same_parties(tmp_path: Path) -> None:
    run = {"method": "splitnn", "data": {"name": "digits"}, "parties": {"b": {"lr": 0.5}}}
    ours = loaded(tmp_path, run=run | {"partition": {"kind": "strips", "parties": 2}})
    made = assembly.from_catalogue(ours.run)
    assert tuple(made.parties) == ours.names and made.holder == ours.hub
    assert made.parties["b"].recipe.lr == 0.5


def test_files_in_the_run_lie_beside_the_federation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(EXAMPLE, tmp_path / "mine.py")
    (tmp_path / "net.py").write_text("def build(shape, out): ...\n")
    monkeypatch.chdir("/")
    run = {"method": "mine.py", "parties": {"b": {"model": "net.py:build"}}}
    ours = loaded(tmp_path, run=run)
    assert ours.run.found.path == tmp_path / "mine.py"
    assert ours.run.parties["b"].model == f"{tmp_path / 'net.py'}:build"


# --- mistakes -------------------------------------------------------------------------------------


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        name="bank and shop",
        on_last="wait",
        on_lost="hope",
        deadline=0.5,
        patience="long",
        run={"method": "splitnn", "epoch": 3, "parties": {"bnk": {}}},
        parties={
            "bank": {"adress": "x", "address": "bank", "signing_key": "abc"},
            "Bank": {"listen": "[::]:7", "signing_key": 3},
            "a b": 3,
            "post": {"address": "[::]:1"},
        },
        policy={"allow": {"embedding": {"widht": 3}}},
    )
    expected = [
        "no key 'on_last' at the top level: did you mean 'on_lost'?",
        "on_lost = 'hope': must be one of 'wait', 'stop', 'continue'",
        "patience = 'long': must be a number",
        "name 'bank and shop': use letters",
        "deadline = 0.5: at least 1",
        "parties 'bank' and 'Bank' differ in case only",
        "no key 'adress' in [parties.bank]: did you mean 'address'?",
        "parties.bank.signing_key = 'abc': give 64 hex digits",
        "parties.bank.address = 'bank': write host:port",
        "parties.Bank.signing_key = 3: must be a text",
        "parties.Bank.listen without address",
        "party name 'a b'",
        "parties.a b = 3: must be a table",
        "parties.post.address = '[::]:1': nobody can dial that",
        "parties.post.signing_key is missing",
        "no member 'bnk' in [run.parties]: did you mean 'bank'?",
        "[run] no key 'epoch' at the top level: did you mean 'epochs'?",
        "no key 'widht' in [policy.allow.embedding]: did you mean 'width'?",
    ]
    for one, begin in zip(sorted(found), sorted(expected), strict=True):
        assert one.startswith(begin)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"name": None}, "name is missing"),
        ({"name": ""}, "name ''"),
        ({"name": 3}, "name = 3: must be a text"),
        ({"name": "../up"}, "name '../up'"),
        ({"run": None}, "[run] is missing"),
        ({"run": {"epochs": 3}}, "[run] method is missing"),
        ({"run": {"method": "splitn"}}, "[run] no method 'splitn'"),
        ({"run": {"method": "mine.py"}}, "there is no such file"),
        ({"run": {"method": "centralised"}}, "[run] centralised needs all rows in one place"),
        ({"run": {"method": "splitnn", "label_holder": "bb"}}, "no member 'bb' as run.label"),
        ({"run": {"method": "splitnn", "parties": 3}}, "[run] parties = 3: must be a table"),
        ({"parties": parties("a.org:1")}, "[parties]: 1 given; a federation has at least two"),
        ({"policy": 3}, "policy = 3: must be a table"),
        ({"policy": {"allow": {"embeding": {}}}}, "did you mean 'embedding'?"),
        ({"policy": {"allow": {"embedding": {"to": ["x"]}}}}, "no member 'x' in policy.allow.emb"),
        ({"parties": parties("a.org:1", "A.org:1")}, "'a' and 'b' have one address"),
        ({"parties": parties("", "")}, "neither 'a', who holds the labels, nor 'b' can be dialled"),
        ({"parties": parties("", "b.org:1", "")}, "neither 'a', who holds the labels, nor 'c'"),
        ({"deadline": float("inf")}, "deadline = inf: must be a number"),
        ({"restarts": 3}, "no key 'restarts' at the top level"),
        ({"epochs": 3}, "no key 'epochs' at the top level: it belongs below [run]"),
        ({"run": {"method": "splitnn", "dim": 3}}, "it belongs below [run.splitnn]"),
        ({"run": {"method": "splitnn", "id": "x"}}, "each party says it of its own file, --data"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: Path, more: dict[str, Any], why: str) -> None:
    assert why in only_problem(tmp_path, **more)


def test_two_parties_cannot_share_a_signing_key(tmp_path: Path) -> None:
    table = {"a": {"signing_key": KEYS[0], "address": "a:1"}, "b": {"signing_key": KEYS[0].upper()}}
    assert "'a' and 'b' have one signing_key" in only_problem(tmp_path, parties=table)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    with pytest.raises(FederationError, match=r"1 mistake in the federation\n.*No such file"):
        load(path)
    path.write_text("[run")
    with pytest.raises(FederationError, match="not valid TOML"):
        load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(FederationError, match="not a text file"):
        load(path)
    path.write_text("[parties.bank]\n[parties.bank]")
    with pytest.raises(FederationError, match=r"line 2: \[parties.bank\] is there twice"):
        load(path)


def test_only_some_methods_go_on_without_a_party(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(splitnn.METHOD.membership.__dict__, "absent", False)
    found = only_problem(tmp_path, on_lost="continue")
    assert found == (
        'on_lost = "continue": splitnn cannot go on without a party; choose "wait" or "stop"'
    )
    monkeypatch.setitem(splitnn.METHOD.membership.__dict__, "absent", True)
    assert loaded(tmp_path, on_lost="continue").on_lost == "continue"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bank.example.org:7443", ("bank.example.org", 7443)),
        ("localhost:1", ("localhost", 1)),
        ("bank_1:65535", ("bank_1", 65535)),
        ("10.0.0.7:80", ("10.0.0.7", 80)),
        ("[::1]:7443", ("::1", 7443)),
        ("[2001:db8::7]:7443", ("2001:db8::7", 7443)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "bank", "bank:", ":7443", "bank:0", "bank:65536", "bank:123456", "bank:x", "bank:-1",
        "::1:7443", "[::1]", "[bank]:1", "[1.2.3.4]:1", "256.1.1.1:1", "1.2.3:1", "a b:1", "-a:1",
        "a-:1", "a..b:1", "bank.:1", "https://bank:1", "bank:1\n", "bänk:1", "a/b:1", "me@bank:1",
        ".".join(["a" * 60] * 5) + ":1", "a" * 64 + ":1",
    ],
)  # fmt: skip
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError):
        split_address(text)


# --- who dials whom -------------------------------------------------------------------------------


def test_the_earlier_one_listens_if_it_can(tmp_path: Path) -> None:
    ours = loaded(tmp_path, parties=parties("a.org:1", "", "c.org:1", ""))
    expected = {"ab": "b", "ac": "c", "ad": "d", "bc": "b", "bd": None, "cd": "d"}
    for (one, other), dialler in expected.items():
        assert ours.dials(one, other) == ours.dials(other, one) == dialler
    with pytest.raises(FederationError, match="needs no link to itself"):
        ours.dials("a", "a")
    with pytest.raises(FederationError, match="no member 'x'"):
        ours.dials("a", "x")


def test_a_hub_without_an_address_dials_everybody(tmp_path: Path) -> None:
    ours = loaded(tmp_path, parties=parties("", "b.org:1", "c.org:1"))
    assert ours.hub == "a" and ours.dials("a", "b") == ours.dials("c", "a") == "a"


def test_the_label_holder_is_the_hub(tmp_path: Path) -> None:
    run = {"method": "splitnn", "label_holder": "b"}
    ours = loaded(tmp_path, run=run, parties=parties("", "b.org:1", ""))
    assert ours.hub == "b" and ours.dials("a", "b") == "a" and ours.dials("a", "c") is None


# --- a server, and labels everywhere --------------------------------------------------------------

SWARM = {
    "method": str(Path(__file__).parents[1] / "chaos" / "swarm.py"),
    "data": {"classes": ["no", "yes"]},
}


def swarm(server: str = "s.org:1", **more: str) -> dict[str, dict[str, str]]:
    """Clients first, as in a simulation; the server's address, and perhaps those of clients."""
    table = parties(more.get("a", ""), more.get("b", ""))
    entry = {"signing_key": KEYS[2]} | ({"address": server} if server else {})
    return table | {"server": entry}


def test_a_method_may_name_its_hub(tmp_path: Path) -> None:
    ours = loaded(tmp_path, run=SWARM, parties=swarm(a="a.org:1"))
    assert ours.hub == "server" and ours.cast == {"a": "client", "b": "client", "server": "server"}
    assert not ours.role("server").rows and ours.role("a").rows
    assert ours.linked("server") == ["a", "b"] and ours.linked("a") == ours.linked("b") == [
        "server"
    ]
    assert ours.dials("a", "server") == "a" and ours.dials("server", "b") == "b"
    assert ours.listens("server") and not ours.listens("a") and not ours.listens("b")
    assert ours.run.data.classes == ("no", "yes")
    public = {"method": "jovefl", "data": {"mean": 4000.0, "spread": 2500.0}}
    numbers = loaded(tmp_path, run=public, parties=swarm(a="a.org:1"))
    assert numbers.run.data.mean == 4000.0 and not numbers.run.data.classes


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            {"parties": parties("a.org:1", "")},
            "swarm needs a member 'server', which plays 'server': add [parties.server] with an "
            "address and the signing_key that `colonnade certs` makes for it; it is started like "
            "the others, and needs no --data",
        ),
        ({"parties": swarm("")}, "'server' cannot be dialled, and the others come and go: give"),
        ({"run": SWARM | {"data": {}}}, "data.classes is missing: in swarm every party brings lab"),
        ({"run": SWARM | {"data": {"classes": ["a"]}}}, "data.classes = ['a']: at least two"),
        ({"run": SWARM | {"data": {"classes": ["a", "a"]}}}, "names 'a' more than once"),
        ({"run": SWARM | {"data": {"classes": [0, 1]}}}, "must be a list, each a text"),
        (
            {"run": SWARM | {"method": "splitnn"}, "parties": parties("a.org:1", "")},
            "data.classes: in splitnn the label holder's rows determine the classes",
        ),
        (
            {"run": SWARM | {"data": {"classes": ["a", "b"], "mean": 1.0, "spread": 2.0}}},
            "data.classes and data.spread: labels are classes or numbers; omit one",
        ),
        ({"on_lost": "stop"}, 'on_lost = "stop": the parties of swarm may come and go'),
    ],
)
def test_mistakes_about_a_hub_and_classes(tmp_path: Path, more: dict[str, Any], why: str) -> None:
    assert why in only_problem(tmp_path, **{"run": SWARM, "parties": swarm()} | more)


def test_a_hub_that_nobody_plays_or_two(tmp_path: Path) -> None:
    text = Path(SWARM["method"]).read_text()
    rule = '{name: "client" for name in parties if name != "server"} | {"server": "server"}'
    assert rule in text
    for cast, why in (
        (
            'dict.fromkeys(parties, "client")',
            "nobody plays 'server', with which all others of swarm",
        ),
        ('{n: "client" if n == "a" else "server" for n in parties}', "'b', 'server' all play"),
        ('{"a": "client", "server": "server"}', "'b' has nothing to do in swarm with these"),
    ):
        (tmp_path / "mine.py").write_text(text.replace(rule, cast))
        run = SWARM | {"method": "mine.py"}
        assert why in only_problem(tmp_path, run=run, parties=swarm())


def test_classes_belong_to_a_federation_file() -> None:
    with pytest.raises(ConfigError, match=r"data\.classes is for a federation file"):
        colonnade.run({"method": "splitnn", "data": {"classes": ["no", "yes"]}})


# --- what all must agree on -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        {"name": "theirs"}, {"on_lost": "stop"}, {"deadline": 5}, {"patience": 5},
        {"run": {"method": "splitnn", "seed": 1}}, {"run": {"method": "aggvfl"}},
        {"parties": parties("a.org:1", "b.org:1")}, {"parties": parties("a.org:1", "", "")},
        {"parties": {"b": parties("", "")["b"], "a": parties("a.org:1")["a"]}},
        {"parties": parties("a.org:1", "") | {"b": {"signing_key": KEYS[3]}}},
    ],
)  # fmt: skip
def test_what_is_in_the_hash(tmp_path: Path, more: dict[str, Any]) -> None:
    assert loaded(tmp_path, **more).sha256 != loaded(tmp_path).sha256


def test_what_is_not_in_the_hash(tmp_path: Path) -> None:
    """Formatting, defaults that are written out, the file's place, and a party's own matters."""
    ours = loaded(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    table = parties("a.org:1", "")
    table["a"] |= {"listen": "0.0.0.0:99", "signing_key": KEYS[0].upper()}
    others = [
        loaded(tmp_path / "elsewhere", parties=table),
        loaded(tmp_path, deadline=600, on_lost="wait", policy={"allow": {"embedding": {}}}),
        loaded(tmp_path, run={"method": "splitnn", "epochs": 5, "name": "x", "parties": {"b": {}}}),
    ]
    assert len(ours.sha256) == 64 and {other.sha256 for other in others} == {ours.sha256}


# --- writing --------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(TEXT)
    ours = load(path)
    run = {
        "method": "splitnn",
        "epochs": 3,
        "splitnn": {"dim": 16},
        "parties": {"shop": {"lr": 0.02}},
    }
    copy = write(
        tmp_path / "copy.toml",
        ours.name, ours.members, run, ours.on_lost, ours.deadline, ours.patience, ours.policy,
    )  # fmt: skip
    again = load(copy)
    assert replace(again, path=path, run=ours.run) == ours
    assert again.run.sha256() == ours.run.sha256()
    least = load(write(tmp_path / "least.toml", "least", ours.members, {"method": "splitnn"}))
    assert least.policy is None and least.on_lost == "wait"
    with pytest.raises(FederationError, match="cannot be written"):
        write(tmp_path / "none" / "x.toml", "x", ours.members, {"method": "splitnn"})


def test_the_policy_of_the_file_is_the_policy_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(TEXT)
    shared = load(path).policy
    assert shared is not None
    (tmp_path / "policy.toml").write_text(shared.dumps())
    assert Policy.load(tmp_path / "policy.toml") == shared


# --- keys that are pinned, and code ---------------------------------------------------------------


def test_tls_keys_are_pinned_for_all(tmp_path: Path) -> None:
    plain, pinned = parties("a.org:1", ""), parties("a.org:1", "")
    pinned["b"]["tls_keys"] = [KEYS[2].upper(), KEYS[3]]  # type: ignore[assignment]
    ours = loaded(tmp_path, parties=pinned)
    assert ours.member("b").tls_keys == (KEYS[2], KEYS[3]) and ours.member("a").tls_keys == ()
    assert ours.sha256 != loaded(tmp_path, parties=plain).sha256
    again = write(tmp_path / "again.toml", "ours", ours.members, {"method": "splitnn"})
    assert load(again).members == ours.members
    pinned["b"]["tls_keys"] = ["ab"]  # type: ignore[assignment]
    assert "parties.b.tls_keys = 'ab': give 64 hex" in only_problem(tmp_path, parties=pinned)


def test_pins_of_code_are_digests(tmp_path: Path) -> None:
    assert "code.x.py = 'ab': give the sha256" in only_problem(tmp_path, code={"x.py": "ab"})
    assert "code = 3: must be a table" in only_problem(tmp_path, code=3)
