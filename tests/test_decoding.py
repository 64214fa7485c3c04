"""From logits to sentences: bad files, exactness, streams, command line."""
import re
import itertools
import json
import math
from pathlib import Path

import h5py
import numpy as np
import pytest

from b2t_kit.cli import main
from b2t_kit.decode.search import BeamSearch, SearchConfig
from b2t_kit.decode.files import read_nbest
from b2t_kit.decode.decode import LogitsFile, decode_sentences
from b2t_kit.text.lexicon import Lexicon, build_lexicon
from b2t_kit.lm import LanguageModel, from_ngrams
from b2t_kit.simulate import noisy_sentence
from b2t_kit.text.phonemes import BLANK, SILENCE, to_phonemes

WORDS = ("to", "two", "it", "see", "sea", "i", "would", "wood")


def unigrams(words: tuple[str, ...], favourite: str = "") -> LanguageModel:
    "A model in which one word is likelier than the others."
    known = {(word,): -1.0 if word == favourite else -2.0 for word in words}
    first = {("<unk>",): -9.0, ("<s>",): -99.0, ("</s>",): -1.0}
    return from_ngrams(first | known)


def good_logits() -> np.ndarray:
    return noisy_sentence("i would see it", np.random.default_rng(0))


SAID = ("I would see it.", "It would see two.", "I see it too.", "Two would see it.")


def sure_file(path: Path, factor: float, truths: tuple[str | None, ...] = SAID) -> Path:
    "Logits of some sentences times a factor, as another program would leave them."
    with h5py.File(path, "w") as file:
        for number, (said, truth) in enumerate(zip(SAID, truths, strict=True)):
            file[f"{number}/logits"] = factor * noisy_sentence(said, np.random.default_rng(number))
            file[str(number)].attrs.update({} if truth is None else {"sentence_label": truth})
    return path


@pytest.mark.parametrize("truths, how", [(SAID, "fitted"), ((None,) * 4, "estimated")], ids=["labels", "no labels"])
def test_words_do_not_depend_on_how_sure_a_network_is(tmp_path, truths, how):
    "Logits times 4 are divided by four times the temperature: the same sentences with the same scores."
    found = {factor: decode_sentences(LogitsFile(sure_file(tmp_path / f"{factor}.h5", factor, truths)), "default")
             for factor in (1.0, 4.0, 3.7)}
    assert {one.calibration.source for one in found.values()} == {how}
    assert found[4.0].calibration.temperature == 4 * found[1.0].calibration.temperature
    assert found[4.0].trials == found[1.0].trials
    assert [one.sentence for one in found[3.7].trials] == [one.sentence for one in found[1.0].trials]
    raw = decode_sentences(LogitsFile(tmp_path / "4.0.h5"), "default", temperature=1.0)
    assert raw.trials != found[4.0].trials and raw.calibration.source == "given"


def write(path: Path, content: object, **attributes: object) -> Path:
    "A file with one trial."
    with h5py.File(path, "w") as file:
        file["trial/logits"] = content
        file["trial"].attrs.update(attributes)
    return path


def refused(words: list[str], folder: Path, capsys: pytest.CaptureFixture) -> str:
    "The one line with which `b2t decode` ends; nothing is written."
    before = sorted(folder.iterdir())
    assert main(["decode", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error:") and error.count("\n") == 1 and error.removesuffix("\n").isprintable()
    assert sorted(folder.iterdir()) == before and len(error) < 400
    return error


BAD_LOGITS = {  # more in decode/files
    "NaN": (lambda rows: np.where(rows > 5, np.nan, rows), "not a number"),
    "40 classes": (lambda rows: rows[:, :40], "(up to 10000, 41)"),
    "three dimensions": (lambda rows: rows[None], "(up to 10000, 41)"),
    "no frames": (lambda rows: rows[:0], "is empty"),
    "strings": (lambda rows: np.array([["x"] * 41], dtype="S1"), "floating-point"),
    "probabilities": (lambda rows: np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True), "probabilities"),
    "far too large": (lambda rows: rows * 1e9, "a million"),
}
BAD_FILES = {
    "a link to nothing": (lambda file: file.update({"other": h5py.SoftLink("/nowhere")}), "/other: is a link"),
    "a link to a trial": (lambda file: file.update({"other": h5py.SoftLink("/trial")}), "/other: is a link"),
    "a link to a file": (lambda file: file.update({"other": h5py.ExternalLink("x.h5", "/trial")}), "/other: is a link"),
    "a place twice": (lambda file: file.copy("trial", "twice"), "/twice: has the same session, block and trial as"),
    "nothing in it": (lambda file: file.pop("trial"), "no group with a dataset 'logits'"),
}
BAD_CALLS = {
    "": "give one of --run or --runs or --logits, not none",
    "--logits none.h5": "none.h5",
    "--logits text.h5": "text.h5: is damaged or not an HDF5 file",
    "--logits good.h5 --beam 0": "beam",
    "--logits good.h5 --beam wide": "beam",
    "--logits good.h5 --acoustic-scale 0": "acoustic_scale",
    "--logits good.h5 --missing-silence 2": "--missing-silence: must be in",
    "--logits good.h5 --lm none.arpa": "none.arpa",
    "--logits good.h5 --lexicon none.txt": "none.txt",
    "--logits good.h5 --hotwords none.txt": "none.txt",
    "--logits good.h5 --tune": "known sentences",
    "--logits good.h5 --tune-seconds 1": "tune-seconds",
    "--logits good.h5 --tune --tune-seconds 0": "tune-seconds",
    "--logits good.h5 --tune --tune-seconds nan": "tune-seconds",
    **{f"--logits good.h5 --temperature {value}": "temperature: " for value in ("0", "-1", "nan", "inf", "1e9")},
}
HOTWORD_FILES = {  # more in decode/search
    "unknown phoneme": ("anna AE N AX", "line 2: word 'anna': 'AX'"),
    "control character": ("anna\x1b[31m AE N AH", "line 2: has a control character"),
    "long pronunciation": ("anna" + " AE" * 100_000, "is longer than 60"),
    "too many lines": ("".join(f"{''.join(chr(97 + int(d)) for d in str(n))} AE\n" for n in range(20_000)),
                       "line 10002: more than 10,000 hotwords"),
    "not UTF-8": (b"anna\n\xff", "cannot be read as UTF-8"),
    "zeros": (b"\0" * 9999, "has a control character"),
}


def test_what_cannot_be_decoded_is_named_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    "Logits, files, calls and lists of hotwords."
    monkeypatch.chdir(tmp_path)
    rows = good_logits()
    Path("text.h5").write_text("hello", encoding="utf-8")
    for path, (spoil, expected) in [(Path(f"{name}.h5"), case) for name, case in BAD_LOGITS.items()]:
        error = refused(["--logits", str(write(path, spoil(rows)))], tmp_path, capsys)
        assert expected in error and re.search(f"{path}(, /|: )trial", error), error
    for path, (spoil, expected) in [(Path(f"{name}.h5"), case) for name, case in BAD_FILES.items()]:
        with h5py.File(write(path, rows, session="day", block_num=1, trial_num=1), "a") as file:
            spoil(file)
        assert f"{path}" in (error := refused(["--logits", str(path)], tmp_path, capsys)) and expected in error, error
    write(Path("good.h5"), rows)
    for words, expected in BAD_CALLS.items():
        assert expected in (error := refused(words.split(), tmp_path, capsys)), error
    for content, expected in HOTWORD_FILES.values():
        Path("names.txt").write_bytes(content if isinstance(content, bytes) else f"# people\n{content}".encode())
        error = refused("--logits good.h5 --hotwords names.txt".split(), tmp_path, capsys)
        assert "names.txt" in error and expected in error, error


def every_reading(rows: np.ndarray, lexicon: Lexicon, missing: float, best_path: bool) -> dict:
    "ln P(logits | words) of every sentence, from all paths through the frames."
    used = sorted({BLANK, SILENCE} | {label for _, form in lexicon.entries for label in form})
    found: dict[tuple, list] = {}

    def cut(labels: list[int], words: tuple, heard: bool, cost: float) -> None:
        if not labels:
            found.setdefault(words, []).append(score + cost)
        elif labels[0] == SILENCE:
            cut(labels[1:], words, True, cost)
        for word, form in lexicon.entries if labels else ():
            if tuple(labels[: len(form)]) == form:
                paid = cost if heard else cost + missing
                cut(labels[len(form):], (*words, lexicon.words[word]), False, paid)

    for path in itertools.product(used, repeat=len(rows)):
        score = sum(row[label] for row, label in zip(rows, path))
        cut([label for label, _ in itertools.groupby(path) if label != BLANK], (), True, 0.0)
    together = max if best_path else np.logaddexp.reduce
    return {words: together(scores) for words, scores in found.items()}


@pytest.mark.parametrize("seed", range(8))
def test_a_wide_beam_finds_what_brute_force_finds(seed):
    generator = np.random.default_rng(seed)
    forms = {name: [tuple(to_phonemes(generator.integers(1, 4, generator.integers(1, 4))))
                    for _ in range(generator.integers(1, 3))] for name in "abcd"[: 1 + seed % 4]}
    lexicon, names = Lexicon(forms), tuple(forms)
    pairs = {pair: -float(generator.uniform(0.2, 3)) for pair in itertools.product(names, names)}
    model = from_ngrams(
        {("<unk>",): -9.0, ("<s>",): -99.0, ("</s>",): -1.3}
        | {(name,): -float(generator.uniform(1, 3)) for name in names} | pairs,
        {(name,): -0.4 for name in names})
    logits = np.full((int(generator.integers(3, 6)), 41), -50.0)
    logits[:, [0, 1, 2, 3, 40]] = generator.normal(0, 2, (len(logits), 5))
    config = SearchConfig(0.7, 3.0, 0.4, -1.5 * (seed % 2), 100_000, 1e6, 1e6, 100_000, bool(seed % 3 == 0))
    rows = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    rows[:, BLANK] -= math.log(config.blank_penalty)
    expected = every_reading(rows, lexicon, config.missing_silence, config.best_path)
    found = BeamSearch(lexicon, model, config).decode(logits)
    assert {one.words for one in found if one.acoustic > -40} == {
        words for words, score in expected.items() if score > -40}
    for one in found:
        assert math.isclose(one.acoustic, expected[one.words], abs_tol=1e-6)
        assert math.isclose(one.language, model.sentence(one.words), abs_tol=1e-4)
        assert one.total == config.total(one.acoustic, one.language, one.num_words)
    totals = {words: config.total(score, model.sentence(words), len(words))
              for words, score in expected.items()}
    assert math.isclose(found[0].total, max(totals.values()), abs_tol=1e-4)


def test_fourteen_homophones_each_come_first_when_they_are_likeliest():
    crowd = tuple(f"{letter}o" for letter in "abcdefghijklmn")
    lexicon = build_lexicon(crowd, own=dict.fromkeys(crowd, "T UW"))
    logits = noisy_sentence("two", np.random.default_rng(0))
    for favourite in crowd:
        found = BeamSearch(lexicon, unigrams(crowd, favourite)).decode(logits)
        assert found[0].words == (favourite,) and {one.sentence for one in found} >= set(crowd)


def test_the_command_decodes_anybodys_logits(tmp_path, capsys):
    with h5py.File(tmp_path / "theirs.h5", "w") as file:
        for number in (10, 2, 1):
            group = file.create_group(f"trial{number}")
            group["logits"] = noisy_sentence("would you like to go home", np.random.default_rng(number))
            group.attrs.update(session="day", block_num=1, trial_num=number,
                               sentence_label="Would you like to go home?")
    words = ["decode", "--logits", str(tmp_path / "theirs.h5"), "--out", str(tmp_path / "out"), "--beam", "60"]
    assert main(words) == 0
    assert "word error rate" in capsys.readouterr().out
    result = json.loads((tmp_path / "out/result.json").read_text(encoding="utf-8"))
    assert result["trials"] == 3 and result["words"] == 18 and result["search"]["beam"] == 60
    assert [one.trial for one in read_nbest(tmp_path / "out/nbest.jsonl")] == [1, 2, 10]


def test_the_command_hears_a_name(tmp_path):
    said = "would you like to see wojciechowski again"
    write(tmp_path / "theirs.h5", noisy_sentence(said, np.random.default_rng(0)), sentence_label=said)
    (tmp_path / "names.txt").write_text("Wojciechowski\n")
    words = ["decode", "--logits", str(tmp_path / "theirs.h5"), "--out", str(tmp_path / "out")]
    assert main(words) == 0 and "wojciechowski" not in (tmp_path / "out/sentences.csv").read_text(encoding="utf-8")
    assert main([*words, "--hotwords", str(tmp_path / "names.txt")]) == 0
    assert said in (tmp_path / "out/sentences.csv").read_text(encoding="utf-8")


def test_tuning_for_time(tmp_path, capsys):
    said = "would you like to go home"
    path = write(tmp_path / "theirs.h5", noisy_sentence(said, np.random.default_rng(0)), sentence_label=said)
    words = ["decode", "--logits", str(path), "--out", str(tmp_path / "out"), "--beam", "20", "--n-best", "5"]
    assert main([*words, "--tune", "--tune-seconds", "1000"]) == 0
    said = capsys.readouterr().out
    assert "s per trial" in said and (tmp_path / "out/tuning.png").stat().st_size > 5000
    record = json.loads((tmp_path / "out/decoding.json").read_text(encoding="utf-8"))
    assert record["seconds_budget"] == 1000 and record["search"] in [one["search"] for one in record["tried"]]
