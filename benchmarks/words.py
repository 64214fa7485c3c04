"""Measure what a language model adds: word error of the same logits with different models.

    python benchmarks/words.py LABELS.csv [--levels 1] [--flatness middle] [--sentences 1426] [--tune-on 250]
                               [--text FILE ...] [--models DIR] [--order 3] [--json FILE]

LABELS.csv has a column sentence_label, such as that of the published training split. Its different
sentences are divided: some are scored, some are tuned on, and the language models see only the
others, and any further text files (the builder drops lines that contain a scored sentence).
Each scored sentence becomes noisy logits (`simulate.logits`); at level 1 with
the phoneme error rate of the published baseline, at other levels with about that many times as
many errors. `--flatness sharp,middle,flat` repeats everything with the same errors and other certainty. They are
decoded in six ways:

greedy          the best class of each frame, and for each stretch between silences the likeliest
                word with exactly these phonemes, or the phonemes themselves if there is none
1-gram          the kit's search with a model of word frequencies only, default weights
3-gram          the same search and the same weights with a model of --order words
... tuned       both, each with its own weights found on the tuning sentences

Ratios of the 3-gram's errors to the 1-gram's come with intervals of paired resampling: "untuned" and
"tuned" compare like with like; "step" compares the tuned 3-gram with the untuned 1-gram. --tune-on 0
leaves out tuning.
These numbers compare the steps; they do not predict the word error on real recordings.
"""

import argparse
import csv
import json
import random
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np

from b2t_kit.decode.beam_search import BeamSearch
from b2t_kit.decode.hypotheses import SearchConfig
from b2t_kit.decode.tune import Tuning, tune
from b2t_kit.lm.arpa import read_language_model
from b2t_kit.lm.lexicon import Lexicon, build_lexicon
from b2t_kit.lm.ngram import LanguageModel, perplexity
from b2t_kit.lm.ngram_build import build_language_model
from b2t_kit.simulate.logits import Noise, noisy_sentence
from b2t_kit.text.g2p import sentence_to_phonemes
from b2t_kit.text.metrics import Counts, count_edits, per, rate_of
from b2t_kit.text.phonemes import collapse, normalise, split_words, to_ids, to_phonemes


def divided(path: Path, scored: int, tuned_on: int, seed: int = 0) -> tuple[list, list, list]:
    "Different sentences of a table: scored, tuned on, and the rest."
    with open(path, newline="", encoding="utf-8") as file:
        rows = [normalise(row["sentence_label"], True) for row in csv.DictReader(file)]
    sentences = sorted({row for row in rows if row})
    random.Random(seed).shuffle(sentences)
    return sentences[:scored], sentences[scored : scored + tuned_on], sentences[scored + tuned_on :]


def build(text: list[str], kept_out: list[str], folder: Path, order: int,
          more: tuple[Path, ...] = ()) -> LanguageModel:
    "A model of the text over the whole dictionary, without scored sentences."
    (folder / "text.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    lines = [f"{number},{one}" for number, one in enumerate(kept_out)]
    (folder / "scored.csv").write_text("\n".join(["id,sentence_label", *lines]) + "\n", encoding="utf-8")
    out = folder / f"{order}.b2tlm"
    return build_language_model([folder / "text.txt", *more], out, order, vocabulary="dictionary",
                                exclude=[folder / "scored.csv"], leaks="drop").read()


def spelled_out(logits: np.ndarray, lexicon: Lexicon, model: LanguageModel) -> str:
    "The greedy result: words where a stretch is one, else phonemes."
    classes = collapse(logits.argmax(axis=1))
    found = []
    for stretch in split_words(to_phonemes(classes)):
        words = [lexicon.words[word] for word in lexicon.spoken.get(tuple(to_ids(stretch)), ())]
        likely = {word: model.unigrams[model.numbers([word])[0]] for word in words}
        found.append(max(likely, key=likely.get) if likely else "".join(stretch).lower())
    return " ".join(found)


def counts_of(sentences: list[str], found: list[str]) -> Counts:
    "Word errors of each sentence."
    return count_edits([one.split() for one in sentences], [one.split() for one in found])


def ratio(counts: Counts, base: Counts, resamples: int = 2000) -> dict[str, float]:
    "Errors as a share of another method's on the same sentences, with a 95 % interval."
    draws = np.random.default_rng(0).integers(0, len(base.edits), (resamples, len(base.edits)))
    shares = counts.edits[draws].sum(axis=1) / np.maximum(base.edits[draws].sum(axis=1), 1)
    low, high = np.percentile(shares, [2.5, 97.5]).tolist()
    return {"ratio": float(counts.edits.sum() / base.edits.sum()), "low": low, "high": high}


class Level:
    "All ways of reading the sentences with one kind of noise."

    def __init__(self, scored: list[str], tuned_on: list[str], noise: Noise, config: SearchConfig) -> None:
        generator = np.random.default_rng(1)
        self.scored, self.tuned_on, self.noise, self.config = scored, tuned_on, noise, config
        self.trials = [noisy_sentence(one, generator, noise) for one in scored]
        self.others = [noisy_sentence(one, generator, noise) for one in tuned_on]
        true = [to_ids(sentence_to_phonemes(one)) for one in scored]
        self.per = per(true, [collapse(one.argmax(axis=1)) for one in self.trials])
        self.rows: dict[str, dict] = {}
        self.counts: dict[str, Counts] = {}
        print(f"noise {noise.errors:g}, {noise.flatness}: phoneme error rate {self.per}", flush=True)

    def tell(self, name: str, found: list[str], speed: float | None = None) -> None:
        "Score one reading."
        self.counts[name] = counts_of(self.scored, found)
        rate = rate_of(self.counts[name])
        self.rows[name] = {"wer": rate.rate, "low": rate.low, "high": rate.high, "edits": rate.edits,
                           "words": rate.total, "per_cpu_second": speed}
        print(f"{name:14} {rate}" + (f"   {speed:.1f} trials per CPU second" if speed else ""), flush=True)

    def decode(self, name: str, lexicon: Lexicon, model: LanguageModel, config: SearchConfig) -> None:
        "Score a search."
        search = BeamSearch(lexicon, model, config)
        search.decode(self.trials[0])  # compiles
        start = time.process_time()
        found = [one[0].sentence if one else "" for one in search.decode_many(self.trials)]
        self.tell(name, found, len(found) / (time.process_time() - start))

    def read(self, lexicon: Lexicon, models: dict[str, LanguageModel]) -> dict:
        "All rows of this level."
        first = next(iter(models.values()))
        self.tell("greedy", [spelled_out(one, lexicon, first) for one in self.trials])
        tunings: dict[str, Tuning] = {}
        for name, model in models.items():
            self.decode(name, lexicon, model, self.config)
            if not self.tuned_on:
                continue
            tunings[name] = tune(lexicon, model, self.others, self.tuned_on, self.config)
            print(tunings[name], flush=True)
            self.decode(f"{name} tuned", lexicon, model, tunings[name].best)
        low, high = models
        pairs = {"untuned": (high, low), "tuned": (f"{high} tuned", f"{low} tuned"), "step": (f"{high} tuned", low)}
        ratios = {kind: ratio(self.counts[one], self.counts[base]) for kind, (one, base) in pairs.items()
                  if one in self.counts}
        for kind, one in ratios.items():
            print(f"{kind}: {one['ratio']:.0%} ({one['low']:.0%}-{one['high']:.0%}) of the {low}'s errors")
        return {"noise": self.noise.errors, "flatness": self.noise.flatness,
                "sentences": len(self.scored), "tuned_on": len(self.tuned_on),
                "per": self.per.rate, "ratios": ratios, "rows": self.rows,
                "tuning": {name: one.to_dict() for name, one in tunings.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("labels", type=Path)
    parser.add_argument("--levels", default="1", help="factors of the errors, with commas")
    parser.add_argument("--flatness", default="middle", help="levels of flatness, with commas")
    parser.add_argument("--sentences", type=int, default=1426)
    parser.add_argument("--tune-on", type=int, default=250)
    parser.add_argument("--text", type=Path, nargs="*", default=[], help="further text for the models")
    parser.add_argument("--models", type=Path, help="folder of general_model.py, instead of building models")
    parser.add_argument("--order", type=int, default=3)
    parser.add_argument("--beam", type=int, default=100)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    scored, tuned_on, text = divided(options.labels, 1426, 250)  # so that fewer sentences know no more
    lexicon, config, levels = build_lexicon(), SearchConfig(beam=options.beam), []
    with tempfile.TemporaryDirectory() as folder:
        orders = {f"{order}-gram": order for order in (1, options.order)}
        if options.models:
            models = {name: read_language_model(options.models / f"{order}.b2tlm") for name, order in orders.items()}
        else:
            models = {name: build(text, scored + tuned_on, Path(folder), order, tuple(options.text))
                      for name, order in orders.items()}
        facts = {name: {"ngrams": sum(model.counts), "perplexity": perplexity(model, tuned_on)[0],
                        "origin": model.origin} for name, model in models.items()}
        print(facts, flush=True)
        for factor, flatness in product(map(float, options.levels.split(",")), options.flatness.split(",")):
            noise = Noise(errors=factor, flatness=flatness)
            level = Level(scored[: options.sentences], tuned_on[: options.tune_on], noise, config)
            levels.append(level.read(lexicon, models))
            if options.json:
                content = {"models": facts, "beam": options.beam, "levels": levels}
                options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
