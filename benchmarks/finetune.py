"""Measure what fine-tuning on transcripts, and the sentences before, are worth to rescoring with a causal model.

    python benchmarks/finetune.py LABELS.csv --llm FOLDER --out FOLDER [--sentences 1426] [--tune-on 100]
                                  [--text 2000] [--epochs 1] [--noise 1] [--json FILE]

The sentences of LABELS.csv are divided as in words.py; the 3-gram of all that are neither scored nor tuned on gives
lists of 10 for simulated logits (`simulate.logits`). `b2t lm finetune` trains the model (rescoring.py says where a
small one comes from) on the first --text of the sentences of the 3-gram, and is given the scored and the tuning
sentences to leave out. Ways of choosing from the same lists:

search       as the search ranks them
rescored     with the pretrained model
context      the same, with the two sentences before as the search decoded them. The order is that of the table,
             twenty sentences to a block; they were read aloud one by one, and were not a conversation
fine-tuned   with the fine-tuned model
both         with the fine-tuned model and the two sentences before

Acoustic scale, word bonus and the model's share are tuned on the tuning sentences for each way. Differences come with
a 95 % interval of a paired bootstrap over sentences.
"""

import argparse
import csv
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from words import build, divided

from b2t_kit.decode.beam_search import BeamSearch
from b2t_kit.decode.hypotheses import DecodedTrial, SearchConfig
from b2t_kit.llm.finetune import FinetuneConfig, finetune
from b2t_kit.llm.rescoring import best_weights, contexts_of, llm_scores, tabulate
from b2t_kit.llm.scores import CausalScorer, load_scorer
from b2t_kit.lm.lexicon import build_lexicon
from b2t_kit.simulate.logits import Noise, noisy_sentence
from b2t_kit.text.metrics import Counts, compare, count_edits, rate_of
from b2t_kit.text.phonemes import normalise


def in_order(labels: Path, sentences: list[str]) -> list[str]:
    "The sentences in the order of the table."
    with open(labels, newline="", encoding="utf-8") as file:
        places = {normalise(row["sentence_label"], True): place for place, row in enumerate(csv.DictReader(file))}
    return sorted(sentences, key=places.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("labels", type=Path)
    parser.add_argument("--llm", type=Path, required=True, help="folder of the pretrained model")
    parser.add_argument("--out", type=Path, required=True, help="folder of the 3-gram and of the fine-tuned model")
    parser.add_argument("--sentences", type=int, default=1426)
    parser.add_argument("--tune-on", type=int, default=100)
    parser.add_argument("--text", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--noise", type=float, default=1.0, help="factor of the noise, as the levels of words.py")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    scored, tuned_on, text = divided(options.labels, 1426, 250)
    options.out.mkdir(parents=True, exist_ok=True)
    search = BeamSearch(build_lexicon(), build(text, scored + tuned_on, options.out, 3),
                        SearchConfig(beam=100, n_best=10))
    generator, noise = np.random.default_rng(1), Noise()
    noise = replace(noise, errors=options.noise * noise.errors)
    parts: list[list[DecodedTrial]] = []
    for said in (scored[: options.sentences], tuned_on[: options.tune_on]):
        said = in_order(options.labels, said)
        found = search.decode_many([noisy_sentence(one, generator, noise) for one in said])
        parts.append([DecodedTrial("table", 1 + number // 20, number % 20, tuple(one), true)
                      for number, (true, one) in enumerate(zip(said, found))])
    test, tune = parts
    rows = {"search": count_edits([(one.truth or "").split() for one in test], [one.sentence.split() for one in test])}
    print("search", rate_of(rows["search"], None), flush=True)
    cost: dict[str, float] = {}

    def choose(name: str, scorer: CausalScorer, before: int = 0) -> None:
        start = time.process_time()
        tables = [tabulate(part, llm_scores(part, scorer.score_lists, contexts_of(part, before) if before else None))
                  for part in (tune, test)]
        weights, cost[name] = best_weights(tables[0]), (time.process_time() - start) / (len(tune) + len(test))
        rows[name] = tables[1].counts(weights)
        print(f"{name:10} {rate_of(rows[name], None)}   {weights}; {cost[name]:.2f} CPU seconds a trial", flush=True)

    choose("rescored", load_scorer(options.llm))
    choose("context", load_scorer(options.llm), before=2)
    (options.out / "transcripts.txt").write_text("\n".join(text[: options.text]) + "\n", encoding="utf-8")
    start = time.process_time()
    tuned = finetune(options.llm, options.out / "transcripts.txt", options.out / "tuned", [options.out / "scored.csv"],
                     config=FinetuneConfig(epochs=options.epochs), progress=print)
    taught = time.process_time() - start
    print(tuned, f"{taught:.0f} s of CPU time", flush=True)
    choose("fine-tuned", load_scorer(options.out / "tuned"))
    choose("both", load_scorer(options.out / "tuned"), before=2)
    pairs = (("rescored", "search"), ("context", "rescored"), ("fine-tuned", "rescored"), ("fine-tuned", "search"),
             ("both", "fine-tuned"), ("both", "context"))
    gains = {f"{one} - {other}": compare(rows[other], rows[one]) for one, other in pairs}
    print(*(f"{name}: {gain}" for name, gain in gains.items()), sep="\n", flush=True)
    if options.json:
        def plain(one: Counts) -> dict[str, float]:
            rate = rate_of(one, None)
            return {"wer": rate.rate, "low": rate.low, "high": rate.high, "edits": rate.edits, "words": rate.total}

        content = {"model": options.llm.name, "sentences": len(test), "tuned_on": len(tune), "noise": options.noise,
                   "transcripts": tuned.sentences, "epochs": options.epochs, "training_cpu_seconds": taught,
                   "perplexity": {"held_out": tuned.held_out, "before": tuned.before, "after": tuned.after},
                   "rows": {name: plain(one) for name, one in rows.items()}, "cpu_seconds_a_trial": cost,
                   "gains": {name: vars(one) for name, one in gains.items()}}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
