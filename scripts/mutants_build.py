"""One build that holds many mutants: a copy of a commit, in which an environment variable chooses the mutant.

The body of a function with mutants becomes a `match` with an arm for each of them and one for the original. Mutants that rustc
refuses leave the build until it compiles.
"""

import collections
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
WORK = TARGET / "mutants"
COPY = WORK / "copy"
VERSION = "27.1.0"
CRATES = {
    "madako-domain": "messages/domain",
    "madako-effects": "messages/effects",
    "madako-etcd-backup": "actors/etcd-backup",
    "madako-leader": "actors/leader",
    "madako-node": "actors/node",
    "madako-operation-runner": "actors/operation-runner",
    "madako-reboot-queue": "actors/reboot-queue",
    "madako-sabakan-poller": "actors/sabakan-poller",
    "madako-cluster-planner": "actors/cluster-planner",
    "madako-repair-queue": "actors/repair-queue",
    "madako-metrics-fetcher": "actors/metrics-fetcher",
    "madako-app-scheduler": "actors/app-scheduler",
    "madako-store": "adapters/store",
    "madako-embedded-etcd": "adapters/embedded-etcd",
}
SWITCH = """
pub(crate) mod mutant_switch {
    use std::io::Write as _;

    pub(crate) fn active(place: u32, seen: &std::sync::Once) -> u32 {
        static CHOSEN: std::sync::LazyLock<u32> =
            std::sync::LazyLock::new(|| std::env::var("MADAKO_MUTANT").map_or(0, |id| id.parse().expect("a number")));
        seen.call_once(|| {
            if let Ok(log) = std::env::var("MADAKO_MUTANTS_REACHED") {
                let name = |variable| std::env::var(variable).unwrap_or_default();
                let line = format!("{place} {} {}\\n", name("NEXTEST_BINARY_ID"), name("NEXTEST_TEST_NAME"));
                let mut log = std::fs::OpenOptions::new().create(true).append(true).open(log).expect("the log opens");
                log.write_all(line.as_bytes()).expect("the log takes a line");
            }
        });
        *CHOSEN
    }
}
"""
# Comments and literals of Rust, and braces outside of them.
TOKENS = re.compile(r"""//[^\n]*|/\*.*?\*/|\bb?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\\n])'|[{}]""", re.S)


def run(*command, limit=None, **variables):
    """The exit code (None: it did not end in time) and the output of a command in the copy."""
    plain = {"CARGO_TARGET_DIR": WORK / "build", "CARGO_INCREMENTAL": 0, "INSTA_UPDATE": "no", **variables}
    environment = {**os.environ, **{name: str(value) for name, value in plain.items()}}
    process = subprocess.Popen(command, cwd=COPY, env=environment, text=True, errors="replace", start_new_session=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]


def copied(commit, seed):
    """Makes the copy of a commit, with the switch and without lints; the commit's mutants, numbered in the order of the seed."""
    tool = WORK / "tool/bin/cargo-mutants"
    if not tool.exists():
        subprocess.check_call(["cargo", "install", "cargo-mutants", "--version", VERSION, "--locked", "--root", WORK / "tool"])
    shutil.rmtree(COPY, ignore_errors=True)
    COPY.mkdir(parents=True)
    subprocess.check_call(["sh", "-c", f"git archive {commit} >{WORK}/copy.tar && tar -x -f {WORK}/copy.tar -C {COPY}"], cwd=ROOT)
    packages = [f"--package={crate}" for crate in CRATES]
    listing = subprocess.check_output([tool, "mutants", "--list", "--json", *packages], cwd=COPY)
    manifest = COPY / "Cargo.toml"
    manifest.write_text(re.sub(r"(?ms)^(\[workspace\.lints\.\w+\]\n).*?(?=^\[|\Z)", r"\1", manifest.read_text()))
    for folder in CRATES.values():
        with (COPY / folder / "src/lib.rs").open("a") as library:
            library.write(SWITCH)
    in_order = sorted(json.loads(listing), key=lambda mutant: hashlib.sha256(f"{seed} {mutant['name']}".encode()).digest())
    return dict(enumerate(in_order, 1))


def offset(text, place):
    """The index of a place that has a line and a column, both from 1."""
    at = 0
    for _ in range(place["line"] - 1):
        at = text.index("\n", at) + 1
    return at + place["column"] - 1


def body(text, span):
    """The indices of the braces around the body of the function with this span."""
    opened, end = [], offset(text, span["end"])
    for token in TOKENS.finditer(text, offset(text, span["start"]), end):
        if token.group() == "{":
            opened.append(token.start())
        elif token.group() == "}":
            last = opened.pop()
    return last, end - 1


def switched(text, mutants):
    """The text of a file with a `match` in each function that has mutants; the lines of each arm and of each function."""
    functions = collections.defaultdict(list)
    for number, mutant in mutants.items():
        functions[body(text, mutant["function"]["span"])].append(number)
    out, done, arms, wholes = "", 0, [], []
    for (begin, end), numbers in sorted(functions.items()):
        if begin < done:
            continue
        out += text[done:begin]
        first = out.count("\n") + 1
        out += "{ static SEEN: ::std::sync::Once = ::std::sync::Once::new();\n"
        out += f"match crate::mutant_switch::active({min(numbers)}, &SEEN) {{"
        for number in numbers:
            span, new = mutants[number]["span"], mutants[number]["replacement"]
            line = out.count("\n") + 2
            out += f"\n{number} => {text[begin:offset(text, span['start'])]}{new}{text[offset(text, span['end']):end]}\n}}"
            arms.append((line, out.count("\n") + 1, number))
        out += f"\n_ => {text[begin:end]}\n}} }}}}"
        wholes.append((first, out.count("\n") + 1, numbers))
        done = end + 1
    return out + text[done:], arms, wholes


def faults(lines, mutants):
    """The mutants that rustc refuses, with the reason."""
    code, output = run("cargo", "check", "--locked", "--workspace", "--lib", "--keep-going", "--message-format=json")
    found = {}
    for line in output.splitlines():
        message = json.loads(line).get("message") if line.startswith("{") else None
        if not isinstance(message, dict) or message["level"] != "error":
            continue
        text = f"{(message['code'] or {}).get('code', 'error')}: {message['message'].splitlines()[0]}"
        for span in [span for span in message["spans"] if span["file_name"] in lines and span["is_primary"]][:1]:
            arms, wholes = ([what for first, last, what in ranges if first <= span["line_start"] <= last]
                            for ranges in lines[span["file_name"]])
            # An error about arms of different types is due to the `match`, not to the mutant.
            fair = arms and "impl " not in mutants[arms[0]]["function"]["return_type"]
            found |= {number: f"{'does not build' if fair else 'not judged'}: {text}" for number in arms or sum(wholes, [])}
    if code != 0 and not found:
        sys.exit(output[-3000:])
    return found


def built(count, mutants):
    """Writes mutants into the copy until it compiles: why those of the draw are not in the build, and the places of the others."""
    texts, fate = {}, {number: "not judged: a constant" for number, mutant in mutants.items() if not mutant["function"]}
    while True:
        taken = [number for number in mutants if not fate.get(number, "").startswith("not judged")][:count]
        inside = [number for number in taken if number not in fate]
        files = collections.defaultdict(dict)
        for number in inside:
            files[mutants[number]["file"]][number] = mutants[number]
        places, lines = {}, {}
        for file in files.keys() | texts.keys():
            text, *lines[file] = switched(texts.setdefault(file, (COPY / file).read_text()), files[file])
            (COPY / file).write_text(text)
            places |= {number: min(numbers) for _, _, numbers in lines[file][1] for number in numbers}
        nested = {number: "not judged: a function in a function" for number in inside if number not in places}
        wrong = nested | faults(lines, mutants)
        fate |= wrong
        print(f"{len(inside)} mutants in the build, {len(wrong)} of them do not compile", file=sys.stderr, flush=True)
        if not wrong:
            return {number: fate.get(number) for number in mutants if number <= max(taken)}, places
