#!/bin/sh
# Carry a run's Python environment to local storage and start Python from there (`environment.stage`). POSIX shell, tar and
# util-linux alone: there is no Python yet.
#
#   stage.sh carry ARCHIVE DIR                        in the batch script: send the archive to every node of the job
#   stage.sh enter ARCHIVE DIR BYTES NAME=PATH ... -- PYTHON ...
#                                                     on a node: unpack it, show NAME of it at PATH, run the command
#
# ARCHIVE is a tar file of BYTES on the shared file system, named KEY.tar. Whatever goes wrong is said in one sentence, in
# LAUNCHER_NOT_STAGED, which the agent reports; Python then starts from the shared file system.

verb=$1 archive=$2 base=$3
shift 3
key=${archive##*/} uid=$(id -u)
key=${key%.tar}
dir=$base/launcher-$uid-$SLURM_JOB_ID-$key
carried=$dir.${SLURM_RESTART_COUNT:-0}.tar

carry() { # sbcast reads the archive once and sends it down a tree of nodes; it never writes over a file or through a link
    timeout 600 sbcast "$archive" "$carried" || echo "launcher: sbcast failed; each node reads $archive itself" >&2
}

in_own_mounts() { # run a command where it may mount: root in a mount namespace, others in a user namespace that keeps their uid
    if [ "$uid" = 0 ]; then
        set -- unshare --mount --propagation slave -- "$@"
    else
        set -- unshare --user --map-current-user --keep-caps --mount --propagation slave -- "$@"
    fi
    [ "${run_as:-}" = exec ] && exec "$@"
    "$@"
}

mine() { [ -O "$1" ] && [ ! -L "$1" ]; }

remove_left() { # remove what killed jobs of this user have left: each agent holds a lock on its folder while it lives
    for left in "$base/launcher-$uid-"*; do
        if [ "$left" != "$dir" ] && [ -d "$left" ] && mine "$left"; then
            flock --nonblock "$left" rm -rf -- "$left"
        elif [ -f "$left" ] && mine "$left"; then
            find "$left" -mmin +60 -exec rm -f -- {} +
        fi
    done
}

unpack() { # make $dir what the archive holds; say why that is not possible
    [ -d "$base" ] || { echo "there is no folder $base here"; return 1; }
    if ! mkdir -m 700 -- "$dir" 2>/dev/null; then
        [ -d "$dir" ] && mine "$dir" || { echo "$dir cannot be made here"; return 1; }
        [ -e "$dir/ready" ] && return 0
    fi
    exec 8<"$dir"
    flock --timeout 300 8 || { echo "$dir is being unpacked by another process"; return 1; }
    [ -e "$dir/ready" ] && return 0 # by another process, meanwhile
    from=$archive
    [ -f "$carried" ] && mine "$carried" && [ "$(stat -c %s "$carried")" = "$(stat -c %s "$archive")" ] && from=$carried
    room || return 1
    if ! said=$(tar -x -o -f "$from" -C "$dir" 2>&1); then
        echo "$from cannot be unpacked in $base: $(printf '%s\n' "$said" | head -n 1)"
        return 1
    fi
    mine "$carried" && rm -f -- "$carried"
    : >"$dir/ready"
    exec 8<&-
}

room() { # say why not
    need=$((bytes / 1024 + bytes / 10240)) # in KiB; small files take whole blocks
    free=$(df -Pk "$base" | awk 'NR == 2 {print $4}')
    if [ "$free" -lt "$need" ]; then
        echo "$base has $((free / 1024)) MB free and $((need / 1024)) MB are needed"
        return 1
    fi
    # A tmpfs is memory, and what is in it counts as the job's.
    if [ "$(stat -f -c %T "$base")" = tmpfs ] && [ $((need / 1024 * 4)) -gt "${SLURM_MEM_PER_NODE:-$((1 << 40))}" ]; then
        echo "$base is in memory, and $((need / 1024)) MB would be more than a quarter of the job's $SLURM_MEM_PER_NODE MB"
        return 1
    fi
}

enter() {
    bytes=$1 shown=
    shift
    while [ "$1" != -- ]; do # paths have no line breaks: the plan refuses them
        shown="$shown$1
"
        shift
    done
    shift
    # With it CUDA finds its devices: in a user namespace this program, which is root's, could not make them.
    command -v nvidia-modprobe >/dev/null 2>&1 && nvidia-modprobe -u -c 0 >/dev/null 2>&1
    began=$(date +%s)
    if why=$(remove_left 2>/dev/null; unpack) && why=$(check "$1"); then
        echo "launcher: $1 and its packages start from $dir, ready after $(($(date +%s) - began)) s" >&2
        LAUNCHER_STAGED=$dir
        export LAUNCHER_STAGED
        exec 9<"$dir"
        flock --shared 9
        run_as=exec in_own_mounts sh "$0" show "$archive" "$base" "$shown" "$@"
    fi
    for left in "$dir" "$carried"; do
        mine "$left" && rm -rf -- "$left"
    done
    LAUNCHER_NOT_STAGED="environment.stage: $why, so Python starts from the shared file system"
    export LAUNCHER_NOT_STAGED
    echo "launcher: $LAUNCHER_NOT_STAGED" >&2
    exec "$@"
}

check() { # import torch from the copy, at the paths that it will have; say why that is not possible
    said=$(in_own_mounts true 2>&1) || { echo "no mount of one's own is allowed here ($(printf '%s\n' "$said" | head -n 1))"; return 1; }
    said=$(in_own_mounts sh "$0" show "$archive" "$base" "$shown" "$1" -c "import torch" 2>&1) && return 0
    echo "torch cannot be imported from the copy in $base: $(printf '%s\n' "$said" | tail -n 1)"
    return 1
}

show() { # $1: lines NAME=PATH; the rest: the command
    printf '%s' "$1" | while IFS= read -r line; do
        mount --bind "$dir/${line%%=*}" "${line#*=}" || exit 1
    done || exit 1
    shift
    cd "$PWD" || exit 1 # the folder that is seen now, not the one below it
    if [ "$uid" != 0 ]; then # no more rights than outside
        exec setpriv --ambient-caps=-all --inh-caps=-all -- "$@"
    fi
    exec "$@"
}

"$verb" "$@"
