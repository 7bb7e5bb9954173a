# What .ci/run and .ci/nightly share: sections with limits, and what the tests need from Debian and npm.

# Write bytecode, whatever the machine's default: without it each of a thousand processes compiles all of the sources.
unset PYTHONDONTWRITEBYTECODE
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
took=()
export scratch
scratch=$(mktemp -d)
chmod 755 "$scratch" # a test serves as another user
trap 'rm -rf "$scratch"; printf "\n"; printf "%s\n" "${took[@]}"' EXIT

# section LIMIT_S NAME FUNCTION: run the function, within the limit; at the end of the script a line has its time.
section() {
    local limit_s=$1 name=$2 began_s=$SECONDS code=0
    printf '\n=== %s (at most %d s) ===\n' "$name" "$limit_s"
    timeout --kill-after=30 "$limit_s" bash -euo pipefail -c "$(declare -f); $3" </dev/null || code=$?
    took+=("$(printf '%5d s  %s' $((SECONDS - began_s)) "$name")")
    if ((code == 124 || code == 137)); then
        echo "$name: not done within $limit_s s" >&2
    fi
    return "$code"
}

# install_packages PACKAGE...: of Debian, if there are any to install.
install_packages() {
    (($#)) || return 0
    apt-get update -q
    # Runlevel 1: the packages must not start servers of their own.
    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -q -y --no-install-recommends "$@"
}

debian() {
    local needed=()
    command -v beanstalkd >/dev/null || needed+=(beanstalkd)
    command -v sqlite3 >/dev/null || needed+=(sqlite3)
    python3 -c 'import ensurepip' 2>/dev/null || needed+=(python3-venv)
    command -v promtool >/dev/null || needed+=(prometheus)
    command -v chromium >/dev/null || needed+=(chromium)
    command -v npm >/dev/null || needed+=(nodejs npm)
    php -r "require 'Pheanstalk/autoload.php';" >/dev/null 2>&1 || needed+=(php-cli php-pda-pheanstalk)
    ruby -e "require 'beaneater'" 2>/dev/null || needed+=(ruby ruby-beaneater)
    command -v systemd-analyze >/dev/null || needed+=(systemd)
    command -v systemd-nspawn >/dev/null || needed+=(systemd-container)
    command -v help2man >/dev/null || needed+=(help2man)
    command -v openssl >/dev/null || needed+=(openssl)
    compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || needed+=(postgresql)
    command -v ip >/dev/null || needed+=(iproute2)
    command -v adduser >/dev/null || needed+=(adduser)
    command -v strace >/dev/null || needed+=(strace)
    command -v pkill >/dev/null || needed+=(procps)
    command -v stunnel >/dev/null || needed+=(stunnel4)
    command -v mkfs.btrfs >/dev/null || needed+=(btrfs-progs)
    command -v haproxy >/dev/null || needed+=(haproxy)
    install_packages "${needed[@]}"
    python3 --version
    beanstalkd -v
    sqlite3 --version
}

npm_packages() {
    npm install --prefix tests/clients
    npm install --prefix tests/web/browser
    node --version
}

linters_environment() {
    rm -rf .venv-ci
    python3 -m venv .venv-ci
    .venv-ci/bin/pip install -q -e '.[dev]'
}

wheel() {
    .venv-ci/bin/pip wheel -q --no-deps --wheel-dir "$scratch" .
    python3 -m venv "$scratch/venv"
    "$scratch/venv/bin/pip" install -q --no-deps "$scratch"/beanlite-*.whl
    # What the tests need is installed already, beside the linters.
    local ask='import sysconfig; print(sysconfig.get_path("purelib"))'
    .venv-ci/bin/python -c "$ask" >"$("$scratch/venv/bin/python" -c "$ask")/others.pth"
    cp -r tests docs README.md pyproject.toml "$scratch"
    cd "$scratch"
    python3 "$OLDPWD/packaging/wheels/smoke.py" --compiled venv/bin/beanlite
}
