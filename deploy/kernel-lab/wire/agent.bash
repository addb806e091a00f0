# Runs in the guest and starts programs on commands from the host. The checks of this directory boot it.
#
# Commands arrive by TCP, one a line; the answer to each is a line "STATUS COUNT" and COUNT lines of output.
#   start NAME SECONDS COMMAND...   a program in the background
#   listens KIND PORT               waits until a server listens: tcp or cm
#   wait NAME                       for the end of a program; its status and output
#   stop NAME                       ends it
#   run COMMAND...                  a function or program, to its end
#   end                             no more commands
# shellcheck source-path=SCRIPTDIR/../guest source=common.bash
. "$(dirname "$0")/common.bash"

declare -A process=() # of each name

# answer STATUS [FILE]
answer() {
    local count=0
    if [[ -n ${2:-} ]]; then
        # The last line may lack its end.
        sed -e '$a\' "$2" >"$2.lines"
        count=$(wc -l <"$2.lines")
    fi
    printf '%s %s\n' "$1" "$count" >&"$host"
    if ((count > 0)); then cat "$2.lines" >&"$host"; fi
}

obey() {
    local verb=$1 name=${2:-}
    case $verb in
    start)
        timeout -k 2 "${@:3}" >"/tmp/$name.out" 2>&1 {host}>&- &
        process[$name]=$!
        answer 0
        ;;
    listens)
        until_true 15 listens "$2" "$3" >/tmp/listens.out
        answer $? /tmp/listens.out
        ;;
    wait)
        wait "${process[$name]}"
        answer $? "/tmp/$name.out"
        ;;
    stop)
        kill -TERM "${process[$name]}" 2>/dev/null
        answer 0
        ;;
    run)
        "${@:2}" >/tmp/run.out 2>&1 {host}>&-
        answer $? /tmp/run.out
        ;;
    *) answer 127 ;;
    esac
}

exec {host}<>"/dev/tcp/${WIRE_HOST:?}/${WIRE_PORT:?}" || exit 1
answer "${gid:-255}"
while read -ru "$host" -a words && [[ ${words[0]} != end ]]; do obey "${words[@]}"; done
exit 0
