"""Measure what a language model adds: word error of the same logits with different models.

    python benchmarks/words.py LABELS.csv [--levels 1] [--flatness middle] [--sentences 1426] [--tune-on 250]
                               [--text FILE ...] [--models DIR] [--order 3] [--json FILE]

The sentences of LABELS.csv are divided as decoding_task.py says; the language models see those that are neither
scored nor tuned on, and any further text files (the builder drops lines that contain a scored sentence). --models
names a folder of general_model.py instead. Levels and flatness are lists with commas.
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

import tempfile
from itertools import product
from pathlib import Path

import numpy as np
from decoding_task import best, build, counts_of, divided, options_of, ratio, row_of, save, spoken, timed

from b2t_kit.decode.beam_search import BeamSearch
from b2t_kit.decode.hypotheses import SearchConfig
from b2t_kit.decode.tune import Tuning, tune
from b2t_kit.lm.arpa import read_language_model
from b2t_kit.lm.lexicon import Lexicon, build_lexicon
from b2t_kit.lm.ngram import LanguageModel, perplexity
from b2t_kit.simulate.logits import Noise
from b2t_kit.text.g2p import sentence_to_phonemes
from b2t_kit.text.metrics import Counts, per, rate_of
from b2t_kit.text.phonemes import collapse, split_words, to_ids, to_phonemes


def spelled_out(logits: np.ndarray, lexicon: Lexicon, model: LanguageModel) -> str:
    "The greedy result: words where a stretch is one, else phonemes."
    classes = collapse(logits.argmax(axis=1))
    found = []
    for stretch in split_words(to_phonemes(classes)):
        words = [lexicon.words[word] for word in lexicon.spoken.get(tuple(to_ids(stretch)), ())]
        likely = {word: model.unigrams[model.numbers([word])[0]] for word in words}
        found.append(max(likely, key=likely.get) if likely else "".join(stretch).lower())
    return " ".join(found)


class Level:
    "All ways of reading the sentences with one kind of noise."

    def __init__(self, scored: list[str], tuned_on: list[str], noise: Noise, config: SearchConfig) -> None:
        generator = np.random.default_rng(1)
        self.scored, self.tuned_on, self.noise, self.config = scored, tuned_on, noise, config
        self.trials, self.others = (spoken(part, generator, noise) for part in (scored, tuned_on))
        true = [to_ids(sentence_to_phonemes(one)) for one in scored]
        self.per = per(true, [collapse(one.argmax(axis=1)) for one in self.trials])
        self.rows: dict[str, dict] = {}
        self.counts: dict[str, Counts] = {}
        print(f"noise {noise.errors:g}, {noise.flatness}: phoneme error rate {self.per}", flush=True)

    def tell(self, name: str, found: list[str], speed: float | None = None) -> None:
        "Score one reading."
        self.counts[name] = counts_of(self.scored, found)
        rate = rate_of(self.counts[name])
        self.rows[name] = {**row_of(rate), "per_cpu_second": speed}
        print(f"{name:14} {rate}" + (f"   {speed:.1f} trials per CPU second" if speed else ""), flush=True)

    def decode(self, name: str, lexicon: Lexicon, model: LanguageModel, config: SearchConfig) -> None:
        "Score a search."
        found, seconds = timed(BeamSearch(lexicon, model, config), self.trials, threads=0)
        self.tell(name, best(found), len(found) / seconds)

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
    parser = options_of(__doc__, levels="1", flatness="middle", sentences=1426, tune_on=250, models=Path, order=3,
                        beam=SearchConfig().beam)
    parser.add_argument("--text", type=Path, nargs="*", default=[], help="further text for the models")
    options = parser.parse_args()
    scored, tuned_on, text = divided(options.labels)
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
            save(options.json, {"models": facts, "beam": options.beam, "levels": levels})


if __name__ == "__main__":
    main()
