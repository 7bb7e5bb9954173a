"""The command that runs all kinds of faults: each gets its share of the time, and failures are reported."""

import itertools
import subprocess
import sys

import pytest

from beanlite import is_compiled
from tests.faults.__main__ import KINDS, ONLY_SOURCES, PART_S, Kind, Run, Shares, carry_out, counted

LANES = 2
# How long the start of each kind takes, and each try, in seconds.
COSTS = {"quick": (1, 0.01), "slow": (20, 30), "slow to start": (15, 0.05), "uneven": (5, 1)}


def play(minutes):
    """Return the sizes and durations of the parts of each kind, in simulated time."""
    kinds = [Kind(name, "tries", "") for name in COSTS]
    shares = Shares(kinds, 60 * minutes * LANES / len(kinds))
    free_s, running = [0.0] * LANES, {}
    parts = {name: [] for name in COSTS}
    while (now_s := min(free_s)) < 60 * minutes:
        lane = free_s.index(now_s)
        if lane in running:
            shares.end(*running.pop(lane))
        kind, size = shares.begin(60 * minutes - now_s)
        assert kind not in {other for other, *_ in running.values()}
        start_s, each_s = COSTS[kind.name]
        took_s = start_s + each_s * size
        parts[kind.name].append((size, took_s))
        running[lane] = (kind, size, took_s)
        free_s[lane] += took_s
    return parts


def test_ten_minutes_touch_each_kind_and_give_each_its_share():
    parts = play(10)
    share_s = 600 * LANES / len(COSTS)
    for name, each in parts.items():
        assert 0.6 * share_s < sum(took_s for _, took_s in each) < 1.4 * share_s, (name, each)
    assert parts["quick"][0][0] == 1  # at first it is unknown how long a try takes
    assert max(size for size, _ in parts["quick"]) > 1000


def test_no_part_of_a_night_takes_long():
    longest_s = max(took_s for parts in play(480).values() for _, took_s in parts)
    assert PART_S / 2 < longest_s < PART_S * 1.1


# A stand-in for a command: it fails for the word "wrong", and prints a count unless the word is "nothing".
STAND_IN = """
import os, sys
size, seed, word = sys.argv[1:]
print(word, os.environ["SEED"], seed, "skipped" if word == "nothing" else f"1 tries, {size} tries")
sys.exit(word == "wrong")
"""


@pytest.fixture
def stand_in(tmp_path):
    path = tmp_path / "stand_in.py"
    path.write_text(STAND_IN)
    return lambda word: Kind(word, "tries", f"{path} {{size}} {{seed}} {word}", "SEED={seed}", least=3)


@pytest.mark.parametrize(("word", "wrong", "tries"), [("fine", 0, 3), ("wrong", 1, 3), ("nothing", 1, 0)])
async def test_what_goes_wrong_is_told_with_the_command_that_repeats_it(stand_in, capsys, word, wrong, tries):
    seconds = itertools.count(step=30)
    run = Run([stand_in(word)], minutes=1, seed=17, clock_s=lambda: next(seconds))
    await run.play()
    assert (run.done, run.wrong, run.tried["tries"]) == (1, wrong, tries)
    told = capsys.readouterr().out
    seed = told.partition("seed ")[2].partition(":")[0]
    assert told.startswith(f"{word}, seed {seed}: 30 s")
    if wrong:
        again = told.partition("again: ")[2].strip()
        assert f"{word} {seed} {seed}" in told
        command = again.replace("python", sys.executable, 1)
        repeated = subprocess.run(["sh", "-c", command], check=False, capture_output=True, text=True)
        assert repeated.stdout in told
        assert repeated.returncode == (word == "wrong")


@pytest.mark.parametrize(("name", "size"), [("kills in a row", 10), ("lives", 1), ("damages", 1), ("simulated", 1)])
async def test_a_command_says_how_much_it_has_tried(compiler, name, size):
    del compiler
    if is_compiled() and name in ONLY_SOURCES:
        pytest.skip("it replaces parts of the sources")
    (kind,) = [kind for kind in KINDS if kind.name == name]
    code, said, _ = await carry_out(kind, size, 5)
    assert code == 0, said
    assert counted(kind, said) > 0, said
