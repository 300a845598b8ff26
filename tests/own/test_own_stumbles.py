"""What a newcomer with files of its own stumbles over, and what is said then."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from test_own_runs import OVER, ROWS, common, tables, write

import colonnade
from colonnade import assembly, config, report
from colonnade.align import KINDS
from colonnade.cli.party import own_file
from colonnade.config import federation
from colonnade.data import own
from colonnade.data.own import OwnFile
from colonnade.deploy import doctor
from colonnade.deploy.setup import read_rows
from colonnade.errors import ColonnadeError, ConfigError, DataError, RunError


def with_labels(folder: Path, column: str = "label", **changes: str) -> Path:
    """The shop has labels, too."""
    file = write(folder, **changes)
    head, *lines = (folder / "shop.csv").read_text().splitlines()
    text = [f"{head},{column}", *(f"{line},{n % 2}" for n, line in enumerate(lines))]
    (folder / "shop.csv").write_text("\n".join(text) + "\n")
    return file


def test_mistakes_in_several_files_are_told_at_once(tmp_path: Path) -> None:
    file = write(tmp_path)
    for party in ("bank", "shop"):
        path = tmp_path / f"{party}.csv"
        path.write_text(path.read_text().replace("customer", "person"))
    with pytest.raises(DataError) as caught:
        colonnade.run(file, out=tmp_path / "run")
    said = str(caught.value).splitlines()
    assert said[0] == "2 mistakes in the parties' files" and len(said) == 3
    assert "party 'bank': " in said[1] and "bank.csv: no column 'customer'" in said[1]
    assert "party 'shop': " in said[2] and "shop.csv: no column 'customer'" in said[2]


def test_labels_of_a_second_party_are_left_out_and_that_is_said(tmp_path: Path) -> None:
    file = with_labels(tmp_path)
    result = colonnade.run(file, out=tmp_path / "run")
    (warning,) = result.content["warnings"]
    assert "the file of 'shop' has labels too, in 'label': they are ignored" in warning
    assert "those of 'bank' count" in warning
    (found,) = [c for c in doctor.examine_run(file) if c.verdict == "warning"]
    assert found.found == warning
    file.write_text(file.read_text() + 'label = ""\n')
    used = colonnade.run(file, out=tmp_path / "used")
    assert used.content["warnings"] == []
    again = colonnade.load(tmp_path / "used")  # its config.toml says so, too
    assert again.config.files["shop"].label == "" and len(again.predict()["bank"]) > 0
    assert "shop: passive, 5 numbers per row" in [
        f"{c.about}: {c.found}" for c in doctor.examine_run(file)
    ]


def test_it_is_said_between_processes_and_organisations_too(tmp_path: Path) -> None:
    result = colonnade.run(with_labels(tmp_path), out=tmp_path / "run", runtime="process")
    assert len(result.content["warnings"]) == 1
    settings = config.load({"method": "splitnn", "parties": {"bank": {}, "shop": {}}})
    file = OwnFile(str(tmp_path / "shop.csv"), id="customer")
    own = assembly.from_file(file, "shop", settings, labelled=False)
    (warning,) = own.warnings
    assert "they are ignored, because those of the label holder count" in warning
    assert own.sha256 == result.content["data"]["files_sha256"]["shop"]


def test_the_doctor_lists_what_these_options_can_send(tmp_path: Path) -> None:
    file = with_labels(tmp_path, column="verdict", method='"fedemb"')
    file.write_text(file.read_text() + 'label = "verdict"\n')
    shop = tmp_path / "shop.csv"
    lines = shop.read_text().splitlines()
    labels = ["good", "bad"] * ROWS
    shop.write_text(
        "\n".join([lines[0], *(f"{a[:-1]}{b}" for a, b in zip(lines[1:], labels, strict=False))])
    )
    checks = doctor.examine_run(file)
    assert {check.verdict for check in checks} == {"ok", "note"}
    sent = {c.found.split()[0] for c in checks if c.about == "may cross"}
    assert {"group_embeddings", "psi_points"} <= sent
    assert not {"noisy_embeddings", "noisy_outputs", "proportions", "membership"} & sent
    (said,) = [c.found for c in checks if c.about == "rows"]
    assert "all rows come with labels, of bad, good" in said and "holds the labels" not in said


@pytest.mark.parametrize(("kind", "warned"), [("columns", True), ("hybrid", False)])
def test_a_hybrid_method_on_the_same_rows(kind: str, warned: bool) -> None:
    table = {
        "method": "fedemb",
        "fedemb": {"setting": "hybrid"},
        "data": {"name": "breast-cancer"},
        "partition": {"kind": kind, "parties": 2},
    }
    found = assembly.from_catalogue(config.load(table))
    assert bool(found.warnings) == warned
    if warned:
        assert 'kind = "columns" gives the same rows to all parties' in found.warnings[0]
    table["fedemb"] = {}
    if warned:
        assert assembly.from_catalogue(config.load(table)).warnings == ()


def test_the_report_says_it_once(tmp_path: Path) -> None:
    result = colonnade.run(write(tmp_path), out=tmp_path / "run")
    page = report.write_report([result.content], tmp_path / "report.html").read_text()
    assert "the parties&#39; own rows" not in page and "the parties' own rows" not in page
    assert "on the parties" in page


def test_the_sentence_about_a_party_alone(tmp_path: Path) -> None:
    result = colonnade.run(write(tmp_path, method='"local"'), out=tmp_path / "run")
    assert report.sentences(result.content).startswith("bank trained alone on its own file.")


# ---- ids that programs have changed, and files with several mistakes


def as_decimals(file: Path, party: str) -> Path:
    """The same ids as numbers: 17 at one party, 17.0 at the other, as tables with gaps are."""
    for name in ("bank", "shop"):
        path = file.parent / f"{name}.csv"
        text = path.read_text().replace("person ", "")
        if name == party:
            head, *lines = text.splitlines()
            text = "\n".join([head, *(line.replace(",", ".0,", 1) for line in lines)])
        path.write_text(text)
    return file


def test_ids_that_were_all_saved_as_decimals_match(tmp_path: Path) -> None:
    """17.0 is read as 17 where no other id of the file says anything else."""
    checks = doctor.examine_run(as_decimals(write(tmp_path), "shop"))
    (match,) = [c for c in checks if c.about == "alignment"]
    assert match.verdict == "ok" and match.found.startswith(f"{OVER} rows are common")


def test_ids_of_which_most_were_saved_as_decimals(tmp_path: Path) -> None:
    """They match nothing; each party is told of its own file, and one machine how they would."""
    file = as_decimals(write(tmp_path), "shop")
    with (tmp_path / "shop.csv").open("a") as shop:
        shop.write("\nx17" + shop_line(tmp_path))  # so that nobody can say what the others are
    checks = doctor.examine_run(file)
    (match,) = [c for c in checks if c.about == "alignment"]
    assert match.verdict == "problem" and "0 rows are common" in match.found
    assert match.move.startswith(f"{OVER} ids would be common without '.0' at the end")
    with pytest.raises(ColonnadeError, match=r"Here 120 of 121 ids end in '\.0'"):
        colonnade.run(file, out=tmp_path / "run")
    settings = config.load({"method": "splitnn", "parties": {"bank": {}, "shop": {}}, "align": {}})
    for party, said in (("shop", 1), ("bank", 0)):
        own_rows = OwnFile(str(tmp_path / f"{party}.csv"), id="customer", label="")
        found = assembly.from_file(own_rows, party, settings, labelled=False)
        assert len([w for w in found.warnings if "120 of 121 ids end in '.0'" in w]) == said
        assert not any("17" in warning for warning in found.warnings)  # no id is told


def shop_line(folder: Path) -> str:
    """The last row of the shop's file without its id."""
    *_, last = (folder / "shop.csv").read_text().splitlines()
    return last[last.index(",") :]


@pytest.mark.parametrize(("mended", "remarked"), [(11, True), (40, False)])
def test_few_common_rows_are_worth_a_remark(tmp_path: Path, mended: int, remarked: bool) -> None:
    """A tenth of the smaller set, or more, is not."""
    file = as_decimals(write(tmp_path), "shop")
    shop, known = tmp_path / "shop.csv", [one.removeprefix("person ") for one in common()]
    text = shop.read_text()
    for one in known[:mended]:
        text = text.replace(f"\n{one}.0,", f"\n{one},")
    shop.write_text(text)
    file.write_text(file.read_text() + "[align]\nminimum = 2\n[data]\ntest = 0.4\n")
    result = colonnade.run(file, out=tmp_path / "run").content
    assert result["data"]["common_rows"] == mended
    said = [one for one in result["warnings"] if "rows are common to all" in one]
    assert len(said) == 2 * remarked
    assert sum(f"{120 - mended} of 120 ids end in '.0'" in one for one in said) == remarked


def test_all_that_is_wrong_with_a_file_is_said_at_once(tmp_path: Path) -> None:
    file = write(tmp_path)
    bank = tmp_path / "bank.csv"
    rows = [line.split(",") for line in bank.read_text().splitlines()]
    rows[3][0] = rows[2][0]
    rows[4][1], rows[5][2], rows[6][4] = "12O", "inf", ""
    bank.write_text("\n".join(map(",".join, rows)))
    found = [c.found for c in doctor.examine_run(file) if c.verdict == "problem"]
    words = ["both have the same id", "'12O' is not a number", "infinite", "there is no label"]
    assert len(found) == len(words)
    for said in words:
        assert sum(said in text for text in found) == 1
    assert rows[2][0] not in "".join(found)  # an error may be read by others
    with pytest.raises(DataError) as caught:
        colonnade.run(file, out=tmp_path / "run")
    assert all(said in str(caught.value) for said in words)


def test_rows_with_a_wrong_number_of_cells_do_not_hide_other_mistakes(tmp_path: Path) -> None:
    file = write(tmp_path)
    bank = tmp_path / "bank.csv"
    rows = [line.split(",") for line in bank.read_text().splitlines()]
    rows[8][1], rows[9][4] = "12O", ""
    rows[2].append("x")
    for short in (4, 6, 11, 12):
        rows[short].pop()
    bank.write_text("\n".join(map(",".join, rows)))
    found = [c.found for c in doctor.examine_run(file) if c.verdict == "problem"]
    words = ["the first line has 5 cells, but 5 rows have not", "'12O' is not a", "is no label"]
    assert len(found) == len(words)
    for said in words:
        assert sum(said in text for text in found) == 1
    assert "line 3 has 6, 5 has 4, 7 has 4, and so on: 2 more" in found[0]
    assert "quotation marks" in found[0] and "short row" in found[0]
    assert ", line 10, column" in found[1] and ", line 9, column" in found[2]
    with pytest.raises(DataError) as caught:
        colonnade.run(file, out=tmp_path / "run")
    assert all(said in str(caught.value) for said in words)


def test_mistakes_of_the_run_file_do_not_hide_those_of_the_files(tmp_path: Path) -> None:
    file = write(tmp_path, epoch="3")
    (tmp_path / "shop.csv").write_text("customer,a\nx,1\nx,2\n")
    found = {c.about: c.found for c in doctor.examine_run(file) if c.verdict == "problem"}
    assert "did you mean 'epochs'" in found["file"] and "the same id" in found["shop"]
    (tmp_path / "mine.py").write_text("METHOD = 3\n")
    file = write(tmp_path, method='"mine.py"')
    (tmp_path / "shop.csv").write_text("customer,a\nx,1\nx,2\n")
    code, shop = [c for c in doctor.examine_run(file) if c.verdict not in ("ok", "note")]
    assert code.about == "code mine.py" and "the same id" in shop.found


# ---- one organisation's own file


def arguments(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**({"data": None, "id": None, "label": None} | given))


def test_a_file_of_ones_own_says_which_columns_are_what(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "bank.toml"
    path.write_text('data = "bank.csv"\nid = "customer"\nleave_out = ["bank 1", "verdict"]\n')
    described = own.described(path)
    assert described.path(Path()) == tmp_path / "bank.csv"
    settings = config.load({"method": "splitnn", "parties": {"bank": {}, "shop": {}}})
    found = assembly.from_file(described, "bank", settings, labelled=False)
    assert found.width == 2 and found.names == tables()["bank"][0]
    assert own_file(arguments(data=path, id="bank 0")) == OwnFile(
        str(tmp_path / "bank.csv"), id="bank 0", leave_out=("bank 1", "verdict")
    )
    path.write_text('data = "bank.csv"\nids = "customer"\nlabel = 3\n')
    with pytest.raises(ConfigError) as caught:
        own.described(path)
    assert len(caught.value.problems) == 2 and "bank.toml" in caught.value.problems[0]
    path.write_text("data = ")
    with pytest.raises(ConfigError, match=r"bank.toml is not valid TOML"):
        own.described(path)
    with pytest.raises(ConfigError, match=r"none.toml: No such file"):
        own.described(tmp_path / "none.toml")


def test_what_a_command_says_about_a_file(tmp_path: Path) -> None:
    assert own_file(arguments()) is None
    assert own_file(arguments(data=Path("a.csv"), id="x", label="y")) == OwnFile("a.csv", "x", "y")
    with pytest.raises(RunError, match="--id is about a file: give --data FILE"):
        own_file(arguments(id="x"))
    with pytest.raises(RunError, match="id and label are both 'x'"):
        own_file(arguments(data=Path("a.csv"), id="x", label="x"))


def test_the_doctor_of_a_federation_knows_the_alignment(tmp_path: Path) -> None:
    write(tmp_path)
    keys = {"bank": "ab" * 32, "shop": "cd" * 32}
    text = 'name = "ours"\n[run]\nmethod = "splitnn"\n[run.align]\n'
    for name, key in keys.items():
        text += (
            f'[parties.{name}]\nsigning_key = "{key}"\naddress = "127.0.0.1:{len(text) + 7000}"\n'
        )
    kinds = ["embedding", "gradient", *(kind.name for kind in KINDS)]
    text += "".join(f"[policy.allow.{kind}]\n" for kind in kinds)
    path = tmp_path / "federation.toml"
    path.write_text(text)
    file = OwnFile(str(tmp_path / "shop.csv"), id="customer")
    mine = doctor.Mine("shop", tmp_path, lambda shared: read_rows(file, shared, "shop"), None, None)
    checks = {check.about: check for check in doctor.examine(path, mine)}
    assert checks["policy"].verdict == "ok", checks["policy"]
    assert "the rows that all have are found first, privately" in checks["data"].found
    assert "compare" not in checks["data"].found
    assert federation.load(path).run.align is not None
