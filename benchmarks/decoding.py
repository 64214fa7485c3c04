"""Compare searches with the same logits, lexicon and language model.

    python benchmarks/decoding.py LABELS.csv --work DIR [--trials 120] [--json FILE] [--figure FILE]

Every search runs in its own process, one beam after the other. The searches, of which --searches takes
some with | between them:

prefix            the kit's default: 100 best sentences, exact scores, times
prefix, 1 best    the same for the best sentence only
wfst              the kit's graph search: 100 best sentences, exact scores, times
wfst, 1 best      the same for the best sentence only
wfst, sentence    the best sentence alone, without scores and times (`BeamSearch.sentence`)
kaldi-decoder     the library alone on the same graph, 1 best
flashlight-text   the library alone with KenLM (Python 3.12 or older), 100 best, words sorted by
                  frequency and ending in a silence
flashlight, both  the same with every word spelled with and without a silence at its end
torchaudio        its ctc_decoder, a wrapper of flashlight-text with fewer settings; at most six words per
                  pronunciation in the lexicon, the likeliest ones
pyctcdecode       a letter for each phoneme, and words that are spelled as they sound: it has no lexicon.
                  The language model is respelled, with the likeliest of the words that sound alike

torchaudio's cuda_ctc_decoder has neither lexicon nor language model, so it is omitted. A missing library is
reported in its row; with --add, rows of other searches in the file are kept. A search
stops after --seconds of CPU time at each beam, and reports the number of trials it has done.
"pair" is kaldi-decoder and "wfst, sentence" in one process, on one graph (two equal ones in memory differ in
speed by a few per cent), in turns. A beam is the number of hypotheses kept per
frame; kaldi's `max_active` is ten times as large, because it counts states of a graph. For all searches, a
wider beam has a wider threshold (`WIDTHS`). Speed is per CPU second, because machines are
shared; peak memory includes Python and the language model.
"""

import json
import math
import pickle
import resource
import string
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from decoding_task import best, build, divided, options_of, save, spoken

from b2t_kit.decode.beam_search import BeamSearch, log_probs
from b2t_kit.decode.hypotheses import SearchConfig
from b2t_kit.lm.arpa import read_language_model, write_arpa
from b2t_kit.lm.lexicon import Lexicon, build_lexicon
from b2t_kit.lm.ngram import LanguageModel
from b2t_kit.text.metrics import wer
from b2t_kit.text.phonemes import BLANK, SILENCE

CONFIG = SearchConfig(acoustic_scale=0.8, blank_penalty=30.0, word_bonus=-1.0, missing_silence=0.0)
WIDTHS = {50: 10.0, 200: 12.0, 1000: 15.0}  # beam -> threshold
OURS = ("prefix", "prefix, 1 best", "wfst", "wfst, 1 best", "wfst, sentence")
ROWS = (*OURS, "kaldi-decoder", "flashlight-text", "flashlight, both", "torchaudio", "pyctcdecode")
Decode = Callable[[np.ndarray], str]


def config_of(beam: int, n_best: int = 100) -> SearchConfig:
    "The weights found by words.py, with a beam."
    return SearchConfig(CONFIG.acoustic_scale, CONFIG.blank_penalty, CONFIG.word_bonus,
                        CONFIG.missing_silence, beam, threshold=WIDTHS.get(beam, 15.0), n_best=n_best)


def kit(lexicon: Lexicon, model: LanguageModel, name: str, config: SearchConfig, work: Path) -> Decode:
    "The kit's search as a function."
    route, _, what = name.partition(", ")
    search = BeamSearch(lexicon, model, config, route, work)
    if what == "sentence":
        return search.sentence

    return lambda logits: best([search.decode(logits)])[0]


def kaldi_alone(lexicon: Lexicon, model: LanguageModel, config: SearchConfig, work: Path) -> Decode:
    "kaldi-decoder on the graph that the kit has built."
    from b2t_kit.decode.wfst import GraphSearch

    return walk(GraphSearch(lexicon, model, config, work).graph, lexicon, config)


def walk(graph: Any, lexicon: Lexicon, config: SearchConfig) -> Decode:
    "kaldi-decoder as its own examples use it."
    import kaldi_decoder
    import kaldifst

    options = kaldi_decoder.FasterDecoderOptions(beam=config.threshold, max_active=10 * config.beam)

    def decode(logits: np.ndarray) -> str:
        rows = log_probs(logits, math.log(config.blank_penalty)) * config.acoustic_scale
        search = kaldi_decoder.FasterDecoder(graph, options)
        search.decode(kaldi_decoder.DecodableCtc(np.ascontiguousarray(rows, dtype=np.float32)))
        found, path = search.get_best_path()
        labels = kaldifst.get_linear_symbol_sequence(path)[2] if found else []
        return " ".join(lexicon.words[label - 1] for label in labels)
    return decode


def flashlight_alone(lexicon: Lexicon, model: LanguageModel, config: SearchConfig, work: Path,
                     both: bool) -> Decode:
    "flashlight-text with KenLM, spelled so that it loses no words that matter."
    from flashlight.lib.text import decoder
    from flashlight.lib.text.dictionary import Dictionary

    words = Dictionary()
    for word in lexicon.words:
        words.add_entry(word)
    words.add_entry("<unk>")
    lm = decoder.KenLM(str(work / "model.arpa"), words)
    tree, start = decoder.Trie(SILENCE + 1, SILENCE), lm.start(False)
    likely = model.unigrams[model.numbers(lexicon.words)]
    for number, classes in sorted(lexicon.entries, key=lambda entry: -likely[entry[0]]):
        score = lm.score(start, number)[1]
        tree.insert([*classes, SILENCE], number, score)
        if both:
            tree.insert(list(classes), number, score)
    tree.smear(decoder.SmearingMode.MAX)
    scale = config.acoustic_scale
    options = decoder.LexiconDecoderOptions(
        beam_size=config.beam, beam_size_token=15, beam_threshold=config.threshold / scale,
        lm_weight=math.log(10) / scale, word_score=config.word_bonus / scale, unk_score=-math.inf,
        sil_score=0.0, log_add=False, criterion_type=decoder.CriterionType.CTC)
    search = decoder.LexiconDecoder(options, tree, lm, SILENCE, BLANK, len(lexicon), [], False)

    def decode(logits: np.ndarray) -> str:
        rows = log_probs(logits, math.log(config.blank_penalty)).astype(np.float32)
        found = search.decode(rows.ctypes.data, *rows.shape)[:100]
        return " ".join(lexicon.words[word] for word in found[0].words if 0 <= word < len(lexicon))
    decode.keep = (tree, lm)
    return decode


def torchaudio_alone(lexicon: Lexicon, model: LanguageModel, config: SearchConfig, work: Path) -> Decode:
    "torchaudio's ctc_decoder."
    import torch
    from torchaudio.models.decoder import ctc_decoder

    likely = model.unigrams[model.numbers(lexicon.words)]
    names = [f"p{number}" for number in range(SILENCE + 1)]
    taken: dict[tuple, int] = {}
    lines = []
    for number, classes in sorted(lexicon.entries, key=lambda entry: -likely[entry[0]]):
        taken[classes] = taken.get(classes, 0) + 1
        if taken[classes] <= 6:
            lines.append(f"{lexicon.words[number]} {' '.join(names[one] for one in (*classes, SILENCE))}")
    file, scale = work / "torchaudio.txt", config.acoustic_scale
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    search = ctc_decoder(
        str(file), names, lm=str(work / "model.arpa"), nbest=100, beam_size=config.beam, beam_size_token=15,
        beam_threshold=config.threshold / scale, lm_weight=math.log(10) / scale,
        word_score=config.word_bonus / scale, sil_score=0.0, blank_token=names[BLANK],
        sil_token=names[SILENCE], unk_word="<unk>")

    def decode(logits: np.ndarray) -> str:
        rows = log_probs(logits, math.log(config.blank_penalty)).astype(np.float32)
        return " ".join(search(torch.from_numpy(rows)[None])[0][0].words)
    return decode


def respelled(lexicon: Lexicon, model: LanguageModel, source: Path, out: Path) -> dict[str, str]:
    "Rewrite an ARPA file with words spelled as they sound; return the word of each spelling."
    likely, spelling, taken = model.unigrams[model.numbers(lexicon.words)], {}, {}
    for number in np.argsort(-likely, kind="stable"):
        word = lexicon.words[number]
        sound = "".join(string.ascii_letters[one - 1] for one in lexicon.forms[word][0])
        if sound not in taken:
            taken[sound], spelling[word] = word, sound
    spelling |= {"<s>": "<s>", "</s>": "</s>", "<unk>": "<unk>"}
    sections: list[list[str]] = []
    for line in source.read_text(encoding="utf-8").splitlines():
        fields = line.split("\t")
        if line.startswith("\\") and line.endswith("-grams:"):
            sections.append([])
        elif sections and len(fields) > 1 and all(word in spelling for word in fields[1].split()):
            fields[1] = " ".join(spelling[word] for word in fields[1].split())
            sections[-1].append("\t".join(fields))
    counts = [f"ngram {n}={len(lines)}" for n, lines in enumerate(sections, 1)]
    parts = ["\n".join([f"\\{n}-grams:", *lines, ""]) for n, lines in enumerate(sections, 1)]
    out.write_text("\n".join(["\\data\\", *counts, "", *parts, "\\end\\", ""]), encoding="utf-8")
    return taken


def pyctcdecode_alone(lexicon: Lexicon, model: LanguageModel, config: SearchConfig, work: Path) -> Decode:
    "pyctcdecode with KenLM."
    from pyctcdecode import build_ctcdecoder

    words, scale = respelled(lexicon, model, work / "model.arpa", work / "sounds.arpa"), config.acoustic_scale
    search = build_ctcdecoder(
        ["", *string.ascii_letters[:39], " "], str(work / "sounds.arpa"), list(words), alpha=1 / scale,
        beta=config.word_bonus / scale, unk_score_offset=-100.0)

    def decode(logits: np.ndarray) -> str:
        rows = log_probs(logits, math.log(config.blank_penalty))
        found = search.decode(rows, config.beam, -config.threshold / scale, -config.token_threshold)
        return " ".join(words.get(sound, sound) for sound in found.split())
    return decode


def measure(name: str, beams: list[int], work: Path, limit: float) -> list[dict]:
    "Word error, speed and memory of one search at several beams, the narrowest first."
    model, lexicon = read_language_model(work / "3.b2tlm"), build_lexicon()
    sentences, trials = pickle.loads((work / "trials.pkl").read_bytes())
    rows = []
    for beam in sorted(beams):
        decode = searcher(name, lexicon, model, config_of(beam, 1 if name.endswith("1 best") else 100), work)
        decode(trials[0])
        found, start, seconds = [], time.process_time(), 0.0
        while len(found) < len(trials) and seconds < limit:
            found.append(decode(trials[len(found)]))
            seconds = time.process_time() - start
        rate = wer(sentences[: len(found)], found)
        span = (rate.low, rate.high) if len(found) > 1 else (None, None)
        rows.append({"search": name, "beam": beam, "threshold": WIDTHS.get(beam, 15.0), "wer": rate.rate,
                     "low": span[0], "high": span[1], "trials": len(found),
                     "per_cpu_second": len(found) / seconds,
                     "real_time_factor": seconds / (0.08 * sum(map(len, trials[: len(found)]))),
                     "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024})
        del decode
    return rows


def searcher(name: str, lexicon: Lexicon, model: LanguageModel, config: SearchConfig, work: Path) -> Decode:
    "A search by its name."
    match name:
        case name if name in OURS:
            return kit(lexicon, model, name, config, work)
        case "kaldi-decoder":
            return kaldi_alone(lexicon, model, config, work)
        case "pyctcdecode":
            return pyctcdecode_alone(lexicon, model, config, work)
        case "torchaudio":
            return torchaudio_alone(lexicon, model, config, work)
        case "flashlight-text" | "flashlight, both":
            return flashlight_alone(lexicon, model, config, work, name.endswith("both"))
    raise SystemExit(f"there is no search {name}; there are {', '.join(ROWS)}")


def pair(beams: list[int], work: Path, rounds: int = 21) -> list[dict]:
    "The median ratio of CPU times of the kit's graph search and kaldi-decoder alone, in turns."
    model, lexicon = read_language_model(work / "3.b2tlm"), build_lexicon()
    _, trials = pickle.loads((work / "trials.pkl").read_bytes())
    rows = []
    for beam in sorted(beams):
        search = BeamSearch(lexicon, model, config_of(beam), "wfst", work)
        both = [search.sentence, walk(search.proposer.graph, lexicon, config_of(beam))]
        different = sum(both[0](one) != both[1](one) for one in trials)
        shares = []
        for turn in range(rounds):
            seconds = [0.0, 0.0]
            for number, one in enumerate(trials):
                for which in ((0, 1), (1, 0))[(turn + number) % 2]:
                    start = time.thread_time()
                    both[which](one)
                    seconds[which] += time.thread_time() - start
            shares.append(seconds[1] / seconds[0])
        low, middle, high = np.percentile(shares, [25, 50, 75]).tolist()
        rows.append({"search": "pair", "beam": beam, "threshold": WIDTHS.get(beam, 15.0), "times_as_fast": middle,
                     "quartiles": [low, high], "rounds": rounds, "different_sentences": different})
    return rows


def latency(work: Path, beam: int = 200) -> dict:
    "CPU time of one 80 ms frame in a stream; asserts that streams equal whole trials."
    model, lexicon = read_language_model(work / "3.b2tlm"), build_lexicon()
    _, trials = pickle.loads((work / "trials.pkl").read_bytes())
    search, times = BeamSearch(lexicon, model, config_of(beam)), []
    search.decode(trials[0])
    for logits in trials[:60]:
        stream = search.stream()
        for frame in logits:
            start = time.thread_time()
            stream.push(frame)
            stream.sentence  # noqa: B018 (what is timed is asking for it)
            times.append(1000 * (time.thread_time() - start))
        assert stream.finish() == search.decode(logits)
    p50, p99 = np.percentile(times, [50, 99])
    return {"search": "stream", "beam": beam, "frames": len(times), "p50_ms": p50, "p99_ms": p99,
            "max_ms": max(times)}


def prepare(labels: Path, work: Path, count: int) -> None:
    "Logits and language model, once."
    work.mkdir(parents=True, exist_ok=True)
    scored, tuned_on, text = divided(labels)
    (work / "trials.pkl").write_bytes(pickle.dumps((scored[:count], spoken(scored[:count], 1))))
    write_arpa(build(text, scored + tuned_on, work, 3), work / "model.arpa")


def draw(rows: list[dict], path: Path) -> None:
    "Plot speed against word error, for rows of 20 trials or more."
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4))
    for name in ROWS:
        mine = [row for row in rows if row["search"] == name and row.get("trials", 20) >= 20]
        if mine:
            dashed = "-" if name in OURS else "--"
            axes.plot([row["per_cpu_second"] for row in mine], [100 * row["wer"] for row in mine],
                      "o" + dashed, label=name)
    axes.set(xscale="log", xlabel="trials per CPU second", ylabel="word error rate, %")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = options_of(__doc__, needed=["work"], work=Path, trials=120, beams="50,200,1000", seconds=120.0,
                        searches="|".join((*ROWS, "pair", "stream")), figure=Path, one=str)
    parser.add_argument("--add", action="store_true")
    options = parser.parse_args()
    beams = [int(beam) for beam in options.beams.split(",")]
    if options.one:
        match options.one:
            case "stream":
                found = [latency(options.work)]
            case "pair":
                found = pair(beams, options.work)
            case name:
                found = measure(name, beams, options.work, options.seconds)
        print(json.dumps(found))
        return
    prepare(options.labels, options.work, options.trials)
    names = options.searches.split("|")
    rows: list[dict] = json.loads(options.json.read_text()) if options.add else []
    rows = [row for row in rows if row["search"] not in names]
    for name in names:
        command = [sys.executable, __file__, str(options.labels), "--work", str(options.work)]
        command += ["--beams", options.beams, "--seconds", str(options.seconds), "--one", name]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(name, "failed:", done.stderr.strip().splitlines()[-1], flush=True)
            continue
        for row in json.loads(done.stdout.splitlines()[-1]):
            rows.append(row)
            print({key: round(value, 4) if isinstance(value, float) else value
                   for key, value in row.items()}, flush=True)
        save(options.json, rows)
    if options.figure:
        draw(rows, options.figure)


if __name__ == "__main__":
    main()
