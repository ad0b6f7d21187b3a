"""What an installation can do, and whether it says so where it cannot: one line, one exit code, no traceback."""

import importlib.util
import subprocess
import sys

COMMANDS = {
    "solve": ("solve", "fig1b"),
    "reproduce": ("reproduce", "fig1b", "--steps", "3", "--out", "runs"),
    "data": ("data", "list"),
    "fit": ("fit", "no-such.csv", "--out", "model"),
    "train": ("train", "no-such.safetensors", "--out", "trained"),
    "playground": ("playground", "--no-browser", "--model", "no-such-model"),
}
ran, lacks = [], []
for name, words in COMMANDS.items():
    done = subprocess.run([sys.executable, "-m", "tokenmargin", *words], capture_output=True, text=True, check=False)
    if "Traceback" in done.stderr or done.returncode not in (0, 1, 2):
        sys.exit(f"{name}: {done.stderr[-500:]}")
    found = [word.strip("'\".,;") for word in done.stderr.replace("\n", " ").split() if "tokenmargin[" in word]
    if found:
        lacks.append(f"{name} asks for {found[0]}")
    else:
        ran.append(name)
known = ("pyarrow", "ray", "matplotlib", "sklearn", "torch", "fastapi")
optional = [name for name in known if importlib.util.find_spec(name)]
print(f"has {', '.join(optional) or 'no optional package'}; has what it takes for {', '.join(ran)}; {'; '.join(lacks)}")
