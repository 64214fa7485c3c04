"""From logits to sentences: how sure a network is, names, files of other programs, and what is refused."""
from pathlib import Path

import h5py
import numpy as np
import pytest
from safetensors.numpy import save_file

from b2t_kit.cli import main
from b2t_kit.decode.decode import decode_sentences
from b2t_kit.decode.sources import LogitsFile
from b2t_kit.lm.grammar import default_language_model
from b2t_kit.simulate.logits import noisy_sentence


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
    words = tmp_path / "words.b2tlm"
    default_language_model().save(words)
    found = {factor: decode_sentences(LogitsFile(sure_file(tmp_path / f"{factor}.h5", factor, truths)), words)
             for factor in (1.0, 4.0, 3.7)}
    assert {one.calibration.source for one in found.values()} == {how}
    assert found[4.0].calibration.temperature == 4 * found[1.0].calibration.temperature
    assert found[4.0].trials == found[1.0].trials
    assert [one.sentence for one in found[3.7].trials] == [one.sentence for one in found[1.0].trials]
    raw = decode_sentences(LogitsFile(tmp_path / "4.0.h5"), words, temperature=1.0)
    assert raw.trials != found[4.0].trials and raw.calibration.source == "given"


def write(path: Path, content: object, **attributes: object) -> Path:
    with h5py.File(path, "w") as file:
        file["trial/logits"] = content
        file["trial"].attrs.update(attributes)
    return path


BAD_FILES = {  # values that cannot be logits are in decode/files
    "NaN": (lambda file: file["trial/logits"].write_direct(np.full((1, 41), np.nan, np.float32), dest_sel=np.s_[6:7]),
            "trial: frame 6 has a value that is not a number"),
    "a link to nothing": (lambda file: file.update({"other": h5py.SoftLink("/nowhere")}), "/other: is a link"),
    "a link to a file": (lambda file: file.update({"other": h5py.ExternalLink("x.h5", "/trial")}), "/other: is a link"),
    "a place twice": (lambda file: file.copy("trial", "twice"), "/twice: has the same session, block and trial as"),
    "nothing in it": (lambda file: file.pop("trial"), "no group with a dataset 'logits'"),
}
BAD_CALLS = {
    "": "give one of --run, --runs, --logits, not none",
    "--logits none.h5": "none.h5",
    "--logits text.h5": "text.h5: is damaged or not an HDF5 file",
    "--logits good.h5 --beam 0": "beam",
    "--logits good.h5 --missing-silence 2": "--missing-silence: must be in",
    "--logits good.h5 --lm none.arpa": "none.arpa",
    "--logits good.h5 --lexicon none.txt": "none.txt",
    "--logits good.h5 --hotwords none.txt": "none.txt",
    "--logits good.h5 --tune": "known sentences",
    "--logits good.h5 --temperature nan": "temperature: ",
    "--logits good.h5 --temperature 1e9": "temperature: ",
}
BAD_HOTWORDS = {  # lines are in decode/search
    b"anna\nbertha AE N AX": "line 2: 'AX'",
    "".join(f"{''.join(chr(97 + int(digit)) for digit in str(number))} AE\n" for number in range(20_000)).encode():
        "more than 10,000",
    b"anna\n\xff": "cannot be read as UTF-8",
    b"\0" * 9999: "is longer than 60",
}


def test_what_cannot_be_decoded_is_named_and_nothing_is_written(tmp_path, monkeypatch, refused):
    "Files, calls and lists of hotwords."
    monkeypatch.chdir(tmp_path)
    Path("text.h5").write_text("hello", encoding="utf-8")
    for name, (spoil, expected) in BAD_FILES.items():
        with h5py.File(write(Path(f"{name}.h5"), good_logits(), session="day", block_num=1, trial_num=1), "a") as file:
            spoil(file)
        assert f"{name}.h5" in (error := refused(["decode", "--logits", f"{name}.h5"])) and expected in error, error
    write(Path("good.h5"), good_logits())
    for words, expected in BAD_CALLS.items():
        assert expected in (error := refused(f"decode {words}")), error
    for content, expected in BAD_HOTWORDS.items():
        Path("names.txt").write_bytes(content)
        error = refused("decode --logits good.h5 --hotwords names.txt")
        assert "names.txt" in error and expected in error, error


@pytest.mark.second_tier
def test_trials_are_called_as_their_arrays_are(tmp_path, capsys):
    "Of any name; with these they meet the sentences of other programs, and without names those in their order."
    rows = [noisy_sentence(said, np.random.default_rng(number)) for number, said in enumerate(SAID)]
    np.savez(tmp_path / "named.npz", **{f"S02_{number:02}_quiet": one for number, one in enumerate(rows)})
    np.savez(tmp_path / "numbered.npz", **{f"trial_{number}": one for number, one in zip((100, 9, 10, 11), rows)})
    np.savez(tmp_path / "positional.npz", *rows)
    for name in ("named", "numbered", "positional"):
        assert main(["decode", "--logits", str(tmp_path / f"{name}.npz")]) == 0
    table = (tmp_path / "named/sentences.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert [line.split(",")[2:] for line in table] == [[f"S02_{number:02}_quiet", "0", "0"] for number in range(4)]
    numbered = (tmp_path / "numbered/sentences.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert [line.split(",")[2:] for line in numbered] == [["trial", "0", number] for number in ("9", "10", "11", "100")]
    (tmp_path / "text").write_text("".join(f"S02_{number:02}_quiet {said}\n" for number, said in enumerate(SAID)))
    for other in ("text", "positional.npz"):
        assert main(["combine", str(tmp_path / "named.npz"), str(tmp_path / other), "--out", str(tmp_path / "all.csv")]) == 0
        assert (tmp_path / "all.csv").read_text(encoding="utf-8").splitlines()[4].startswith("S02_03_quiet,0,0,")


@pytest.mark.second_tier
def test_logits_as_programs_leave_them(tmp_path, monkeypatch, refused):
    "A batch beside its lengths and other things, tensors of any file, HDF5 without groups: the same sentences; or one line."
    monkeypatch.chdir(tmp_path)
    rows = {f"utt_{number}": noisy_sentence(said, np.random.default_rng(number)) for number, said in enumerate(SAID)}
    lengths = np.array([len(one) for one in rows.values()])
    batch = np.zeros((len(rows), lengths.max(), 41), np.float32)
    for place, one in zip(batch, rows.values()):
        place[:len(one)] = one
    np.savez("batch.npz", log_probs=batch, lengths=lengths, ids=np.arange(4), texts=np.array(SAID))
    np.savez("floats.npz", log_probs=batch, out_len=lengths.astype(float))
    save_file(rows, "rows.safetensors")
    with h5py.File("rows.h5", "w") as file, h5py.File("root.h5", "w") as other:
        file.update(rows)
        other.update({"logits": batch, "lengths": lengths})
    np.savez("rows.npz", **rows)
    sentences = {name: [line.split(",")[1] for line in (decoded(name) / "sentences.csv").read_text().splitlines()]
                 for name in ("rows.npz", "batch.npz", "floats.npz", "rows.safetensors", "rows.h5", "root.h5")}
    assert all(found == sentences["rows.npz"] for found in sentences.values()), sentences
    np.save("turned.npy", batch.transpose(0, 2, 1))
    np.save("objects.npy", np.array([*rows.values()], object), allow_pickle=True)
    Path("table.csv").write_text("0,1\n")
    for name, expected in (("turned.npy", "exchange its axes"), ("objects.npy", "numpy.savez("), ("table.csv", "read from HDF5")):
        assert expected in (error := refused(f"decode --logits {name}")), error


def decoded(name: str) -> Path:
    assert main(["decode", "--logits", name, "--out", f"of_{name}"]) == 0
    return Path(f"of_{name}")
