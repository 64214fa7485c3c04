"""Measure hotwords, blank skipping, temperature and tuning for time on simulated trials of real sentences.

    python benchmarks/hotwords.py LABELS.csv [--with 150] [--without 150] [--distractors 1000] [--settings 150]
                                  [--flatness middle,sharp,flat] [--tune-on 40] [--json FILE] [--figure FILE]

LABELS.csv is as for words.py, and its sentences are divided in the same way: 1,426 are scored, 250 are tuned on,
and the language models see only the others. Words that are rare in their text are chosen as targets until --with
scored sentences have one. The 3-gram `known` and its lexicon (the whole dictionary) know them; `unknown` is built
from the same text with every target as <unk>, and its lexicon lacks them. The hotword list is all targets, without
boosts; then with --distractors other words of the dictionary, which nobody says: `unknown` lacks them too. A
target counts as found if it is in the decoded sentence. --without other scored sentences have no target: are they
the same with the list? All this at each flatness of the logits. Then settings are compared on the first --settings
scored sentences, each with the CPU seconds of the same run, and `tune` with a budget of seconds chooses on
--tune-on sentences.
"""

import argparse
import json
import math
import random
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
from decoding_task import best, counts_of, divided, options_of, ratio, save, spoken, timed, written

from b2t_kit.decode.beam_search import BeamSearch, kept_frames
from b2t_kit.decode.hotwords import parse_hotwords
from b2t_kit.decode.hypotheses import SearchConfig
from b2t_kit.decode.tune import plot_frontier, tune
from b2t_kit.lm.lexicon import Lexicon, build_lexicon
from b2t_kit.lm.ngram import LanguageModel
from b2t_kit.lm.ngram_build import build_language_model
from b2t_kit.simulate.logits import Noise
from b2t_kit.text.metrics import rate_of

CONFIG = SearchConfig(beam=100, n_best=20)


def chosen_words(scored: list[str], text: list[str], lexicon: Lexicon, wanted: int) -> list[str]:
    "Rare words, until enough scored sentences have one."
    seen = Counter(word for one in text for word in one.split())
    rare = sorted({word for one in scored for word in one.split() if 1 <= seen[word] <= 10 and word in lexicon
                   and len(lexicon.forms[word][0]) >= 3})
    random.Random(0).shuffle(rare)
    count, targets = 0, []
    while count < wanted:
        targets.append(rare.pop())
        count = sum(bool(set(targets) & set(one.split())) for one in scored)
    return targets


def unsaid_words(said: set[str], lexicon: Lexicon, count: int) -> list[str]:
    "Words of at least three phonemes that are in no sentence."
    words = [word for word in lexicon.words if word not in said and len(lexicon.forms[word][0]) >= 3]
    return random.Random(1).sample(words, count)


def model_of(text: list[str], folder: Path, name: str, words: list[str]) -> LanguageModel:
    "A 3-gram over a vocabulary; other words of the text are <unk>."
    source = written(folder / f"{name}.txt", text)
    return build_language_model([source], folder / f"{name}.b2tlm", 3, vocabulary=words).read()


def hits(said: list[str], found: list[str], targets: set[str]) -> np.ndarray:
    "Targets of each sentence, and how many of them were decoded: (sentences, 2)."
    pairs = [(Counter(one.split()), Counter(other.split())) for one, other in zip(said, found)]
    return np.array([(sum(true[word] for word in targets & true.keys()),
                      sum(min(true[word], heard[word]) for word in targets & true.keys())) for true, heard in pairs])


def interval(first: np.ndarray, second: np.ndarray, resamples: int = 2000) -> tuple[float, float, float]:
    "The difference of two shares of found targets, with a 95 % interval of paired resampling."
    draws = np.random.default_rng(0).integers(0, len(first), (resamples, len(first)))
    gaps = (first[draws, 1].sum(1) - second[draws, 1].sum(1)) / first[draws, 0].sum(1)
    low, high = np.percentile(gaps, [2.5, 97.5]).tolist()
    return float((first[:, 1].sum() - second[:, 1].sum()) / first[:, 0].sum()), low, high


def compare_lists(options: argparse.Namespace, scored: list[str], text: list[str], folder: Path) -> dict:
    "The rates of targets and the errors, known and unknown, without a list, with one, and with distractors in it."
    whole = build_lexicon()
    targets = chosen_words(scored, text, whole, options.with_)
    others = unsaid_words({word for one in (*scored, *text) for word in one.split()}, whole, options.distractors)
    has = [one for one in scored if set(targets) & set(one.split())][: options.with_]
    lacks = [one for one in scored if not set(targets) & set(one.split())][: options.without]
    fewer = build_lexicon([word for word in whole.words if word not in {*targets, *others}])
    models = {"known": (whole, model_of(text, folder, "known", list(whole.words))),
              "unknown": (fewer, model_of(text, folder, "unknown", list(fewer.words)))}
    result: dict = {"targets": len(targets), "with": len(has), "without": len(lacks), "distractors": len(others)}
    for flatness in options.flatness.split(","):
        generator = np.random.default_rng(1)
        trials = [spoken(part, generator, Noise(flatness=flatness)) for part in (has, lacks)]
        result[flatness] = listed(models, {"": [], " + list": targets, " + list, distractors": targets + others},
                                  set(targets), (has, lacks), trials)
        print(flatness, json.dumps(result[flatness], indent=1), flush=True)
    return result


def listed(models: dict[str, tuple[Lexicon, LanguageModel]], lists: dict[str, list[str]], targets: set[str],
           said: tuple[list[str], list[str]], trials: list[list[np.ndarray]]) -> dict:
    "The rows of one flatness: sentences with targets, and without."
    rows, rates, texts = {}, {}, {}
    for name, (lexicon, model) in models.items():
        for extra, hot in lists.items():
            label, start = name + extra, time.process_time()
            search = BeamSearch(lexicon, model, CONFIG, hotwords=parse_hotwords(hot) if hot else ())
            _ = search.prefix
            opened = time.process_time() - start
            (found, seconds), (others, _) = (timed(search, part) for part in trials)
            found, texts[label] = best(found), best(others)
            rates[label] = hits(said[0], found, targets)
            errors = [counts_of(one, heard) for one, heard in zip(said, (found, texts[label]))]
            changed = sum(one != other for one, other in zip(texts[name], texts[label]))
            rows[label] = {
                "found": int(rates[label][:, 1].sum()), "of": int(rates[label][:, 0].sum()),
                "wer_with": rate_of(errors[0]).rate, "wer_without": rate_of(errors[1]).rate, "changed": changed,
                "invented": sum(bool(set(hot) & set(one.split())) for one in texts[label]),
                "seconds": seconds / len(found), "opened": opened}
    gaps = {f"unknown + list minus {one}": interval(rates["unknown + list"], rates[one])
            for one in ("known", "known + list")}
    return {"rows": rows, **gaps}


def compare_settings(lexicon: Lexicon, model: LanguageModel, said: list[str]) -> list[dict]:
    "Errors and seconds of blank skipping and temperatures, as ratios to the defaults."
    trials = spoken(said, 2)
    rows, base, spent = [], None, 1.0
    for change in ({}, {"blank_skip": 0.98}, {"blank_skip": 0.9}, {"temperature": 0.7}, {"temperature": 1.4},
                   {"temperature": 2.0}):
        search = BeamSearch(lexicon, model, replace(CONFIG, **change))
        found, seconds = timed(search, trials)
        errors = counts_of(said, best(found))
        base, spent = (errors, seconds) if base is None else (base, spent)
        kept = [len(np.arange(len(one))[kept_frames(search.log_probs(one), search.config)]) for one in trials]
        rows.append(change | {"wer": rate_of(errors).rate, "errors": ratio(errors, base), "cpu": seconds / spent,
                              "frames": sum(kept) / sum(map(len, trials))})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    options = options_of(__doc__, with_=150, without=150, distractors=1000, flatness="middle,sharp,flat", settings=150,
                         tune_on=40, figure=Path).parse_args()
    scored, tuned_on, text = divided(options.labels)
    result: dict = {}
    with tempfile.TemporaryDirectory() as folder:
        result["hotwords"] = compare_lists(options, scored, text, Path(folder))
        lexicon = build_lexicon()
        model = model_of(text, Path(folder), "again", list(lexicon.words))
        if options.settings:
            result["settings"] = compare_settings(lexicon, model, scored[: options.settings])
        if options.tune_on:
            said = tuned_on[: options.tune_on]
            found = tune(lexicon, model, spoken(said, 3), said, CONFIG, progress=print, budget=math.inf)
            print(found, flush=True)
            result["tuning"] = found.to_dict()
            if options.figure and found.frontier:
                plot_frontier(found.frontier).savefig(options.figure, dpi=80)
        save(options.json, result)


if __name__ == "__main__":
    main()
