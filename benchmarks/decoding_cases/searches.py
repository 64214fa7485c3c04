"The kit's searches and those of other libraries: the same logits, lexicon and language model."
import math
import pickle
import resource
import string
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from decoding_cases.task import alone, best, build, divided, save, spoken

from b2t_kit.core import load_json
from b2t_kit.decode.beam_search import BeamSearch, log_probs
from b2t_kit.decode.hypotheses import SearchConfig
from b2t_kit.lm import read_language_model, write_arpa
from b2t_kit.text.lexicon import Lexicon, build_lexicon
from b2t_kit.lm import LanguageModel
from b2t_kit.text.metrics import wer
from b2t_kit.text.phonemes import BLANK, SILENCE

CONFIG = SearchConfig()  # the kit's default weights
WIDTHS = {50: 10.0, 200: 12.0, 1000: 15.0}  # beam -> threshold
OURS = ("prefix", "prefix, 1 best", "wfst", "wfst, 1 best")
ROWS = (*OURS, "kaldi-decoder", "flashlight-text", "flashlight, both", "torchaudio", "pyctcdecode")
Decode = Callable[[np.ndarray], str]


def searches(labels: Path, /, *, work: Path, trials: int = 120, beams: str = "50,200,1000", seconds: float = 120.0,
             searches: str = "|".join((*ROWS, "stream")), add: bool = False, figure: Path | None = None,
             json: Path | None = None) -> None:
    """Compare searches with the same logits, lexicon and language model.

    Every search runs in its own process, one beam after the other. The searches, of which --searches takes some with |
    between them:

    prefix            the kit's default: 100 best sentences, exact scores, times
    prefix, 1 best    the same for the best sentence only
    wfst              the kit's graph search: 100 best sentences, exact scores, times
    wfst, 1 best      the same for the best sentence only
    kaldi-decoder     the library alone on the same graph, 1 best
    flashlight-text   the library alone with KenLM (Python 3.12 or older), 100 best, words sorted by frequency and
                      ending in a silence
    flashlight, both  the same with every word spelled with and without a silence at its end
    torchaudio        its ctc_decoder, a wrapper of flashlight-text with fewer settings; at most six words per
                      pronunciation in the lexicon, the likeliest ones
    pyctcdecode       a letter for each phoneme, and words that are spelled as they sound: it has no lexicon. The
                      language model is respelled, with the likeliest of the words that sound alike
    stream            CPU time of one frame in a stream of the kit's default

    torchaudio's cuda_ctc_decoder has neither lexicon nor language model, so it is omitted. A missing library is
    reported in its row; with --add, rows of other searches in the file are kept. A search stops after --seconds of CPU
    time at each beam, and reports the number of trials it has done. A beam is the number of hypotheses kept per frame;
    kaldi's `max_active` is ten times as large, because it counts states of a graph. For all searches, a wider beam has
    a wider threshold (`WIDTHS`). Speed is per CPU second, because machines are shared; peak memory includes Python and
    the language model.
    """
    prepare(labels, work, trials)
    names, sizes = searches.split("|"), [int(beam) for beam in beams.split(",")]
    rows = [row for row in (load_json(json) if add else []) if row["search"] not in names]
    for name in names:
        try:
            found = alone(latency, work) if name == "stream" else alone(measure, name, sizes, work, seconds)
        except Exception as error:
            print(name, "failed:", error, flush=True)
            continue
        for row in found:
            shown = {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
            print(shown, flush=True)
        rows += found
        save(json, rows)
    if figure:
        draw(rows, figure)


def prepare(labels: Path, work: Path, count: int) -> None:
    "Logits and language model, once."
    work.mkdir(parents=True, exist_ok=True)
    scored, tuned_on, text = divided(labels)
    (work / "trials.pkl").write_bytes(pickle.dumps((scored[:count], spoken(scored[:count], 1))))
    model = build(text, scored + tuned_on)
    model.save(work / "3.b2tlm")
    write_arpa(model, work / "model.arpa")


def prepared(work: Path) -> tuple[Lexicon, LanguageModel, list[str], list[np.ndarray]]:
    "Lexicon, language model, sentences and logits."
    return build_lexicon(), read_language_model(work / "3.b2tlm"), *pickle.loads((work / "trials.pkl").read_bytes())


def config_of(beam: int, n_best: int = 100) -> SearchConfig:
    "The default weights, with a beam."
    return replace(CONFIG, beam=beam, threshold=WIDTHS.get(beam, 15.0), n_best=n_best)


def measure(name: str, beams: list[int], work: Path, limit: float) -> list[dict]:
    "Word error, speed and memory of one search at several beams, the narrowest first."
    lexicon, model, sentences, trials = prepared(work)
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


def latency(work: Path, beam: int = 200) -> list[dict]:
    "CPU time of one 80 ms frame in a stream; asserts that streams equal whole trials."
    lexicon, model, _, trials = prepared(work)
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
    p50, p99 = np.percentile(times, [50, 99]).tolist()
    return [{"search": "stream", "beam": beam, "frames": len(times), "p50_ms": p50, "p99_ms": p99,
             "max_ms": max(times)}]


def searcher(name: str, lexicon: Lexicon, model: LanguageModel, config: SearchConfig, work: Path) -> Decode:
    "A search by its name."
    if name in OURS:
        search = BeamSearch(lexicon, model, config, name.partition(", ")[0], work)
        return lambda logits: best([search.decode(logits)])[0]
    others = {"kaldi-decoder": kaldi_alone, "torchaudio": torchaudio_alone, "pyctcdecode": pyctcdecode_alone,
              "flashlight-text": flashlight_alone, "flashlight, both": partial(flashlight_alone, both=True)}
    return others[name](lexicon, model, config, work)


def kaldi_alone(lexicon: Lexicon, model: LanguageModel, config: SearchConfig, work: Path) -> Decode:
    "kaldi-decoder as its own examples use it, on the graph that the kit has built."
    import kaldi_decoder
    import kaldifst

    from b2t_kit.decode.wfst import GraphSearch

    graph = GraphSearch(lexicon, model, config, work).graph
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
                     both: bool = False) -> Decode:
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
