"""What share of the errors of public threads does `b2t doctor` know? `python benchmarks/doctor.py [-v]`

tests/world_errors.json holds error texts with the thread's link and what the thread says it is, a failure or a kind of
failure: some to write rules from, those of them that the rules miss, and others held out. It counts as known if the
doctor finds that, or a failure of that kind, and nothing else. tests/unrelated_errors.json holds errors of other
programs, and tests/ordinary_texts.json lines of logs in which nothing failed, about which the doctor should say
nothing; so it should about what the notebooks print, except where they show a failure. -v lists what is not right.
--fresh first, second or blind measures texts that were committed before the doctor was run on any of them.
"""
import json
import sys
from pathlib import Path

from b2t_kit.doctor.doctor import diagnose
from b2t_kit.doctor.known_failures import FAILURE_KINDS

ROOT = Path(__file__).resolve().parent.parent
COVERED = {kind.name: kind.covers or () for kind in FAILURE_KINDS}
BESIDE_A_TPU = "WARNING:root:libtpu.so and TPU device found. Setting PJRT_DEVICE=TPU.\n"


def found_in(text: str) -> list[str]:
    "What the doctor knows in a text."
    return [finding.failure.name for finding in diagnose(text) if finding.failure.known]


def is_right(
    found: list[str],
    what: str,  # a failure or a kind
) -> bool:
    "Whether exactly what the thread says was found, or a failure of its kind."
    return found == [what] or len(found) == 1 and found[0] in COVERED.get(what, ())


def fresh(measured: str) -> None:
    "Prints what the doctor says of the texts of one measurement, by age."
    texts = [{"measured": "blind", **one} for name in ("fresh_errors", "blind_errors") for one in read(name)]
    errors = [{**one, "found": found_in(one["text"])} for one in texts if one["measured"] == measured]
    for which in ("recent", "older", "all"):
        chosen = [one for one in errors if which in (one["set"], "all")]
        right = [one for one in chosen if is_right(one["found"], one["what"])]
        wrong = [one for one in chosen if one["found"] and one not in right]
        print(f"{measured}, {which:<7} {len(right):>3} of {len(chosen):>3} known; {len(wrong)} wrong, "
              f"{len(chosen) - len(right) - len(wrong)} without an answer")
    for one in errors:
        if not is_right(one["found"], one["what"]):
            print(f"          {one['what']}: found {', '.join(one['found']) or 'nothing'}, {one['link']}")


def read(name: str) -> list[dict[str, str]]:
    "The texts of a file in tests/."
    found = json.loads((ROOT / "tests" / f"{name}.json").read_text(encoding="utf-8"))
    return found["texts"] if isinstance(found, dict) else found


def printed() -> list[str]:
    "What the notebooks print, one text for each output."
    books = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("nbs/**/*.ipynb"))]
    outputs = [output for book in books for cell in book["cells"] for output in cell.get("outputs", ())]
    texts = ["".join(output.get("text") or output.get("data", {}).get("text/plain", "")) for output in outputs]
    return [text for text in texts if text.strip()]


def main() -> None:
    if "--fresh" in sys.argv:
        return fresh(sys.argv[sys.argv.index("--fresh") + 1])
    errors = [{**one, "found": found_in(one["text"])} for one in read("world_errors")]
    for split in dict.fromkeys(one["split"] for one in errors):
        of_split = [one for one in errors if one["split"] == split]
        right = [one for one in of_split if is_right(one["found"], one["what"])]
        wrong = [one for one in of_split if one["found"] and one not in right]
        by_kind = sum(bool(set(one["found"]) & set(COVERED)) for one in right)
        share = len(right) / len(of_split)
        print(f"{split:<9} {len(right):>3} of {len(of_split):>3} known ({share:.0%}), {by_kind} of these only by kind; "
              f"{len(wrong)} wrong")
        for one in of_split if "-v" in sys.argv else ():
            if one not in right:
                print(f"          {one['what']}: found {', '.join(one['found']) or 'nothing'}, {one['link']}")
    others, lines = ([one["text"] for one in read(name)] for name in ("unrelated_errors", "ordinary_texts"))
    for name, texts in (("other programs", others), ("ordinary lines", lines), ("printed by notebooks", printed()),
                        ("other programs beside a TPU", [BESIDE_A_TPU + text for text in others])):
        found = [found_in(text) for text in texts]
        kinds = sum(bool(set(one) & set(COVERED)) for one in found)
        print(f"{name:<27} {sum(map(bool, found)):>3} of {len(texts)} with an answer, {kinds} of these a kind")


if __name__ == "__main__":
    main()
