"""Live decoding: parity with offline decoding, delay in real time, and how soon and how calm words come.

    python benchmarks/live.py parity --out DEMO [--trials 200]       # logits and sentences against `b2t decode`
    python benchmarks/live.py delay --lm MODEL --said TEXT [--minutes 30] [--model baseline|transformer]
    python benchmarks/live.py calm [--trials 200]                    # how soon words are right, how often they change
    python benchmarks/live.py words --out DEMO                       # how often words of a confidence are right

`parity` and `words` take the folder of `b2t demo`. `delay` takes the model and the sentences that `decoding.py
large_vocabulary --keep` leaves. Its network has random weights, which cost as much time as others; the search gets
simulated logits of the sentences instead of its output (in `calm` too). A bin arrives when its 20 ms are over by the
clock, so the time in which the machine let this process sleep too long counts. Each part writes its entry into
benchmarks/results/live.json.
"""
import argparse
import subprocess
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from matplotlib.figure import Figure
from rapidfuzz.distance import Levenshtein

from decoding_cases.task import calibrated, temperature_of

from b2t_kit.core.files import load_json, save_json
from b2t_kit.data.augment import smooth
from b2t_kit.data.dataset import Recordings
from b2t_kit.decode.search import BeamSearch, SearchConfig
from b2t_kit.decode.words import choose_words, made_up_words
from b2t_kit.live.belief import UNSURE, lower_confidences, unknown_words, word_evidence
from b2t_kit.live.measures import DelayLedger, Measures, measure_session
from b2t_kit.live.session import open_decoder
from b2t_kit.live.sources import ParticipantSource
from b2t_kit.live.stream import StreamConfig, StreamDecoder
from b2t_kit.models.published import T15_SESSIONS
from b2t_kit.simulate.logits import Noise, noisy_sentence
from b2t_kit.text.english import draw_sentence
from b2t_kit.speech.calibrate import tempered
from b2t_kit.speech.days import fit_days
from b2t_kit.speech.decoder import Decoder, load_decoder
from b2t_kit.speech.recipes import recipe
from b2t_kit.speech.task import fitted
from b2t_kit.text.metrics import wer
from b2t_kit.text.phonemes import normalise

RESULTS = Path(__file__).with_name("results") / "live.json"


@torch.inference_mode()
def offline(decoder: Decoder, bins: np.ndarray, day: str) -> np.ndarray:
    "The logits of a whole trial."
    config = decoder.config
    model = fit_days(decoder.model, decoder.sessions, decoder.trained, [day]).eval()
    smoothed = smooth(torch.from_numpy(bins)[None], config.augment.smooth, config.model.padding, None,
                      config.augment.causal_smoothing)
    return model(smoothed, torch.zeros(1, dtype=torch.int32))[0].numpy()


def parity(options: argparse.Namespace) -> dict[str, Any]:
    "Differences between live and offline decoding, in pieces of random size, with all bins and with lost ones."
    torch.set_num_threads(1)
    decoder = load_decoder(options.out / "decoder")
    with Recordings(options.out / "data", "val") as recordings:
        trials = [recordings[index] for index in range(min(options.trials, len(recordings)))]
    search = BeamSearch(*made_up_words(tuple(trial.sentence or "" for trial in trials)),
                        SearchConfig(beam=60))
    generator, found = np.random.default_rng(0), {}
    for case, lost in (("all bins", 0.0), ("one in fifty lost", 0.02)):
        row = {"trials": len(trials), "frames": 0, "other lengths": 0, "largest difference": 0.0, "other sentences": 0}
        for trial in trials:
            there = generator.random(len(trial.features)) >= lost
            there[0] = True
            bins = trial.features[np.maximum.accumulate(np.where(there, np.arange(len(there)), 0))]
            live = StreamDecoder(decoder, search, StreamConfig(end_silence=0), trial.session)
            for piece in np.split(bins, np.sort(generator.integers(0, len(bins), generator.integers(0, 40)))):
                live.push(piece)
            last, expected = live.cue()[-1], offline(decoder, bins, trial.session)
            row["frames"] += len(expected)
            row["other lengths"] += live.logits.shape != expected.shape
            row["largest difference"] = max(row["largest difference"], float(np.abs(live.logits - expected).max()))
            row["other sentences"] += last.sentence != search.sentence(expected)
        found[case] = row
        print(case, row, flush=True)
    return found


def bits_per_word(counts: dict[str, float], vocabulary: list[str], accuracy: float) -> float:
    "The information that a word of a decoder carries, in bits (OVMI, arXiv 2609.02887), from how often words are said."
    known = np.array([counts.get(word, 0.0) for word in vocabulary])
    wrong, prior = (1 - accuracy) / (len(known) - 1), known / known.sum()
    seen = wrong + prior * (accuracy - wrong)  # how often each word comes
    noise = -sum(weight * np.log2(each) for weight, each in ((accuracy, accuracy), (1 - accuracy, wrong)) if weight)
    return float(known.sum() / sum(counts.values()) * (-(seen * np.log2(seen)).sum() - noise))


class SimulatedSteps:
    "The steps of a network that takes its time, with other logits as its output."

    def __init__(self, steps: Any) -> None:
        self.steps, self.start, self.ahead = steps, steps.start, steps.ahead
        self.logits = iter(())

    def frame(self, window: torch.Tensor) -> np.ndarray:
        "The next logits of the sentence."
        row = self.steps.frame(window)
        return next(self.logits, row)


def delay(options: argparse.Namespace) -> dict[str, Any]:
    "Real time: bins every 20 ms, sentence after sentence."
    subprocess.run(["cat", options.lm], stdout=subprocess.DEVNULL, check=True)  # so that no frame waits for a disk
    lexicon, model = choose_words(options.lm)
    search = BeamSearch(lexicon, model, SearchConfig(beam=200))
    settings = fitted(recipe(options.model).task, len(T15_SESSIONS), 512)
    torch.manual_seed(0)
    decoder = Decoder(settings.model.build().eval(), settings, T15_SESSIONS, T15_SESSIONS, options.model)
    said = options.said.read_text(encoding="utf-8").splitlines()
    generator, process, temperature = np.random.default_rng(1), psutil.Process(), temperature_of(Noise(), said[:100])
    live, ledger = StreamDecoder(decoder, search, StreamConfig(end_silence=0)), DelayLedger()
    live.steps = simulated = SimulatedSteps(live.steps)
    bins = generator.standard_normal((1, settings.model.num_features)).astype(np.float32)
    found = {"model": options.model, "parameters": sum(one.numel() for one in decoder.model.parameters()),
             "words": len(lexicon), "beam": 200, "memory_mb": []}
    with live:
        start = time.perf_counter() + 0.1
        number = minute = right = 0
        while live.bins * 0.02 < 60 * options.minutes:
            sentence = said[number % len(said)]
            number += 1
            logits = tempered(noisy_sentence(sentence, generator), temperature)
            simulated.logits = iter(logits)
            live.start()
            for _ in range(live.windows.needed + live.windows.stride * (len(logits) - 1)):
                due = start + 0.02 * (live.bins + 1)
                time.sleep(max(0.0, due - time.perf_counter()))
                for update in live.push(bins, due):
                    ledger.add(update)
            *rest, last = live.cue()
            for update in (*rest, last):
                ledger.add(update)
            right += last.sentence == sentence
            if live.bins * 0.02 >= 60 * minute:
                minute += 1
                found["memory_mb"].append(round(process.memory_info().rss / 1e6, 1))
                found |= {"minutes": round(live.bins * 0.02 / 60, 1), "sentences": number, "right": right,
                          "frames": ledger.count, "late": ledger.late, "summary": ledger.summary(),
                          "load": psutil.getloadavg()[0]}
                save_json(options.part_file, found)
                print(found["minutes"], "minutes", ledger, flush=True)
    return found


def calm(options: argparse.Namespace) -> dict[str, Any]:
    "The measures of live.measures for each setting of the dial, on the same simulated logits."
    torch.set_num_threads(1)
    lexicon, model = made_up_words()
    search = BeamSearch(lexicon, model, SearchConfig(beam=200))
    small = fitted(recipe("tiny").task, 1, 64)
    settings = replace(small, model=replace(small.model, patch=14, stride=4, subsample=1))
    decoder = Decoder(settings.model.build().eval(), settings, ("day",), ("day",), "tiny")
    generator = np.random.default_rng(7)
    said = [draw_sentence(generator, True) for _ in range(options.trials)]
    heard = calibrated(said, generator, [draw_sentence(generator, False) for _ in said])
    counts = dict(zip(model.words, np.exp(model.unigrams.astype(np.float64)).tolist()))
    found, drawn = dict[str, Any](), dict[str, Measures]()
    for seconds in (0.0, 0.08, 0.16, 0.24, 0.4, 0.8):
        live, ledger = StreamDecoder(decoder, search, StreamConfig(end_silence=0, calm=seconds)), DelayLedger()
        live.steps = simulated = SimulatedSteps(live.steps)
        finals = []
        with live:
            for logits in heard:
                simulated.logits = iter(logits)
                for _ in range(live.windows.missing + 14 + 4 * (len(logits) - 1)):
                    for update in live.push(np.zeros((1, 64), np.float32)):
                        ledger.add(update)
                for update in live.cue():
                    ledger.add(update)
                finals.append(update.sentence)
        drawn[f"{seconds:g}"] = measures = measure_session(ledger.sentences)
        rate = wer(said, finals)
        bits = bits_per_word(counts, model.words, 1 - rate.rate)
        found[f"{seconds:g} s"] = asdict(measures) | {"word errors": rate.rate, "bits per word": bits,
                                                      "bits per minute": bits * measures.words_per_minute}
        print(f"{seconds:g} s", found[f"{seconds:g} s"], flush=True)
    delays_figure(drawn).savefig(RESULTS.with_name("live_calm.png"))
    return found


def delays_figure(found: dict[str, Measures]) -> Figure:  # by the setting of the dial
    "Left: how soon words are right and fixed; right: how often they are taken back."
    figure = Figure(figsize=(9, 3.2), dpi=80, layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, values in (("first right", [measures.right for measures in found.values()]),
                         ("last change", [measures.fixed for measures in found.values()]),
                         ("sentence final", [measures.final for measures in found.values()])):
        low, high = np.array(values).T
        left.plot(list(found), low, marker="o", label=name, linewidth=4 if name == "first right" else 1.5)
        left.fill_between(list(found), low, high, alpha=0.15)
    left.set(xlabel="calm, seconds", ylabel="seconds after the end (p50 to p95)", ylim=(0, None))
    left.legend(frameon=False, fontsize=8)
    right.plot(list(found), [measures.revisions for measures in found.values()], marker="o", color="tab:red")
    right.set(xlabel="calm, seconds", ylabel="revisions per word", ylim=(0, None))
    return figure


NAMES = ("Krzysztof Szczepanski", "Wojciechowski", "Chukwuemeka", "Nguyen Thanh Huong", "Bhattacharya",
         "Siobhan Gallagher", "Xochitl", "Tchaikovsky", "Zbigniew", "Oyelaran", "Papadopoulos", "Rzepka", "Kowalczyk",
         "Dragomir", "Ishiguro")
CARRIERS = ("my friend {} is here", "please call {} now", "i want to see {} today", "{} came to visit me")
EDGES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.000001)


def live_words(folder: Path, day: str, trials: list[tuple[np.ndarray, str]], exclude: tuple[str, ...]) -> list[tuple]:
    "Each finished word: whether it stands where it was said, its confidence, and whether it is marked as not known."
    decoder, found = open_decoder(folder, day, exclude=exclude), []
    with decoder:
        for bins, said in trials:
            decoder.push(bins)
            for update in decoder.end("cue"):
                if update.final:
                    words, meant = [word for word, _ in update.words], normalise(said).split()
                    right = {place for block in Levenshtein.opcodes(words, meant) if block.tag == "equal"
                             for place in range(block.src_start, block.src_end)}
                    evidence = word_evidence(decoder, update)
                    marks = unknown_words(evidence)
                    lowered = lower_confidences(update.words, evidence)
                    found += [(place in right, sure, bool(marks[place])) for place, (_, sure) in enumerate(lowered)]
    return found


def words(options: argparse.Namespace) -> dict[str, Any]:
    "How often words of a confidence are right, and which words are marked as ones that no lexicon has."
    data, figure = options.out / "data", Figure(figsize=(6.4, 4.2), layout="constrained")
    with Recordings(data, "val") as recordings:
        texts = tuple(info.sentence or "" for info in recordings.infos)
        day = recordings.infos[-1].session
        typical = [(recordings.features(at), info.sentence or "") for at, info in enumerate(recordings.infos)
                   if info.session == day][:options.trials]
    participant = ParticipantSource(data, pace=0)
    asked = [carrier.format(name) for name in NAMES for carrier in CARRIERS][:options.trials]
    names = [(participant.record(text, at), text) for at, text in enumerate(asked)]
    axes, result = figure.subplots(), {}
    for name, folder, trials in (("network, its words", "decoder", typical),
                                 ("linear readout, its words", "linear", typical),
                                 ("network, with unknown names", "decoder", names)):
        rows = live_words(options.out / folder, day, trials, texts)
        right, sure, marked = (np.array(column, float) for column in zip(*rows))
        bins = []
        for low, high in zip(EDGES, EDGES[1:]):
            inside = (sure >= low) & (sure < high)
            if inside.any():
                plain = inside & (marked == 0)
                bins.append({"from": low, "words": int(inside.sum()), "right": float(right[inside].mean()),
                             "unmarked": int(plain.sum()),
                             "right, unmarked": float(right[plain].mean()) if plain.any() else None})
        dotted = (sure < UNSURE) | (marked == 1)
        result[name] = {"words": len(rows), "right": float(right.mean()), "bins": bins,
                        **{f"{kind} words {what}": float(values[right == (kind == "right")].mean())
                           for kind in ("right", "wrong") for what, values in (("marked", marked), ("dotted", dotted))}}
        print(name, result[name], flush=True)
        filled = {one["from"] for one in bins}
        centre = [(low + min(high, 1)) / 2 for low, high in zip(EDGES, EDGES[1:]) if low in filled]
        axes.plot(centre, [one["right"] for one in bins], "o-", label=f"{name} ({len(rows)})")
    axes.plot([0, 1], [0, 1], color="0.7", zorder=0)
    axes.set(xlabel="confidence of a word", ylabel="share of such words that are right", xlim=(0, 1.02), ylim=(0, 1.02))
    axes.legend(frameon=False)
    figure.savefig(RESULTS.with_name("live_words.png"), dpi=110)
    return result


PARTS = {"parity": parity, "delay": delay, "calm": calm, "words": words}


def main() -> None:
    "Measure a part, save it with the others."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path, default=Path("live_benchmark"), help="folder for results, or of b2t demo")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--lm", type=Path)
    parser.add_argument("--said", type=Path)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--model", choices=("baseline", "transformer"), default="baseline")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    name = f"{options.part}_{options.model}" if options.part == "delay" else options.part
    options.part_file = options.out / f"{name}.json"
    found = PARTS[options.part](options)
    save_json(options.part_file, found)
    save_json(RESULTS, (load_json(RESULTS) if RESULTS.exists() else {}) | {name: found})


if __name__ == "__main__":
    main()
