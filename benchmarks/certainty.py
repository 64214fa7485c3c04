"""How sure simulated logits are, against the published baseline; and what several simulated networks gain together.

    python benchmarks/certainty.py VALIDATION.json [--json FILE]
    python benchmarks/certainty.py VALIDATION.json --networks 10 --labels LABELS.csv [--shared 0.91] [--half 1]

VALIDATION.json is a list of trials of real decoders: `session`, `sentence`, `phonemes`, the five best phoneme sequences
`nbest` with their ln P (a CTC prefix beam of five over the log-softmax of the published baseline), and under the
name of a family of decoders the sentences of ten seeds. The simulated logits are of the same sentences and days, with
the same beam. Half of the days fitted the constants of `Noise`, the others judge; in each half the simulated error rate
is set to the real one. LABELS.csv, as for `decoding.py`, gives the 3-gram its text. Results: ruler.md, combine.md.
"""
import argparse
import json
import math
import sys
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
from numba import njit
from rapidfuzz.distance import Levenshtein
from scipy.stats import rankdata

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from b2t_kit.core.files import save_json
from b2t_kit.decode.search import BeamSearch
from b2t_kit.speech.calibrate import fit_temperature, tempered
from b2t_kit.decode.combine import average_logits, pool_lists
from b2t_kit.publish.votes import combine_votes
from b2t_kit.simulate.logits import Noise, noisy_logits
from b2t_kit.text.confusions import real_errors
from b2t_kit.lexicon.lexicon import build_lexicon
from b2t_kit.text.phonemes import collapse, normalise, to_ids

WIDTH = 5
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
Listed = list[tuple[float, list[int]]]  # ln P and classes of each sequence, the best first


@njit
def prefix_beam(rows: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    "The likeliest sequences of (P, C) log-probabilities: classes (n, P), lengths (n,), ln P (n,)."
    frames, classes = rows.shape
    text, lengths = np.zeros((width, frames), np.int64), np.zeros(width, np.int64)
    names, parents = np.ones(width, np.uint64), np.zeros(width, np.uint64)  # a hash of each prefix, and of its parent
    blank, label, count = np.full(width, -np.inf), np.full(width, -np.inf), 1
    blank[0] = 0.0
    for frame in range(frames):
        stay_blank, stay_label = np.full(count, -np.inf), np.full(count, -np.inf)
        longer = np.full((count, classes), -np.inf)
        for at in range(count):
            total, last = np.logaddexp(blank[at], label[at]), text[at, lengths[at] - 1] if lengths[at] else 0
            stay_blank[at] = total + rows[frame, 0]
            stay_label[at] = label[at] + rows[frame, last]
            for each in range(1, classes):
                longer[at, each] = (blank[at] if each == last else total) + rows[frame, each]
        for at in range(count):  # a longer prefix that is there already
            for other in range(count):
                if lengths[other] == lengths[at] + 1 and parents[other] == names[at]:
                    last = text[other, lengths[at]]
                    stay_label[other] = np.logaddexp(stay_label[other], longer[at, last])
                    longer[at, last] = -np.inf
        totals = np.append(np.logaddexp(stay_blank, stay_label), longer.ravel())
        kept = np.argsort(-totals)[:width]
        old_text, old_lengths, old_names, old_parents = text.copy(), lengths.copy(), names.copy(), parents.copy()
        before, count = count, len(kept)
        blank[:], label[:] = -np.inf, -np.inf
        for place, chosen in enumerate(kept):
            at = chosen if chosen < before else (chosen - before) // classes
            text[place], lengths[place] = old_text[at], old_lengths[at]
            names[place], parents[place] = old_names[at], old_parents[at]
            if chosen < before:
                blank[place], label[place] = stay_blank[at], stay_label[at]
            else:
                each = (chosen - before) % classes
                text[place, lengths[place]] = each
                lengths[place] += 1
                parents[place] = old_names[at]
                names[place] = old_names[at] * np.uint64(6364136223846793005) + np.uint64(each)
                label[place] = totals[chosen]
    return text[:count], lengths[:count], np.logaddexp(blank, label)[:count]


def five_best(logits: np.ndarray) -> Listed:
    "The five best sequences of a beam of five."
    rows = logits.astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    text, lengths, totals = prefix_beam(rows - np.log(np.exp(rows).sum(axis=1, keepdims=True)), WIDTH)
    return [(float(totals[at]), text[at, :lengths[at]].tolist()) for at in np.argsort(-totals)]


def certainty_of(said: Sequence[Sequence[int]], lists: Sequence[Listed]) -> dict[str, float]:
    "What the network believes of its five best sequences, and what is true of them."
    edits = [[Levenshtein.distance(true, found) for _, found in listed] for true, listed in zip(said, lists)]
    best, least, labels = (np.array(list(map(pick, rows))) for pick, rows in
                           ((lambda row: row[0], edits), (min, edits), (len, said)))
    logs, right = np.array([listed[0][0] for listed in lists]), best == 0
    chances, ranks = np.exp(logs), rankdata(logs)
    gaps = np.quantile([listed[0][0] - listed[1][0] for listed in lists], QUANTILES)
    held = [(np.array([log for log, _ in listed]), row.index(0)) for listed, row in zip(lists, edits) if 0 in row]
    heats = np.exp(np.linspace(-1, 3, 161))
    losses = [sum(np.logaddexp.reduce((logs - logs[at]) / heat) for logs, at in held) for heat in heats]
    above = ranks[right].sum() - right.sum() * (right.sum() + 1) / 2
    return {
        "phoneme errors, %": 100 * best.sum() / labels.sum(), "sentences right, %": 100 * right.mean(),
        "P(best), mean": chances.mean(), "P(best) where right": chances[right].mean(),
        "P(best) where wrong": chances[~right].mean(), "P of the five, mean": np.mean(
            [sum(math.exp(log) for log, _ in listed) for listed in lists]),
        "-ln P(best) per phoneme": -logs.sum() / labels.sum(),
        **{f"gap of first to second, {100 * share:g} %": gap for share, gap in zip(QUANTILES, gaps)},
        "errors of the best of five / of the best": least.sum() / best.sum(),
        "the truth among the five, %": 100 * len(held) / len(said),
        "area under the curve": above / (right.sum() * (~right).sum()),
        "right where P(best) is above .9, %": 100 * right[chances > 0.9].mean(),
        "temperature of the lists": heats[int(np.argmin(losses))]}


class Trials:
    "The sentences of some days, what real decoders made of them, and logits that simulated ones would give."

    def __init__(self, rows: list[dict], half: int | None) -> None:
        days = sorted({row["session"] for row in rows})
        chosen = [(number, row) for number, row in enumerate(rows) if half in (None, days.index(row["session"]) % 2)]
        self.numbers, self.rows = [number for number, _ in chosen], [row for _, row in chosen]
        self.days = [days.index(row["session"]) for row in self.rows]
        self.said = [to_ids(row["phonemes"]) for row in self.rows]
        self.lists = [[(log, to_ids(text)) for log, text in row["nbest"]] for row in self.rows]
        wrong = sum(Levenshtein.distance(true, found[0][1]) for true, found in zip(self.said, self.lists))
        self.errors = wrong / sum(map(len, self.said)) / real_errors()["rate"]  # relative to all days

    def logits(self, noise: Noise, seed: int = 0, **network: int) -> list[np.ndarray]:
        "Of each sentence."
        return [noisy_logits(labels, np.random.default_rng([seed, number]), noise, day, **network)
                for number, day, labels in zip(self.numbers, self.days, self.said)]


def compare_certainty(rows: list[dict], flatness: str, seeds: int = 2) -> dict[str, dict[str, float]]:
    "Real and simulated, of the days that fitted, of those that judge, and of all; and calibrated on the former."
    fitted, judging = Trials(rows, 0), Trials(rows, 1)
    columns, temperature = {}, 1.0
    for name, trials in (("fitted", fitted), ("judging", judging), ("all", Trials(rows, None))):
        noise = Noise(errors=1.0 if name == "all" else trials.errors, flatness=flatness)
        logits = [one for seed in range(seeds) for one in trials.logits(noise, seed)]
        said = trials.said * seeds
        if name == "fitted":
            temperature = fit_temperature(logits, said).temperature
        columns |= {f"real, {name}": certainty_of(trials.said, trials.lists),
                    f"simulated, {name}": certainty_of(said, list(map(five_best, logits)))}
        if name == "judging":
            cooled = [five_best(one / np.float32(temperature)) for one in logits]
            columns["calibrated, judging"] = certainty_of(said, cooled) | {"temperature": temperature}
    return columns


def table(columns: dict[str, dict[str, float]]) -> str:
    "A Markdown table."
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "--:|" * len(columns)]
    for name in next(iter(columns.values())):
        lines.append(f"| {name} | " + " | ".join(f"{one[name]:.3g}" for one in columns.values()) + " |")
    return "\n".join(lines)


def rates_of(sentences: Sequence[Sequence[str]], said: list[str]) -> tuple[np.ndarray, np.ndarray]:
    "Word errors and their share in each sentence, (decoders, sentences) each."
    true = [normalise(one, True).split() for one in said]
    edits = np.array([[Levenshtein.distance(one, normalise(text, True).split()) for one, text in zip(true, texts)]
                      for texts in sentences])
    return edits, edits / np.maximum(list(map(len, true)), 1)


def agreement(sentences: Sequence[Sequence[str]], said: list[str]) -> dict[str, float]:
    "Of the words that one decoder has wrong: how many another has wrong too, and how many of these as the same word."
    heard = []  # what each decoder has in the place of each word that was said
    for texts in sentences:
        places = []
        for true, text in ((normalise(true, True).split(), normalise(text, True).split())
                           for true, text in zip(said, texts)):
            row = true.copy()
            for kind, at, to in Levenshtein.editops(true, text):
                if kind != "insert":
                    row[at] = text[to] if kind == "replace" else ""
            places += row
        heard.append(np.array(places))
    wrong = np.array(heard) != np.array([word for one in said for word in normalise(one, True).split()])
    pairs = list(permutations(range(len(heard)), 2))
    both = sum((wrong[a] & wrong[b]).sum() for a, b in pairs)
    same = sum((wrong[a] & wrong[b] & (heard[a] == heard[b])).sum() for a, b in pairs)
    return {"wrong where another is, %": 100 * both / sum(wrong[a].sum() for a, _ in pairs),
            "the same word then, %": 100 * same / both}


def together(name: str, sentences: Sequence[Sequence[str]], said: list[str]) -> dict[str, float]:
    "How alike the errors of several decoders are, and what a vote of three, five and all takes away."
    edits, shares = rates_of(sentences, said)
    words = sum(len(normalise(one, True).split()) for one in said)
    seeds = [{(number,): [(text, 1.0)] for number, text in enumerate(texts)} for texts in sentences]
    references = {(number,): text for number, text in enumerate(said)}
    pairs = np.triu_indices(len(sentences), 1)
    row = {"one, mean": 100 * edits.sum() / len(edits) / words}
    for count in sorted({3, 5, len(seeds)}):
        draws = [range(start, start + count) for start in range(0, len(seeds) - count + 1, count)]
        votes = [combine_votes({str(at): seeds[at] for at in draw}, references).together.rate for draw in draws]
        row[f"vote of {count}"] = 100 * float(np.mean(votes))
    row |= {"best of all": 100 * edits.min(axis=0).sum() / words, "correlation": np.corrcoef(shares)[pairs].mean(),
            "same text, %": 100 * np.mean(
        [[one == other for one, other in zip(sentences[a], sentences[b])] for a, b in zip(*pairs)])}
    row |= agreement(sentences, said)
    print(name, {key: round(value, 2) for key, value in row.items()}, flush=True)
    return row


def several_networks(rows: list[dict], labels: Path, count: int, half: int, shared: float,
                     ways: Sequence[str]) -> dict[str, dict[str, float]]:
    "Real decoders, and simulated networks with the kit's search: votes over texts, and the average of logits."
    from decoding_cases.task import build, divided

    judging, fitting, noise = Trials(rows, half), Trials(rows, 1 - half), Noise(shared=shared)
    said = [row["sentence"] for row in judging.rows]
    found = {name: together(name, [[row[name][at] for row in judging.rows] for at in range(10)], said)
             for name in ("gru", "gru_without_llm")}
    temperature = fit_temperature(fitting.logits(noise, 5), fitting.said).temperature
    *_, text = divided(labels)
    search = BeamSearch(build_lexicon(), build(text, [normalise(row["sentence"], True) for row in rows]))
    networks = [[tempered(one, temperature) for one in judging.logits(noise, network=at)]
                for at in range(count)]
    wrong = [[Levenshtein.distance(true, collapse(one.argmax(1))) / len(true)
              for true, one in zip(judging.said, trials)] for trials in networks]
    alike = float(np.corrcoef(wrong)[np.triu_indices(count, 1)].mean())

    def first(lists: Sequence) -> list[str]:
        return [one[0].sentence if one else "" for one in lists]

    lists = [search.decode_many(trials) for trials in networks]
    found["simulated"] = together("simulated", [first(each) for each in lists], said)
    found["simulated"]["correlation of phoneme errors"] = alike
    for several in sorted({3, 5, count}):
        averaged = [average_logits(trials) for trials in zip(*networks[:several])]
        heat = fit_temperature(averaged[::2], judging.said[::2]).temperature
        combined = {"average": lambda: search.decode_many([tempered(one, heat) for one in averaged]),
                    "pool": lambda: [pool_lists([search] * several, trials) for trials in zip(*networks[:several])]}
        for way in ways:
            edits, _ = rates_of([first(combined[way]())], said)
            words = sum(len(normalise(one, True).split()) for one in said)
            found["simulated"][f"{way} of {several}"] = 100 * edits.sum() / words
    print(found["simulated"], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--flatness", default="middle")
    parser.add_argument("--networks", type=int, help="compare so many simulated networks with real decoders")
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--shared", type=float, default=Noise().shared, help="share of their noise that is the same")
    parser.add_argument("--half", type=int, default=1, help="of the days: 0 fitted, 1 judges")
    parser.add_argument("--ways", default="average,pool", help="to combine them, besides votes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = json.loads(options.file.read_text(encoding="utf-8"))
    if options.networks:
        ways = options.ways.split(",")
        found = several_networks(rows, options.labels, options.networks, options.half, options.shared, ways)
    else:
        found = compare_certainty(rows, options.flatness)
        print(table(found), found["calibrated, judging"]["temperature"], sep="\n")
    if options.json:
        save_json(options.json, found)


if __name__ == "__main__":
    main()
