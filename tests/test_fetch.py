"Fetching the recordings, from a test server that misbehaves on demand."
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.request import Request

import pytest

from b2t_kit.core import KitError
from b2t_kit.data import download as download_module
from b2t_kit.data.dataset import find_recordings
from b2t_kit.data.download import RemoteFile, download
from b2t_kit.data.download import ARCHIVES, PUBLISHED, fetch, fetch_dandiset, fetch_language_model, list_files

SESSION = "t15.2023.08.11/data_train.hdf5"
CONTENT = bytes(range(256)) * 3000  # incompressible enough once stored: 768,000 bytes


def zip_of(contents: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@dataclass
class Behaviour:
    "The files of the server, and its faults."
    files: dict[str, bytes] = field(default_factory=lambda: {
        ARCHIVES["hdf5_data_final"]: zip_of({f"hdf5_data_final/{SESSION}": CONTENT}),
        ARCHIVES["t15_pretrained_rnn_baseline"]: zip_of({
            "t15_pretrained_rnn_baseline/checkpoint/args.yaml": b"model: {}",
            "t15_pretrained_rnn_baseline/checkpoint/best_checkpoint": b"weights"}),
        "README.md": b"read me",
    })
    break_after: list[int] = field(default_factory=list)  # bytes to send before each break
    refuse: list[int] = field(default_factory=list)  # status of the next downloads
    ranges: bool = True  # honour Range
    token: str | None = None  # needed for downloads
    wrong_digest: bool = False
    digests: bool = True  # announce checksums
    announce: int | None = None  # another size than the true one
    redirect_to: str | None = None  # storage on another host
    missing_versions: bool = False
    per_page: int = 2
    licence: str = ""  # in the record of the data set; empty: there is no record
    pause: float = 0.0  # seconds between blocks of a download
    log: list[tuple[str, str | None, str | None]] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def reply(self, body: dict) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        is_file = self.path.startswith("/file/")
        if is_file:
            name = self.path.removeprefix("/file/")
            record = (name, self.headers.get("Range"), self.headers.get("Authorization"))
            self.server.behaviour.log.append(record)
            self.send_file(name)
        elif self.path.endswith("/versions"):
            self.send_versions()
        elif self.path.startswith("/api/v2/versions/2/files"):
            self.send_list()
        elif self.path.startswith("/api/v2/datasets/") and self.server.behaviour.licence:
            self.reply({"license": self.server.behaviour.licence})
        else:
            self.send_error(404)

    def send_versions(self) -> None:
        if self.server.behaviour.missing_versions or "doi%3A10.5061%2F" not in self.path:
            return self.send_error(404)
        links = [{"stash:files": {"href": f"/api/v2/versions/{n}/files"}} for n in (1, 2)]
        self.reply({"_embedded": {"stash:versions": [{"_links": link} for link in links]}})

    def send_list(self) -> None:
        behaviour = self.server.behaviour
        page = int(self.path.partition("page=")[2] or 1)
        names = list(behaviour.files)
        shown = names[(page - 1) * behaviour.per_page:page * behaviour.per_page]
        body = {"_embedded": {"stash:files": [self.entry(name) for name in shown]}, "_links": {}}
        if page * behaviour.per_page < len(names):
            body["_links"]["next"] = {"href": f"/api/v2/versions/2/files?page={page + 1}"}
        self.reply(body)

    def entry(self, name: str) -> dict:
        behaviour, content = self.server.behaviour, self.server.behaviour.files[name]
        digest = hashlib.sha256(content + b"!" * behaviour.wrong_digest).hexdigest()
        entry = {"path": name, "size": behaviour.announce or len(content), "status": "created",
                 "_links": {"stash:download": {"href": f"/file/{name}"}}}
        return entry | ({"digestType": "sha-256", "digest": digest} if behaviour.digests else {})

    def send_file(self, name: str) -> None:
        behaviour = self.server.behaviour
        authorised = self.headers.get("Authorization") == f"Bearer {behaviour.token}"
        if behaviour.refuse:
            return self.send_error(behaviour.refuse.pop(0))
        if behaviour.token and not authorised:
            return self.send_error(401)
        if behaviour.redirect_to:
            self.send_response(302)
            self.send_header("Location", f"{behaviour.redirect_to}/file/{name}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        return self.send_bytes(behaviour.files[name])

    def send_bytes(self, content: bytes) -> None:
        behaviour, asked = self.server.behaviour, self.headers.get("Range")
        start = int(asked[6:].rstrip("-")) if asked and behaviour.ranges else 0
        if start >= len(content):
            return self.send_error(416)
        rest = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(rest)))
        if start:
            span = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self.send_header("Content-Range", span)
        self.end_headers()
        limit = behaviour.break_after.pop(0) if behaviour.break_after else len(rest)
        step = 1 << 16
        for place in range(0, min(limit, len(rest)), step):
            self.wfile.write(rest[place:min(place + step, limit)])
            self.wfile.flush()
            time.sleep(behaviour.pause)
        if limit < len(rest):
            self.connection.close()
        return None


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behaviour: Behaviour):
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviour = behaviour
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        pass  # a client that left, or a connection we broke


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers = []

    def start(**options) -> Server:
        server = Server(Behaviour(**options))
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def fetch_from(server: Server, out: Path, **options) -> list[Path]:
    return fetch(out, base_url=server.url, progress=False, **options)


def remote(server: Server) -> RemoteFile:
    wanted = ARCHIVES["hdf5_data_final"]
    return next(file for file in list_files(base_url=server.url) if file.name == wanted)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "terms.json")


def test_fetches_checks_and_unpacks_only_what_was_asked_for(serve, tmp_path):
    server = serve()
    assert fetch_from(server, tmp_path / "data") == [tmp_path / "data/hdf5_data_final"]
    assert (tmp_path / "data/hdf5_data_final" / SESSION).read_bytes() == CONTENT
    assert names_in(tmp_path / "data") == ["hdf5_data_final"], "no archive, no leftovers"
    assert [name for name, *_ in server.behaviour.log] == [ARCHIVES["hdf5_data_final"]]


def test_baseline_and_archives_on_request(serve, tmp_path):
    server = serve()
    folders = fetch_from(server, tmp_path, recordings=False, baseline=True, keep_archive=True)
    assert (folders[0] / "checkpoint/best_checkpoint").read_bytes() == b"weights"
    assert names_in(tmp_path) == sorted(["t15_pretrained_rnn_baseline",
                                         "t15_pretrained_rnn_baseline.zip"])


def test_a_second_run_asks_nothing(serve, tmp_path):
    server = serve()
    fetch_from(server, tmp_path)
    server.behaviour.log.clear()
    server.behaviour.missing_versions = True
    assert fetch_from(server, tmp_path) == [tmp_path / "hdf5_data_final"]
    assert server.behaviour.log == []


def test_lists_have_pages(serve):
    server = serve(per_page=1)
    assert [file.name for file in list_files(base_url=server.url)] == [
        *ARCHIVES.values(), "README.md"]


def test_broken_connections_are_continued_not_repeated(serve, tmp_path):
    server = serve(break_after=[100_000, 200_000, 50_000])
    path = download(remote(server), tmp_path, progress=False, pause=0)
    assert path.read_bytes() == server.behaviour.files[path.name]
    ranges = [asked for _, asked, _ in server.behaviour.log]
    assert ranges == [None, "bytes=100000-", "bytes=300000-", "bytes=350000-"]


def test_a_server_that_cannot_continue_starts_again(serve, tmp_path):
    server = serve(break_after=[100_000], ranges=False)
    path = download(remote(server), tmp_path, progress=False, pause=0)
    assert path.read_bytes() == server.behaviour.files[path.name]


def test_gives_up_without_progress_and_the_next_run_continues(serve, tmp_path):
    server = serve(break_after=[100_000, 0, 0, 0])
    file = remote(server)
    with pytest.raises(KitError, match="stopped after 100000 of .* run this again to continue"):
        download(file, tmp_path, progress=False, patience=3, pause=0)
    assert names_in(tmp_path) == [f"{file.name}.part"]
    server.behaviour.log.clear()
    download(file, tmp_path, progress=False, pause=0)
    assert [asked for _, asked, _ in server.behaviour.log] == ["bytes=100000-"]


def test_a_busy_server_is_asked_again(serve, tmp_path):
    server = serve(refuse=[503, 429, 500])
    download(remote(server), tmp_path, progress=False, pause=0)
    assert len(server.behaviour.log) == 4


def test_a_leftover_of_another_file_is_not_continued(serve, tmp_path):
    server = serve()
    file = remote(server)
    (tmp_path / f"{file.name}.part").write_bytes(b"x" * (file.size + 5))
    path = download(file, tmp_path, progress=False)
    assert path.read_bytes() == server.behaviour.files[file.name]


def test_a_wrong_checksum_leaves_nothing_to_be_mistaken_for_data(serve, tmp_path):
    server = serve(wrong_digest=True)
    with pytest.raises(KitError, match="checksum is .* was announced"):
        fetch_from(server, tmp_path)
    assert names_in(tmp_path) == []


def test_damage_in_a_leftover_is_found_by_the_checksum(serve, tmp_path):
    server = serve()
    file = remote(server)
    (tmp_path / f"{file.name}.part").write_bytes(b"x" * 1000)
    with pytest.raises(KitError, match="checksum"):
        download(file, tmp_path, progress=False)
    download(file, tmp_path, progress=False)


def test_without_a_checksum_the_size_and_the_archive_itself_are_checked(serve, tmp_path):
    server = serve(digests=False)
    fetch_from(server, tmp_path / "good")
    name = ARCHIVES["hdf5_data_final"]
    whole = server.behaviour.files[name]
    server.behaviour.files[name] = whole.replace(b"\x05\x06\x07", b"\x05\x06\x08", 1)
    with pytest.raises(KitError, match="damaged or not a zip archive"):
        fetch_from(server, tmp_path / "bad")
    assert names_in(tmp_path / "bad") == [name], "no half of a folder"


def test_another_size_than_announced(serve, tmp_path):
    server = serve(announce=123_456)
    with pytest.raises(KitError, match="another file than the 123456 bytes that were announced"):
        fetch_from(server, tmp_path)
    assert names_in(tmp_path) == []


def test_a_leftover_longer_than_what_the_server_has(serve, tmp_path):
    server = serve(announce=2_000_000)
    (tmp_path / f"{ARCHIVES['hdf5_data_final']}.part").write_bytes(b"x" * 1_000_000)
    with pytest.raises(KitError, match="another file than the 2000000 bytes"):
        download(remote(server), tmp_path, progress=False, pause=0)
    assert [asked for _, asked, _ in server.behaviour.log] == ["bytes=1000000-", None]


def test_no_such_data_set_or_file(serve, tmp_path):
    server = serve(missing_versions=True)
    with pytest.raises(KitError, match="answered 404 .*has the data set moved"):
        fetch_from(server, tmp_path)
    server = serve(files={"README.md": b""})
    with pytest.raises(KitError, match="has no file 't15_copyTask_neuralData.zip', only README.md"):
        fetch_from(server, tmp_path)
    server = serve(refuse=[404])
    with pytest.raises(KitError, match="t15_copyTask_neuralData.zip: the server answered 404"):
        fetch_from(server, tmp_path)


def test_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server(Behaviour()) as server:
        url = server.url
    with pytest.raises(KitError, match="no answer .*are you online"):
        fetch(tmp_path, base_url=url, progress=False)


def test_an_answer_that_is_no_list(serve, tmp_path, monkeypatch):
    server = serve()
    monkeypatch.setattr(Handler, "send_versions", lambda self: self.reply({"error": "moved"}))
    with pytest.raises(KitError, match="lists no files"):
        fetch_from(server, tmp_path)


def test_a_token_is_asked_for_and_kept_from_other_hosts(serve, tmp_path):
    storage = serve()
    server = serve(token="secret", redirect_to=storage.url)
    with pytest.raises(KitError, match="answered 401 .*only with an API token"):
        fetch_from(server, tmp_path)
    fetch_from(server, tmp_path, token="secret")
    assert server.behaviour.log[-1][2] == "Bearer secret"
    assert [token for *_, token in storage.behaviour.log] == [None]


def test_an_archive_fetched_with_a_browser_is_checked_and_used(serve, tmp_path):
    server = serve(token="secret")
    name = ARCHIVES["hdf5_data_final"]
    (tmp_path / name).write_bytes(server.behaviour.files[name][:-1])
    with pytest.raises(KitError, match="bytes, but .* were announced"):
        fetch_from(server, tmp_path)
    (tmp_path / name).write_bytes(server.behaviour.files[name])
    fetch_from(server, tmp_path)
    assert server.behaviour.log == []


def test_no_space_is_said_before_the_first_byte(serve, tmp_path, monkeypatch):
    server = serve()
    monkeypatch.setattr(download_module, "free_bytes", lambda folder: 1_000_000)
    with pytest.raises(KitError, match="are needed to download and unpack"):
        fetch_from(server, tmp_path)
    assert server.behaviour.log == [] and names_in(tmp_path) == []


def run_child(code: str, *arguments: str, **options) -> subprocess.Popen:
    root = str(Path(__file__).parents[1])
    environment = os.environ | {"no_proxy": "127.0.0.1", "PYTHONPATH": root}
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **options)


CHILD = """
    import sys
    from b2t_kit.data.download import fetch
    fetch(sys.argv[2], base_url=sys.argv[1], progress=False)
"""


def test_a_killed_run_is_continued(serve, tmp_path):
    server = serve(pause=0.05)
    part = tmp_path / f"{ARCHIVES['hdf5_data_final']}.part"
    child = run_child(CHILD, server.url, str(tmp_path))
    deadline = time.monotonic() + 30
    while not (part.exists() and part.stat().st_size >= 200_000):
        assert time.monotonic() < deadline and child.poll() is None, child.stderr.read()
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert names_in(tmp_path) == [part.name]
    server.behaviour.pause = 0.0
    fetch_from(server, tmp_path)
    first, second = [asked for _, asked, _ in server.behaviour.log]
    assert first is None and int(second.removeprefix("bytes=").rstrip("-")) >= 200_000
    assert (tmp_path / "hdf5_data_final" / SESSION).read_bytes() == CONTENT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
def test_a_signal_gives_one_line_and_the_next_run_continues(number, serve, tmp_path):
    server = serve(pause=0.05)
    part = tmp_path / f"{ARCHIVES['hdf5_data_final']}.part"
    child = run_child("""
        import sys
        from b2t_kit.core import run_program
        from b2t_kit.data.download import fetch
        sys.exit(run_program(lambda: fetch(sys.argv[2], base_url=sys.argv[1], progress=False) and 0))
    """, server.url, str(tmp_path))
    deadline = time.monotonic() + 30
    while not (part.exists() and part.stat().st_size >= 200_000):
        assert time.monotonic() < deadline and child.poll() is None, child.stderr.read()
        time.sleep(0.01)
    child.send_signal(number)
    _, said = child.communicate(timeout=30)
    assert child.returncode == 128 + number and said.splitlines()[-1].startswith("interrupted"), said
    assert names_in(tmp_path) == [part.name]
    server.behaviour.pause = 0.0
    fetch_from(server, tmp_path)
    assert (tmp_path / "hdf5_data_final" / SESSION).read_bytes() == CONTENT


def test_a_disk_that_fills_is_named_and_what_arrived_is_kept(serve, tmp_path):
    code = """
        import resource, signal, sys
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        from b2t_kit.core import KitError
        from b2t_kit.data.download import fetch
        try:
            fetch(sys.argv[2], base_url=sys.argv[1], progress=False)
        except KitError as error:
            sys.exit(str(error))
    """
    server = serve()
    child = run_child(code, server.url, str(tmp_path))
    said = child.communicate(timeout=60)[1]
    assert child.returncode == 1 and ".part: cannot be written (File too large)" in said
    assert "Traceback" not in said
    part = tmp_path / f"{ARCHIVES['hdf5_data_final']}.part"
    assert part.stat().st_size == 300_000
    fetch_from(server, tmp_path)
    assert server.behaviour.log[-1][1] == "bytes=300000-"


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(KitError, match="file/data: cannot be written to"):
        fetch(tmp_path / "file/data")


def test_archives_with_a_client(tmp_path, monkeypatch):
    """Each client is called with what it needs; what it raises, and that it is missing, is a line that says what to do."""
    asked = []

    def competition(name, output_dir):
        asked.append((name, output_dir))
        place = Path(output_dir) / "t15_copyTask_neuralData/hdf5_data_final" / SESSION
        place.parent.mkdir(parents=True)
        place.write_bytes(CONTENT)
        return output_dir

    monkeypatch.setitem(sys.modules, "kagglehub", SimpleNamespace(competition_download=competition))
    monkeypatch.setitem(sys.modules, "dandi.download", SimpleNamespace(
        download=lambda *words, **more: asked.append(words), DownloadExisting=SimpleNamespace(REFRESH="refresh")))
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(
        hf_hub_download=lambda repository, name, local_dir: f"{local_dir}/{name}"))
    assert fetch(tmp_path / "data", source="kaggle") == [tmp_path / "data"]
    assert find_recordings(tmp_path / "data") == tmp_path / "data/t15_copyTask_neuralData/hdf5_data_final"
    assert fetch_dandiset("000950", tmp_path / "h2") == tmp_path / "h2/000950"
    assert asked == [("brain-to-text-25", str(tmp_path / "data")),
                     (["https://dandiarchive.org/dandiset/000950/draft"], str(tmp_path / "h2"))]
    monkeypatch.setattr(download_module, "check_download_space", lambda *words: None)
    assert fetch_language_model("t15-5gram", tmp_path / "lm") == tmp_path / "lm/5gram_unpruned.bin"
    for module, call, line in (
            ("kagglehub", lambda: fetch(tmp_path / "new", source="kaggle"), "pip install kagglehub"),
            ("dandi.download", lambda: fetch_dandiset("000950", tmp_path / "new"), "pip install dandi"),
            ("huggingface_hub", lambda: fetch_language_model("t15-5gram", tmp_path / "new"), "pip install huggingface-hub")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(KitError, match=line):
            call()
    refusing = SimpleNamespace(competition_download=lambda *words, **more: 1 / 0)
    monkeypatch.setitem(sys.modules, "kagglehub", refusing)
    with pytest.raises(KitError, match="kagglehub: division by zero; it needs an API token"):
        fetch(tmp_path / "new", source="kaggle")
    assert not (tmp_path / "new").exists() and set(PUBLISHED) == {"t15-5gram-pruned", "t15-5gram"}


def test_a_file_without_a_byte(tmp_path):
    done = download(RemoteFile("x.txt", 0, "http://127.0.0.1:9/x.txt"), tmp_path, progress=False)
    assert done.read_bytes() == b"" and sorted(tmp_path.iterdir()) == [done]
    entry = {"path": "x.zip", "size": -1, "_links": {"stash:download": {"href": "https://datadryad.org/x"}}}
    with pytest.raises(KitError, match="refused a file"):
        download_module._remote_file(entry, "https://datadryad.org")


@pytest.mark.parametrize("link", ["file:///etc/passwd", "ftp://example.org/x", "data:,x", "http://datadryad.org/x"])
def test_only_https_is_followed_from_https(link):
    entry = {"path": "x.zip", "size": 5, "_links": {"stash:download": {"href": link}}}
    with pytest.raises(KitError, match="refused to follow a link"):
        download_module._remote_file(entry, "https://datadryad.org")


@pytest.mark.parametrize("link", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_links_and_redirects_to_other_than_the_web(link, serve, tmp_path, monkeypatch):
    server = serve(redirect_to=link)
    with pytest.raises(KitError, match="refused to follow a link|302"):
        fetch_from(server, tmp_path)
    with pytest.raises(KitError, match="refused to follow a link"):
        download(RemoteFile("x.zip", 5, link), tmp_path, progress=False, pause=0)
    wrong = {"_embedded": {"stash:versions": [{"_links": {"stash:files": {"href": link}}}]}}
    monkeypatch.setattr(Handler, "send_versions", lambda self: self.reply(wrong))
    with pytest.raises(KitError, match="refused to follow a link"):
        fetch_from(server, tmp_path)


def test_a_redirect_from_https_to_http_is_refused():
    follow = download_module._Redirects().redirect_request
    request = Request("https://datadryad.org/x")
    request.add_unredirected_header("Authorization", "Bearer secret")
    with pytest.raises(KitError, match="refused to follow a link to 'http://datadryad.org/x'"):
        follow(request, None, 302, "Found", {}, "http://datadryad.org/x")
    assert not follow(request, None, 302, "Found", {}, "https://storage.org/x").has_header("Authorization")


def test_a_token_stays_off_plain_http_on_the_same_host(monkeypatch, tmp_path):
    """What the service lists for the archives decides whether the token is sent: never to another scheme."""
    for url, token in (("https://h.org/x", "secret"), ("http://h.org/x", None), ("https://other.org/x", None)):
        assert download_module.own_token(RemoteFile("x.zip", 5, url), "secret", "https://h.org") == token


@pytest.mark.parametrize("body", [
    {"_embedded": {"stash:versions": [5]}}, {"_embedded": {"stash:versions": {"a": 1}}}, {"_embedded": 5}, [], 5, None,
    {"_embedded": {"stash:versions": [{"_links": 5}]}}, {"_embedded": {"stash:versions": [{"_links": {"stash:files": 1}}]}},
    {"_embedded": {"stash:versions": []}, "_links": {"next": {"href": 7}}},
    {"_embedded": {"stash:versions": []}, "_links": {"next": {"href": "?again"}}},
])
def test_answers_of_a_stranger(body, serve, tmp_path, monkeypatch):
    server = serve()
    monkeypatch.setattr(Handler, "do_GET", lambda self: self.reply(body))
    with pytest.raises(KitError):
        fetch_from(server, tmp_path)


@pytest.mark.parametrize("change", [{"size": -1}, {"size": 10**22}, {"size": float("inf")}, {"size": None}, {"path": "a/b"},
                                    {"path": "a\x1b[2J"}, {"_links": 5}, {"_links": {"stash:download": {"href": 5}}}])
def test_entries_of_a_stranger(change):
    entry = {"path": "x.zip", "size": 5, "_links": {"stash:download": {"href": "/x"}}} | change
    with pytest.raises((KitError, LookupError, TypeError, ValueError, OverflowError)):  # `list_files` names the list
        download_module._remote_file(entry, "https://datadryad.org")


def test_an_empty_folder_is_fetched_again(serve, tmp_path):
    (tmp_path / "hdf5_data_final/t15.2023.08.11").mkdir(parents=True)
    fetch_from(serve(), tmp_path)
    assert (tmp_path / "hdf5_data_final" / SESSION).read_bytes() == CONTENT


def test_damaged_archives_say_what_to_do(serve, tmp_path):
    """Every byte that may be wrong: one line that names the archive, and no half of a folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("hdf5_data_final/a.txt", "brain to text " * 40)
        archive.writestr("hdf5_data_final/b.txt", "text to brain " * 40)
    whole, told = buffer.getvalue(), 0
    for place in range(0, len(whole), 3):
        bad = bytearray(whole)
        bad[place] ^= 0xFF
        (tmp_path / "bad.zip").write_bytes(bad)
        target = tmp_path / f"out{place}/hdf5_data_final"
        target.parent.mkdir()
        try:
            download_module.unpack_archive(tmp_path / "bad.zip", target, progress=False)
        except KitError as error:
            assert "bad.zip" in str(error) and not any(target.parent.iterdir())
            told += "remove it and run this again" in str(error)
    assert told > 20
    (tmp_path / "empty.zip").write_bytes(zip_of({}))
    with pytest.raises(KitError, match="holds no files.*remove it"):
        download_module.unpack_archive(tmp_path / "empty.zip", tmp_path / "x/hdf5_data_final", progress=False)


def test_terms_of_the_copy_task(serve, tmp_path):
    """The plain `b2t fetch` shows and keeps the terms too, before it downloads."""
    server, said = serve(licence="https://spdx.org/licenses/CC0-1.0.html"), []

    def tell(text: str) -> None:
        assert not server.behaviour.log
        said.append(text)

    fetch_from(server, tmp_path, tell=tell)
    assert "CC0-1.0" in said[0] and "Do not try to identify" in said[0] and "t15_copyTask_neuralData.zip" in said[0]
    assert json.loads((tmp_path / "terms.json").read_text())["set"] == "t15"
