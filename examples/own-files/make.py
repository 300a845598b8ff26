"""A bank's and a shop's files, as they might be: some customers of one are the other's, too.

    python examples/own-files/make.py            bank.csv and shop.csv, beside this file
    python examples/own-files/make.py 400 new    400 other people: new_bank.csv and new_shop.csv

Of the rows of each file, 60 % are people whom the other file has, in another order. Some numbers
are missing. Whether somebody pays back depends on what both know.
"""

import csv
import math
import random
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
JOBS = {"nurse": 0.4, "teacher": 0.6, "driver": -0.2, "actor": -0.9, "": 0.0}
GOODS = {"books": 0.5, "garden": 0.7, "games": -0.4, "fashion": -0.6}


def person(number: int, draw: random.Random) -> dict[str, object]:
    income, age = draw.gauss(40, 12), draw.randint(18, 80)
    late, orders = draw.randint(0, 9), draw.randint(1, 60)
    job, goods = draw.choice(list(JOBS)), draw.choice(list(GOODS))
    score = (income - 40) / 12 + JOBS[job] + GOODS[goods] - 0.5 * (late - 4.5)
    paid = draw.random() < 1 / (1 + math.exp(-2 * score))
    return {
        "id": f"DE-{number:06}",
        "age": age,
        "income": "" if draw.random() < 0.08 else round(income, 1),
        "job": job,
        "paid_back": "yes" if paid else "no",
        "orders": orders,
        "paid_late": "NA" if draw.random() < 0.05 else late,
        "favourite": goods,
    }


def write(path: Path, people: list[dict[str, object]], columns: dict[str, str]) -> None:
    """`columns` are the names in the file, and what stands in them."""
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(columns)
        lines.writerows([one[key] for key in columns.values()] for one in people)
    sys.stdout.write(f"{path.name}: {len(people)} rows\n")


def main(rows: int = 1000, prefix: str = "") -> None:
    draw = random.Random(prefix or "training")
    numbers = draw.sample(range(1_000_000), 2 * rows - rows * 6 // 10)
    people = [person(number, draw) for number in numbers]
    bank, shop = people[:rows], people[-rows:]
    draw.shuffle(shop)
    first = f"{prefix}_" if prefix else ""
    own = {"customer": "id", "age": "age", "income": "income", "job": "job"}
    write(FOLDER / f"{first}bank.csv", bank, own | {"paid_back": "paid_back"})
    own = {"member": "id", "orders": "orders", "paid_late": "paid_late", "favourite": "favourite"}
    write(FOLDER / f"{first}shop.csv", shop, own)


if __name__ == "__main__":
    main(*[int(word) if word.isdecimal() else word for word in sys.argv[1:]])
