#!/usr/bin/env bash
# Starts the stack of compose.yml with the images that are there, runs the main job on it, and takes it
# down with its data. With --daemon it first installs Docker (root on Debian), starts a daemon of its own
# that only this script uses, and makes the images offline; the daemon ends with the script.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
flags=(-p tidemill --env-file compose/versions.env -f compose/compose.yml)

daemon() {
    local home=${TIDEMILL_DOCKER_HOME:-/var/tmp/tidemill-docker} missing=()
    command -v dockerd >/dev/null || missing+=(docker.io)
    command -v docker-compose >/dev/null || missing+=(docker-compose)
    command -v debootstrap >/dev/null || missing+=(debootstrap)
    if ((${#missing[@]})); then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
    fi
    mkdir -p "$home"
    export DOCKER_HOST=unix://$home/docker.sock
    dockerd -H "$DOCKER_HOST" --data-root "$home/data" --exec-root "$home/exec" \
        --pidfile "$home/pid" --exec-opt native.cgroupdriver=cgroupfs >"$home/log" 2>&1 &
    local pid=$! tries=0
    # shellcheck disable=SC2064 # This very process, now.
    trap "kill $pid 2>/dev/null; wait $pid 2>/dev/null || true" EXIT
    until docker version >/dev/null 2>&1; do
        if ! kill -0 "$pid" 2>/dev/null || ((++tries > 60)); then
            tail -n 20 "$home/log" >&2
            echo "error: dockerd does not start; its log is $home/log" >&2
            exit 1
        fi
        sleep 1
    done
    compose/build_images.sh --offline
}

compose() {
    if command -v docker-compose >/dev/null; then
        docker-compose "${flags[@]}" "$@"
    else
        docker compose "${flags[@]}" "$@"
    fi
}

down() {
    compose down -v --timeout 5 >/dev/null 2>&1
}

case ${1:-} in
--daemon) daemon ;;
"") ;;
*)
    echo "usage: $0 [--daemon]" >&2
    exit 2
    ;;
esac

down
if ! compose up -d || ! .venv/bin/python -m services.demo --containers; then
    compose ps >&2
    compose logs --tail 20 >&2
    down
    exit 1
fi
down
