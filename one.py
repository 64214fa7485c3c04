import json, sys
from pathlib import Path
import b2t_kit.plan.preflight as P
from b2t_kit.core.errors import KitError
f = Path(sys.argv[1]); f.mkdir(); (f / "module.pb").write_bytes(b"one program"); (f / "job.json").write_text(json.dumps({"name": "a step", "kind": "train", "times": 1, "arguments": []}))
P.argument_bytes = lambda job: {}
try: print("compiled:", P.compile_program(f, P.find_slice("v5e-8"), "./compiler", "c").error)
except KitError as e: print("error:", e); sys.exit(2)
