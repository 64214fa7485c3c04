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
from b2t_kit.core import KitError
from b2t_kit.decode.search import BeamSearch
from b2t_kit.decode.files import check_logits
from b2t_kit.decode.search import SearchConfig
from b2t_kit.decode.files import read_nbest
from b2t_kit.decode.decode import LogitsFile, decode_sentences
from b2t_kit.decode.files import read_trials
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


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e9"])
def test_a_temperature_out_of_range_is_refused(tmp_path, value, capsys):
    file = sure_file(tmp_path / "logits.h5", 1.0)
    assert main(["decode", "--logits", str(file), "--temperature", value]) == 2
    assert "temperature: " in capsys.readouterr().err and not (tmp_path / "logits").exists()


def write(path: Path, content: object, **attributes: object) -> Path:
    "A file with one trial."
    with h5py.File(path, "w") as file:
        file["trial/logits"] = content
        file["trial"].attrs.update(attributes)
    return path


BAD_LOGITS = {
    "NaN": (lambda rows: np.where(rows > 5, np.nan, rows), "not a number"),
    "infinite": (lambda rows: np.where(rows > 5, np.inf, rows), "infinite"),
    "a frame of minus infinity": (lambda rows: np.vstack([rows, np.full((1, 41), -np.inf)]), "minus infinity"),
    "40 classes": (lambda rows: rows[:, :40], "(up to 10000, 41)"),
    "one dimension": (lambda rows: rows[0], "(up to 10000, 41)"),
    "three dimensions": (lambda rows: rows[None], "(up to 10000, 41)"),
    "no frames": (lambda rows: rows[:0], "is empty"),
    "whole numbers": (lambda rows: rows.astype(int), "floating-point"),
    "text": (lambda rows: np.array([["x"] * 41], dtype="S1"), "floating-point"),
    "probabilities": (lambda rows: np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True), "probabilities"),
    "one-hot classes": (lambda rows: 5.0 * np.eye(41)[rows.argmax(axis=1)], "not classes"),
    "constant": (lambda rows: np.zeros_like(rows), "same value"),
    "far too large": (lambda rows: rows * 1e9, "a million"),
}


@pytest.mark.parametrize("fault", BAD_LOGITS)
def test_bad_logits_are_named_and_nothing_is_written(fault, tmp_path, capsys):
    spoil, expected = BAD_LOGITS[fault]
    path = write(tmp_path / "theirs.h5", spoil(good_logits()))
    assert main(["decode", "--logits", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and expected in error and re.search("theirs.h5(, /|: )trial", error)
    assert [file.name for file in tmp_path.iterdir()] == ["theirs.h5"]


BAD_CALLS = {
    "neither run nor logits": ([], "give one of --run or --runs or --logits, not none"),
    "a missing file": (["--logits", "none.h5"], "none.h5"),
    "a beam of nothing": (["--logits", "GOOD", "--beam", "0"], "beam"),
    "a scale of nothing": (["--logits", "GOOD", "--acoustic-scale", "0"], "acoustic_scale"),
    "a reward for missing silences": (["--logits", "GOOD", "--missing-silence", "2"],
                                      "--missing-silence: must be in"),
    "a beam that is no number": (["--logits", "GOOD", "--beam", "wide"], "beam"),
    "a missing language model": (["--logits", "GOOD", "--lm", "none.arpa"], "none.arpa"),
    "a missing lexicon": (["--logits", "GOOD", "--lexicon", "none.txt"], "none.txt"),
    "nothing to tune on": (["--logits", "GOOD", "--tune"], "known sentences"),
}


@pytest.mark.parametrize("fault", BAD_CALLS)
def test_bad_calls_are_named_and_nothing_is_written(fault, tmp_path, monkeypatch, capsys):
    words, expected = BAD_CALLS[fault]
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "good.h5", good_logits())
    words = ["good.h5" if word == "GOOD" else word for word in words]
    assert main(["decode", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error:") and error.count("\n") == 1 and expected in error
    assert [file.name for file in tmp_path.iterdir()] == ["good.h5"]


def test_trials_that_share_a_place_are_refused(tmp_path):
    with h5py.File(tmp_path / "twice.h5", "w") as file:
        for name in "ab":
            file[f"{name}/logits"] = good_logits()
            file[name].attrs.update(session="day", block_num=1, trial_num=1)
    with pytest.raises(KitError, match="/b: has the same session, block and trial as .*/a"):
        read_trials(tmp_path / "twice.h5")


@pytest.mark.parametrize("link", [h5py.SoftLink("/nowhere"), h5py.SoftLink("/trial"), h5py.ExternalLink("theirs.h5", "/trial")],
                         ids=["to nothing", "to a trial", "to a file"])
def test_a_trial_that_is_a_link_is_not_left_out(link, tmp_path):
    path = write(tmp_path / "theirs.h5", good_logits())
    with h5py.File(path, "a") as file:
        file["other"] = link
    with pytest.raises(KitError, match="theirs.h5, /other: is a link"):
        read_trials(path)


def test_not_hdf5_and_nothing_in_it(tmp_path):
    (tmp_path / "text.h5").write_text("hello", encoding="utf-8")
    with pytest.raises(KitError, match="text.h5: is damaged or not an HDF5 file"):
        read_trials(tmp_path / "text.h5")
    h5py.File(tmp_path / "empty.h5", "w").close()
    with pytest.raises(KitError, match="no group with a dataset 'logits'"):
        read_trials(tmp_path / "empty.h5")


def test_log_probabilities_are_as_good_as_logits():
    rows = good_logits().astype(np.float64)
    normal = rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)
    search = BeamSearch(build_lexicon(WORDS), unigrams(WORDS))
    assert [one.words for one in search.decode(rows)] == [one.words for one in search.decode(normal)]
    assert check_logits(normal) is normal


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


@pytest.mark.parametrize("seed", range(12))
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


def test_streams_are_whole_trials_and_keep_up():
    search = BeamSearch(build_lexicon(), unigrams(tuple(build_lexicon().words)))
    for seed in range(3):
        logits = noisy_sentence("bring it closer so that i can see it", np.random.default_rng(seed))
        stream = search.stream()
        for frame in logits:
            stream.push(frame)
        assert stream.finish() == search.decode(logits)


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


HOTWORD_FILES = {
    "unknown phoneme": ("anna AE N AX", "line 2: word 'anna': 'AX'"),
    "no phonemes": ("anna(2)", "line 2: 'anna(2)' needs a pronunciation"),
    "boost that is not a number": ("anna AE N AH nan", "line 2: boost 'nan'"),
    "infinite boost": ("anna 1e999", "line 2: boost '1e999'"),
    "huge boost": ("anna 101", "from -100 to 100"),
    "control character": ("anna\x1b[31m AE N AH", "line 2: has a control character"),
    "word twice": ("anna AE N AH\nAnna AA N AH", "line 3: word 'anna' is also in line 2"),
    "two words": ("new york", "line 2: word 'new': 'YORK'"),
    "digits": ("r2d2", "line 2: 'r2d2' cannot occur"),
    "accent": ("caf\u00e9", "line 2: 'caf\u00e9' cannot occur"),
    "long word": ("a" * 100_000, "is longer than 60"),
    "long pronunciation": ("anna" + " AE" * 100_000, "is longer than 60"),
    "a million lines": ("".join(f"{''.join(chr(97 + int(d)) for d in str(n))} AE\n" for n in range(1_000_000)),
                        "line 10002: more than 10,000 hotwords"),
    "nothing": ("# nobody", "has no hotwords"),
    "not UTF-8": (b"anna\n\xff", "cannot be read as UTF-8"),
    "zeros": (b"\0" * 9999, "has a control character"),
}


@pytest.mark.parametrize("fault", HOTWORD_FILES)
def test_bad_hotwords_are_named_and_nothing_is_written(fault, tmp_path, capsys):
    content, expected = HOTWORD_FILES[fault]
    path = write(tmp_path / "theirs.h5", good_logits())
    names = tmp_path / "names.txt"
    names.write_bytes(content if isinstance(content, bytes) else f"# people\n{content}".encode())
    assert main(["decode", "--logits", str(path), "--hotwords", str(names)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"{names}" in error and expected in error and len(error) < 300 + len(str(names))
    assert error.removesuffix("\n").isprintable()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["names.txt", "theirs.h5"]


def test_the_command_hears_a_name(tmp_path, capsys):
    said = "would you like to see wojciechowski again"
    write(tmp_path / "theirs.h5", noisy_sentence(said, np.random.default_rng(0)), sentence_label=said)
    (tmp_path / "names.txt").write_text("Wojciechowski\n")
    words = ["decode", "--logits", str(tmp_path / "theirs.h5"), "--out", str(tmp_path / "out")]
    assert main(words) == 0 and "wojciechowski" not in (tmp_path / "out/sentences.csv").read_text(encoding="utf-8")
    assert main([*words, "--hotwords", str(tmp_path / "names.txt")]) == 0
    assert said in (tmp_path / "out/sentences.csv").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main([*words, "--hotwords", str(tmp_path / "absent.txt")]) == 2
    assert "absent.txt" in capsys.readouterr().err


def test_tuning_for_time(tmp_path, capsys):
    said = "would you like to go home"
    path = write(tmp_path / "theirs.h5", noisy_sentence(said, np.random.default_rng(0)), sentence_label=said)
    words = ["decode", "--logits", str(path), "--out", str(tmp_path / "out"), "--beam", "20", "--n-best", "5"]
    for wrong in (["--tune-seconds", "1"], ["--tune", "--tune-seconds", "0"], ["--tune", "--tune-seconds", "nan"]):
        assert main([*words, *wrong]) == 2 and "--tune-seconds" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*words, "--tune", "--tune-seconds", "1000"]) == 0
    said = capsys.readouterr().out
    assert "s per trial" in said and (tmp_path / "out/tuning.png").stat().st_size > 5000
    record = json.loads((tmp_path / "out/decoding.json").read_text(encoding="utf-8"))
    assert record["seconds_budget"] == 1000 and record["search"] in [one["search"] for one in record["tried"]]
