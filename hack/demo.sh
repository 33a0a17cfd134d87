#!/usr/bin/env bash
# demo.sh: watcherd at work. Runs bin/watcherd on examples/quickstart.yaml, with a
# custom resource added, against the playground, or against the cluster that KUBECONFIG names, while sample
# objects come, change and go. Ctrl-C ends it and leaves nothing behind.
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
root=$PWD
config=$root/examples/quickstart.yaml
daemon=$root/bin/watcherd

say() { printf 'demo: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

# Each job gets a process group of its own: Ctrl-C reaches only this script, which
# then stops the jobs in the right order, with their child processes.
set -m
work=
pid_daemon= pid_churn= pid_server= pid_build=

# stop PID: ends the job as SIGTERM does and waits for it, but not forever.
stop() {
	[ -n "$1" ] || return 0
	kill -TERM -- "-$1" 2>/dev/null || true
	local tenths=300
	while kill -0 "$1" 2>/dev/null && [ $((tenths -= 1)) -gt 0 ]; do sleep 0.1; done
	kill -KILL -- "-$1" 2>/dev/null || true
	wait "$1" 2>/dev/null || true
}

# First the reader, then the writer, which cleans up in the cluster, then the cluster.
cleanup() {
	trap '' INT TERM HUP
	stop "$pid_build"
	stop "$pid_daemon"
	stop "$pid_churn"
	stop "$pid_server"
	if [ -n "$work" ]; then
		grep '^churn: deleting' "$work/churn.log" >&2 || true
		rm -rf "$work"
	fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# build [NAME]: puts the path of a program of the playground into $built. Do not
# call it in $(...), where a signal would have to wait for its end.
build() {
	say "looking for the ${1:-playground} (the first time it is downloaded and compiled)"
	go run ./hack/playground "$@" >"$work/built" </dev/null &
	pid_build=$!
	wait "$pid_build" || die "could not build the ${1:-playground}"
	pid_build=
	built=$(cat "$work/built")
}

# absolute LIST: the colon-separated paths as seen from anywhere.
absolute() {
	local IFS=: path list=
	set -f
	for path in $1; do
		case $path in /*) ;; *) path=$caller/$path ;; esac
		list=${list:+$list:}$path
	done
	set +f
	printf '%s' "$list"
}

# await PID FILE PATTERN: waits for a line in what a job prints, or for its end.
await() {
	until grep -q "$3" "$2"; do
		kill -0 "$1" 2>/dev/null || return 1
		sleep 0.1
	done
}

command -v go >/dev/null || die "needs the go command in PATH: see https://go.dev/dl"
[ -x "$daemon" ] || die "$daemon is missing: run make build"
# The daemon would report it too, but only after everything else has been started.
port=$(sed -n 's/^ *listen: *"\{0,1\}[^:]*:\([0-9]\{1,\}\).*/\1/p' "$config" | head -n 1)
port=${port:-8080}
if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
	die "port $port, which watcherd's admin listener wants, is in use; end what listens there and start again"
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/watcherd-demo.XXXXXX")
sed 's/deployments\.apps\]/deployments.apps, widgets.example.com]/' "$config" >"$work/watcherd.yaml"
touch "$work/churn.log" "$work/server.log"

if [ -n "${KUBECONFIG:-}" ]; then
	KUBECONFIG=$(absolute "$KUBECONFIG")
	export KUBECONFIG
	build churn
	churn=("$built" --cleanup)
	say "using the cluster of KUBECONFIG: sample objects go to its namespace watcherd-demo and are deleted at the end"
else
	build
	churn=("$built" churn)
	# The playground ends with its standard input, even if this script is killed.
	mkfifo "$work/lifeline"
	exec 9<>"$work/lifeline"
	"$built" serve --dir "$work/playground" --lifeline \
		<"$work/lifeline" >"$work/server.log" 2>&1 9>&- &
	pid_server=$!
	await "$pid_server" "$work/server.log" '^ready ' || die "$(cat "$work/server.log")"
	export KUBECONFIG=$work/playground/admin.kubeconfig
	say "a Kubernetes API server runs at $(sed 's/ready \([^ ]*\).*/\1/' "$work/server.log"); look around with"
	say "  kubectl --kubeconfig $KUBECONFIG get pods -A --watch"
fi

"${churn[@]}" --rate "${DEMO_RATE:-2}" >"$work/churn.log" 2>&1 </dev/null 9>&- &
pid_churn=$!
await "$pid_churn" "$work/churn.log" ' changes per second' || die "$(cat "$work/churn.log")"

say "watcherd run --config examples/quickstart.yaml, with widgets.example.com (Ctrl-C ends it)"
say "in a browser: http://127.0.0.1:$port/ui/"
# In the folder that is removed at the end: the config's relative paths lead there.
(cd "$work" && exec "$daemon" run --config watcherd.yaml) </dev/null 9>&- &
pid_daemon=$!
status=0
wait "$pid_daemon" || status=$?
pid_daemon=
[ "$status" -eq 0 ] || say "watcherd ended with status $status"
exit "$status"
