"""A sample of ``python -m tests.simulator``; SIMULATOR_SEEDS=1..1000 plays more seeds, or others."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulator.compiled import lay_out
from tests.simulator.memory import take
from tests.simulator.mutants import MUTANTS
from tests.support.core import put

ROOT = Path(__file__).parents[2]
SEEDS = os.environ.get("SIMULATOR_SEEDS", "1..200")
# The seeds that find them: a planted bug should be found quickly.
PLANTED = {"a sync left out": "1..20", "a batch not stored as a whole": "1..30"}


@pytest.fixture
def simulate():
    if shutil.which("cc") is None and "CI" not in os.environ:
        pytest.skip("cc is not installed")

    def run(*flags, cwd=ROOT):
        command = [sys.executable, "-m", "tests.simulator", *flags]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=cwd)

    return run


def test_no_seed_finds_a_promise_that_is_broken(simulate, record_property):
    ended = simulate("--seeds", SEEDS)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr
    record_property("simulator", ended.stdout.strip())


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found_and_its_seed_is_told(simulate, name):
    ended = simulate("--mutant", name, "--seeds", PLANTED[name])
    assert (ended.returncode, ended.stderr) == (1, "")
    seed = re.search(rf'python -m tests\.simulator --seed (\d+) --mutant "{name}"\n', ended.stdout)
    assert seed is not None, ended.stdout


def digest_of(ended):
    return int(ended.stdout.split()[-1][1:-1], 16)


def test_a_seed_repeats_a_run_exactly(simulate):
    one, another = (digest_of(simulate("--seed", seed)) for seed in ("7", "8"))
    assert digest_of(simulate("--seeds", "7..8")) == one ^ another != 0


def test_a_seed_plays_alike_where_methods_look_for_stand_ins(simulate, tmp_path):
    lay_out(tmp_path / "laid")
    # In 11 operators set policies.
    assert (
        digest_of(simulate("--seeds", "7..11", cwd=tmp_path / "laid")) == digest_of(simulate("--seeds", "7..11")) != 0
    )


@pytest.mark.nightly
def test_a_seed_plays_compiled_as_the_sources_do(simulate, tmp_path):
    subprocess.run([sys.executable, "-m", "tests.simulator.compiled", tmp_path / "laid"], check=True, cwd=ROOT)
    compiled, plain = (simulate("--seeds", SEEDS, cwd=cwd) for cwd in (tmp_path / "laid", ROOT))
    assert compiled.returncode == 0, compiled.stdout + compiled.stderr
    assert digest_of(compiled) == digest_of(plain)


def test_the_mutants_stand_where_they_are_said_to():
    for name, mutant in MUTANTS.items():
        source = ROOT / "beanlite" / f"{mutant.module.replace('.', '/')}.py"
        assert source.read_text(encoding="utf-8").count(mutant.text) == 1, name


def test_a_job_reserved_in_its_own_batch_is_expected_as_written(core):
    client = core.client()
    put(core, client)
    core.send(client, b"reserve\r\n")
    picture = take(core.engine)
    core.engine.take_changes(deferred=True)
    core.send(client, b"release 1 5 0\r\nreserve\r\n")
    changes = core.engine.take_changes(deferred=False)
    assert core.engine.ledger.has_deferred
    picture = take(core.engine, picture, changes.jobs)
    core.send(client, b"bury 1 5\r\n")
    core.engine.ledger.deferred.update(core.engine.ledger.changed)  # as a policy would bury it
    last = take(core.engine, picture)
    assert (last.earlier[1].state, last.earlier[1].reserves) == ("reserved", 2)
