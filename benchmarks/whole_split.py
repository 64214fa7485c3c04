"""Measure the wall-clock time of decoding the test split's 1,450 trials.

    python benchmarks/whole_split.py LABELS.csv --lm FILE --tuned benchmarks/results/words_general.json
                                     [--trials 1450] [--threads 2] [--beam BEAM] [--json FILE]

FILE is a language model of any kind, such as DIR/3.b2tlm of general_model.py, or a KenLM file. The tuned weights are
those of the 3-gram in a result of words.py.
The trials are the sentences that words.py scores, repeated if there are too few, as noisy logits
stretched to the mean length of the published recordings: 215 frames of 80 ms. They are decoded as in
`b2t decode`, by `BeamSearch.decode_many`: 100 best sentences each, with exact scores and times.
Starting Python and making the logits do not count; reading the model and the lexicon does. Prints
wall-clock time, CPU time, the process's memory afterwards, of its own and mapped from files, and the load of the
machine before and after.
"""

import json
import os
import time
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from decoding_task import best, divided, memory_now, options_of, save, spoken

from b2t_kit.decode.beam_search import BeamSearch
from b2t_kit.decode.hypotheses import SearchConfig
from b2t_kit.decode.pipeline import choose_words
from b2t_kit.simulate.logits import Noise
from b2t_kit.text.metrics import wer

FRAMES = 215  # 874.8 bins of 20 ms on average in the published training split, a frame every 4 bins


def stretched(trials: list[np.ndarray], generator: np.random.Generator) -> list[np.ndarray]:
    "Trials of FRAMES frames on average: frames repeated, each with its own certainty."
    factor, found = FRAMES / np.mean(list(map(len, trials))), []
    for one in trials:
        places = (np.arange(round(factor * len(one))) / factor).astype(int)
        unsteady = np.exp(Noise().frames * generator.standard_normal((len(places), 1)))
        found.append((one[np.minimum(places, len(one) - 1)] * unsteady).astype(np.float32))
    return found


def main() -> None:
    options = options_of(__doc__, needed=("lm", "tuned"), lm=Path, tuned=Path, trials=1450, threads=2,
                         beam=int).parse_args()
    scored, generator = divided(options.labels)[0], np.random.default_rng(1)
    sentences = list(islice(cycle(scored), options.trials))
    trials = stretched(spoken(sentences, generator), generator)
    levels = {level["flatness"]: level for level in json.loads(options.tuned.read_text())["levels"]}
    settings = levels["middle"]["tuning"]["3-gram"]["search"]
    config = SearchConfig(**settings | ({"beam": options.beam} if options.beam else {}))
    before, start, work = os.getloadavg()[0], time.perf_counter(), time.process_time()
    search = BeamSearch(*choose_words(options.lm), config)
    found = best(search.decode_many(trials, options.threads))
    own, mapped = memory_now()
    row = {"lm": options.lm.name, "trials": len(trials), "frames": float(np.mean(list(map(len, trials)))),
           "beam": config.beam, "threads": options.threads, "seconds": time.perf_counter() - start,
           "cpu_seconds": time.process_time() - work, "load_before": before, "load_after": os.getloadavg()[0],
           "own_mb": own, "mapped_mb": mapped, "wer": wer(sentences, found).rate}
    print({key: value if isinstance(value, str) else round(value, 3) for key, value in row.items()})
    save(options.json, row)


if __name__ == "__main__":
    main()
