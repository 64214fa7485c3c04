"""Live decoding: parity with offline decoding, delay in real time, ends of sentences, the cost of causality.

    python benchmarks/live.py causal --out FOLDER [--steps 1.0]      # phoneme errors without a look at the future
    python benchmarks/live.py parity --out FOLDER [--trials 200]     # logits and sentences against `b2t decode`
    python benchmarks/live.py parity_together --out FOLDER          # the same for several decoders, strict recordings
    python benchmarks/live.py ends --out FOLDER                      # when a sentence is taken as ended
    python benchmarks/live.py judged --out FOLDER --trials 30        # whether a fitted rule would do better
    python benchmarks/live.py delay --lm MODEL --said TEXT [--minutes 30] [--model baseline|transformer]
    python benchmarks/live.py steps [--trials 400]                  # a frame of a network, two ways
    python benchmarks/live.py calm [--trials 200]                  # how soon words are right, how often they change
    python benchmarks/live.py together [--trials 100]              # a frame of several networks
    python benchmarks/live.py copies --out FOLDER                   # one decoder made into several by noise
    python benchmarks/live.py large --out FOLDER [--trials 40]       # a large model for finished sentences
    python benchmarks/live.py corrected --out FOLDER                # learning from a kept session with corrections
    python benchmarks/live.py heard --out DEMO [--trials 100]      # the same from the sound, with trained weights

`causal` simulates recordings and trains recipes with the usual kernel, with the causal one, and with the usual one on
the same recordings normalised bin by bin (`b2t normalise`); `parity` uses its runs.
`ends` and `copies` train a GRU of their own on strict recordings. `delay` takes the model and the sentences that
`decoding.py large_vocabulary --keep` leaves. Its network has random weights, which cost as much time as
others; the search gets simulated logits of the sentences instead of its output (in `calm` too). A bin arrives when
its 20 ms are over by the clock, so also the time in which the machine let this process sleep too long counts.
`large` has random weights too, in the shapes of two published models, and lists of candidates of simulated logits with
even noise, which are long. With one thread its CPU time is that of an idle core, also on a busy machine.
`heard` takes the folder of `b2t demo`: its decoder hears its validation trials bin by bin, and a word ends where the
simulator ended its last sound. Times count bins, not computation.
Each part writes its entry into benchmarks/results/live.json.
"""

import argparse
import copy
import itertools
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
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from normalise import normalise_recordings
from recipes import command, recordings, trained

from b2t_kit.core import from_dict, load_json, save_json
from b2t_kit.data.augment import smooth
from b2t_kit.data.convert import convert
from b2t_kit.data.dataset import Recordings
from b2t_kit.data.kept import KeptFormat
from b2t_kit.decode.beam_search import BeamSearch
from b2t_kit.decode.ensemble import average_logits
from b2t_kit.decode.hypotheses import SearchConfig
from b2t_kit.decode.pipeline import choose_words
from b2t_kit.live.keep import keep_session
from b2t_kit.live.measures import Shown, delays_figure, ovmi, word_delays
from b2t_kit.live.pipeline import CANDIDATES, Averaged, LargeModel, LiveConfig, LiveDecoder, over
from b2t_kit.live.page import LiveSession, open_decoder
from b2t_kit.live.sources import RecordingSource
from b2t_kit.llm.scores import Writing, load_scorer
from b2t_kit.lm.kenlm import preload
from b2t_kit.models.model import FrameSteps
from b2t_kit.models.published import T15_SESSIONS
from b2t_kit.simulate.logits import even_logits, noisy_sentence
from b2t_kit.simulate.neural import CALIBRATION, STRICT, SimulateConfig, draw_timing, moments
from b2t_kit.simulate.neural import open_sessions, record_trial, simulate, zscore
from b2t_kit.simulate.sentences import draw_sentence, labels_of
from b2t_kit.speech.adapt import fit_days
from b2t_kit.speech.evaluate import Decoder, load_decoder
from b2t_kit.speech.recipes import recipe
from b2t_kit.speech.task import settled
from b2t_kit.text.metrics import per, wer
from b2t_kit.text.phonemes import SILENCE, collapse, normalise

SEEDS = (1, 2)
STEPS = {"tiny": 320, "transformer_tiny": 480}
RESULTS = ROOT / "benchmarks/results/live.json"
COPIES = (4, 8, 16)
CORRECTED = 30  # sentences that somebody corrects


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


def strict_data(options: argparse.Namespace, person: int = 31) -> Path:
    "Where the strict recordings of a participant are."
    return options.out / ("strict" if person == 31 else f"strict_p{person}")


def strict_run(options: argparse.Namespace, seed: int, person: int = 31) -> Path:
    "A small GRU with frames every 80 ms, trained on a participant's strict recordings, unless it is there."
    data = strict_data(options, person)
    run = data.with_name(f"{data.name}_{seed}")
    if not data.exists():
        same = {name: getattr(STRICT, name) * STRICT.difficulty / 0.3 for name in ("drift", "shared_noise")}
        settings = replace(STRICT, sessions=4, trials=150, seed=person, bins_per_phoneme=18, difficulty=0.3,
                           day_gain=0.25, trial_gain=0.3, wander=0.3, lapses=0.0, onsets=0.0,  # as when measured
                           **same)
        simulate(data, settings)
    trained("tiny", {"stride": 4, "hidden": 256}, {1: 400, 2: 140}[seed], seed, data, run)
    return run


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


def parity_together(options: argparse.Namespace) -> dict[str, Any]:
    "Words of strict recordings, live and offline: one decoder, and its average with a disturbed copy of itself."
    torch.set_num_threads(1)
    decoder = load_decoder(strict_run(options, 1))
    torch.manual_seed(0)
    model = copy.deepcopy(decoder.model)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.05 * one.std() * torch.randn_like(one) if one.numel() > 1 else 0.0)
    pair = [decoder, replace(decoder, model=model, origin="disturbed")]
    row = {"trials": 0, "frames": 0, "words": 0, "other words": 0, "largest difference": 0.0, "word errors": 0}
    found = {f"{count}": dict(row) for count in (1, 2)}
    trials: list[Any] = []
    for split in ("val", "train"):  # what is compared need not be held out
        with Recordings(options.out / "strict", split) as recordings:
            trials += [recordings[index] for index in range(min(options.trials - len(trials), len(recordings)))]
    said = tuple(one.sentence or "" for one in trials)
    search = BeamSearch(*choose_words(None, exclude=said), SearchConfig(beam=60))
    for trial in trials:
        for count in (1, 2):
            live = LiveDecoder(pair[0], search, LiveConfig(end_silence=0, considered=1), trial.session, pair[1:count])
            for piece in np.array_split(trial.features, 20):
                live.push(piece)
            last = live.cue()[-1]
            rows = [offline(for_day(one, trial.session), trial.features) for one in pair[:count]]
            expected, row = average_logits(rows) if count > 1 else rows[0], found[f"{count}"]
            row["trials"] += 1
            row["frames"] += len(expected)
            row["words"] += len(last.words)
            row["largest difference"] = max(row["largest difference"], float(np.abs(live.logits - expected).max()))
            row["other words"] += last.sentence != search.sentence(expected)
            row["word errors"] += wer([trial.sentence or ""], [last.sentence]).edits
    print(found)
    return found


PAUSES = {  # share of the word boundaries with a longer pause, and its mean in seconds; exponential
    "as simulated": (0.0, 0.0), "few short": (0.1, 0.3), "many short": (0.3, 0.3), "few long": (0.1, 0.8),
    "many long": (0.3, 0.8)}
SILENCES = (0.3, 0.5, 0.7, 1.0, 1.5)
SURETIES = tuple(itertools.product((0.9, 0.95, 0.98, 0.99), (0.1, 0.2, 0.3, 0.5)))  # surety, pause


def paused(timing: Any, share: float, mean: float, generator: np.random.Generator) -> Any:
    "The same words, with some pauses between them longer."
    inside = np.flatnonzero(timing.labels[:-1] == SILENCE)
    longer = np.zeros(len(timing.edges))
    longer[inside + 1] = (generator.random(len(inside)) < share) * generator.exponential(mean / 0.02, len(inside))
    extra = np.cumsum(longer)
    return replace(timing, edges=timing.edges + extra, num_bins=timing.num_bins + math.ceil(extra[-1]))


def traced(live: LiveDecoder, bins: np.ndarray) -> np.ndarray:
    "After each frame: seconds, seconds of silence, P(</s>), seconds without a change, whether its words are the last."
    rows: list[tuple[float, ...]] = []
    words: list[Any] = []
    before, stood = live.bins * 0.02, 0.0
    for count in range(0, len(bins), live.windows.stride):
        if live.push(bins[count : count + live.windows.stride]) and live._heard:
            found = live._stream._search.best(1)[0]
            stood = stood + live.frame_seconds if words and found == words[-1] else 0.0
            rows.append((live.bins * 0.02 - before, live._silent * live.frame_seconds, live._stream.ending(), stood))
            words.append(found)
    live.cue()
    return np.array([(*row, one == words[-1]) for row, one in zip(rows, words)])


def ended(rows: np.ndarray, longest: float, sure: np.ndarray) -> np.ndarray:
    "The row in which a rule ends the sentence: sure of it in a silence, or after the longest one."
    silent = rows[:, 1]
    return rows[np.argmax((silent >= longest - 1e-9) | (sure & (silent > 0)))]


def surety_rule(rows: np.ndarray, surety: float, pause: float) -> np.ndarray:
    "Whether the rule of `b2t live --surety --pause` is sure, after each frame."
    return np.array([over(ending, silent, pause) >= surety for _, silent, ending, *_ in rows])


def all_traces(options: argparse.Namespace, person: int) -> dict[str, list[np.ndarray]]:
    "Of each kind of pauses, the trace of each trial of a simulated participant, from the end of its last sound."
    decoder = load_decoder(strict_run(options, 1, person))
    config = from_dict(SimulateConfig, load_json(strict_data(options, person) / "simulation.json"))
    sessions = [one for one in open_sessions(config) if any(plan.split == "val" for plan in one.planned)]
    said = tuple(plan.sentence for one in sessions for plan in one.planned if plan.split == "val")
    search = BeamSearch(*choose_words(None, exclude=said), SearchConfig(beam=60))
    zscores = [[moments(one.raw(before)[0]) for before in range(-CALIBRATION, 0)] for one in sessions]
    lives = [LiveDecoder(decoder, search, LiveConfig(end_silence=0, considered=1), one.planned[0].session)
             for one in sessions]
    found: dict[str, list[np.ndarray]] = {}
    for kind, (share, mean) in PAUSES.items():
        found[kind] = traces = []
        for number in range(options.trials):
            which = number % len(sessions)
            session = sessions[which]
            held = [at for at, plan in enumerate(session.planned) if plan.split == "val"]
            place = held[number // len(sessions) % len(held)]
            generator = np.random.default_rng([5, number])
            timing = draw_timing(np.array(session.planned[place].labels), config.bins_per_phoneme, generator)
            timing = paused(timing, share, mean, np.random.default_rng([6, number]))
            last = timing.edges[1 + np.flatnonzero(timing.labels != SILENCE)[-1]] * 0.02  # the end of the last sound
            quiet = replace(timing, num_bins=timing.num_bins + 150)  # three more seconds
            bins = zscore(record_trial(session.electrodes_at(place), quiet, generator, place), zscores[which])
            traces.append(traced(lives[which], bins) - [[last, 0, 0, 0, 0]])
        print(person, kind, flush=True)
    return found


def counted(rows: list[np.ndarray]) -> dict[str, float]:
    "Of the rows in which sentences end: how many are too early, and how long after the last sound the others are."
    late, *_, whole = np.array(rows).T
    return {"trials": len(late), "too early": int((whole == 0).sum()),
            "within 500 ms": int(((whole == 1) & (late <= 0.5)).sum()), "p50": float(np.median(late)),
            "p67": float(np.percentile(late, 200 / 3)), "p95": float(np.percentile(late, 95))}


def ends(options: argparse.Namespace) -> dict[str, Any]:
    "How long after the last sound each rule ends a sentence, and how often before it, for several kinds of pauses."
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for kind, traces in all_traces(options, 31).items():
        found[kind] = {f"silence {one:g} s": counted([ended(rows, one, np.zeros(len(rows), bool)) for rows in traces])
                       for one in SILENCES}
        for sure, pause in SURETIES:
            found[kind][f"surety {sure:g}, pause {pause:g} s"] = counted(
                [ended(rows, 1.5, surety_rule(rows, sure, pause)) for rows in traces])
    ends_figure(found).savefig(RESULTS.with_name("live_ends.png"))
    return found


PEOPLE = (31, 32, 33)  # seeds of the simulated participants of `judged`
SIGNS = {"logistic of surety and silence": (0, 1, 2), "and of stability": (0, 1, 2, 3)}
LIMITS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.78, 0.85, 0.9, 0.95, 0.98, 0.99)


def signs(rows: np.ndarray) -> np.ndarray:
    "What a logistic sees after each frame: 1, log odds of </s>, seconds of silence, seconds without a change."
    _, silent, ending, stood, _ = rows.T
    odds = np.clip(ending, 1e-6, 1 - 1e-6)
    return np.stack([np.ones(len(rows)), np.log(odds / (1 - odds)), silent, np.minimum(stood, 2.0)], 1)


def fitted(traces: list[np.ndarray], columns: tuple[int, ...]) -> np.ndarray:
    "Weights of a logistic that tells, in a silence, whether the sentence is over and its words are there."
    rows = np.concatenate(traces)
    rows = rows[(rows[:, 1] > 0) & (rows[:, 1] < 1.5)]
    seen, true = signs(rows)[:, columns], (rows[:, 0] >= 0) & (rows[:, -1] == 1)
    weights = np.zeros(len(columns))
    for _ in range(30):  # Newton's method
        likely = 1 / (1 + np.exp(-seen @ weights))
        curved = (seen.T * (likely * (1 - likely))) @ seen + 1e-6 * np.eye(len(columns))
        weights = weights + np.linalg.solve(curved, seen.T @ (true - likely))
    return weights


def limits(mine: list[tuple[int, np.ndarray]]) -> dict[str, int]:
    "Of the sentences, those that no rule can end well: by silence, by it and the n-gram, and by any sign."
    found = dict.fromkeys(("words there within 500 ms", "paused as long inside", "and as complete there",
                           "silent for 1.5 s inside"), 0)
    for _, rows in mine:
        late, silent, ending, _, whole = rows.T
        inside, soon = (late < 0) & (silent > 0), (late >= 0) & (late <= 0.5)
        last = np.flatnonzero(soon)[-1]  # what a rule that ends within 500 ms can know at most
        long = inside & (silent >= silent[last])
        found["words there within 500 ms"] += bool((whole[soon] == 1).any())
        found["paused as long inside"] += bool(long.any())
        found["and as complete there"] += bool((long & (ending >= ending[last])).any())
        found["silent for 1.5 s inside"] += bool((inside & (silent >= 1.5)).any())
    return found


def judged(options: argparse.Namespace) -> dict[str, Any]:
    "Each participant's ends of sentences by a logistic that was fitted on the others, beside the rule of today."
    torch.set_num_threads(1)
    traces = {person: all_traces(options, person) for person in PEOPLE}
    weights = {(name, person): fitted([one for other in PEOPLE if other != person for kind in traces[other].values()
                                       for one in kind], columns)
               for name, columns in SIGNS.items() for person in PEOPLE}
    found: dict[str, Any] = {"weights": {f"{name}, scored on {person}": one.tolist()
                                         for (name, person), one in weights.items()}}
    for kind in PAUSES:
        mine = [(person, rows) for person in PEOPLE for rows in traces[person][kind]]
        rules = {"silence 1.5 s": [ended(rows, 1.5, np.zeros(len(rows), bool)) for _, rows in mine]}
        for sure in (*LIMITS, 0.995, 0.999):
            rules[f"surety {sure:g}"] = [ended(rows, 1.5, surety_rule(rows, sure, 0.3)) for _, rows in mine]
            for name, columns in SIGNS.items():
                rules[f"{name}, {sure:g}"] = [
                    ended(rows, 1.5, 1 / (1 + np.exp(-signs(rows)[:, columns] @ weights[name, person])) >= sure)
                    for person, rows in mine]
        found[kind] = {name: counted(one) for name, one in rules.items()} | {"limits": limits(mine)}
    return found


def ends_figure(found: dict[str, Any]) -> Figure:
    "Of each rule: how many sentences it cuts, and how many it ends within half a second."
    figure = Figure(figsize=(3 * len(found), 3), dpi=80, layout="constrained")
    axes = figure.subplots(1, len(found), sharey=True)
    for axis, (kind, rules) in zip(axes, found.items()):
        for name, mark in (("silence", "s"), ("surety", "o")):
            rows = [one for rule, one in rules.items() if rule.startswith(name)]
            axis.plot([100 * one["too early"] / one["trials"] for one in rows],
                      [100 * one["within 500 ms"] / one["trials"] for one in rows], mark, label=name, alpha=0.6)
        axis.axhline(200 / 3, color="0.7", linestyle=":")
        axis.set(xlabel="sentences cut, %", title=kind, ylim=(-3, 103))
    axes[0].set(ylabel="ended within 500 ms, %")
    axes[0].legend(frameon=False)
    return figure


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


def copies(options: argparse.Namespace) -> dict[str, Any]:
    "Errors of the average over copies of one decoder, each with noise of its own on the smoothed bins."
    torch.set_num_threads(1)
    decoder, generator = load_decoder(strict_run(options, 1)), torch.Generator().manual_seed(0)
    with Recordings(options.out / "strict", "val") as recordings:
        trials = [recordings[index] for index in range(min(options.trials, len(recordings)))]
    said = [one.sentence or "" for one in trials]
    search = BeamSearch(*choose_words(None, exclude=tuple(said)), SearchConfig(beam=60))
    smooths = decoder.config.augment
    true = [one.labels.tolist() for one in trials]
    rows: dict[tuple[float, int], list[np.ndarray]] = {}
    for trial in trials:
        fitted = for_day(decoder, trial.session).model
        smoothed = smooth(torch.from_numpy(trial.features)[None], smooths.smooth, decoder.config.model.padding, None,
                          smooths.causal)
        for spread in (0.0, 0.1, 0.2, 0.4, 0.8):
            count = max(COPIES) if spread else 1
            noise = spread * torch.randn(count, *smoothed.shape[1:], generator=generator)
            noise[0] = 0.0  # the clean copy stays in
            with torch.inference_mode():
                logits = fitted(smoothed + noise, torch.zeros(count, dtype=torch.int32)).numpy()
            for number in COPIES if spread else (1,):
                rows.setdefault((spread, number), []).append(average_logits(list(logits[:number])))
    found = {}
    for (spread, number), logits in rows.items():
        phonemes = per(true, [collapse(one.argmax(1)) for one in logits])
        words = wer(said, [search.sentence(one) for one in logits])
        found[f"{spread:g}, {number}"] = {"phonemes": phonemes.rate, "words": words.rate, "edits": words.edits,
                                          "total": words.total}
        print(spread, number, found[f"{spread:g}, {number}"], flush=True)
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


def together(options: argparse.Namespace) -> dict[str, Any]:
    "Milliseconds of a frame of one, two and three networks of the baseline's size, in turns."
    torch.set_num_threads(1)
    settings = settled(recipe("baseline").task, 1, 512)
    torch.manual_seed(0)
    nets = [settings.model.stream(settings.model.build().eval()) for _ in range(3)]
    ways = {1: nets[0]} | {count: Averaged(nets[:count]) for count in (2, 3)}
    bins = torch.randn(4 * options.trials + 14, 512)
    took: dict[int, list[tuple[float, float, float]]] = {count: [] for count in ways}
    for frame in range(options.trials):
        window = bins[4 * frame : 4 * frame + 14]
        for count, way in ways.items():
            if not frame:
                way.start()
            begun, spent = time.perf_counter(), time.process_time()
            way.ahead(window[:-1])
            ahead = time.perf_counter()
            way.frame(window)
            done = time.perf_counter()
            took[count].append((done - ahead, done - begun, time.process_time() - spent))
    found: dict[str, Any] = {"load": psutil.getloadavg()[0], "frames": options.trials}
    for count, rows in took.items():
        last, whole, cpu = 1e3 * np.array(rows[5:]).T
        found[f"{count}"] = {"after the last bin, p10": float(np.percentile(last, 10)),
                             "whole frame, p10": float(np.percentile(whole, 10)),
                             "whole frame, p50": float(np.median(whole)), "CPU, p50": float(np.median(cpu))}
        print(count, found[f"{count}"], flush=True)
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


def errors_on(run: Path, day: str, trials: list[Any]) -> dict[str, dict[str, float]]:
    "Phoneme and word errors of a decoder on trials of a day."
    search = BeamSearch(*choose_words(None, exclude=tuple(one.sentence for one in trials)), SearchConfig(beam=60))
    decoder = for_day(load_decoder(run), day)
    logits = [offline(decoder, one.features) for one in trials]
    rates = {"phonemes": per([one.labels.tolist() for one in trials], [collapse(one.argmax(1)) for one in logits]),
             "words": wer([normalise(one.sentence, True) for one in trials], [search.sentence(one) for one in logits])}
    return {name: {"edits": one.edits, "total": one.total} for name, one in rates.items()}


def corrected(options: argparse.Namespace) -> dict[str, Any]:
    "Errors on other sentences of a day, before and after training on a session of it that was kept and corrected."
    found: dict[str, Any] = {}
    for seed in (1, 2, 3):
        work = options.out / f"corrected_{seed}"
        config = SimulateConfig(sessions=4, trials=90, bins_per_phoneme=16.0, difficulty=0.4, drift=4.0, lasting=0.3,
                                lost=0.05, arrays=2, seed=seed)
        simulate(work / "data", config, progress=False)
        days = sorted(path.name for path in (work / "data/hdf5_data_final").iterdir())
        held, run = days[-1], work / "run"
        small = ["--device", "cpu", "--checkpoint-every", "0", "--eval-every", "0", "--seed", str(seed)]
        base = ["train", "--config", "tiny", "--data", str(work / "data"), "--holdout", held, "--out", str(run)]
        command([*base, "--steps", "120", *small], work / "run.txt")
        source = RecordingSource(work / "data", "train", held, CORRECTED, pace=0, size=10)
        live = open_decoder(run, held, config=LiveConfig(end_silence=0))
        session = LiveSession(live, source)
        keeper = keep_session(session, work / "kept", {}, features=True)
        session.run()
        for number, (said, _) in enumerate(session.sentences, 1):
            session.ask("mark", f"{number} corrected {said}")
        keeper.stop()
        convert(KeptFormat(), work / "kept", work / "mine")
        mine = next((work / "mine").rglob("data_train.hdf5")).parent.name
        old = [str(work / "data"), "--holdout", held]
        for name, data in (("old", old), ("alone", [str(work / "mine")]), ("both", [str(work / "mine"), *old])):
            again = ["train", "--from-run", str(run), "--lr", "0.001", "--steps", "40", "--out", str(work / name)]
            command([*again, *small, "--data", *data], work / f"{name}.txt")
        with Recordings(work / "data", "train", [held]) as recordings:
            others = [recordings[number] for number in range(CORRECTED, len(recordings))]
        with Recordings(work / "data", "val", [held]) as recordings:
            others += [recordings[number] for number in range(len(recordings))]
        rates = {name: errors_on(work / name, day, others)
                 for name, day in (("run", held), ("old", held), ("alone", mine), ("both", mine))}
        found[f"{seed}"] = {"sentences": len(others), **rates}
        print(seed, found[f"{seed}"], flush=True)
    return found


SHAPES = {  # of SmolLM2-135M and Qwen2.5-0.5B
    "135 million": {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
                    "num_attention_heads": 9, "num_key_value_heads": 3},
    "494 million": {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
                    "num_attention_heads": 14, "num_key_value_heads": 2}}


def random_model(shape: dict[str, int], text: list[str], folder: Path) -> Path:
    "A model folder of random weights, with a tokenizer of its own."
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=["</s>", "<s>"], show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    settings = LlamaConfig(**shape, tie_word_embeddings=True, bos_token_id=1, eos_token_id=0)
    AutoModelForCausalLM.from_config(settings).save_pretrained(folder)
    return folder


def large(options: argparse.Namespace) -> dict[str, Any]:
    "Seconds in which large models order the candidates of finished sentences, and what a session says."
    generator = np.random.default_rng(7)
    text = [draw_sentence(generator, False) for _ in range(2000)]
    search = BeamSearch(*choose_words(None), SearchConfig(beam=200))
    lists = [search.decode(even_logits(labels_of(draw_sentence(generator, True)), generator))
             for _ in range(options.trials)]
    found: dict[str, Any] = {"candidates": float(np.median([len(one) for one in lists])),
                             "load": psutil.getloadavg()[0]}
    for name, shape in SHAPES.items():
        torch.manual_seed(0)
        folder = options.out / name.replace(" ", "_")
        model = load_scorer(folder if folder.exists() else random_model(shape, text, folder), writing=Writing("<s>"))
        for most in (CANDIDATES, 100):
            torch.set_num_threads(1)
            took = []
            for one in lists:
                model.known.clear()
                nodes, begun = model.nodes, time.process_time()
                model.score_lists([[each.sentence for each in one[:most]]])
                took.append((time.process_time() - begun, model.nodes - nodes))
            seconds, tokens = np.array(took).T
            found[f"{name}, {most}"] = {"CPU seconds, p50": float(np.median(seconds)), "p95": float(
                np.percentile(seconds, 95)), "within 0.3": int((seconds <= 0.3).sum()), "lists": len(lists),
                "tokens, p50": float(np.median(tokens))}
            print(name, most, found[f"{name}, {most}"], flush=True)
        model.known.clear()
        live = LargeModel(model.score_lists)
        notes = [live.order(one, LiveConfig.llm_seconds)[1] for one in lists]
        found[f"{name}, by the clock"] = {"left out": sum(map(bool, notes)), "said": next(filter(None, notes), "")}
        print(found[f"{name}, by the clock"], flush=True)
    return found


PARTS = {"calm": calm, "corrected": corrected, "large": large, "heard": heard, "copies": copies, "causal": causal,
         "parity": parity, "ends": ends, "judged": judged,
         "delay": delay, "parity_together": parity_together, "steps": steps, "together": together}


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
