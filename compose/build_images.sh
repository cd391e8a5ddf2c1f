#!/usr/bin/env bash
# Makes the images of compose.yml. With --offline the bases come from debootstrap instead of an
# image registry (root on Debian; packages `docker.io docker-compose debootstrap`).
# It owns the images tidemill/* and a temporary folder; it starts no container of the stack.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$PWD/.venv/bin/python
uv=$PWD/.venv/bin/uv
set -a
# shellcheck source-path=SCRIPTDIR/..
source compose/versions.env
set +a

offline=false
case ${1:-} in
--offline) offline=true ;;
"") ;;
*)
    echo "usage: $0 [--offline]" >&2
    exit 2
    ;;
esac

docker version >/dev/null 2>&1 || {
    echo "error: no Docker daemon answers; start one (or set DOCKER_HOST)" >&2
    exit 1
}

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT

quietly() { # COMMAND... : its output only if it fails
    "$@" >"$context/output" 2>&1 || {
        tail -n 20 "$context/output" >&2
        echo "error: \`$1\` failed" >&2
        exit 1
    }
}

base() { # NAME PACKAGE... : an image of Debian with these packages and nothing else
    local image=tidemill/base-$1:$DEBIAN_RELEASE packages
    if ! docker image inspect "$image" >/dev/null 2>&1; then
        echo "making $image by debootstrap ..." >&2
        packages=$(IFS=, && echo "${*:2}")
        quietly debootstrap --variant=minbase --include="$packages" \
            "$DEBIAN_RELEASE" "$context/root"
        rm -rf "$context"/root/var/{cache/apt,lib/apt/lists}/*
        tar -C "$context/root" --one-file-system -c . | docker import - "$image" >/dev/null
        rm -rf "$context/root"
    fi
    echo "$image"
}

image() { # NAME VERSION BUILD_ARGUMENT...
    local options=() argument
    for argument in "${@:3}"; do options+=(--build-arg "$argument"); done
    echo "building tidemill/$1:$2 ..."
    docker build --quiet --network none --target "$1" --tag "tidemill/$1:$2" \
        --file compose/Dockerfile "${options[@]}" "$context"
}

bases=()
if $offline; then
    bases+=("DEBIAN=$(base debian ca-certificates)")
    bases+=("JAVA=$(base java ca-certificates "openjdk-$JAVA_VERSION-jre-headless")")
    bases+=("PYTHON=$(base python ca-certificates "python$PYTHON_VERSION" python3)")
fi

declare -A built
while read -r name path; do built[$name]=$path; done < <("$python" -m compose.local.build)
mkdir "$context/etcd"
cp -r compose/kafka "$context/kafka"
cp -r "${built[jars]}" "$context/jars"
cp "${built[etcd]}" "${built[etcdctl]}" "$context/etcd/"

echo "laying out tidemill $TIDEMILL_VERSION ..."
for project in . sdk; do
    (cd "$project" && quietly "$python" -m hatchling build -t wheel -d "$context/wheels")
done
into=(--quiet --target "$context/site" --python-version "$PYTHON_VERSION" --no-deps)
"$uv" pip install "${into[@]}" --only-binary :all: --require-hashes -r requirements/server.txt
"$uv" pip install "${into[@]}" "$context"/wheels/*.whl

image etcd "$ETCD_VERSION" "${bases[@]}"
image kafka "$KAFKA_VERSION" "${bases[@]}"
image services "$TIDEMILL_VERSION" "${bases[@]}"
