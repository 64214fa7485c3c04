"""What share of the errors of public threads does `b2t doctor` know? `python benchmarks/doctor.py`

tests/world_errors.json holds error texts with the thread's link and what the thread says it is: some to write rules
from, others held out. tests/unrelated_errors.json holds errors of other programs, about which the doctor should say
nothing.
"""
import json
from pathlib import Path

from b2t_kit.doctor.doctor import diagnose

TESTS = Path(__file__).resolve().parent.parent / "tests"


def read(name: str) -> list[dict[str, str]]:
    "The texts of a file, with the names of what the doctor finds in each."
    texts = json.loads((TESTS / name).read_text(encoding="utf-8"))
    return [{**one, "found": [finding.failure.name for finding in diagnose(one["text"])]} for one in texts]


def main() -> None:
    errors = read("world_errors.json")
    for split in ("rules", "held out"):
        of_split = [one for one in errors if one["split"] == split]
        right = sum(one["found"] == [one["what"]] for one in of_split)
        wrong = sum(one["found"] not in ([], [one["what"]]) for one in of_split)
        print(f"{split:<9} {right:>3} of {len(of_split):>3} known ({right / len(of_split):.0%}), {wrong} wrong")
    unrelated = read("unrelated_errors.json")
    print(f"unrelated {sum(bool(one['found']) for one in unrelated):>3} of {len(unrelated)} false alarms")


if __name__ == "__main__":
    main()
