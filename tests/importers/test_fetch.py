"Fetching recordings and models: a server that misbehaves on demand, archives that are damaged, clients that fail."
import hashlib
import io
import json
import signal
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from b2t_kit.core.errors import KitError
from b2t_kit.importers import download as download_module
from b2t_kit.data.dataset import find_recordings
from b2t_kit.importers.download import ARCHIVES, download, fetch, fetch_language_model, list_files
from commands import start

SESSION = "hdf5_data_final/t15.2023.08.11/data_train.hdf5"
CONTENT = bytes(range(256)) * 3000
ARCHIVE, BASELINE = ARCHIVES.values()


def zip_of(contents: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@dataclass
class Behaviour:
    "The files of the server, and its faults."
    files: dict[str, bytes] = field(default_factory=lambda: {
        ARCHIVE: zip_of({SESSION: CONTENT}), "README.md": b"read me",
        BASELINE: zip_of({"t15_pretrained_rnn_baseline/checkpoint/best_checkpoint": b"weights"})})
    break_after: list[int] = field(default_factory=list)  # bytes to send before each break
    refuse: list[int] = field(default_factory=list)  # status of the next downloads
    ranges: bool = True  # honour Range
    token: str | None = None  # needed for downloads
    digest: str | None = "sha-256"  # announced, None: none
    wrong: bytes = b""  # makes the digest wrong
    announce: int | None = None  # another size than the true one
    redirect_to: str | None = None  # storage on another host
    answer: object = None  # instead of every answer of the service
    pause: float = 0.0  # seconds between blocks of a download
    log: list[tuple[str, str | None, str | None]] = field(default_factory=list)  # name, range and token of downloads


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def answer(self, status: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def reply(self, body: object) -> None:
        self.answer(200, json.dumps(body).encode())

    def do_GET(self) -> None:
        behaviour, (place, _, page) = self.server.behaviour, self.path.partition("?page=")
        if place.startswith("/file/"):
            self.send_file(place.removeprefix("/file/"), behaviour)
        elif behaviour.answer is not None:
            self.reply(behaviour.answer)
        elif place.endswith("/versions") and "doi%3A10.5061%2F" in place:
            self.reply({"_embedded": {"stash:versions": [
                {"_links": {"stash:files": {"href": f"/api/v2/versions/{number}/files"}}} for number in (1, 2)]}})
        elif place == "/api/v2/versions/2/files":  # a file a page
            number = int(page or 1)
            more = {"next": {"href": f"{place}?page={number + 1}"}} if number < len(behaviour.files) else {}
            self.reply({"_embedded": {"stash:files": [self.entry(list(behaviour.files)[number - 1], behaviour)]}, "_links": more})
        elif place.startswith("/api/v2/datasets/"):
            self.reply({"license": "https://spdx.org/licenses/CC0-1.0.html"})
        else:
            self.send_error(404)

    def entry(self, name: str, behaviour: Behaviour) -> dict:
        content = behaviour.files[name]
        entry = {"path": name, "size": behaviour.announce or len(content), "_links": {"stash:download": {"href": f"/file/{name}"}}}
        return entry | ({"digestType": behaviour.digest, "digest": hashlib.sha256(content + behaviour.wrong).hexdigest()}
                        if behaviour.digest else {})

    def send_file(self, name: str, behaviour: Behaviour) -> None:
        asked, given = self.headers.get("Range"), self.headers.get("Authorization")
        behaviour.log.append((name, asked, given))
        if behaviour.refuse or behaviour.token and given != f"Bearer {behaviour.token}":
            return self.send_error(behaviour.refuse.pop(0) if behaviour.refuse else 401)
        if behaviour.redirect_to:
            return self.answer(302, Location=f"{behaviour.redirect_to}/file/{name}")
        content = behaviour.files[name]
        start = int(asked[6:].rstrip("-")) if asked and behaviour.ranges else 0
        if start >= len(content):
            return self.send_error(416)
        span = {"Content_Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        self.answer(206 if start else 200, **{"Content-Length": str(len(content) - start)}, **span)
        end = start + behaviour.break_after.pop(0) if behaviour.break_after else len(content)
        for place in range(start, min(end, len(content)), 1 << 16):
            self.wfile.write(content[place:min(place + (1 << 16), end)])
            self.wfile.flush()
            time.sleep(behaviour.pause)
        if end < len(content):
            self.connection.close()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, **options):
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviour, self.url = Behaviour(**options), f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        pass  # a client that left, or a connection we broke


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers = []

    def start(**options) -> Server:
        servers.append(Server(**options))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def fetch_from(server: Server, out: Path, **options) -> list[Path]:
    return fetch(out, base_url=server.url, progress=False, **options)


def download_from(server: Server, folder: Path) -> Path:
    file = next(file for file in list_files(base_url=server.url) if file.name == ARCHIVE)
    return download(file, folder, progress=False, base_url=server.url, pause=0)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "terms.json")


def ranges(server: Server) -> list[str | None]:
    return [asked for _, asked, _ in server.behaviour.log]


def test_fetches_checks_and_unpacks_only_what_was_asked_for(serve, tmp_path):
    "Terms are shown before the first byte and kept; a second run asks nothing; an empty folder is fetched again."
    server, said = serve(), []
    (tmp_path / SESSION).parent.mkdir(parents=True)
    assert fetch_from(server, tmp_path, tell=lambda text: said.append((text, len(server.behaviour.log)))) == [
        tmp_path / "hdf5_data_final"]
    assert (tmp_path / SESSION).read_bytes() == CONTENT
    assert names_in(tmp_path) == ["hdf5_data_final"] and [name for name, *_ in server.behaviour.log] == [ARCHIVE]
    ((text, begun),) = said
    assert not begun and all(word in text for word in ("CC0-1.0", "Do not try to identify", ARCHIVE))
    assert json.loads((tmp_path / "terms.json").read_text())["set"] == "t15"
    server.behaviour.answer = 5
    assert fetch_from(server, tmp_path) == [tmp_path / "hdf5_data_final"] and len(server.behaviour.log) == 1


def test_baseline_on_request(serve, tmp_path):
    "Also where no checksum was announced."
    recordings, folder = fetch_from(serve(digest=None), tmp_path, baseline=True)
    assert (folder / "checkpoint/best_checkpoint").read_bytes() == b"weights"
    assert names_in(tmp_path) == sorted([recordings.name, folder.name])


@pytest.mark.parametrize("faults, leftover, asked", [
    ({"break_after": [100_000, 200_000, 50_000]}, b"", [None, "bytes=100000-", "bytes=300000-", "bytes=350000-"]),
    ({"break_after": [100_000], "ranges": False}, b"", [None, "bytes=100000-"]),
    ({"refuse": [503, 429, 500]}, b"", [None] * 4),
    ({}, b"x" * 900_000, [None]),
], ids=["broken connections", "a server that cannot continue", "a busy server", "a leftover of another file"])
def test_a_download_goes_on(serve, tmp_path, faults, leftover, asked):
    "What arrived is not asked for again, and the end is the whole file."
    server = serve(**faults)
    if leftover:
        (tmp_path / f"{ARCHIVE}.part").write_bytes(leftover)
    assert download_from(server, tmp_path).read_bytes() == server.behaviour.files[ARCHIVE]
    assert ranges(server) == asked and names_in(tmp_path) == [ARCHIVE]


def test_gives_up_without_progress_and_the_next_run_continues(serve, tmp_path):
    server = serve(break_after=[100_000, 0, 0, 0, 0, 0])
    with pytest.raises(KitError, match="stopped after 100000 of .* run this again to continue"):
        download_from(server, tmp_path)
    download_from(server, tmp_path)
    assert ranges(server)[-1] == "bytes=100000-"


@pytest.mark.parametrize("faults, leftover, line, left", [
    ({"wrong": b"!"}, 0, "checksum is .* was announced", []),
    ({"digest": "sha3-256"}, 0, "its sha3_256 checksum is .* was announced", []),
    ({}, 1000, "checksum is .* was announced", []),
    ({"announce": 123_456}, 0, "but 123456 were announced", []),
    ({"announce": 2_000_000}, 1_000_000, "answered 416 .* remove its .part file", []),
    ({"files": {ARCHIVE: zip_of({SESSION: CONTENT}).replace(b"\5\6\7", b"\5\6\x08", 1)}, "digest": None}, 0,
     "damaged or not a zip archive", [ARCHIVE]),
    ({"files": {"README.md": b""}}, 0, f"has no file '{ARCHIVE}', only README.md", []),
    ({"refuse": [404]}, 0, f"{ARCHIVE}: the server answered 404", []),
    ({"token": "secret"}, 0, "answered 401 .*only with an API token", []),
    ({"answer": {"error": "moved"}}, 0, "lists no files", []),
    ({"redirect_to": "file:///etc/passwd"}, 0, "answered 302", []),
])
def test_a_refusal_is_one_line_and_nothing_is_taken_for_data(serve, tmp_path, faults, leftover, line, left):
    if leftover:
        (tmp_path / f"{ARCHIVE}.part").write_bytes(b"x" * leftover)
    with pytest.raises(KitError, match=line) as told:
        fetch_from(serve(**faults), tmp_path)
    assert "\n" not in str(told.value) and [name for name in names_in(tmp_path) if not name.endswith(".part")] == left


def test_offline_and_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        url = server.url
    with pytest.raises(KitError, match="no answer .*are you online"):
        fetch(tmp_path, base_url=url, progress=False)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(KitError, match="file/data: cannot be written to"):
        fetch(tmp_path / "file/data")


def test_a_token_is_kept_from_other_hosts(serve, tmp_path):
    storage = serve()
    server = serve(token="secret", redirect_to=storage.url)
    fetch_from(server, tmp_path, token="secret")
    assert [token for *_, token in server.behaviour.log] == ["Bearer secret"]
    assert [token for *_, token in storage.behaviour.log] == [None]


def test_an_archive_fetched_with_a_browser_is_checked_and_used(serve, tmp_path):
    server = serve(token="secret")
    (tmp_path / ARCHIVE).write_bytes(server.behaviour.files[ARCHIVE][:-1])
    with pytest.raises(KitError, match="bytes, but .* were announced"):
        fetch_from(server, tmp_path)
    (tmp_path / ARCHIVE).write_bytes(server.behaviour.files[ARCHIVE])
    fetch_from(server, tmp_path)
    assert server.behaviour.log == []


def test_no_space_is_said_before_the_first_byte(serve, tmp_path, monkeypatch):
    server = serve()
    monkeypatch.setattr(download_module, "free_bytes", lambda folder: 1_000_000)
    with pytest.raises(KitError, match="are needed to download and unpack"):
        fetch_from(server, tmp_path)
    assert server.behaviour.log == [] and names_in(tmp_path) == []


CHILD = """
import resource, signal, sys
from b2t_kit.core.program import run_program
from b2t_kit.importers.download import fetch
if len(sys.argv) > 3:  # a disk that fills
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), -1))
sys.exit(run_program(lambda: fetch(sys.argv[2], base_url=sys.argv[1], progress=False) and 0))
"""


def child(*words: object) -> subprocess.Popen:
    return start("-c", CHILD, *words, variables={"no_proxy": "127.0.0.1"})


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda one: one.name)
def test_a_stopped_run_is_continued(number, serve, tmp_path):
    "A signal gives one line and its status; what arrived is kept."
    server, part = serve(pause=0.05), tmp_path / f"{ARCHIVE}.part"
    process, deadline = child(server.url, tmp_path), time.monotonic() + 60
    while not (part.exists() and part.stat().st_size >= 200_000):
        assert time.monotonic() < deadline and process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number and said.splitlines()[-1].startswith("interrupted"), said
    left = [".lock"] if number == signal.SIGKILL else []  # its process is gone, and with it the lock
    assert names_in(tmp_path) == [*left, part.name]
    server.behaviour.pause = 0.0
    fetch_from(server, tmp_path)
    first, second = ranges(server)
    assert first is None and int(second.removeprefix("bytes=").rstrip("-")) >= 200_000
    assert (tmp_path / SESSION).read_bytes() == CONTENT


def test_a_disk_that_fills_is_named_and_what_arrived_is_kept(serve, tmp_path):
    server = serve()
    process = child(server.url, tmp_path, 300_000)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 2 and ".part: cannot be written (File too large)" in said and "Traceback" not in said
    assert (tmp_path / f"{ARCHIVE}.part").stat().st_size == 300_000
    fetch_from(server, tmp_path)
    assert ranges(server)[-1] == "bytes=300000-"


VERSIONS = {"_embedded": {"stash:versions": [{"_links": {"stash:files": {"href": "/x"}}}]}}
ENTRY = {"path": ARCHIVE, "size": 5, "_links": {"stash:download": {"href": "/x"}}}


@pytest.mark.parametrize("answer", [
    [], 5, None, {"_embedded": 5}, {"_embedded": {"stash:versions": [5]}}, {"_embedded": {"stash:versions": {"a": 1}}},
    {"_embedded": {"stash:versions": [{"_links": 5}]}}, {"_embedded": {"stash:versions": [{"_links": {"stash:files": 1}}]}},
    {"_embedded": {"stash:versions": [{"_links": {"stash:files": {"href": "file:///etc/passwd"}}}]}},
    *({"_embedded": VERSIONS["_embedded"] | {"stash:files": []}, "_links": {"next": {"href": link}}}
      for link in (7, "?again", "ftp://127.0.0.1/x")),
    *({"_embedded": VERSIONS["_embedded"] | {"stash:files": [ENTRY | change]}} for change in (
        {"size": -1}, {"size": 10**22}, {"size": None}, {"size": "inf"}, {"path": "a/b"}, {"path": "a\x1b[2J"}, {"_links": 5},
        *({"_links": {"stash:download": {"href": link}}} for link in (None, "file:///etc/passwd", "http://x.org/x", "//x.org/x", "/\u00e4")))),
])
def test_answers_of_a_stranger(answer, serve, tmp_path):
    with pytest.raises(KitError) as told:
        fetch_from(serve(answer=answer if answer is not None else "null"), tmp_path)
    assert str(told.value).isprintable() and names_in(tmp_path) == []


def test_damaged_archives_say_what_to_do(tmp_path):
    "Any byte of a packed archive may be wrong: one line that names it, and no half of a folder."
    whole, told = zip_of({f"hdf5_data_final/{name}.txt": b"brain to text " * 40 for name in "ab"}, zipfile.ZIP_DEFLATED), 0
    for place in range(0, len(whole), 3):
        (tmp_path / "bad.zip").write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1:])
        try:
            download_module.unpack_archive(tmp_path / "bad.zip", tmp_path / f"out{place}/hdf5_data_final", progress=False)
        except KitError as error:
            assert "bad.zip" in str(error) and not list((tmp_path / f"out{place}").glob("*"))
            told += "remove it and run this again" in str(error)
    assert told > 20


def test_archives_with_a_client(tmp_path, monkeypatch):
    "A client is called with what it needs; what it raises is a line that says what to do, and so is that it is missing."
    def competition(name, output_dir):
        place = Path(output_dir) / name / SESSION
        place.parent.mkdir(parents=True)
        place.write_bytes(CONTENT)
        return output_dir

    files = {"hf_hub_download": lambda repository, name, local_dir: f"{local_dir}/{name}"}
    monkeypatch.setitem(sys.modules, "kagglehub", SimpleNamespace(competition_download=competition))
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(**files))
    monkeypatch.setattr(download_module, "check_download_space", lambda *words: None)
    assert fetch(tmp_path / "data", source="kaggle") == [tmp_path / "data"]
    assert find_recordings(tmp_path / "data") == tmp_path / "data/brain-to-text-25/hdf5_data_final"
    assert fetch_language_model("t15-5gram", tmp_path / "lm") == tmp_path / "lm/5gram_unpruned.bin"
    new, refusing = tmp_path / "new", SimpleNamespace(competition_download=lambda *words, **more: 1 / 0)
    for module, client, call, line in (
            ("kagglehub", refusing, lambda: fetch(new, source="kaggle"), "kagglehub: division by zero; it needs an API token"),
            ("huggingface_hub", None, lambda: fetch_language_model("t15-5gram", new), "pip install huggingface-hub")):
        monkeypatch.setitem(sys.modules, module, client)
        with pytest.raises(KitError, match=line):
            call()
    assert not new.exists()
