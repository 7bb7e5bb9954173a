"""The image, built and used without a registry, a daemon or the network.

The base image is a stand-in: the skeleton of a system whose programs, Python and compiler are those of this machine,
mounted read-only, and the packages come from a folder. So the Containerfile's own steps run, but not on its own base.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from beanlite.web.safety import password_line
from tests.packaging.test_container import FOLDER, INSTRUCTIONS, ROOT
from tests.support.needs import need

# What a process of the container sees of this machine, and what is not shared with the rest of it.
PROGRAMS = "--volume=/usr:/usr:ro"
ALONE = ("--isolation=chroot", "--network=host")
APART = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
BASE_PATH = "/opt/python/bin:/usr/bin:/usr/sbin"
COPIED = ("passwd", "group", "shadow", "gshadow", "login.defs", "ld.so.cache", "alternatives")
PAGE = {"BEANLITE_WEB": "0.0.0.0:11380", "BEANLITE_WEB_PASSWORD_FILE": "/etc/beanlite/users"}
# What a container is run by, so that its server can be stopped.
NOTES_ITS_PID = 'echo $$ >/told/pid; exec "$@"'
# The page without and with a login, and the health check, of a server that is then stopped. $1: asks; $2: checks; $3:
# has the id of the server.
USES = """
set -e
ip link set lo up
asks=$1 checks=$2 told=$3
shift 3
"$@" &
server=$!
$asks 127.0.0.1:11380 ''
$asks 127.0.0.1:11380 ann:horse
sh -c "$checks" && echo healthy
kill "$(cat "$told/pid")"
wait $server
"""

pytestmark = [
    pytest.mark.nightly,  # it is compiled, which takes a minute
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the stand-in"),
]


def run(*command, **more):
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **more)
    assert ran.returncode == 0, f"{command}: {ran.stdout[-4000:]}{ran.stderr[-4000:]}"
    return ran.stdout.strip()


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    """A command of buildah, which keeps all that it makes in a folder of its own."""
    need(shutil.which("buildah"), "buildah is not installed")
    folder = tmp_path_factory.mktemp("buildah")
    options = ("--storage-driver=vfs", f"--root={folder}/root", f"--runroot={folder}/run")
    yield lambda *words: ["buildah", *options, *map(str, words)]
    run("buildah", *options, "rm", "--all")
    shutil.rmtree(folder)


def skeleton(folder):
    """Make the files of the stand-in."""
    for name in ("opt/python/bin", "usr", "tmp", "proc", "sys", "dev", "run", "root", "etc/apt", "var/log"):
        (folder / name).mkdir(parents=True)
    for name in ("var/lib/dpkg", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):
        (folder / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    (folder / "opt/python/bin/python").symlink_to("/usr/bin/python3")
    (folder / "tmp").chmod(0o1777)
    for name in COPIED:
        run("cp", "--archive", f"/etc/{name}", folder / "etc")
    shutil.copy("/var/lib/dpkg/status", folder / "var/lib/dpkg")  # so that apt-get finds the compiler installed


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A folder with all packages that the image takes from PyPI, for the machine's Python."""
    folder = tmp_path_factory.mktemp("wheels")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    names = [*project["build-system"]["requires"], *project["project"]["dependencies"], *hook["dependencies"]]
    run("/usr/bin/python3", "-m", "venv", folder / "tools")
    run(folder / "tools/bin/pip", "download", "-q", "-d", folder, *names, *extras["postgres"], *extras["top"])
    return folder


@pytest.fixture(scope="module")
def image(buildah, wheels, tmp_path_factory):
    """A container of the image."""
    for package in ("gcc", "libc6-dev", "libpython3-dev"):
        there = subprocess.run(["dpkg", "--status", package], capture_output=True, check=False).returncode == 0
        need(there, f"{package} is not installed")
    base = tmp_path_factory.mktemp("base")
    skeleton(base)
    (name,) = {rest.split()[0] for instruction, rest in INSTRUCTIONS if instruction == "FROM"}
    container = run(*buildah("from", "scratch"))
    run(*buildah("copy", container, base, "/"))
    environment = [f"--env={each}" for each in (f"PATH={BASE_PATH}", "PIP_NO_INDEX=1", "PIP_FIND_LINKS=/wheels")]
    run(*buildah("config", *environment, container))
    run(*buildah("commit", "--format=docker", container, name))
    with_wheels = (*ALONE, PROGRAMS, f"--volume={wheels}:/wheels:ro")
    how = ("--format=docker", "--pull-never", "--layers=false", *with_wheels, f"--file={FOLDER}/Containerfile")
    run(*buildah("bud", *how, "--tag=beanlite", ROOT))
    return run(*buildah("from", "--pull-never", "beanlite"))


def test_image_has_a_compiled_server_and_no_compiler(buildah, image):
    of_image = Path(run(*buildah("mount", image)))
    said = run(*buildah("run", *ALONE, PROGRAMS, image, "--", "/bin/sh", "-c", "beanlite --version; id -u"))
    version, user = said.splitlines()
    assert version.endswith(" (compiled)")
    assert user == "11300"
    assert not list((of_image / "usr").iterdir())
    assert not (of_image / "src").exists()
    assert sorted(path.name for path in (of_image / "opt").iterdir()) == ["beanlite", "python"]


def test_image_serves_the_page_is_healthy_and_stops_in_order(buildah, image, tmp_path):
    config = json.loads(run(*buildah("inspect", "--type=container", image)))["Docker"]["config"]
    users = tmp_path / "users"
    users.write_text(password_line("ann", "operator", "horse") + "\n")
    mount = f"--volume={users}:{PAGE['BEANLITE_WEB_PASSWORD_FILE']}:ro"
    environment = [f"--env={name}={value}" for name, value in PAGE.items()]
    tmp_path.chmod(0o777)
    mounts = (PROGRAMS, mount, f"--volume={tmp_path}:/told")
    inside = buildah("run", *ALONE, *mounts, *environment, image, "--", "/bin/sh", "-c")
    serves = [*inside, NOTES_ITS_PID, "sh", *config["Entrypoint"], *config["Cmd"]]
    kind, *check = config["Healthcheck"]["Test"]
    assert kind == "CMD"
    checks = shlex.join([*inside, shlex.join(check)])
    asks = f"{sys.executable} {Path(__file__).with_name('ask.py')}"
    script = [*APART, "sh", "-c", USES, "sh", asks, checks, tmp_path, *serves]
    ran = subprocess.run(script, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines() == ["page 401", "page 200 Overview · beanlite", "healthy"]
    assert "stopped jobs=0" in ran.stderr
