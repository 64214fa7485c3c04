"""Decoding before and after a change: the same sentences and scores, and the ratio of the CPU time.

    python benchmarks/same_decoding.py --before DIR... [--labels LABELS.csv] [--trials 60] [--rounds 15] [--turns 7]

DIR is a checkout of the kit as it was before (`git worktree add DIR COMMIT`). This one draws logits and builds a model,
of the kit's sentences or of those of LABELS.csv. All decode them, with the model as it is read and as it is mapped from
a file, in processes that take turns.
"""

import argparse
import hashlib
import importlib
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import numpy as np

import b2t_kit


def found_in(*modules: str) -> ModuleType:
    "The first of the modules that this checkout has."
    for name in modules:
        if importlib.util.find_spec(f"b2t_kit.decode.{name}"):
            return importlib.import_module(f"b2t_kit.decode.{name}")
    raise ModuleNotFoundError(modules[0])


ROOMS = {"arpa": "lm.arpa", "ngram": "lm.model", "lexicon": "lexicon.lexicon"}
ROOMS_BEFORE = {"arpa": "lm", "ngram": "lm", "lexicon": "text.lexicon"}  # while language models were one module


def room(name: str) -> ModuleType:
    "A module of words and language models, by the name that it has in this checkout."
    is_one_module = (Path(b2t_kit.__file__).parent / "lm.py").is_file()
    return importlib.import_module(f"b2t_kit.{(ROOMS_BEFORE if is_one_module else ROOMS)[name]}")


def prepare(folder: Path, labels: Path | None, trials: int) -> None:
    "Write logits and a language model of other sentences."
    from decoding_cases.task import build, divided

    from b2t_kit.lm.arpa import write_arpa
    from b2t_kit.lm.grammar import default_language_model
    from b2t_kit.simulate.logits import noisy_sentence
    from b2t_kit.text.english import draw_sentence

    generator = np.random.default_rng(1)
    if labels:
        scored, _, rest = divided(labels)
        sentences, model = scored[:trials], build(rest, scored)
    else:
        sentences = [draw_sentence(generator, held_out=True) for _ in range(trials)]
        model = default_language_model()
    np.savez(folder / "logits.npz", *(noisy_sentence(sentence, generator) for sentence in sentences))
    write_arpa(model, folder / "model.arpa")


def measure(folder: Path, rounds: int) -> str:
    "CPU seconds of the fastest round, and a digest of every sentence and score."
    searching = found_in("search", "beam_search")
    config = found_in("search", "hypotheses").SearchConfig(beam=200)

    logits = list(np.load(folder / "logits.npz").values())
    read = room("arpa").read_arpa(folder / "model.arpa")
    models = [read, room("ngram").map_model(read.save(folder / f"{os.getpid()}.b2tlm"))]
    seconds, digest = [], hashlib.sha256()
    for model in models:
        words = [word for word in model.words if re.fullmatch("[a-z']*[a-z][a-z']*", word)]
        search = searching.BeamSearch(room("lexicon").build_lexicon(words), model, config)
        for _ in range(rounds):
            start = time.process_time()
            found = [search.decode(trial) for trial in logits]
            seconds.append(time.process_time() - start)
        for hypothesis in (hypothesis for trial in found for hypothesis in trial):
            digest.update(repr((hypothesis.words, hypothesis.acoustic, hypothesis.language, hypothesis.total,
                                hypothesis.times)).encode())
    return f"{min(seconds)} {digest.hexdigest()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, nargs="*", default=[])
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=15, help="of each process")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # of a process that measures
    options = parser.parse_args()
    if options.folder:
        print(measure(options.folder, options.rounds))
        return
    trees = [Path(__file__).parents[1], *options.before]
    seconds: dict[Path, list[float]] = {tree: [] for tree in trees}
    digests: dict[Path, set[str]] = {tree: set() for tree in trees}
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), options.labels, options.trials)
        command = [sys.executable, __file__, "--folder", folder, "--rounds", str(options.rounds)]
        for _ in range(options.turns):
            for tree in trees:
                environment = {**os.environ, "PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": "1"}
                told = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
                seconds[tree].append(float(told.split()[0]))
                digests[tree].add(told.split()[1])
    for tree in trees:
        ratio = statistics.median(here / there for here, there in zip(seconds[trees[0]], seconds[tree]))
        print(f"{tree}: {min(seconds[tree]):.3f} s; this checkout takes {ratio:.3f} of it; "
              f"sentences and scores {', '.join(digest[:16] for digest in sorted(digests[tree]))}", flush=True)


if __name__ == "__main__":
    main()
