"Fetching other sets than T15's copy task, from the test server of test_fetch.py."
import hashlib
import json
import sys
from types import SimpleNamespace

import test_fetch

from b2t_kit.importers.sets import fetch_set
from test_fetch import CONTENT, zip_of

serve = test_fetch.serve  # the fixture


def test_set_shows_terms_first(serve, tmp_path, monkeypatch):
    """Another set: its licence and terms are shown and kept, files come from the archive's list, and it is unpacked."""
    archive = zip_of({"t15_neural_data/t15_day025/t15_day025_neural_data.mat": CONTENT})
    server = serve(files={"README.md": b"read me", "t15_neural_data.zip": archive, "other.zip": b"x" * 10},
                   token="secret")
    said = []

    def tell(text: str) -> None:
        assert not server.behaviour.log and not any((tmp_path / "out").iterdir())  # nothing is fetched before
        said.append(text)

    found = fetch_set("brain-to-voice", tmp_path / "out", "secret", progress=False, base_url=server.url, tell=tell)
    assert found == [tmp_path / "out/t15_neural_data"]
    assert (found[0] / "t15_day025/t15_day025_neural_data.mat").read_bytes() == CONTENT
    assert "CC0-1.0" in said[0] and "Do not try to identify" in said[0] and "quarantines" in said[0]
    kept = json.loads((tmp_path / "out/terms.json").read_text())
    assert kept["licence"].endswith("CC0-1.0.html") and [one["name"] for one in kept["files"]] == ["t15_neural_data.zip"]
    assert kept["files"][0]["size"] == len(archive) and kept["files"][0]["digest"] == hashlib.sha256(archive).hexdigest()
    assert [name for name, *_ in server.behaviour.log] == ["t15_neural_data.zip"]
    again = fetch_set("brain-to-voice", tmp_path / "out", None, progress=False, base_url=server.url, tell=said.append)
    assert again == found and len(server.behaviour.log) == 1


def test_a_set_from_dandi(tmp_path, monkeypatch):
    """Its terms are shown and kept too; DANDI's client lists and checks the files."""
    monkeypatch.setitem(sys.modules, "dandi.download", SimpleNamespace(
        download=lambda *words, **more: None, DownloadExisting=SimpleNamespace(REFRESH="refresh")))
    said = []
    assert fetch_set("h2", tmp_path / "h2", "secret", tell=said.append) == [tmp_path / "h2/000950"]
    assert "dandiset/000950" in said[0] and "licence: " in said[0] and (tmp_path / "h2/terms.json").is_file()
