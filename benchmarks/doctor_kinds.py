"""A classifier of error texts instead of patterns for the kinds of failures: `python benchmarks/doctor_kinds.py [FILE]`

Complement naive Bayes over the groups of four characters in the squeezed text around the signs of errors. It is trained
on the texts of world_errors.json, training_errors.json and fresh_errors.json in tests/, on the messages that the
failures show, and, as texts of no kind, on tests/unrelated_errors.json (also after a line of torch_xla) and
tests/ordinary_texts.json. Without an argument it prints what a cross-validation gives, whose folds share no thread, and
what one trained without fresh_errors.json says of those; with FILE, a file of that form that it is not trained
on, what the doctor of today says of its texts, and what the classifier says behind the doctor's messages.
"""
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from b2t_kit.doctor.doctor import ACCELERATOR, diagnose, errors_in
from b2t_kit.doctor.known_failures import FAILURE_KINDS, FAILURES, squeeze

TESTS = Path(__file__).resolve().parent.parent / "tests"
BESIDE_A_TPU = "WARNING:root:libtpu.so and TPU device found. Setting PJRT_DEVICE=TPU.\n"
LENGTH, MOST, RARE = 4, 4000, 2  # characters of a group; of the text that is read; texts that a group must be in
SMOOTH, STEP, SHARP, SURE = 0.3, 8, 3.0, 0.25  # of the counts; of the weights; of the shares; share of an answer
KINDS = [kind for kind in FAILURE_KINDS if kind.known]
KIND_OF = {name: kind.name for kind in reversed(KINDS) for name in (kind.name, *(kind.covers or ()))}
KIND_OF["process_crashed_in_native_code"] = "native_code_crashed"  # in two kinds
NONE = "none"
Text = tuple[str, str, str]  # what is written, its kind, its thread
Model = dict[str, np.ndarray]  # the weights of a group for each kind
CLASSES = sorted([NONE, *(kind.name for kind in KINDS)])


def read(name: str) -> list[dict[str, str]]:
    "The texts of a file in tests/."
    found = json.loads((TESTS / f"{name}.json").read_text(encoding="utf-8"))
    return found["texts"] if isinstance(found, dict) else found


def texts(*names: str) -> list[Text]:
    "The labelled texts of files, with the kind of the cause."
    return [(one["text"], KIND_OF[one["what"]], one["link"])
            for name in names for one in read(name) if one["what"] in KIND_OF]


def of_no_kind() -> list[Text]:
    "Errors of other programs, also beside a TPU, and lines without an error."
    others = [(start + one["text"], NONE, one["link"])
              for start in ("", BESIDE_A_TPU) for one in read("unrelated_errors")]
    return others + [(one["text"], NONE, one["link"]) for one in read("ordinary_texts")]


def shown() -> list[Text]:
    "The messages of the failures."
    return [(failure.symptom, KIND_OF[failure.name], failure.link) for failure in FAILURES
            if failure.name in KIND_OF and isinstance(failure.symptom, str)]


def groups(text: str) -> set[str]:
    "The groups of characters around the signs of errors, or in the whole text if there is none; numbers are 0."
    whole = squeeze(text)
    near = "|".join(whole[place.start:place.stop] for place in errors_in(whole, len(whole))) or whole
    plain = re.sub(r"\d+", "0", near[:MOST])
    return {plain[start:start + LENGTH] for start in range(len(plain) - LENGTH + 1)}


def train(labelled: Sequence[Text]) -> Model:
    "The weights of the groups that more than one text has, in steps; those without weights are left out."
    found = [groups(text) for text, _, _ in labelled]
    often = Counter(group for each in found for group in each)
    names = sorted(group for group in often if often[group] >= RARE)
    place = {group: number for number, group in enumerate(names)}
    counts = np.zeros((len(CLASSES), len(names)))
    for each, (_, kind, _) in zip(found, labelled):
        known = [place[group] for group in sorted(each) if group in place]
        counts[CLASSES.index(kind), known] += 1 / np.sqrt(max(len(known), 1))
    others = counts.sum(0) + SMOOTH - counts
    weights = -np.log(others / others.sum(1, keepdims=True))
    steps = np.round((weights - weights.mean(0)) * STEP)
    return {group: steps[:, number] / STEP for group, number in place.items() if steps[:, number].any()}


def answer(model: Model, text: str) -> tuple[str, float]:
    "The likeliest kind and its share."
    known = [model[group] for group in sorted(groups(text)) if group in model]
    score = np.sum(known, 0) / np.sqrt(len(known)) if known else np.zeros(len(CLASSES))
    share = np.exp((score - score.max()) * SHARP)
    return CLASSES[int(share.argmax())], float(share.max() / share.sum())


def may_answer(text: str) -> bool:
    "Whether the doctor tries kinds: a text that names the TPU or a library of it, with a sign of an error."
    whole = squeeze(text)
    return bool(ACCELERATOR.search(text)) and bool(errors_in(whole, len(whole)))


def today(text: str) -> list[str]:
    "What the doctor knows, harmless or not."
    return [finding.failure.name for finding in diagnose(text) if finding.failure.known]


def messages(text: str) -> list[str]:
    "What the doctor knows by its messages."
    return [name for name in today(text) if name not in {kind.name for kind in KINDS}]


def by_classifier(model: Model, text: str) -> list[str]:
    "What the classifier says behind the messages."
    said = messages(text)
    if said or not may_answer(text):
        return said
    kind, share = answer(model, text)
    return [kind] if kind != NONE and share >= SURE else []


def count(name: str, found: Sequence[Sequence[str]], wanted: Sequence[str], where: Sequence[str] = ()) -> None:
    "Prints how many answers are right, and each that is not, if their threads are given."
    covered = {kind.name: kind.covers or () for kind in KINDS}
    right = [len(said) == 1 and said[0] in (what, *covered.get(what, ())) for said, what in zip(found, wanted)]
    answered = sum(map(bool, found))
    print(f"{name:<34} {sum(right):>3} of {len(wanted)} known, {answered - sum(right)} wrong, "
          f"{len(wanted) - answered} none")
    for said, what, link, known in zip(found, wanted, where, right):
        if not known:
            print(f"    {what}: found {', '.join(said) or 'nothing'}, {link}")


def cross_validation(folds: int = 5) -> None:
    "What is right of texts whose threads were held out."
    labelled, none, extra = texts("world_errors", "training_errors"), of_no_kind(), shown()
    threads = sorted({link for _, _, link in labelled + none})
    np.random.default_rng(0).shuffle(threads)
    fold = {link: number % folds for number, link in enumerate(threads)}
    said: dict[Text, list[str]] = {}
    alarms = []
    for number in range(folds):
        model = train([one for one in labelled + none + extra if fold.get(one[2]) != number])
        for one in (each for each in labelled + none if fold[each[2]] == number):
            kind, share = answer(model, one[0])
            said[one] = [kind] if kind != NONE and share >= SURE else []
            alarms += [one[0]] if one[1] == NONE and said[one] and may_answer(one[0]) else []
    count("cross-validation, no messages", [said[one] for one in labelled], [kind for _, kind, _ in labelled])
    print(f"{'texts of no kind, held out':<34} {len(alarms)} of {len(none)} with an answer")


def main() -> None:
    base = [*texts("world_errors", "training_errors"), *of_no_kind(), *shown()]
    if len(sys.argv) == 1:
        cross_validation()
        fresh, model = read("fresh_errors"), train(base)
        count("fresh_errors, not trained on", [by_classifier(model, one["text"]) for one in fresh],
              [one["what"] for one in fresh])
        return
    model = train([*base, *texts("fresh_errors")])
    every = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["texts"]
    print(f"{len(model)} groups of characters, {sum(np.count_nonzero(weights) for weights in model.values())} weights")
    for which in dict.fromkeys(["all", *(one["set"] for one in every)]):
        chosen = [one["text"] for one in every if which in (one["set"], "all")]
        wanted = [one["what"] for one in every if which in (one["set"], "all")]
        where = [one["link"] for one in every] if which == "all" else ()
        old, new = [today(text) for text in chosen], [by_classifier(model, text) for text in chosen]
        count(f"{which}: messages alone", [messages(text) for text in chosen], wanted)
        count(f"{which}: the doctor of today", old, wanted, where)
        count(f"{which}: messages, classifier", new, wanted, where)
        count(f"{which}: today, then classifier", [said or more for said, more in zip(old, new)], wanted)
        count(f"{which}: classifier, then kinds", [said or more for said, more in zip(new, old)], wanted)
    none = of_no_kind()
    for name, found in (("today", [today(text) for text, _, _ in none]),
                        ("classifier, which was trained on them", [by_classifier(model, text) for text, _, _ in none])):
        numbers = [sum(map(bool, part)) for part in (found[:200], found[200:400], found[400:])]
        print(f"{name}: answers to 200 errors of other programs {numbers[0]}, beside a TPU {numbers[1]}, "
              f"to {len(none) - 400} ordinary texts {numbers[2]}")


if __name__ == "__main__":
    main()
