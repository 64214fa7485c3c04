"""How the errors of a real phoneme decoder fall, so that simulated errors can be compared with them."""
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rapidfuzz.distance import Levenshtein

from b2t_kit.core.errors import KitError
from b2t_kit.text.confusions import real_counts
from b2t_kit.text.phonemes import BLANK, PHONEMES


@dataclass(frozen=True, eq=False)
class ErrorStatistics:
    "How many errors there are, how they cluster, and what is taken for what."

    sentences: int
    labels: int  # phonemes and silences
    errors: int
    rate: float  # errors / labels
    free: float  # share of the sentences without an error
    dispersion: float  # mean of (e - n p)^2 / (n p (1 - p)) over sentences with n labels and e errors; p: the rate
    within_days: float  # the same with each day's own rate
    kinds: dict[str, float]  # shares of substitutions, deletions and insertions
    runs: dict[str, float]  # k -> share of the errors in runs of at least k
    quantiles: dict[str, float]  # of e / n over sentences
    days: dict[str, float]  # rate by day
    overlap: float  # of the substitutions with the real ones


def phoneme_edits(
    said: Sequence[int],  # classes 1..40
    heard: Sequence[int],  # likewise, decoded greedily
) -> list[tuple[str, int, int, int]]:  # kind, position in `said`, class said, class heard; 0: nothing
    "The edits of a sentence, in order."
    names, found = {"replace": "substitution", "delete": "deletion", "insert": "insertion"}, []
    for tag, place, other in Levenshtein.editops(list(said), list(heard)):
        phoneme = BLANK if tag == "insert" else int(said[place])
        found.append((names[tag], place, phoneme, BLANK if tag == "delete" else int(heard[other])))
    return found


def run_lengths(
    places: Sequence[int],  # positions of a sentence's errors, ascending
) -> list[int]:
    "The lengths of the runs: an error continues one if it is at most one position after the error before."
    breaks = np.flatnonzero(np.diff(places) > 1) + 1
    return [len(part) for part in np.split(places, breaks) if len(part)]


def dispersion_of(
    errors: np.ndarray,  # (N,) of each sentence
    lengths: np.ndarray,  # (N,) labels of each sentence
    rates: np.ndarray,  # (N,) expected errors per label
) -> float:  # NaN if no rate lies between 0 and 1
    "Squared difference to the expected errors over its expectation for independent errors, on average."
    some = (rates > 0) & (rates < 1)  # a day without errors says nothing
    if not some.any():
        return float("nan")
    expected = lengths[some] * rates[some]
    return float(np.mean((errors[some] - expected) ** 2 / (expected * (1 - rates[some]))))


def overlap_of(
    one: np.ndarray,  # (41, 41) counts; row: said, column: heard
    other: np.ndarray,  # likewise
) -> float:  # 0 to 1
    "The overlap of two tables of substitutions: the sum of the smaller shares."
    shares = [table[1:, 1:] / max(table[1:, 1:].sum(), 1) for table in (one, other)]
    return float(np.minimum(*shares).sum())


QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
RUNS = (2, 3, 4, 6, 8)


def error_statistics(
    said: Sequence[Sequence[int]],  # the labels of each sentence, classes 1..40
    heard: Sequence[Sequence[int]],  # what was decoded greedily
    days: Sequence[str],  # the day of each sentence
) -> ErrorStatistics:
    "The statistics of greedy phonemes; `KitError` without a label, `ValueError` if there are not as many `heard`."
    edits = [phoneme_edits(*pair) for pair in zip(said, heard, strict=True)]
    errors, lengths = np.array([len(edit) for edit in edits]), np.array([len(sentence) for sentence in said])
    if not lengths.sum():
        raise KitError("statistics of errors: no sentence has a label")
    everything, labels = [edit for part in edits for edit in part], np.array(days)
    rates = {str(day): float(errors[labels == day].sum() / lengths[labels == day].sum()) for day in sorted(set(days))}
    table = np.zeros((len(PHONEMES), len(PHONEMES)))
    np.add.at(table, ([phoneme for *_, phoneme, _ in everything], [other for *_, other in everything]), 1)
    runs = np.array([length for part in edits for length in run_lengths([place for _, place, *_ in part])], dtype=int)
    kinds, total = [kind for kind, *_ in everything], max(len(everything), 1)
    overall = errors.sum() / lengths.sum()
    return ErrorStatistics(
        len(errors), int(lengths.sum()), int(errors.sum()), float(overall), float(np.mean(errors == 0)),
        dispersion=dispersion_of(errors, lengths, np.full(len(errors), overall)),
        within_days=dispersion_of(errors, lengths, np.array([rates[str(day)] for day in days])),
        kinds={kind: kinds.count(kind) / total for kind in ("substitution", "deletion", "insertion")},
        runs={str(k): float(runs[runs >= k].sum() / total) for k in RUNS},
        quantiles={str(q): float(np.quantile(errors / np.maximum(lengths, 1), q)) for q in QUANTILES},
        days=rates, overlap=overlap_of(table, real_counts()[0]))
