"""What a language model is worth: word error of the same logits, step by step.

    python benchmarks/words.py LABELS.csv [--sentences 1426] [--tune-on 250] [--json FILE]

LABELS.csv has a column sentence_label, such as that of the published training split. Its different
sentences are divided: some are scored, some are tuned on, and the language models see the others
only (the builder is told which sentences will be scored, and drops lines that contain one). Each
scored sentence becomes noisy logits with the phoneme error rate of the published baseline
(`decode.noisy`), and is read in four ways:

greedy   the best class of each frame, and for each stretch between silences the likeliest word
         that sounds exactly so, or the phonemes themselves if none does
1-gram   the kit's search with a model that knows only how frequent words are, default weights
3-gram   the same search and the same weights with a 3-gram
tuned    the 3-gram with the weights found on the sentences to tune on

These numbers say what each step is worth; they say nothing about real recordings.
"""

import argparse
import csv
import json
import random
import tempfile
import time
from pathlib import Path

import numpy as np

from b2t_kit.decode.beam import BeamSearch, SearchConfig
from b2t_kit.decode.building import build_language_model
from b2t_kit.decode.language_model import LanguageModel
from b2t_kit.decode.lexicon import Lexicon, build_lexicon, words_of
from b2t_kit.decode.noisy import Noise, noisy_sentence
from b2t_kit.decode.tune import tune
from b2t_kit.text.metrics import Rate, per, wer
from b2t_kit.text.phonemes import collapse, normalise, split_words, to_ids, to_phonemes
from b2t_kit.text.pronunciation import sentence_to_phonemes


def divided(path: Path, scored: int, tuned_on: int, seed: int = 0) -> tuple[list, list, list]:
    "Different sentences of a table: scored, tuned on, and the rest."
    with open(path, newline="", encoding="utf-8") as file:
        rows = [normalise(row["sentence_label"], True) for row in csv.DictReader(file)]
    sentences = sorted({row for row in rows if row})
    random.Random(seed).shuffle(sentences)
    return sentences[:scored], sentences[scored : scored + tuned_on], sentences[scored + tuned_on :]


def build(text: list[str], kept_out: list[str], folder: Path, order: int) -> LanguageModel:
    "A model of the text over the whole dictionary, in which no scored sentence is."
    (folder / "text.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    lines = [f"{number},{one}" for number, one in enumerate(kept_out)]
    (folder / "scored.csv").write_text("\n".join(["id,sentence_label", *lines]) + "\n", encoding="utf-8")
    out = folder / f"{order}.b2tlm"
    return build_language_model([folder / "text.txt"], out, order, vocabulary="dictionary",
                                exclude=[folder / "scored.csv"], leaks="drop").read()


def spelled_out(logits: np.ndarray, lexicon: Lexicon, model: LanguageModel) -> str:
    "The greedy reading as words, where a stretch is one, and as phonemes where it is none."
    classes = collapse(logits.argmax(axis=1))
    stretches = split_words(to_phonemes(classes))
    found = []
    for stretch, words in zip(stretches, words_of(lexicon, classes)):
        likely = {word: model.unigrams[model.numbers([word])[0]] for word in words}
        found.append(max(likely, key=likely.get) if likely else "".join(stretch).lower())
    return " ".join(found)


def decoded(search: BeamSearch, trials: list, truths: list) -> tuple[Rate, float]:
    "Word error rate, and trials per CPU second."
    search.decode(trials[0])  # compiles
    start = time.process_time()
    found = [one[0].sentence if one else "" for one in search.decode_many(trials)]
    return wer(truths, found), len(trials) / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("labels", type=Path)
    parser.add_argument("--sentences", type=int, default=1426)
    parser.add_argument("--tune-on", type=int, default=250)
    parser.add_argument("--beam", type=int, default=100)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    scored, tuned_on, text = divided(options.labels, options.sentences, options.tune_on)
    generator = np.random.default_rng(1)
    noise = Noise()
    trials = [noisy_sentence(one, generator, noise) for one in scored]
    others = [noisy_sentence(one, generator, noise) for one in tuned_on]
    lexicon, config = build_lexicon(), SearchConfig(beam=options.beam)
    rows: dict[str, tuple[Rate, float | None]] = {}
    true = [to_ids(sentence_to_phonemes(one)) for one in scored]
    phonemes = per(true, [collapse(one.argmax(axis=1)) for one in trials])
    print(f"{len(trials)} sentences, {np.mean([len(one) for one in trials]):.0f} frames each; "
          f"phoneme error rate {phonemes}; models of {len(text)} other sentences", flush=True)

    def tell(name: str, rate: Rate, speed: float | None) -> None:
        rows[name] = (rate, speed)
        print(f"{name:8} {rate}" + (f"   {speed:.1f} trials per CPU second" if speed else ""), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        models = {order: build(text, scored + tuned_on, Path(folder), order) for order in (1, 3)}
        tell("greedy", wer(scored, [spelled_out(one, lexicon, models[1]) for one in trials]), None)
        tell("1-gram", *decoded(BeamSearch(lexicon, models[1], config), trials, scored))
        tell("3-gram", *decoded(BeamSearch(lexicon, models[3], config), trials, scored))
        tuning = tune(lexicon, models[3], others, tuned_on, config,
                      lambda line: print(f"  {line}", flush=True))
        print(tuning)
        tell("tuned", *decoded(BeamSearch(lexicon, models[3], tuning.best), trials, scored))
    ratio = rows["tuned"][0].rate / rows["1-gram"][0].rate
    print(f"the tuned 3-gram has {ratio:.0%} of the 1-gram's word errors")
    if options.json:
        table = {name: {"wer": rate.rate, "low": rate.low, "high": rate.high, "edits": rate.edits,
                        "words": rate.total, "per_cpu_second": speed}
                 for name, (rate, speed) in rows.items()}
        content = {"sentences": len(scored), "per": phonemes.rate, "ratio": ratio, "rows": table,
                   "tuning": tuning.to_dict()}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
