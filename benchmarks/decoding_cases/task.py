"""What the cases share: real sentences, simulated logits, language models of other sentences, and word errors.

LABELS.csv has a column sentence_label, such as that of the published training split. Its different sentences are
divided once for all cases: 1,426 are scored, 250 are tuned on, and language models see only the others.
"""
import csv
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from b2t_kit.decode.search import BeamSearch
from b2t_kit.speech.calibrate import fit_to_sentences, tempered
from b2t_kit.decode.lists import Hypothesis
from b2t_kit.lm.model import LanguageModel
from b2t_kit.speech.sentences import build_language_model
from b2t_kit.simulate.logits import Noise, noisy_sentence
from b2t_kit.lexicon.g2p import dictionary
from b2t_kit.text.metrics import Counts, Rate, count_edits
from b2t_kit.text.phonemes import normalise

SCORED, TUNED_ON = 1426, 250


def save(path: Path | None, content: object, indent: int | None = 1) -> None:
    "Write the results, if a file was named."
    if path:
        path.write_text(json.dumps(content, indent=indent) + "\n", encoding="utf-8")


def save_at(path: Path | None, name: str, content: object) -> None:
    "Add results under a name to the others in the file, if one was named."
    before = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {}
    save(path, {**before, name: content})


def divided(path: Path, seed: int = 0) -> tuple[list[str], list[str], list[str]]:
    "Different sentences of a table: scored, tuned on, and the rest. Who takes fewer of them knows no more."
    with open(path, newline="", encoding="utf-8") as file:
        rows = [normalise(row["sentence_label"], True) for row in csv.DictReader(file)]
    sentences = sorted({row for row in rows if row})
    random.Random(seed).shuffle(sentences)
    return sentences[:SCORED], sentences[SCORED : SCORED + TUNED_ON], sentences[SCORED + TUNED_ON :]


def written(path: Path, sentences: Sequence[str]) -> Path:
    "A text file with a sentence a line."
    path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return path


def fence(path: Path, sentences: Sequence[str]) -> Path:
    "A table of sentences that a model must not see."
    return written(path, ["id,sentence_label", *(f"{number},{one}" for number, one in enumerate(sentences))])


def build(text: list[str], kept_out: list[str], order: int = 3, vocabulary: list[str] | None = None,
          more: tuple[Path, ...] = ()) -> LanguageModel:
    "A model of the text, and of further files, without scored sentences; without a vocabulary, that of the dictionary."
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return build_language_model([written(folder / "text.txt", text), *more], folder / "model.b2tlm", order,
                                    vocabulary=vocabulary or dictionary(),
                                    exclude=[fence(folder / "scored.csv", kept_out)],
                                    leaks="drop")


def spoken(sentences: Sequence[str], generator: np.random.Generator | int,
           noise: Noise | None = None) -> list[np.ndarray]:
    "Logits of each sentence."
    generator = np.random.default_rng(generator)  # a generator stays itself
    return [noisy_sentence(one, generator, noise or Noise()) for one in sentences]


def temperature_of(noise: Noise, sentences: Sequence[str]) -> float:
    "What the logits of a simulated network are divided by, fitted to sentences that are not scored."
    trials = spoken(sentences, 5, noise)
    return fit_to_sentences(trials, sentences, [""] * len(trials)).temperature


def calibrated(sentences: Sequence[str], generator: np.random.Generator | int, known: Sequence[str],
               noise: Noise | None = None) -> list[np.ndarray]:
    "Logits of each sentence, divided by the temperature that is fitted to those of known sentences."
    temperature = temperature_of(noise or Noise(), known)
    return [tempered(one, temperature) for one in spoken(sentences, generator, noise)]


def best(found: Sequence[Sequence[Hypothesis]]) -> list[str]:
    "The first sentence of each list."
    return [one[0].sentence if one else "" for one in found]


def timed(search: BeamSearch, trials: list[np.ndarray], threads: int = 1) -> tuple[list[list[Hypothesis]], float]:
    "What a search finds, and its CPU seconds."
    search.decode(trials[0])  # compiles
    start = time.process_time()
    found = search.decode_many(trials, threads)
    return found, time.process_time() - start


def counts_of(sentences: Sequence[str], found: Sequence[str]) -> Counts:
    "Word errors of each sentence."
    return count_edits([one.split() for one in sentences], [one.split() for one in found])


def ratio(counts: Counts, base: Counts, resamples: int = 2000) -> dict[str, float]:
    "Errors as a share of another method's on the same sentences, with a 95 % interval."
    draws = np.random.default_rng(0).integers(0, len(base.edits), (resamples, len(base.edits)))
    shares = counts.edits[draws].sum(axis=1) / np.maximum(base.edits[draws].sum(axis=1), 1)
    low, high = np.percentile(shares, [2.5, 97.5]).tolist()
    return {"ratio": float(counts.edits.sum() / base.edits.sum()), "low": low, "high": high}


def row_of(rate: Rate) -> dict[str, float]:
    "A rate as the results keep it."
    return {"wer": rate.rate, "low": rate.low, "high": rate.high, "edits": rate.edits, "words": rate.total}


def make_text(path: Path, num_words: int, vocabulary: int = 60_000, length: int = 17, seed: int = 1) -> None:
    "Sentences in which six words of ten are among 40 favourites of the word before."
    rng = np.random.default_rng(1)  # for the language; the seed is for what is said in it
    words = np.array(list(dictionary()))
    rng.shuffle(words)
    shares = 1 / np.arange(1, vocabulary + 1)
    steps = np.cumsum(shares / shares.sum())
    draw = lambda *size: np.searchsorted(steps, rng.random(size)).clip(max=vocabulary - 1)
    favourites = draw(vocabulary, 40)
    rng = np.random.default_rng([seed, length])
    with open(path, "w") as file:
        left = math.ceil(num_words / length)
        while left > 0:
            rows = [draw(min(left, 50_000))]
            while len(rows) < length:
                chosen = (rng.random(len(rows[0])) ** 2 * 40).astype(int)
                usual = favourites[rows[-1], chosen]
                rows.append(np.where(rng.random(len(usual)) < 0.6, usual, draw(len(usual))))
            file.write("\n".join(map(" ".join, words[np.stack(rows, 1)].tolist())) + "\n")
            left -= len(rows[0])


def memory_now() -> tuple[float, float]:
    "Resident memory of this process in MB: what only memory holds, and mapped pages of files."
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return tuple(int(fields[name].split()[0]) / 1e3 for name in ("RssAnon", "RssFile"))


def alone(work: Callable, *given: Any) -> Any:
    "What a function returns in a new process of its own."
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(work, *given).result()
