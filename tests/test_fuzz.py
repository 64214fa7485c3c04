"""Readers under input that hypothesis makes up: a `KitError` of one line, or a right answer, and nothing else.

    pytest -q tests/test_fuzz.py                                    # about a minute
    B2T_FUZZ_EXAMPLES=20000 pytest -q tests/test_fuzz.py            # about an hour

What is not a matter of text (HDF5, archives, links, pipes, limits of memory) is in tests/hostile.py.
"""
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from b2t_kit.core import KitError, load_json, read_text
from b2t_kit.data.dataset import MAX_VALUE, Recordings, check_folder
from b2t_kit.data.download import read_token, unpack_archive
from b2t_kit.data.convert import tiny_recordings
from b2t_kit.decode.files import read_nbest
from b2t_kit.decode.tune import read_tuning
from b2t_kit.doctor import diagnose_file
from b2t_kit.llm import KeptScores
from b2t_kit.lm import read_language_model
from b2t_kit.lm import read_vocabulary
from b2t_kit.models.gru import load_pretrained, read_args
from b2t_kit.models.published import read_tensors
from b2t_kit.output.report import read_description
from b2t_kit.output.submission import check_submission, read_sentences
from b2t_kit.simulate import read_prompts
from b2t_kit.speech.evaluate import load_decoder
from b2t_kit.text.g2p import read_lexicon
from b2t_kit.training.checkpoint import checkpoint_fault, checkpoint_folders, read_best, read_state
from b2t_kit.training.log import read_metrics

EXAMPLES = int(os.environ.get("B2T_FUZZ_EXAMPLES", "60"))
fuzz = settings(max_examples=EXAMPLES, deadline=None, database=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
    st.sampled_from(["task", "name", "config", "files", "bytes", "step", "metric", "value", "data", "model", "hypotheses",
                     "session", "block_num", "trial_num", "sentence"]) | st.text(max_size=5), inner, max_size=5), max_leaves=15)
words = st.sampled_from(["\\data\\", "ngram 1=3", "ngram 2=1", "\\1-grams:", "\\2-grams:", "\\end\\", "-1.0\t<s>\t-0.3", "-0.5\t</s>",
                         "-0.7\ttea\t0", "id,text", "sentence", "0,we can", "1,we", "tea T IY", "tea T XX", '"', ",,,", "", "#",
                         "Date,Post-implant day,Block number,Number of sentences,Corpus,Split", "a" * 200_000, "9" * 5000, "2023-08-11,25,1,5,X,Train",
                         "RESOURCE_EXHAUSTED: Attempted to allocate 12.00G", "{}", '{"step": 1}', "[", "---", "a: *a", "NaN"])
lines = st.lists(words | st.text(max_size=30), max_size=30).map("\n".join)
contents = lines.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=300) | values.map(
    lambda value: json.dumps(value).encode())
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats() | st.booleans()

READERS: dict[str, Callable[[Path], object]] = {
    "model.arpa": read_language_model, "model.b2tlm": read_language_model, "lexicon.txt": read_lexicon,
    "prompts.csv": read_prompts, "prompts.txt": read_prompts, "rows.csv": read_sentences, "sub.csv": check_submission,
    "description.csv": read_description, "nbest.jsonl": lambda path: list(read_nbest(path)), "args.yaml": read_args,
    "metrics.jsonl": read_metrics, "log.txt": diagnose_file, "any.json": load_json, "any.txt": read_text,
    "best_checkpoint": lambda path: load_pretrained(path.parent), "config.json": lambda path: load_decoder(path.parent),
    ".complete": lambda path: checkpoint_fault(path.parent), "best": lambda path: read_best(path.parent),
    "rolling.json": lambda path: checkpoint_folders(path.parent), "state.json": lambda path: read_state(path.parent),
    "vocabulary.txt": read_vocabulary, "token.txt": read_token, "mean.pth": read_tensors,
    "decoding.json": lambda path: read_tuning(path).settings({"language_model": "a" * 32}),
    "scores.json": lambda path: KeptScores(SimpleNamespace(known={}, key="model"), path),
    "data.zip": lambda path: unpack_archive(path, path.parent / "unpacked", progress=False),
}
if find_spec("b2t_kit.tasks"):  # a wing
    READERS["0.npz"] = lambda path: import_module("b2t_kit.tasks.eit").Measurements(path.parent)[0]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder for the inputs."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", READERS)
@fuzz
@given(content=contents)
def test_reader_of_a_file(name: str, place: Path, content: bytes) -> None:
    """Any bytes, and lines that nearly belong there."""
    folder = place / name.replace(".", "_")
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    try:
        READERS[name](folder / name)
    except KitError as error:
        assert 0 < len(str(error)) < 3000


def altered(place: Path, change: Callable[[h5py.Group], object]) -> tuple[list[str], list[str]]:
    """What the reader and the check say of recordings of a trial that is changed."""
    root = tiny_recordings(tempfile.mkdtemp(dir=place), sessions=1, trials=1, max_bins=41)
    with h5py.File(root / "t15.2023.08.01/data_train.hdf5", "r+") as file:
        change(file["trial_0000"])
    read = list[str]()
    try:
        with Recordings(root) as recordings:
            assert len(list(recordings)) == 1
    except KitError as error:
        read = [str(error)]
    return read, [str(one) for one in check_folder(root)]


@fuzz
@given(name=st.sampled_from(["n_time_steps", "seq_len", "block_num", "trial_num", "session", "sentence_label"]),
       value=numbers | st.text(max_size=20).filter(lambda text: "\0" not in text and text.isprintable()))
def test_attribute_of_a_recording(place: Path, name: str, value: object) -> None:
    """The reader and the check agree on every attribute."""
    read, listed = altered(place, lambda trial: trial.attrs.__setitem__(name, value))
    assert bool(listed) >= bool(read)
    assert all("trial_0000/" in line and line.isprintable() for line in [*listed, *read])


@fuzz
@given(bin_=st.integers(0, 39), value=st.floats(width=32))
def test_feature_of_a_recording(place: Path, bin_: int, value: float) -> None:
    """A number is refused exactly if it is not finite, or beyond the limit."""
    read, listed = altered(place, lambda trial: trial["input_features"].__setitem__((bin_, 7), value))
    assert bool(read) == bool(listed) == (not math.isfinite(value) or abs(value) > MAX_VALUE)


@fuzz
@given(shape=st.lists(st.integers(0, 2**40) | st.sampled_from([500, 512, 41]), max_size=3).map(tuple),
       kind=st.sampled_from(["f2", "f4", ">f8", "i1", "u8", "S5", "?"]), field=st.sampled_from(["input_features", "seq_class_ids"]),
       chunked=st.booleans())
def test_declared_form_of_a_recording(place: Path, shape: tuple, kind: str, field: str, chunked: bool) -> None:
    """A dataset of any shape and type that was never written is refused, without reading it."""
    def declare(trial: h5py.Group) -> None:
        del trial[field]
        chunks = tuple(min(max(one, 1), 8) for one in shape) if chunked and shape and min(shape) else None
        trial.create_dataset(field, shape, np.dtype(kind), chunks=chunks)

    try:
        read, listed = altered(place, declare)
    except (OSError, RuntimeError, ValueError):
        return  # HDF5 does not make it
    assert read and listed
