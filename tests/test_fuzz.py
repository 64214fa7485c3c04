"""Readers under input that hypothesis makes up: a `KitError` of one line, or a right answer, and nothing else.

    pytest -q tests/test_fuzz.py                                    # about a minute
    B2T_FUZZ_EXAMPLES=20000 pytest -q tests/test_fuzz.py            # about an hour

What is not a matter of text (HDF5, archives, links, pipes, limits of memory) is in tests/hostile.py and test_bad_inputs.py.
"""
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from b2t_kit.core import KitError, load_json, read_text
from b2t_kit.data.download import read_token, unpack_archive
from b2t_kit.decode.files import read_nbest
from b2t_kit.decode.tune import read_tuning
from b2t_kit.doctor import diagnose_file
from b2t_kit.llm import KeptScores
from b2t_kit.lm import read_vocabulary
from b2t_kit.lm_kenlm import read_language_model
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
