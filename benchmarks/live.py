"""Live decoding: parity with offline decoding, delay in real time, ends of sentences, the cost of causality.

    python benchmarks/live.py causal --out FOLDER [--steps 1.0]      # phoneme errors without a look at the future
    python benchmarks/live.py parity --out FOLDER [--trials 200]     # logits and sentences against `b2t decode`
    python benchmarks/live.py ends --out FOLDER                      # when a sentence is taken as ended
    python benchmarks/live.py delay --lm MODEL --said TEXT [--minutes 30] [--model baseline|transformer]
    python benchmarks/live.py steps [--trials 400]                  # a frame of a network, two ways
    python benchmarks/live.py calm [--trials 200]                  # how soon words are right, how often they change
    python benchmarks/live.py heard --out DEMO [--trials 100]      # the same from the sound, with trained weights

`causal` simulates recordings and trains recipes with the usual kernel, with the causal one, and with the usual one on
the same recordings normalised bin by bin (`b2t normalise`); `parity` and `ends` use its runs. `delay` takes the model
and the sentences that large_vocabulary.py keeps (--keep). Its network has random weights, which cost as much time as
others; the search gets simulated logits of the sentences instead of its output (in `calm` too). A bin arrives when
its 20 ms are over by the clock, so also the time in which the machine let this process sleep too long counts.
`heard` takes the folder of `b2t demo`: its decoder hears its validation trials bin by bin, and a word ends where the
simulator ended its last sound. Times count bins, not computation.
Each part writes its entry into benchmarks/results/live.json.
"""

import argparse
import logging
import math
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from recipes import recordings, trained

from b2t_kit.core.files import load_json, save_json
from b2t_kit.core.settings import from_dict
from b2t_kit.data.augment import smooth
from b2t_kit.data.dataset import Recordings
from b2t_kit.data.normalise import normalise_recordings
from b2t_kit.decode.beam_search import BeamSearch
from b2t_kit.decode.hypotheses import SearchConfig
from b2t_kit.decode.kenlm import preload
from b2t_kit.decode.pipeline import choose_words
from b2t_kit.live.measures import Shown, delays_figure, ovmi, word_delays
from b2t_kit.live.pipeline import LiveConfig, LiveDecoder
from b2t_kit.models.model import FrameSteps
from b2t_kit.models.published import T15_SESSIONS
from b2t_kit.simulate.logits import noisy_sentence
from b2t_kit.simulate.neural import CALIBRATION, SimulateConfig, draw_timing, moments
from b2t_kit.simulate.neural import open_sessions, record_trial, zscore
from b2t_kit.simulate.sentences import draw_sentence
from b2t_kit.speech.adapt import fit_days
from b2t_kit.speech.evaluate import Decoder, load_decoder
from b2t_kit.speech.recipes import recipe
from b2t_kit.speech.task import settled
from b2t_kit.text.metrics import wer
from b2t_kit.text.phonemes import SILENCE, normalise

SEEDS = (1, 2)
STEPS = {"tiny": 320, "transformer_tiny": 480}
RESULTS = ROOT / "benchmarks/results/live.json"


def causal(options: argparse.Namespace) -> dict[str, Any]:
    "Phoneme errors of each recipe: as usual, with the causal kernel, and with running z-scores."
    data, running = recordings(options.out / "data", 21, options), options.out / "running"
    if not running.exists():
        normalise_recordings(data, running)
    ways = {"usual": (data, {}), "causal": (data, {"causal": True}), "running": (running, {})}
    found: dict[str, Any] = {}
    for name, steps in STEPS.items():
        for seed in SEEDS:
            for way, (source, setting) in ways.items():
                run = options.out / f"{name}_{way}_{seed}"
                row = trained(name, setting, max(1, round(steps * options.steps)), seed, source, run)
                found[f"{name}, {way}, seed {seed}"] = row["per"] | {"seconds": row["seconds"]}
                save_json(options.part_file, found)
    return found


def offline(decoder: Decoder, bins: np.ndarray) -> np.ndarray:
    "The logits of a whole trial, as `speech.evaluate` computes them."
    config = decoder.config
    smoothed = smooth(torch.from_numpy(bins)[None], config.augment.smooth, config.model.padding, None,
                      config.augment.causal)
    with torch.inference_mode():
        return decoder.model(smoothed, torch.zeros(1, dtype=torch.int32))[0].numpy()


def for_day(decoder: Decoder, day: str) -> Decoder:
    "The decoder with one day layer, that of a session."
    fitted = fit_days(decoder.model, decoder.sessions, decoder.trained, [day], decoder.config.unseen)
    return replace(decoder, model=fitted.eval(), sessions=(day,), trained=(day,))


def decoders(options: argparse.Namespace, recordings: Recordings) -> dict[str, Decoder]:
    "Trained ones if `causal` left them, otherwise with random weights."
    found = {}
    runs = {"GRU": "tiny_usual_1", "noise GRU": "noise_gru_tiny", "Transformer": "transformer_tiny_usual_1"}
    for name, run in runs.items():
        if (options.out / f"{run}.json").exists():
            found[f"{name}, trained"] = load_decoder(options.out / run)
        else:
            torch.manual_seed(0)
            config = settled(recipe(run.removesuffix("_usual_1")).task, len(recordings.sessions),
                             recordings.signal.num_features)
            days = tuple(recordings.sessions)
            found[f"{name}, random weights"] = Decoder(config.model.build().eval(), config, days, days, run)
    return found


def parity(options: argparse.Namespace) -> dict[str, Any]:
    "Logits and sentences of validation trials: in random pieces, and with one bin in fifty lost and repeated."
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with Recordings(options.out / "data", "val") as recordings:
        lexicon, model = choose_words(None, exclude=tuple(one.sentence or "" for one in recordings.infos))
        search = BeamSearch(lexicon, model, SearchConfig(beam=60))
        for name, decoder in decoders(options, recordings).items():
            generator, count = np.random.default_rng(0), min(options.trials, len(recordings))
            total = {"trials": count, "frames": 0, "other lengths": 0, "largest difference": 0.0, "other sentences": 0,
                     "with words": 0}
            found[name] = {"pieces": total, "lost bins": dict(total)}
            for index in range(count):
                trial = recordings[index]
                fitted = for_day(decoder, trial.session)
                live = LiveDecoder(fitted, search, LiveConfig(end_silence=0, considered=1))
                for case, lost in (("pieces", 0.0), ("lost bins", 0.02)):
                    there = generator.random(len(trial.features)) >= lost
                    there[0] = True
                    bins = trial.features[np.maximum.accumulate(np.where(there, np.arange(len(there)), 0))]
                    cuts = np.sort(generator.integers(0, len(bins), generator.integers(0, 40)))
                    for piece in np.split(bins, cuts):
                        live.push(piece)
                    last, expected = live.cue()[-1], offline(fitted, bins)
                    row = found[name][case]
                    row["frames"] += len(expected)
                    row["other lengths"] += live.logits.shape != expected.shape
                    gap = float(np.abs(live.logits - expected).max())
                    row["largest difference"] = max(row["largest difference"], gap)
                    decoded = search.decode(expected)
                    row["with words"] += bool(last.words)
                    row["other sentences"] += last.sentence != (decoded[0].sentence if decoded else "")
            print(name, found[name], flush=True)
            save_json(options.part_file, found)
    return found


def ends(options: argparse.Namespace) -> dict[str, Any]:
    "How long after the last sound a sentence is taken as ended, and how often before it."
    torch.set_num_threads(1)
    decoder = load_decoder(options.out / "tiny_usual_1")
    config = from_dict(SimulateConfig, load_json(options.out / "data/simulation.json"))
    lexicon, model = choose_words(None)
    search = BeamSearch(lexicon, model, SearchConfig(beam=60))
    sessions = [one for one in open_sessions(config) if any(plan.split == "val" for plan in one.planned)]
    found: dict[str, Any] = {}
    rows: dict[float, list[float]] = {seconds: [] for seconds in (0.1, 0.2, 0.3, 0.5, 1.0, 1.5)}
    for number in range(options.trials):
        session = sessions[number % len(sessions)]
        held = [place for place, plan in enumerate(session.planned) if plan.split == "val"]
        place = held[number // len(sessions) % len(held)]
        generator = np.random.default_rng([5, number])
        timing = draw_timing(np.array(session.planned[place].labels), config.bins_per_phoneme, generator)
        over = timing.edges[1 + np.flatnonzero(timing.labels != SILENCE)[-1]] * 0.02  # the end of the last sound
        timing = replace(timing, num_bins=timing.num_bins + 200)  # four seconds of quiet
        raw = record_trial(session.electrodes, timing, generator, place)
        bins = zscore(raw, [moments(session.raw(one)[0]) for one in range(-CALIBRATION, 0)])
        fitted = for_day(decoder, session.planned[0].session)
        for seconds, late in rows.items():
            live = LiveDecoder(fitted, search, LiveConfig(end_silence=seconds, considered=1))
            ended = [one for one in live.push(bins) if one.final]
            late.append(ended[0].bins * 0.02 - over if ended else math.inf)
    for seconds, late in rows.items():
        gaps = np.array(late)
        after = gaps > 0
        found[f"{seconds:g} s"] = {
            "trials": len(gaps), "before the end": int((~after).sum()),
            "within 300 ms of the end": int((after & (gaps <= 0.3)).sum()),
            "within 300 ms of the silence asked for": int((after & (gaps <= seconds + 0.3)).sum()),
            "not in four seconds": int(np.isinf(gaps).sum()),
            "median": float(np.median(gaps[after])) if after.any() else None}
        print(f"{seconds:g} s", found[f"{seconds:g} s"], flush=True)
    return found


class Spoken:
    "The steps of a network that takes its time, with other logits as its output."

    def __init__(self, steps: Any) -> None:
        self.steps, self.start, self.ahead = steps, steps.start, steps.ahead
        self.said = iter(())

    def frame(self, window: torch.Tensor) -> np.ndarray:
        "The next logits of the sentence."
        drawn = self.steps.frame(window)
        return next(self.said, drawn)


def delay(options: argparse.Namespace) -> dict[str, Any]:
    "Real time: bins every 20 ms, sentence after sentence."
    print(preload(options.lm))
    lexicon, model = choose_words(options.lm)
    search = BeamSearch(lexicon, model, SearchConfig(beam=200))
    settings = settled(recipe(options.model).task, len(T15_SESSIONS), 512)
    torch.manual_seed(0)
    decoder = Decoder(settings.model.build().eval(), settings, T15_SESSIONS, T15_SESSIONS, options.model)
    said = options.said.read_text(encoding="utf-8").splitlines()
    generator, process = np.random.default_rng(1), psutil.Process()
    live = LiveDecoder(decoder, search, LiveConfig(end_silence=0))
    live.steps = spoken = Spoken(live.steps)
    bins = generator.standard_normal((1, settings.model.num_features)).astype(np.float32)
    found = {"model": options.model, "parameters": sum(one.numel() for one in decoder.model.parameters()),
             "words": len(lexicon), "beam": 200, "memory_mb": []}
    with live:
        start = time.perf_counter() + 0.1
        number, minute, right = 0, 0, 0
        while live.bins * 0.02 < 60 * options.minutes:
            sentence = said[number % len(said)]
            number += 1
            logits = noisy_sentence(sentence, generator)
            spoken.said = iter(logits)
            live.start()
            needed = live.windows.needed + live.windows.stride * (len(logits) - 1)
            for _ in range(needed):
                due = start + 0.02 * (live.bins + 1)
                time.sleep(max(0.0, due - time.perf_counter()))
                live.push(bins, due)
            last = live.cue()[-1]
            right += last.sentence == sentence
            if live.bins * 0.02 >= 60 * minute:
                minute += 1
                found["memory_mb"].append(round(process.memory_info().rss / 1e6, 1))
                found |= {"minutes": round(live.bins * 0.02 / 60, 1), "sentences": number, "right": right,
                          "frames": live.ledger.count, "late": dict(live.ledger.late), "summary": live.ledger.summary(),
                          "load": psutil.getloadavg()[0]}
                save_json(options.part_file, found)
                print(found["minutes"], "minutes", live.ledger, flush=True)
    np.save(options.part_file.with_suffix(".npy"), live.ledger.rows)
    return found


def steps(options: argparse.Namespace) -> dict[str, Any]:
    "Milliseconds from the last bin of a patch to the logits, with the steps of live decoding and with the model's own."
    torch.set_num_threads(1)
    found = {}
    for name in ("baseline", "transformer"):
        settings = settled(recipe(name).task, 1, 512)
        torch.manual_seed(0)
        model = settings.model.build().eval()
        ways = {"live": settings.model.stream(model), "the model's own": FrameSteps(model)}
        patch, stride = settings.model.patch, settings.model.stride
        bins = torch.randn(stride * options.trials + patch, settings.model.num_features)
        took: dict[str, list[float]] = {way: [] for way in ways}
        gap = 0.0
        for one in ways.values():
            one.start()
        for frame in range(options.trials):
            window, logits = bins[stride * frame : stride * frame + patch], []
            for way, one in ways.items():
                one.ahead(window[:-1])  # while the last bin is being recorded
                start = time.perf_counter()
                logits.append(one.frame(window))
                took[way].append(time.perf_counter() - start)
            gap = max(gap, float(np.abs(logits[0] - logits[1]).max()))
        found[name] = {way: float(1e3 * np.median(one[options.trials // 2 :])) for way, one in took.items()}
        found[name] |= {"frames": options.trials // 2, "largest difference of a logit": gap}
        print(name, found[name], flush=True)
    return found


def calm(options: argparse.Namespace) -> dict[str, Any]:
    "The measures of live.measures for each setting of the dial, on the same simulated logits."
    torch.set_num_threads(1)
    lexicon, model = choose_words(None)
    search = BeamSearch(lexicon, model, SearchConfig(beam=200))
    small = settled(recipe("tiny").task, 1, 64)
    settings = replace(small, model=replace(small.model, patch=14, stride=4, subsample=1))
    decoder = Decoder(settings.model.build().eval(), settings, ("day",), ("day",), "tiny")
    generator = np.random.default_rng(7)
    said = [draw_sentence(generator, True) for _ in range(options.trials)]
    heard = [noisy_sentence(one, generator) for one in said]
    counts = dict(zip(model.words, np.exp(model.unigrams.astype(np.float64)).tolist()))
    found: dict[str, Any] = {}
    drawn = {}
    for seconds in (0.0, 0.08, 0.16, 0.24, 0.4, 0.8):
        live = LiveDecoder(decoder, search, LiveConfig(end_silence=0, calm=seconds))
        live.steps = spoken = Spoken(live.steps)
        finals = []
        with live:
            for logits in heard:
                spoken.said = iter(logits)
                for _ in range(live.windows.smoother.missing + 14 + 4 * (len(logits) - 1)):
                    live.push(np.zeros((1, 64), np.float32))
                finals.append(live.cue()[-1].sentence)
        drawn[f"{seconds:g}"] = measures = live.ledger.measures()
        rate = wer(said, finals)
        bits = ovmi(counts, model.words, 1 - rate.rate)
        found[f"{seconds:g} s"] = asdict(measures) | {"word errors": rate.rate, "bits per word": bits,
                                                      "bits per minute": bits * measures.words_per_minute}
        print(f"{seconds:g} s", found[f"{seconds:g} s"], flush=True)
    delays_figure(drawn).savefig(RESULTS.with_name("live_calm.png"))
    return found


def heard(options: argparse.Namespace) -> dict[str, Any]:
    "Seconds of recording from the end of a word's sound to its first right appearance, and to its last change."
    torch.set_num_threads(1)
    decoder = load_decoder(options.out / "decoder")
    config = from_dict(SimulateConfig, load_json(options.out / "data/simulation.json"))
    search, rows, right = BeamSearch(*choose_words(None), SearchConfig(beam=200)), [], 0
    sessions = {one.planned[0].session: one for one in open_sessions(config)}
    with Recordings(options.out / "data", "val") as recordings:
        chosen = range(0, len(recordings), max(1, len(recordings) // options.trials))
        for trial in (recordings[number] for number in chosen):
            session = sessions[trial.session]
            place = [(one.block, one.number) for one in session.planned].index((trial.block, trial.number))
            timing = session.raw(place)[1]
            spoken = timing.edges[np.flatnonzero(timing.labels == SILENCE)] * 0.02
            live = LiveDecoder(for_day(decoder, trial.session), search, LiveConfig(end_silence=0))
            with live:
                changes = [(one.bins * 0.02, tuple(one.sentence.split())) for one in live.push(trial.features)]
                final = tuple(live.cue()[-1].sentence.split())
            if final != tuple(normalise(trial.sentence, True).split()):
                continue  # its words have no end of their own
            right += 1
            rows.append(word_delays(Shown(0.0, tuple(changes), final, len(trial.features) * 0.02, tuple(spoken))))
    delays, model = np.concatenate(rows), decoder.config.model
    found = {"trials": len(chosen), "all words right": right, "words": len(delays), "patch": model.patch * 0.02,
             "stride": model.stride * 0.02}
    for name, column in zip(("first right", "last change"), delays.T):
        found[name] = dict(zip(("p5", "p50", "p95"), np.percentile(column, [5, 50, 95]).tolist()))
    print(found)
    return found


PARTS = {"calm": calm, "heard": heard, "causal": causal, "parity": parity, "ends": ends, "delay": delay, "steps": steps}


def main() -> None:
    "Measure a part, save it with the others."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path, default=Path("live_benchmark"), help="folder for recordings and runs")
    parser.add_argument("--steps", type=float, default=1.0, help="training steps, as a multiple of the benchmark's")
    parser.add_argument("--difficulty", type=float, default=0.65, help="of the simulation")
    parser.add_argument("--labels", type=Path, help="table of sentences, as `b2t simulate --labels` takes it")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--lm", type=Path)
    parser.add_argument("--said", type=Path)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--model", choices=("baseline", "transformer"), default="baseline")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    name = f"{options.part}_{options.model}" if options.part == "delay" else options.part
    options.part_file = options.out / f"{name}.json"
    logging.getLogger("b2t_kit.live").addHandler(logging.FileHandler(options.out / f"{name}.log"))
    logging.getLogger("b2t_kit.live").propagate = False
    logging.getLogger("b2t_kit.live").setLevel(logging.INFO)
    found = PARTS[options.part](options)
    save_json(options.part_file, found)
    save_json(RESULTS, (load_json(RESULTS) if RESULTS.exists() else {}) | {name: found})


if __name__ == "__main__":
    main()
