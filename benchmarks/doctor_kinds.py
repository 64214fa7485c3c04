"""Would a trained classifier know more errors than patterns do? No: see doctor.md. `python benchmarks/doctor_kinds.py`

Complement naive Bayes over groups of four characters around the signs of errors, trained on the texts of four files in
tests/, on the messages that the failures show, and on texts of no kind. Prints what a cross-validation gives, whose
folds share no thread, for all texts and for those whose message no other thread has; and what is known of the two blind
sets, of fresh_errors.json by one that was trained without it.
"""
import re
from collections import Counter
from collections.abc import Sequence
from itertools import compress

import numpy as np
from doctor import BESIDE_A_TPU, COVERED, found_in, is_right, read

from b2t_kit.doctor.doctor import ACCELERATOR, errors_in
from b2t_kit.doctor.known_failures import FAILURE_KINDS, FAILURES, squeeze

LENGTH, MOST, RARE = 4, 4000, 2  # characters of a group; of the text that is read; texts that a group must be in
SMOOTH, STEP, SHARP, SURE = 0.3, 8, 3.0, 0.25  # of the counts; of the weights; of the shares; share of an answer
TWIN = 8, 0.3  # texts are the same message if they share so much of their groups of so many characters
KINDS = [kind for kind in FAILURE_KINDS if kind.known]
KIND_OF = {name: kind.name for kind in reversed(KINDS) for name in (kind.name, *(kind.covers or ()))}
KIND_OF["process_crashed_in_native_code"] = "native_code_crashed"  # in two kinds
CLASSES = sorted(["none", *COVERED.keys() & {kind.name for kind in KINDS}])
Text = tuple[str, str, str]  # what is written, its kind, its thread
Model = dict[str, np.ndarray]  # the weights of a group for each kind


def texts(*names: str) -> list[Text]:
    "The labelled texts of files, with the kind of the cause; none where no kind is known."
    return [(one["text"], KIND_OF[one["what"]], one["link"])
            for name in names for one in read(name) if one["what"] in KIND_OF]


def plain(text: str) -> str:
    "The squeezed text around the signs of errors, or the whole if there is none; numbers are 0."
    whole = squeeze(text)
    near = "|".join(whole[place.start:place.stop] for place in errors_in(whole, len(whole))) or whole
    return re.sub(r"\d+", "0", near[:MOST])


def groups(text: str, length: int = LENGTH) -> set[str]:
    "The groups of characters of a text."
    return {text[start:start + length] for start in range(len(text) - length + 1)}


def train(labelled: Sequence[Text]) -> Model:
    "The weights of the groups that more than one text has, in steps; those without weights are left out."
    found = [groups(plain(text)) for text, _, _ in labelled]
    often = Counter(group for each in found for group in each)
    place = {group: number for number, group in enumerate(sorted(group for group in often if often[group] >= RARE))}
    counts = np.zeros((len(CLASSES), len(place)))
    for each, (_, kind, _) in zip(found, labelled):
        known = [place[group] for group in sorted(each) if group in place]
        counts[CLASSES.index(kind), known] += 1 / np.sqrt(max(len(known), 1))
    others = counts.sum(0) + SMOOTH - counts
    weights = -np.log(others / others.sum(1, keepdims=True))
    steps = np.round((weights - weights.mean(0)) * STEP)
    return {group: steps[:, number] / STEP for group, number in place.items() if steps[:, number].any()}


def answer(model: Model, text: str) -> list[str]:
    "The likeliest kind, if its share is large enough."
    known = [model[group] for group in sorted(groups(plain(text))) if group in model]
    score = np.sum(known, 0) / np.sqrt(len(known)) if known else np.zeros(len(CLASSES))
    share = np.exp((score - score.max()) * SHARP)
    likeliest = CLASSES[int(share.argmax())]
    return [likeliest] if likeliest != "none" and share.max() / share.sum() >= SURE else []


def may_answer(text: str) -> bool:
    "Whether the doctor tries kinds: a text that names the TPU or a library of it, with a sign of an error."
    return bool(ACCELERATOR.search(text) and errors_in(squeeze(text), len(squeeze(text))))


def count(name: str, found: Sequence[list[str]], wanted: Sequence[str]) -> None:
    "Prints how many answers are right."
    right, answered = sum(map(is_right, found, wanted)), sum(map(bool, found))
    print(f"{name:<45} {right:>3} of {len(wanted)} known, {answered - right} wrong, {len(wanted) - answered} none")


def alone(labelled: Sequence[Text]) -> list[bool]:
    "Whether no text of another thread is the same message."
    length, least = TWIN
    found = [(groups(plain(text), length), link) for text, _, link in labelled]
    return [not any(other != link and len(each & more) > least * len(each | more) for more, other in found)
            for each, link in found]


def cross_validation(errors: Sequence[Text], none: Sequence[Text], shown: Sequence[Text], folds: int = 5) -> None:
    "Prints what is known of texts whose threads were held out, without the doctor's messages."
    every = [*errors, *none, *shown]
    threads = sorted({link for _, _, link in every})
    np.random.default_rng(0).shuffle(threads)
    fold = {link: number % folds for number, link in enumerate(threads)}
    models = [train([one for one in every if fold[one[2]] != held]) for held in range(folds)]
    said, wanted = [answer(models[fold[one[2]]], one[0]) for one in errors], [kind for _, kind, _ in errors]
    single = alone(errors)
    count("cross-validation", said, wanted)
    count("    of messages of a single thread", list(compress(said, single)), list(compress(wanted, single)))
    alarms = sum(bool(may_answer(one[0]) and answer(models[fold[one[2]]], one[0])) for one in none)
    print(f"{'    texts of no kind':<45} {alarms} of {len(none)} with an answer")


def main() -> None:
    errors = texts("world_errors", "training_errors")
    others = [(start + one["text"], "none", one["link"])
              for start in ("", BESIDE_A_TPU) for one in read("unrelated_errors")]
    none = others + [(one["text"], "none", one["link"]) for one in read("ordinary_texts")]
    shown = [(failure.symptom, KIND_OF[failure.name], failure.link) for failure in FAILURES
             if failure.name in KIND_OF and isinstance(failure.symptom, str)]
    cross_validation(errors, none, shown)
    for name, added in (("fresh_errors", ()), ("blind_errors", ("fresh_errors",))):
        model, chosen = train([*errors, *none, *shown, *texts(*added)]), read(name)
        today, wanted = [found_in(one["text"]) for one in chosen], [one["what"] for one in chosen]
        messages = [[each for each in said if each not in COVERED] for said in today]
        trained = [said or (answer(model, one["text"]) if may_answer(one["text"]) else [])
                   for said, one in zip(messages, chosen)]
        for what, said in (("messages", messages), ("messages and kinds of today", today),
                           ("messages and classifier", trained)):
            count(f"{name}: {what}", said, wanted)


if __name__ == "__main__":
    main()
