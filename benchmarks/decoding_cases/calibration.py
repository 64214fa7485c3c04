"Calibrated logits: words however sure a network is, what an estimate without labels costs, and the figure."
import json as json_format
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from decoding_cases.task import best, build, counts_of, divided, row_of, save, spoken

from b2t_kit.decode.search import BeamSearch
from b2t_kit.speech.calibrate import estimate_temperature, fit_to_sentences
from b2t_kit.decode.decode import choose_words
from b2t_kit.decode.files import read_trials
from b2t_kit.text.lexicon import build_lexicon
from b2t_kit.simulate import Noise
from b2t_kit.text.metrics import count_edits, rate_of
from b2t_kit.text.phonemes import collapse, normalise, to_ids
from b2t_kit.text.g2p import sentence_to_phonemes

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
Half = tuple[list[str], list[np.ndarray]]  # what was said, logits
Case = tuple[str, Half, Half, BeamSearch]  # name, what a temperature is fitted to, what is scored, a search


def cases(labels: Path, logits: Sequence[Path], sentences: int, fitted_to: int, errors: str) -> Iterator[Case]:
    """Simulated networks, scored on other sentences than those the temperature is fitted to; and files of trained
    decoders, of whose trials every second one fits and the others are scored."""
    scored, tuned_on, text = divided(labels)
    search = BeamSearch(build_lexicon(), build(text, scored + tuned_on))
    for flatness in ("sharp", "middle", "flat"):
        for share in map(float, errors.split(",")):
            noise = Noise(flatness=flatness, errors=share)
            yield (f"{flatness}, errors x{share:g}", (tuned_on[:fitted_to], spoken(tuned_on[:fitted_to], 3, noise)),
                   (scored[:sentences], spoken(scored[:sentences], 11, noise)), search)
    for path in logits:
        trials = [trial for trial in read_trials(path) if trial.truth]
        said, rows = [normalise(trial.truth, True) for trial in trials], [trial.logits for trial in trials]
        words = choose_words(None, exclude=tuple(said))
        yield name_of(path), (said[::2], rows[::2]), (said[1::2], rows[1::2]), BeamSearch(*words)


def name_of(path: Path) -> str:
    "The run's folder, of the file that `b2t eval` left in it."
    return path.parts[-4] if path.parts[-3:] == ("decode", "val", "logits.hdf5") else path.stem


def words_at(half: Half, search: BeamSearch, factor: float, temperature: float) -> dict[str, float]:
    "Word errors of logits times a factor, divided by a temperature."
    calm = BeamSearch(search.lexicon, search.model, search.config, temperature=temperature)
    return row_of(rate_of(counts_of(half[0], best(calm.decode_many([np.float32(factor) * one for one in half[1]])))))


def calibration(labels: Path, /, *, logits: tuple[Path, ...] = (), sentences: int = 300, fitted_to: int = 250,
                errors: str = "0.5,1,2", json: Path | None = None, figure: Path | None = None) -> None:
    """Measure word errors with default weights of logits times .25 to 8: raw, and divided by the fitted temperature.

    Simulated networks at three flatnesses with --errors times the errors of the published baseline, and --logits of
    trained decoders, as `b2t eval` writes them, with the default language model. The temperature is fitted
    on other sentences than are scored. Without labels it is estimated from the scored logits themselves: how far
    is that from the fitted one, and how many words does it cost?
    """
    rows = []
    for name, known, judged, search in cases(labels, logits, sentences, fitted_to, errors):
        true = [to_ids(sentence_to_phonemes(one)) for one in judged[0]]
        phonemes = rate_of(count_edits(true, [collapse(one.argmax(1)) for one in judged[1]])).rate
        row: dict = {"name": name, "phonemes": phonemes, "raw": {}, "fitted": {}}
        for factor in FACTORS:
            scaled = [np.float32(factor) * one for one in known[1]]
            temperature = fit_to_sentences(scaled, known[0], [""] * len(scaled)).temperature
            row["raw"][factor] = words_at(judged, search, factor, 1.0)
            row["fitted"][factor] = words_at(judged, search, factor, temperature)
            if factor == 1:
                guess = estimate_temperature(judged[1]).temperature
                row |= {"temperature": temperature, "estimate": guess,
                        "estimated": words_at(judged, search, 1.0, guess)}
        rows.append(row)
        shown = (f"{100 * one['wer']:.1f}" for kind in ("raw", "fitted") for one in row[kind].values())
        print(f"| {name} | {100 * phonemes:.1f} | {row['temperature']:.2f} |", " | ".join(shown),
              f"| {row['estimate'] / row['temperature']:.2f} | {100 * row['estimated']['wer']:.1f} |", flush=True)
    save(json, rows)
    if figure:
        draw(json_format.loads(json_format.dumps(rows)), figure)


def draw(rows: list[dict], path: Path) -> None:
    "Word errors over the factor, before and after."
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(figsize=(7, 3.6), layout="constrained", dpi=90)
    for number, row in enumerate(row for row in rows if "errors x0.5" not in row["name"] and "x2" not in row["name"]):
        for kind, style in (("raw", ":"), ("fitted", "-")):
            rates = [100 * one["wer"] for one in row[kind].values()]
            axes.plot(FACTORS, rates, style, color=f"C{number}", label=row["name"] if kind == "fitted" else None)
    axes.set(xscale="log", xlabel="logits times", ylabel="word errors, %", title="raw (dotted) and calibrated")
    axes.set_xticks(FACTORS, [f"{factor:g}" for factor in FACTORS])
    axes.minorticks_off()
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    fig.savefig(path)
