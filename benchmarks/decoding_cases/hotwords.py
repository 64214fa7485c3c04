"What a list of expected words finds, and what it does to sentences without one."
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
from decoding_cases.task import best, build, counts_of, divided, save_at, spoken
from decoding_cases.task import temperature_of, timed

from b2t_kit.decode.search import BeamSearch
from b2t_kit.decode.search import SearchConfig, parse_hotwords
from b2t_kit.lexicon.lexicon import Lexicon, build_lexicon
from b2t_kit.lm.model import LanguageModel
from b2t_kit.simulate.logits import Noise
from b2t_kit.speech.calibrate import tempered
from b2t_kit.text.metrics import rate_of

CONFIG = SearchConfig(beam=100, n_best=20)


def hotwords(labels: Path, /, *, with_target: int = 150, without: int = 150, distractors: int = 1000,
             flatness: str = "middle,sharp,flat", json: Path | None = None) -> None:
    """Measure what a list of hotwords finds, and what it does to sentences without one.

    Words that are rare in the models' text are chosen as targets until --with-target scored sentences have one. The
    3-gram `known` and its lexicon (the whole dictionary) know them; `unknown` is built from the same text with every
    target as <unk>, and its lexicon lacks them. The list is all targets, without boosts; then with --distractors other
    words of the dictionary, which nobody says: `unknown` lacks them too. A target counts as found if it is in the
    decoded sentence. --without other scored sentences have no target: are they the same with the list? All this at
    each flatness of the logits.
    """
    scored, tuned_on, text = divided(labels)
    whole = build_lexicon()
    targets = chosen_words(scored, text, whole, with_target)
    others = unsaid_words({word for one in (*scored, *text) for word in one.split()}, whole, distractors)
    has = [one for one in scored if set(targets) & set(one.split())][:with_target]
    lacks = [one for one in scored if not set(targets) & set(one.split())][:without]
    fewer = build_lexicon([word for word in whole.words if word not in {*targets, *others}])
    models = {name: (lexicon, build(text, scored, vocabulary=list(lexicon.words)))
              for name, lexicon in (("known", whole), ("unknown", fewer))}
    result: dict = {"targets": len(targets), "with": len(has), "without": len(lacks), "distractors": len(others)}
    for certainty in flatness.split(","):
        generator = np.random.default_rng(1)
        noise = Noise(flatness=certainty)
        temperature = temperature_of(noise, tuned_on)
        trials = [[tempered(one, temperature) for one in spoken(part, generator, noise)] for part in (has, lacks)]
        result[certainty] = listed(models, {"": [], " + list": targets, " + list, distractors": targets + others},
                                   set(targets), (has, lacks), trials)
        print(certainty, *result[certainty].items(), sep="\n", flush=True)
    save_at(json, "hotwords", result)


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


def listed(models: dict[str, tuple[Lexicon, LanguageModel]], lists: dict[str, list[str]], targets: set[str],
           said: tuple[list[str], list[str]], trials: list[list[np.ndarray]]) -> dict:
    "The rows of one flatness: sentences with targets, and without."
    rows, rates, texts = {}, {}, {}
    for name, (lexicon, model) in models.items():
        for extra, hot in lists.items():
            label, start = name + extra, time.process_time()
            search = BeamSearch(lexicon, model, CONFIG, hotwords=parse_hotwords(hot) if hot else ())
            _ = search.trie
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
