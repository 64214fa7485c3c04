"""Measure what fine-tuning on transcripts, and the sentences before, are worth to rescoring with a causal model.

    python benchmarks/finetune.py LABELS.csv --llm FOLDER --out FOLDER [--sentences 1426] [--tune-on 100]
                                  [--text 2000] [--epochs 1] [--flatness middle] [--json FILE]

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

import csv
import time
from pathlib import Path

import numpy as np
from decoding_task import best, build, counts_of, divided, options_of, row_of, save_at, spoken, written

from b2t_kit.decode.beam_search import BeamSearch
from b2t_kit.decode.hypotheses import DecodedTrial, SearchConfig
from b2t_kit.llm.finetune import FinetuneConfig, finetune
from b2t_kit.llm.rescoring import best_weights, contexts_of, llm_scores, tabulate
from b2t_kit.llm.scores import CausalScorer, load_scorer
from b2t_kit.lm.lexicon import build_lexicon
from b2t_kit.simulate.logits import Noise
from b2t_kit.text.metrics import compare, rate_of
from b2t_kit.text.phonemes import normalise


def in_order(labels: Path, sentences: list[str]) -> list[str]:
    "The sentences in the order of the table."
    with open(labels, newline="", encoding="utf-8") as file:
        places = {normalise(row["sentence_label"], True): place for place, row in enumerate(csv.DictReader(file))}
    return sorted(sentences, key=places.__getitem__)


def main() -> None:
    options = options_of(__doc__, needed=("llm", "out"), llm=Path, out=Path, sentences=1426, tune_on=100, text=2000,
                         epochs=1, flatness="middle").parse_args()
    scored, tuned_on, text = divided(options.labels)
    options.out.mkdir(parents=True, exist_ok=True)
    search = BeamSearch(build_lexicon(), build(text, scored + tuned_on, options.out, 3),
                        SearchConfig(beam=100, n_best=10))
    generator, noise = np.random.default_rng(1), Noise(flatness=options.flatness)
    parts: list[list[DecodedTrial]] = []
    for said in (scored[: options.sentences], tuned_on[: options.tune_on]):
        said = in_order(options.labels, said)
        found = search.decode_many(spoken(said, generator, noise))
        parts.append([DecodedTrial("table", 1 + number // 20, number % 20, tuple(one), true)
                      for number, (true, one) in enumerate(zip(said, found))])
    test, tune = parts
    rows = {"search": counts_of([one.truth or "" for one in test], best([one.hypotheses for one in test]))}
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
    transcripts = written(options.out / "transcripts.txt", text[: options.text])
    start = time.process_time()
    tuned = finetune(options.llm, transcripts, options.out / "tuned", [options.out / "scored.csv"],
                     config=FinetuneConfig(epochs=options.epochs), progress=print)
    taught = time.process_time() - start
    print(tuned, f"{taught:.0f} s of CPU time", flush=True)
    choose("fine-tuned", load_scorer(options.out / "tuned"))
    choose("both", load_scorer(options.out / "tuned"), before=2)
    pairs = (("rescored", "search"), ("context", "rescored"), ("fine-tuned", "rescored"), ("fine-tuned", "search"),
             ("both", "fine-tuned"), ("both", "context"))
    gains = {f"{one} - {other}": compare(rows[other], rows[one]) for one, other in pairs}
    print(*(f"{name}: {gain}" for name, gain in gains.items()), sep="\n", flush=True)
    save_at(options.json, options.flatness, {
        "model": options.llm.name, "sentences": len(test), "tuned_on": len(tune),
        "transcripts": tuned.sentences, "epochs": options.epochs, "training_cpu_seconds": taught,
        "perplexity": {"held_out": tuned.held_out, "before": tuned.before, "after": tuned.after},
        "rows": {name: row_of(rate_of(one, None)) for name, one in rows.items()}, "cpu_seconds_a_trial": cost,
        "gains": {name: vars(one) for name, one in gains.items()}})


if __name__ == "__main__":
    main()
