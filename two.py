import http.server, io, json, subprocess, sys, threading, time, zipfile
from pathlib import Path
DAYS, BIG, buffer = 45, bytes(range(256)) * 80000, io.BytesIO()
with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as z:
    for d in range(DAYS): z.writestr(f"hdf5_data_final/t15.2023.{1 + d // 28:02d}.{1 + d % 28:02d}/data_train.hdf5", BIG)
body = buffer.getvalue(); J = lambda o: json.dumps(o).encode()
class H(http.server.BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def do_GET(self):
        d = (J({"_embedded": {"stash:versions": [{"_links": {"stash:files": {"href": "/f"}}}]}}) if self.path.endswith("/versions") else
             J({"license": "https://spdx.org/licenses/CC0-1.0.html"}) if self.path.startswith("/api") else
             J({"_embedded": {"stash:files": [{"path": "t15_copyTask_neuralData.zip", "size": len(body), "_links": {"stash:download": {"href": "/zip"}}}]}}) if self.path == "/f" else body)
        self.send_response(200); self.send_header("Content-Length", str(len(d))); self.end_headers(); self.wfile.write(d)
s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), H); threading.Thread(target=s.serve_forever, daemon=True).start()
ps = [subprocess.Popen([sys.executable, "one.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
for p in ps: p.stdout.readline()
go = lambda p: (p.stdin.write(f"http://127.0.0.1:{s.server_port}\n"), p.stdin.flush())
go(ps[0]); end = time.time() + 60
while len(list(Path("out").rglob("*.hdf5"))) < 24 and ps[0].poll() is None and time.time() < end: time.sleep(0.005)
begun = ps[0].poll() is None; go(ps[1]); said = [p.communicate(timeout=200)[0].strip() for p in ps]; codes = [p.returncode for p in ps]
whole = [p for p in Path("out/hdf5_data_final").rglob("data_train.hdf5") if p.stat().st_size == len(BIG)]
for c, t in zip(codes, said): print(c, t[-200:])
print(f"{len(whole)} of {DAYS} days complete; left: {sorted(p.name for p in Path('out').iterdir())}")
sys.exit(3 if not begun else 0 if len(whole) == DAYS and 0 in codes and not any("Traceback" in t for t in said) else 1)
