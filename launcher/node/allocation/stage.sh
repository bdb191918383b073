#!/bin/sh
# Carry a run's Python environment to local storage and start Python from there (`environment.stage`). POSIX shell, tar and
# util-linux alone: there is no Python yet. Its variables begin with s_, so that none is the user's.
#
#   stage.sh carry ARCHIVE DIR                        in the batch script: send the archive to every node of the job
#   stage.sh enter ARCHIVE DIR BYTES NAME=PATH ... -- PYTHON ...
#                                                     on a node: unpack it, show NAME of it at PATH, run the command
#
# ARCHIVE is a tar file on the shared file system, named KEY.tar; BYTES are those of the files in it. Whatever goes wrong is said in
# one sentence, in LAUNCHER_NOT_STAGED, which the agent reports; Python then starts from the shared file system.

s_verb=$1 s_archive=$2 s_base=$3
shift 3
s_key=${s_archive##*/} s_uid=$(id -u)
s_dir=$s_base/launcher-$s_uid-$SLURM_JOB_ID-${s_key%.tar}
s_carried=$s_dir.${SLURM_RESTART_COUNT:-0}.tar s_again=$s_dir.${SLURM_RESTART_COUNT:-0}.again.tar
s_most=32 # nodes that may read the archive at once: 2 GB for each

carry() { # sbcast reads the archive once and sends it down a tree of nodes; it never writes over a file or through a link
    touch -c "$s_archive" # it is in use
    timeout 600 sbcast "$s_archive" "$s_carried" && return
    # What the first has left on some nodes stays in its place. One that took too long would again.
    [ $? != 124 ] && timeout 600 sbcast "$s_archive" "$s_again" && return
    echo "launcher: sbcast failed; up to $s_most nodes read $s_archive themselves, more start without staging" >&2
}

enter() {
    unset LAUNCHER_STAGED LAUNCHER_NOT_STAGED # another job's, where this one was submitted from inside it
    s_bytes=$1 s_shown=
    shift
    while [ "$1" != -- ]; do # paths have no line breaks: the plan refuses them
        s_shown="$s_shown$1
"
        shift
    done
    shift
    # With it CUDA finds its devices: in a user namespace this program, which is root's, could not make them.
    command -v nvidia-modprobe >/dev/null 2>&1 && nvidia-modprobe -u -c 0 >/dev/null 2>&1
    remove_left 2>/dev/null
    s_why=$(unpack) && s_why=$(may_mount)
    s_failed=$?
    for s_sent in "$s_carried" "$s_again"; do
        mine "$s_sent" && rm -f -- "$s_sent"
    done
    [ $s_failed = 0 ] || without "$s_why" "$@"
    exec 9<"$s_dir"
    mine "$s_dir" || { exec 9<&-; without "$s_dir belongs to somebody else by now" "$@"; }
    flock --shared --timeout 300 9 # as long as the agent lives; nobody removes what is locked
    own_mounts exec sh "$0" inside "$s_archive" "$s_base" "$s_shown" "$@"
}

inside() { # $1: lines NAME=PATH; the rest: the command
    s_shown=$1
    shift
    if s_why=$(show 2>&1); then
        cd "$PWD" || exit 1 # the folder that is seen now, not the one below it
        if s_said=$(plainly timeout 300 "$1" -c "import torch" 2>&1); then
            echo "launcher: $1 and its packages start from $s_dir" >&2
            LAUNCHER_STAGED=$s_dir
            export LAUNCHER_STAGED
            plainly exec "$@"
        fi
        s_why="torch cannot be imported from the copy in $s_base: $(printf '%s\n' "$s_said" | tail -n 1)"
    fi
    printf '%s' "$s_shown" | while IFS= read -r s_line; do
        umount -- "${s_line#*=}" 2>/dev/null
    done
    cd "$PWD" || exit 1
    exec 9<&-
    without "$s_why" "$@"
}

without() { # $1: why; the rest: the command
    mine "$s_dir" && remove "$s_dir"
    LAUNCHER_NOT_STAGED="environment.stage: $1, so Python starts from the shared file system"
    export LAUNCHER_NOT_STAGED
    echo "launcher: $LAUNCHER_NOT_STAGED" >&2
    shift
    plainly exec "$@"
}

unpack() { # make $s_dir what the archive holds; say why that is not possible
    [ -d "$s_base" ] || { echo "there is no folder $s_base here"; return 1; }
    shared && { echo "$s_base cannot be used: others can put another folder in the place of the copy (chmod +t it)"; return 1; }
    if ! mkdir -m 700 -- "$s_dir" 2>/dev/null; then
        [ -d "$s_dir" ] && mine "$s_dir" || { echo "$s_dir cannot be made here"; return 1; }
        [ -e "$s_dir/ready" ] && return 0
    fi
    exec 8<"$s_dir"
    mine "$s_dir" || { echo "$s_dir belongs to somebody else by now"; return 1; }
    flock --timeout 300 8 || { echo "$s_dir is being unpacked by another process"; return 1; }
    [ -e "$s_dir/ready" ] && return 0 # by another process, meanwhile
    s_from=$s_archive
    for s_sent in "$s_carried" "$s_again"; do
        mine "$s_sent" && [ "$(stat -c %s "$s_sent")" = "$(stat -c %s "$s_archive")" ] && s_from=$s_sent
    done
    [ -e "$s_from" ] || { echo "there is no $s_from"; return 1; }
    s_nodes=${SLURM_STEP_NUM_NODES:-1} # an agent that is started again is alone in its step
    if [ "$s_from" = "$s_archive" ] && [ "$s_nodes" -gt "$s_most" ]; then
        echo "sbcast failed, and $s_nodes nodes would read $s_archive at once"
        return 1
    fi
    mine "$s_from" || { echo "$s_from belongs to somebody else"; return 1; }
    room || return 1
    if ! s_said=$(timeout 600 tar -x -o -f "$s_from" -C "$s_dir" 2>&1); then
        echo "$s_from cannot be unpacked in $s_base: $(printf '%s\n' "${s_said:-it took longer than 10 minutes}" | head -n 1)"
        return 1
    fi
    : >"$s_dir/ready"
}

room() { # say why not
    s_need=$((s_bytes / 1024 + s_bytes / 10240)) # in KiB; small files take whole blocks
    s_free=$(df -Pk "$s_base" | awk 'NR == 2 {print $4}')
    if [ "$s_free" -lt "$s_need" ]; then
        echo "$s_base has $((s_free / 1024)) MB free and $((s_need / 1024)) MB are needed"
        return 1
    fi
    # A tmpfs is memory, and what is in it counts as the job's: the copy, and until it is unpacked the archive. It may
    # promise more room than the node has memory.
    [ "$(stat -f -c %T "$s_base")" = tmpfs ] || return 0
    s_memory=$(($(awk '/^MemAvailable:/ {print $2}' /proc/meminfo) / 1024))
    [ "${SLURM_MEM_PER_NODE:-0}" -gt 0 ] && [ "$SLURM_MEM_PER_NODE" -lt "$s_memory" ] && s_memory=$SLURM_MEM_PER_NODE
    if [ $((s_need / 1024 * 4)) -gt "$s_memory" ]; then
        echo "$s_base is in memory, and $((s_need / 1024)) MB would be more than a quarter of the job's $s_memory MB"
        return 1
    fi
}

own_mounts() { # run a command where it may mount: root in a mount namespace, others in a user namespace that keeps their uid
    [ "$1" = exec ] && s_exec=exec && shift || s_exec=
    if [ "$s_uid" = 0 ]; then
        $s_exec unshare --mount --propagation slave -- "$@"
    else
        $s_exec unshare --user --map-current-user --keep-caps --mount --propagation slave -- "$@"
    fi
}

may_mount() { # say why not
    s_said=$(own_mounts true 2>&1) && return 0
    echo "no mount of one's own is allowed here ($(printf '%s\n' "$s_said" | head -n 1))"
    return 1
}

show() { # say why not
    printf '%s' "$s_shown" | while IFS= read -r s_line; do
        mount --bind -- "$s_dir/${s_line%%=*}" "${s_line#*=}" || exit 1
    done
}

plainly() { # run a command with no more rights than outside; a namespace of one's own gives them all
    [ "$1" = exec ] && s_exec=exec && shift || s_exec=
    if [ "$s_uid" != 0 ]; then
        $s_exec setpriv --ambient-caps=-all --inh-caps=-all -- "$@"
    else
        $s_exec "$@"
    fi
}

mine() { [ -O "$1" ] && [ ! -L "$1" ]; }

shared() { # whether others can rename what is in $s_base: without the sticky bit, all who may write in it; not root's group, nor one's own
    case $(stat -L -c %A "$s_base") in
    *[tT]) return 1 ;;
    ????????w?) return 0 ;;
    ?????w*) case $(stat -L -c %g:%G "$s_base") in 0:* | *:"$(id -un)") return 1 ;; esac ;;
    *) return 1 ;;
    esac
}

remove() { # unless an agent that lives has locked it; one that is removed in part is not ready
    shared && return 1
    # shellcheck disable=SC2016
    flock --nonblock "$1" sh -c 'rm -f -- "$1/ready" && rm -rf -- "$1"' sh "$1"
}

remove_left() { # what killed jobs of this user have left; younger ones may be those of a job that starts
    for s_left in "$s_base/launcher-$s_uid-"*; do
        if [ "$s_left" != "$s_dir" ] && mine "$s_left" && [ -n "$(find "$s_left" -maxdepth 0 -mmin +60)" ]; then
            if [ -d "$s_left" ]; then remove "$s_left"; else rm -f -- "$s_left"; fi
        fi
    done
}

"$s_verb" "$@"
