"""What a live session believes of healthy and faulty streams that nothing was chosen on, faster than real time.

    python benchmarks/live_belief.py DIR [--worlds easy middle ...] [--kinds "sign flipped" ...]
    python benchmarks/live_belief.py DIR --check                      what a known sentence says of each fault
    python benchmarks/live_belief.py DIR --ordinary SENTENCES.txt [--worlds easy middle ...]

Each world is a simulated participant of its own with a small GRU trained on it, in DIR; both are made once, in 5 to 10
minutes on one idle core. Its validation sentences are heard as they are and with each fault; what was heard of each
word and frame is kept in DIR/WORLD/heard.json, and judged from there, so that limits can be tried without decoding
again. The tables: what `Belief` says by sentence; how soon a fault is told by words, and by frames (`Hearing`); and
which words are dotted or marked.

With `--ordinary`, the participants say these sentences instead, one a line, such as those of the published training
split; most have words that the default lexicon lacks.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from live_kinds import KINDS, instead, load
from rapidfuzz.distance import Levenshtein

from b2t_kit.all import open_task
from b2t_kit.core.files import load_json, save_json
from b2t_kit.live.belief import (
    UNSURE,
    Belief,
    Hearing,
    WordEvidence,
    frame_entropy,
    lower_confidences,
    unknown_words,
    word_evidence,
)
from b2t_kit.live.check import check_channels
from b2t_kit.live.session import open_decoder
from b2t_kit.live.sources import ParticipantSource
from b2t_kit.live.stream import StreamConfig, StreamDecoder
from b2t_kit.simulate.recordings import STRICT, SimulateConfig, simulate
from b2t_kit.speech.recipes import tiny
from b2t_kit.speech.train import train_decoder
from b2t_kit.text.phonemes import normalise

SIMPLE = SimulateConfig(sessions=2, trials=160, bins_per_phoneme=18)
COUPLED = replace(STRICT, sessions=4, trials=160, bins_per_phoneme=16)
WORLDS = {  # settings of the recordings, and steps of training
    "easy": (replace(SIMPLE, seed=31, difficulty=0.3), 220),
    "middle": (replace(SIMPLE, seed=32, difficulty=0.65), 220),
    "hard": (replace(SIMPLE, seed=33, difficulty=1.0), 220),
    "middle, short": (replace(SIMPLE, seed=34, difficulty=0.65), 100),
    "weak": (replace(SIMPLE, seed=34, difficulty=1.0), 110),
    "strict": (replace(COUPLED, seed=35), 400),
    "strict, weak": (replace(COUPLED, seed=36), 250),
    "weaker": (replace(SIMPLE, seed=37, difficulty=1.0), 90),
    "weak, unseen": (replace(SIMPLE, seed=38, difficulty=1.0), 100),
    "easy, another": (replace(SIMPLE, seed=231, difficulty=0.3), 220),
    "middle, another": (replace(SIMPLE, seed=232, difficulty=0.65), 220),
    "hard, another": (replace(SIMPLE, seed=233, difficulty=1.0), 220),
}
FAULTS = (
    "other participant",
    "sign flipped",
    "channels permuted",
    "channels shifted by one",
    "offset of 1.4",
    "noise only",
    "arrays swapped",
    "kinds swapped",
)
SENTENCES = 14  # with each fault


def prepare(folder: Path, name: str) -> None:
    "Simulate a participant and a stranger, and train a decoder, unless they are there."
    config, steps = WORLDS[name]
    if not (folder / "data").is_dir():
        simulate(folder / "data", config, progress=False)
    if not (folder / "stranger").is_dir():
        stranger = replace(config, seed=config.seed + 50, sessions=1, trials=80)
        simulate(folder / "stranger", stranger, progress=False)
    if not (folder / "run").is_dir():
        run = tiny()
        train = replace(run.train, steps=steps, eval_every=0, checkpoint_every=steps)
        run = replace(run, train=train)
        task = open_task(run, folder / "data")
        train_decoder(task, run, folder / "run")
        task.close()


def hear(decoder: StreamDecoder, bins: np.ndarray, said: str) -> dict[str, Any]:
    "Decode a sentence; return its words, what was heard of each, and which are right."
    decoder.push(bins)
    final = decoder.cue()[-1]
    words = [word for word, _ in final.words]
    meant = normalise(said).split()
    same = [block for block in Levenshtein.opcodes(words, meant) if block.tag == "equal"]
    right = {at for block in same for at in range(block.src_start, block.src_end)}
    return {
        "said": len(meant),
        "errors": Levenshtein.distance(words, meant),
        "words": words,
        "sure": [sure for _, sure in final.words],
        "right": [at in right for at in range(len(words))],
        "heard": [asdict(one) for one in word_evidence(decoder, final)],
        "frames": [(round(nats, 3), speech) for nats, speech in map(frame_entropy, decoder.logits)],
    }


def hear_ordinary(folder: Path, texts: Sequence[str]) -> list[dict[str, Any]]:
    "Hear sentences that the participant says on the last day."
    day, _ = load(folder / "data")
    participant = ParticipantSource(folder / "data", session=day)
    decoder = open_decoder(folder / "run", day, config=StreamConfig(end_silence=0))
    with decoder:
        return [hear(decoder, participant.record(text, at), text) for at, text in enumerate(texts)]


def hear_world(folder: Path, kinds: Sequence[str]) -> dict[str, Any]:
    "Hear the validation sentences of the last day with each fault."
    day, trials = load(folder / "data")
    _, others = load(folder / "stranger", None)
    foreign = np.concatenate([bins for bins, _ in others])
    decoder = open_decoder(
        folder / "run",
        day,
        exclude=tuple(said for _, said in trials),
        config=StreamConfig(end_silence=0),
    )
    found: dict[str, Any] = {"expected": decoder.expected_loss, "frame_seconds": decoder.frame_seconds}
    with decoder:
        for name in kinds:
            kind = KINDS[name]
            found[name] = []
            start = 0
            for bins, said in trials if kind.well else trials[:SENTENCES]:
                rows = np.resize(np.roll(foreign, -start, 0), bins.shape) if kind.foreign else bins
                faulty = [kind.values(row[None], start + at) for at, row in enumerate(rows)]
                found[name].append(hear(decoder, np.concatenate(faulty).astype(np.float32), said))
                start += len(bins)
        quiet = instead(KINDS["silence"], folder / "data", folder / "stranger", trials).rows
        found["silence"] = [hear(decoder, quiet, "")]
    return found


def verdicts(sentences: Sequence[dict[str, Any]], expected: float) -> Counter[str]:
    "Count what is believed of the sentences, one after the other."
    belief = Belief(expected)
    said = [belief.add([WordEvidence(**one) for one in each["heard"]]) for each in sentences if each["words"]]
    return Counter(one or "believed" for one in said)


def seconds_until_lost(world: dict[str, Any], before: Sequence[dict], after: Sequence[dict]) -> float:
    "Return when frames tell that something is wrong, from the first of the sentences after; infinite: never."
    hearing = Hearing(world["expected"], world["frame_seconds"])
    num_before = sum(len(each["frames"]) for each in before)
    for index, frame in enumerate(frame for each in (*before, *after) for frame in each["frames"]):
        hearing.add(*frame)
        if hearing.is_lost and index >= num_before:
            return (index + 1 - num_before) * world["frame_seconds"]
    return np.inf


def seconds_until_doubted(world: dict[str, Any], before: Sequence[dict], after: Sequence[dict]) -> float:
    "The same for words, which are judged when a sentence ends."
    belief = Belief(world["expected"])
    seconds = 0.0
    for index, each in enumerate((*before, *after)):
        is_after = index >= len(before)
        seconds += is_after * len(each["frames"]) * world["frame_seconds"]
        if belief.add([WordEvidence(**one) for one in each["heard"]]) and is_after and each["words"]:
            return seconds
    return np.inf


def delays(world: dict[str, Any], kind: str) -> str:
    "Return the median seconds until a fault is told by words, by frames and by either, and how often it never is."
    cells = []
    starts = range(0, SENTENCES, 2)
    healthy = world["no fault"] * 2
    faulty = world[kind] * 2
    parts = [(healthy[start : start + 3], faulty[start : start + 6]) for start in starts]
    words = np.array([seconds_until_doubted(world, *part) for part in parts])
    frames = np.array([seconds_until_lost(world, *part) for part in parts])
    for each in (words, frames, np.minimum(words, frames)):
        never = np.isinf(each).sum()
        cells.append(f"{np.median(each):.0f}" + f" ({never} never)" * bool(never))
    return " | ".join(cells)


def certainty(sentences: Sequence[dict[str, Any]]) -> str:
    "Return how many undotted words are right, and how many right and wrong words are marked."
    right = np.concatenate([each["right"] for each in sentences]).astype(bool)
    evidence = [[WordEvidence(**one) for one in each["heard"]] for each in sentences]
    marks = list(map(unknown_words, evidence))
    words = [list(zip(each["words"], each["sure"])) for each in sentences]
    lowered = [lower_confidences(*each) for each in zip(words, evidence)]
    sure = np.array([one for each in lowered for _, one in each])
    marked = np.array([bool(one) for each in marks for one in each])
    plain = (sure >= UNSURE) & ~marked
    cells = (plain[right].mean(), right[plain].mean(), marked[right].mean(), marked[~right].mean())
    return f"{len(right)} | " + " | ".join(f"{100 * cell:.1f} %" for cell in cells)


FOUND = {  # what a known sentence should say of a fault; None: that no order explains it
    "no fault": "",
    "sign flipped": "the sign is flipped",
    "kinds swapped": "crossings and powers have changed places",
    "arrays swapped": "the blocks of 128 features have moved on by 1",
    "channels shifted by one": "all features have moved on by 1",
    "channels permuted": None,
    "other participant": None,
    "noise only": None,
}


def check(folder: Path, worlds: Sequence[str], count: int = 4) -> None:
    "Print what known sentences say of each fault."
    print("| world | stream | told right | another order | as it should be | not explained | nats a phoneme |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for name in worlds:
        prepare(folder / name, name)
        day, trials = load(folder / name / "data")
        _, others = load(folder / name / "stranger", None)
        foreign = np.concatenate([bins for bins, _ in others])
        decoder = open_decoder(folder / name / "run", day, exclude=tuple(said for _, said in trials))
        for kind, wanted in FOUND.items():
            told: Counter[str] = Counter()
            costs = []
            for bins, said in trials[:count]:
                rows = np.resize(foreign, bins.shape) if KINDS[kind].foreign else bins
                faulty = [KINDS[kind].values(row[None], at) for at, row in enumerate(rows)]
                checked = check_channels(decoder, np.concatenate(faulty).astype(np.float32), said)
                fault = (checked.fault or "fine") if checked.explained else "none"
                told["right" if fault == {"": "fine", None: "none"}.get(wanted, wanted) else fault] += 1
                costs.append(checked.cost)
            others_told = sum(told.values()) - told["right"] - told["fine"] - told["none"]
            cells = told["right"], others_told, told["fine"], told["none"], f"{np.mean(costs):.1f}"
            print(f"| {name} | {kind} |", *[f"{cell} |" for cell in cells], flush=True)


CERTAINTY = "| world | words | right ones undotted | undotted ones right | right ones marked | wrong ones marked |"


def ordinary(folder: Path, worlds: Sequence[str], texts: Sequence[str]) -> None:
    "Print how certain words of ordinary sentences are."
    print(CERTAINTY, "|---|--:|--:|--:|--:|--:|", sep="\n")
    for name in worlds:
        prepare(folder / name, name)
        file = folder / name / "ordinary.json"
        if not file.is_file():
            save_json(file, hear_ordinary(folder / name, texts))
        print(f"| {name} | {certainty(load_json(file))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--worlds", nargs="*", default=list(WORLDS))
    parser.add_argument("--kinds", nargs="*", default=["no fault", *FAULTS])
    parser.add_argument("--ordinary", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.check:
        check(options.folder, options.worlds)
        return
    if options.ordinary:
        texts = options.ordinary.read_text(encoding="utf-8").splitlines()
        ordinary(options.folder, options.worlds, texts)
        return
    found = {}
    for name in options.worlds:
        folder = options.folder / name
        prepare(folder, name)
        file = folder / "heard.json"
        if not file.is_file():
            save_json(file, hear_world(folder, options.kinds))
        found[name] = load_json(file)
    print("| world | stream | words wrong | believed | unsure | untrusted | no words |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for name, world in found.items():
        for kind in (kind for kind in world if kind in options.kinds):
            sentences = world[kind]
            wrong = sum(each["errors"] for each in sentences) / sum(each["said"] for each in sentences)
            counts = verdicts(sentences, world["expected"])
            cells = [counts["believed"], counts["unsure"], counts["untrusted"]]
            silent = len(sentences) - sum(cells)
            print(f"| {name} | {kind} | {wrong:.0%} |", *[f"{cell} |" for cell in (*cells, silent)])
    print("", "| world | stream | by words, s | by frames, s | by either, s |", "|---|---|--:|--:|--:|", sep="\n")
    for name, world in found.items():
        for kind in (kind for kind in world if kind in FAULTS):
            print(f"| {name} | {kind} | {delays(world, kind)} |")
    print("", "| world | healthy, min | alarms by frames | by words | silence, min | alarms by frames |", sep="\n")
    print("|---|--:|--:|--:|--:|--:|")
    for name, world in found.items():
        cells = []
        for kind in ("no fault", "silence"):
            minutes = sum(len(each["frames"]) for each in world[kind]) * world["frame_seconds"] / 60
            cells += [f"{minutes:.1f}", int(seconds_until_lost(world, (), world[kind]) < np.inf)]
        cells.insert(2, len(world["no fault"]) - verdicts(world["no fault"], world["expected"])["believed"])
        print(f"| {name} |", *[f"{cell} |" for cell in cells])
    print("", CERTAINTY, "|---|--:|--:|--:|--:|--:|", sep="\n")
    for name, world in found.items():
        print(f"| {name} | {certainty(world['no fault'])} |")


if __name__ == "__main__":
    main()
