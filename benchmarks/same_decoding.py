"""Decoding before and after a change of the search: the same sentences and scores, and the ratio of the CPU time.

    python benchmarks/same_decoding.py --before DIR [--trials 60] [--turns 7]

DIR is a checkout of the kit as it was before (`git worktree add DIR COMMIT`). Both decode the same simulated logits
with the kit's small language model, as it is built and as it is mapped from a file, in processes that take turns.
"""

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def measure(trials: int, rounds: int = 15) -> str:
    "CPU seconds of the fastest round, and a digest of every sentence and score."
    import numpy as np

    from b2t_kit.decode.beam_search import BeamSearch
    from b2t_kit.decode.hypotheses import SearchConfig
    from b2t_kit.lm.lexicon import build_lexicon
    from b2t_kit.lm.ngram import map_model
    from b2t_kit.lm.ngram_build import default_language_model
    from b2t_kit.decode.pipeline import words_in
    from b2t_kit.simulate.logits import noisy_sentence
    from b2t_kit.simulate.sentences import draw_sentence

    generator = np.random.default_rng(1)
    logits = [noisy_sentence(draw_sentence(generator, held_out=True), generator) for _ in range(trials)]
    built = default_language_model()
    with tempfile.TemporaryDirectory() as folder:
        models = [built, map_model(built.save(Path(folder) / "model.b2tlm"))]
    seconds, digest = [], hashlib.sha256(built.hash.encode())
    for model in models:
        search = BeamSearch(build_lexicon(words_in(model)), model, SearchConfig(beam=200))
        for _ in range(rounds):
            start = time.process_time()
            found = [search.decode(one) for one in logits]
            seconds.append(time.process_time() - start)
        for one in (hypothesis for each in found for hypothesis in each):
            digest.update(repr((one.words, one.acoustic, one.language, one.total, one.times)).encode())
    return f"{min(seconds)} {digest.hexdigest()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    if options.before is None:
        print(measure(options.trials))
        return
    ratios, digests = [], set()
    for _ in range(options.turns):
        seconds = []
        for tree in (Path(__file__).parents[1], options.before):
            command = [sys.executable, __file__, "--trials", str(options.trials)]
            environment = {**os.environ, "PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": "1"}
            told = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()
            seconds.append(float(told[0]))
            digests.add(told[1])
        ratios.append(seconds[0] / seconds[1])
        print(f"after {seconds[0]:.3f} s, before {seconds[1]:.3f} s, ratio {ratios[-1]:.3f}", flush=True)
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"ratio {middle:.3f} ({low:.3f}-{high:.3f}); {len(digests)} digest(s): {', '.join(digests)}")


if __name__ == "__main__":
    main()
