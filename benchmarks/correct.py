"""Measure what a corrector is worth: word error of two decoders' lists, alone, put together, and corrected.

    python benchmarks/correct.py LABELS.csv --llm FOLDER --out FOLDER [--examples 800] [--sentences 300] [--noise 1]
                                 [--own 1] [--epochs 2] [--ways corrected after] [--json FILE]

The different sentences of LABELS.csv are divided as in words.py: 1,426 to score (the first --sentences of them), and
the rest. Two decoders are simulated logits of the same sentence with independent noise (`simulate.logits`), searched
with the same 3-gram. --own below 1 lets part of the trials of the second decoder be copies of the first's.

Training examples are cross-fitted: the rest is parted in two, and the sentences of each half are decoded with a 3-gram
of the other half, so that neither has seen them. (A simulated network has seen no sentence at all.) The scored
sentences are decoded with a 3-gram of the whole rest. `b2t lm corrector` and `b2t correct` do the same as what follows:

first, second   the decoders' best sentences
pooled          the best sentence of both lists together, with averaged acoustic scores (`decode.ensemble`)
least risk      the one of them with the fewest expected word errors
rescored        the pooled lists, chosen by the causal model before its training, weights tuned on 200 examples
chosen          the corrector may only choose among the candidates that it reads
corrected       it may write any sentence of the candidates' words
any words       it may write any words
one decoder     corrected, with the first decoder's candidates only
after           corrected after rescoring: the rescored lists are the first decoder's, and kept where it abstains

All differences are to "pooled" (of "after": also to "rescored"), with a 95 % interval of a paired bootstrap over
sentences. --ways names the last five that are wanted; the file of results is written again after each.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from words import build, divided

from b2t_kit.decode.beam_search import BeamSearch
from b2t_kit.decode.correct import Correction, Corrector, CorrectorConfig, candidates_of, correct, lists_by_trial
from b2t_kit.decode.correct import read_record, train_corrector, with_first
from b2t_kit.decode.ensemble import least_risk, pooled
from b2t_kit.decode.hypotheses import DecodedTrial, SearchConfig, read_nbest, write_nbest
from b2t_kit.decode.lexicon import build_lexicon
from b2t_kit.decode.llm import llm_scores, load_scorer, rescored, tune_rescoring
from b2t_kit.simulate.logits import Noise, noisy_sentence
from b2t_kit.text.metrics import Counts, compare, count_edits, rate_of

Lists = list[DecodedTrial]
WAYS = ("corrected", "after", "any words", "one decoder", "chosen")


def decoded(search: BeamSearch, sentences: list[str], day: str, noise: Noise, own: float, seed: int) -> list[Lists]:
    "The lists of two decoders."
    drawn = np.random.default_rng(seed)
    first = [noisy_sentence(one, drawn, noise) for one in sentences]
    second = [noisy_sentence(said, drawn, noise) if drawn.random() < own else one
              for said, one in zip(sentences, first)]
    found = []
    for logits in (first, second):
        lists = search.decode_many(logits)
        found.append([DecodedTrial(day, 1, number, tuple(one), said)
                      for number, (said, one) in enumerate(zip(sentences, lists))])
    return found


def chosen(paths: list[Path], folder: Path) -> Lists:
    "What the corrector makes of lists if it may only choose among the candidates that it reads."
    margin, count = read_record(folder)
    writer, found = Corrector(load_scorer(folder)), []
    for first, *others in lists_by_trial(paths):
        candidates = candidates_of([first, *others], count)
        if candidates:
            (scores,) = writer.scores([candidates], [candidates])
            best = int(scores.argmax())
            if scores[best] - scores[0] >= margin:
                first = with_first(first, Correction(candidates[best], float(scores[best] - scores[0])))
        found.append(first)
    return found


def kept(path: Path, make: Callable[[], Lists]) -> Lists:
    "The lists of a file, written first if it is not there; what that took is kept beside it."
    if not path.exists():
        start = time.process_time(), time.monotonic()
        write_nbest(path.with_suffix(".part"), found := make())
        spent = (time.process_time() - start[0]) / len(found), (time.monotonic() - start[1]) / len(found)
        path.with_suffix(".seconds").write_text(json.dumps(spent), encoding="utf-8")
        path.with_suffix(".part").rename(path)
    return list(read_nbest(path))


def errors(trials: Lists) -> Counts:
    "Word errors of the first sentences."
    return count_edits([(one.truth or "").split() for one in trials], [one.sentence.split() for one in trials])


def told(rows: dict[str, Lists], pool: Lists) -> dict[str, dict]:
    "Print and return the word errors of every way, their differences, and how often sentences were changed."
    counts = {name: errors(trials) for name, trials in rows.items()}
    gains = {name: compare(counts["pooled"], one) for name, one in counts.items() if name != "pooled"}
    if "after" in rows:
        gains["after - rescored"] = compare(counts["rescored"], counts["after"])
    rates = {name: rate_of(one, None) for name, one in counts.items()}
    changed = {}
    for name, before in (("corrected", "first"), ("after", "rescored")):
        if name in rows:
            new = sum(other.sentence not in {each.sentence for each in one.hypotheses}
                      for one, other in zip(pool, rows[name]))
            changed[name] = {"changed": sum(one.sentence != other.sentence for one, other in
                                            zip(rows[before], rows[name])), "to a sentence of neither list": new}
    print(*(f"{name:12} {rate}" for name, rate in rates.items()), *(f"{name}: {gain}" for name, gain in gains.items()),
          changed, sep="\n", flush=True)
    return {"rows": {name: {"wer": one.rate, "low": one.low, "high": one.high, "edits": one.edits, "words": one.total}
                     for name, one in rates.items()},
            "gains": {name: vars(one) for name, one in gains.items()}, "changed": changed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("labels", type=Path)
    parser.add_argument("--llm", type=Path, required=True, help="folder of the pretrained model")
    parser.add_argument("--out", type=Path, required=True, help="folder for models and lists; what is there is used")
    parser.add_argument("--examples", type=int, default=800)
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--noise", type=float, default=1.0, help="factor of the noise, as the levels of words.py")
    parser.add_argument("--own", type=float, default=1.0, help="share of trials with noise of their own")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--beam", type=int, default=100)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, metavar="WAY", help=" ".join(WAYS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    out, noise, config = options.out, Noise(), SearchConfig(beam=options.beam, n_best=10)
    noise = replace(noise, stretches=options.noise * noise.stretches, frames=options.noise * noise.frames)
    scored, tuned_on, text = divided(options.labels, 1426, 250)
    halves, lexicon, files = (text[::2], text[1::2]), build_lexicon(), []
    for number, half in enumerate(halves):
        (out / f"half{number}").mkdir(parents=True, exist_ok=True)
        model = build(halves[1 - number], scored + tuned_on + half, out / f"half{number}", 3)
        lists = decoded(BeamSearch(lexicon, model, config), half[: options.examples // 2], f"half {number}", noise,
                        options.own, 10 + number)
        files += [write_nbest(out / f"half{number}/{name}.jsonl", one) for name, one in zip("ab", lists)]
    (out / "whole").mkdir(exist_ok=True)
    search = BeamSearch(lexicon, build(text, scored + tuned_on, out / "whole", 3), config)
    both = decoded(search, scored[: options.sentences], "scored", noise, options.own, 1)
    paths = [write_nbest(out / f"whole/{name}.jsonl", one) for name, one in zip("ab", both)]
    pool = [pooled(one, config.weights) for one in zip(*both)]
    rows = {"first": both[0], "second": both[1], "pooled": pool, "least risk": [least_risk(one) for one in pool]}

    scorer = load_scorer(options.llm)
    known = [[one for path in files[side::2] for one in read_nbest(path)] for side in (0, 1)]
    training = [pooled(one, config.weights) for one in zip(*known)][:200]
    weights = tune_rescoring(training, llm_scores(training, scorer.score_lists)).weights
    rows["rescored"] = [rescored(*pair, weights) for pair in zip(pool, llm_scores(pool, scorer.score_lists))]

    first, start = write_nbest(out / "rescored.jsonl", rows["rescored"]), time.process_time()
    trained = train_corrector(files, options.llm, out / "corrector", [out / "whole/scored.csv"],
                              config=CorrectorConfig(epochs=options.epochs), not_seen=True, progress=print)
    spent = {"training, CPU": time.process_time() - start}
    print(trained, spent, flush=True)

    def written(name: str, paths: list[Path], any_words: bool = False) -> Lists:
        return kept(out / f"{name}.jsonl",
                    lambda: correct(paths, out / "corrector", out / "written.jsonl", any_words).trials)

    for name in options.ways:
        rows[name] = {"corrected": lambda: written("corrected", paths),
                      "after": lambda: written("after", [first, *paths]),
                      "any words": lambda: written("any_words", paths, any_words=True),
                      "one decoder": lambda: written("one", paths[:1]),
                      "chosen": lambda: kept(out / "chosen.jsonl", lambda: chosen(paths, out / "corrector"))}[name]()
        content = told(rows, pool) | {
            "model": options.llm.name, "examples": options.examples, "epochs": options.epochs, "noise": options.noise,
            "own": options.own, "sentences": len(pool), "margin": trained.margin, "seconds": spent,
            "held_out": {"trials": trained.held_out, "before": trained.before, "after": trained.after},
            "seconds_a_trial": {one.stem: json.loads(one.read_text(encoding="utf-8"))
                                for one in sorted(out.glob("*.seconds"))}}
        if options.json:
            options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
