"""Measure delayed fusion: word error of the same logits with a causal model in the search, after it, both, neither.

    python benchmarks/fusion.py LABELS.csv --llm FOLDER_OR_GGUF [--models DIR] [--words FILE] [--sentences 1426]
                                [--tune-on 60] [--beam 100] [--n-best 10] [--every 12] [--shares 0.2,0.35,0.5]
                                [--noise 1] [--flatness middle] [--keep-weights] [--json FILE]

Sentences are divided, and their logits simulated, as in words.py; DIR and FILE are those of general_model.py and
words.py, as for rescoring.py, which also says where the small pretrained model comes from. Without them the 3-gram is
that of words.py, with default weights. --flatness sharp,middle,flat repeats everything. Four ways:

3-gram      the search
rescored    the lists of that search, with acoustic scale, word bonus and share tuned
fusion      the model inside the search; share, acoustic scale and word bonus tuned on its lists, the last two kept
            if a search with them makes more errors on the tuning sentences (--keep-weights: always)
both        the lists of that search, rescored with weights tuned once more

Weights are found on the tuning sentences only. Differences come with a 95 % interval of a paired bootstrap over
sentences, and seconds are wall-clock and CPU seconds per trial, with the number of tokens that went through the model.
"""

import argparse
import json
import resource
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from rescoring import config_of, unpacked
from words import build, divided

from b2t_kit.decode.arpa import read_language_model
from b2t_kit.decode.beam_search import BeamSearch
from b2t_kit.decode.fusion import FusedSearch, FusionConfig, reconfigured
from b2t_kit.decode.hypotheses import DecodedTrial
from b2t_kit.decode.lexicon import build_lexicon
from b2t_kit.decode.llm import GRID, CausalScorer, RescoreWeights, ScoreTable, best_weights, load_scorer, tabulate
from b2t_kit.decode.ngram import LanguageModel
from b2t_kit.simulate.logits import Noise, noisy_sentence
from b2t_kit.text.metrics import Counts, compare, count_edits, rate_of


class Clock:
    "Wall-clock seconds, CPU seconds and tokens of a part of the work."

    def __init__(self, scorer: CausalScorer) -> None:
        self.scorer, self.start = scorer, (time.monotonic(), time.process_time(), scorer.nodes)

    def per(self, trials: int) -> dict[str, float]:
        "What each trial took since the start."
        now = time.monotonic(), time.process_time(), self.scorer.nodes
        return dict(zip(("seconds", "cpu", "tokens"), [(b - a) / trials for a, b in zip(self.start, now)]))


def table_of(sentences: list[str], pairs: list[tuple]) -> ScoreTable:
    "Lists with both language scores."
    trials = [DecodedTrial(f"group {number % 20:02d}", 1, number, tuple(found), said)
              for number, (said, (found, _)) in enumerate(zip(sentences, pairs))]
    return tabulate(trials, [scores for _, scores in pairs])


def in_batches(lists: list, scorer: CausalScorer, together: int = 8) -> list[tuple]:
    "Lists with the scores of the causal model, eight trials at a time as in the search."
    found = []
    for start in range(0, len(lists), together):
        part = lists[start:start + together]
        found += zip(part, scorer.score_lists([[one.sentence for one in each] for each in part]))
    return found


def fixed(table: ScoreTable, share: float) -> RescoreWeights:
    "The best weights with a given share."
    return best_weights(table, {**GRID, "alpha": np.full(1, share)})


# Llama-3.2-1B: parameters, of these the token table, layers, width of keys and of values, tokens in the vocabulary
PARAMETERS, TABLE, LAYERS, WIDTH, VOCABULARY = 1.236e9, 0.263e9, 16, 512, 128_256
# A T4: bytes and half-precision operations per second, the shares of these that are reached, seconds to start a pass
BYTES, OPERATIONS, REACHED, PASS = 320e9, 65e12, (0.7, 0.3), 0.015


def cost_on_t4(tokens: float, stops: float, together: int = 8) -> dict[str, float]:
    "Seconds per trial and GB of memory of a 1B model, computed from the tokens and stops of a trial."
    batch = tokens * together / stops
    read, computed = 2 * PARAMETERS / (REACHED[0] * BYTES), 2 * PARAMETERS * batch / (REACHED[1] * OPERATIONS)
    states = tokens * together * (2 * LAYERS * WIDTH + VOCABULARY) * 2  # keys, values and logits in half precision
    small = 2 * TABLE + 0.53 * (PARAMETERS - TABLE)  # four bits and their scales; the table stays in half precision
    return {"seconds": (max(read, computed) + PASS) * stops / together, "gb": (2 * PARAMETERS + states) / 1e9,
            "gb_in_4_bits": (small + states) / 1e9}


def measured(flatness: str, sentences: tuple[list[str], list[str]], model: LanguageModel, scorer: CausalScorer,
             options: argparse.Namespace) -> dict:
    "The four ways on logits of one flatness."
    scored, tuned_on = sentences
    generator, noise = np.random.default_rng(1), Noise(errors=options.noise, flatness=flatness)
    test, tune = ([noisy_sentence(one, generator, noise) for one in part] for part in sentences)
    search = BeamSearch(build_lexicon(), model, config_of(options.words, options.beam, options.n_best))
    search.decode(test[0])  # compiles
    frames = float(np.mean([len(one) for one in test]))
    print(f"{flatness}: {len(test)} trials of {frames:.0f} frames, {len(tune)} to tune on; {search.config}", flush=True)

    counts: dict[str, Counts] = {}
    costs: dict[str, dict[str, float]] = {}

    clock = Clock(scorer)
    lists = search.decode_many(test)
    costs["3-gram"] = clock.per(len(test))
    counts["3-gram"] = count_edits([one.split() for one in scored],
                                   [found[0].sentence.split() if found else [] for found in lists])
    print("3-gram  ", rate_of(counts["3-gram"], None), costs["3-gram"], flush=True)
    weights = best_weights(table_of(tuned_on, in_batches(search.decode_many(tune), scorer)))
    clock = Clock(scorer)
    after = table_of(scored, in_batches(lists, scorer))
    costs["rescored"] = clock.per(len(test))
    counts["rescored"] = after.counts(weights)
    print("rescored", rate_of(counts["rescored"], None), costs["rescored"], weights, flush=True)

    steps = []
    for share in map(float, options.shares.split(",")):
        fused = FusedSearch(search, scorer, FusionConfig(options.every, share))
        table = table_of(tuned_on, fused.scored_lists(tune))
        usual = RescoreWeights(search.config.acoustic_scale, share, search.config.word_bonus)
        best = usual if options.keep_weights else fixed(table, share)
        steps.append((table.counts(best).edits.sum(), share, best, table))
        print(f"share {share}: {steps[-1][0]} errors on the tuning sentences, {best}", flush=True)
    _, share, best, table = min(steps, key=lambda one: one[:2])
    usual = RescoreWeights(search.config.acoustic_scale, share, search.config.word_bonus)
    while True:
        config = replace(search.config, acoustic_scale=best.acoustic_scale, word_bonus=best.word_bonus)
        fused = FusedSearch(reconfigured(search, config), scorer, FusionConfig(options.every, share))
        found = table if best == usual else table_of(tuned_on, fused.scored_lists(tune))
        if best == usual or found.counts(best).edits.sum() <= table.counts(usual).edits.sum():
            break
        best = usual  # weights of lists are not always weights of a search
    again = best_weights(found)
    clock, pairs = Clock(scorer), []
    for start in range(0, len(test), 48):
        pairs += fused.scored_lists(test[start:start + 48])
        print(f"{len(pairs)} of {len(test)}, {clock.per(len(pairs))}", flush=True)
    costs["fusion"] = clock.per(len(test))
    table = table_of(scored, pairs)
    counts["fusion"] = table.counts(RescoreWeights(best.acoustic_scale, share, best.word_bonus))
    counts["both"], costs["both"] = table.counts(again), costs["fusion"]
    stops = frames / options.every + 1
    t4 = {"these trials": cost_on_t4(costs["fusion"]["tokens"], stops),
          "215 frames": cost_on_t4(costs["fusion"]["tokens"] * 215 / frames, 215 / options.every + 1)}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    gains = {f"{one} - {other}": compare(counts[other], counts[one]) for one, other in (
        ("rescored", "3-gram"), ("fusion", "3-gram"), ("fusion", "rescored"), ("both", "rescored"))}
    oracle = {"3-gram": after.oracle, "fusion": table.oracle}
    for name, one in counts.items():
        print(f"{name:8} {rate_of(one, None)}   {costs[name]}")
    print(*(f"{name}: {gain}" for name, gain in gains.items()),
          *(f"oracle {name}: {one}" for name, one in oracle.items()),
          f"fusion: {fused.config}, {config}; both: {again}; {memory:.1f} GB",
          *(f"1B on a T4, {name}: {cost}" for name, cost in t4.items()), sep="\n", flush=True)
    rates = {name: rate_of(one, None) for name, one in counts.items()}
    return {
        "sentences": len(test), "tuned_on": len(tune), "frames": frames, "noise": options.noise,
        "flatness": flatness,
        "model": options.llm.name,
        "search": vars(search.config), "fused": {"every": options.every, "share": share, **vars(config)},
        "weights": {"rescored": asdict(weights), "both": asdict(again)}, "cost": costs, "peak_gb": memory, "t4": t4,
        "rows": {name: {"wer": one.rate, "low": one.low, "high": one.high, "edits": one.edits, "words": one.total}
                 for name, one in rates.items()},
        "gains": {name: vars(one) for name, one in gains.items()},
        "oracle": {name: one.rate for name, one in oracle.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("labels", type=Path)
    parser.add_argument("--llm", type=Path, required=True)
    parser.add_argument("--models", type=Path, help="folder of general_model.py, instead of building a 3-gram")
    parser.add_argument("--words", type=Path, help="result of words.py with the search's weights")
    parser.add_argument("--sentences", type=int, default=1426)
    parser.add_argument("--tune-on", type=int, default=60)
    parser.add_argument("--beam", type=int, default=100)
    parser.add_argument("--n-best", type=int, default=10)
    parser.add_argument("--every", type=int, default=12)
    parser.add_argument("--shares", default="0.2,0.35,0.5")
    parser.add_argument("--noise", type=float, default=1.0, help="factor of the noise, as the levels of words.py")
    parser.add_argument("--flatness", default="middle", help="levels of flatness, with commas")
    parser.add_argument("--keep-weights", action="store_true", help="the fused search keeps the search's weights")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    scored, tuned_on, text = divided(options.labels, 1426, 250)
    scorer = load_scorer(options.llm) if options.llm.is_dir() else unpacked(options.llm)
    with tempfile.TemporaryDirectory() as folder:
        ready = options.models and read_language_model(options.models / "3.b2tlm")
        model = ready or build(text, scored + tuned_on, Path(folder), 3)
        parts, levels = (scored[: options.sentences], tuned_on[: options.tune_on]), []
        for flatness in options.flatness.split(","):
            levels.append(measured(flatness, parts, model, scorer, options))
            if options.json:
                options.json.write_text(json.dumps(levels, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
