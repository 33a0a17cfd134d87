#!/bin/sh
# A plugin of watcherd in shell: appends each event to a file, and answers for the batch. It serves one request of a
# connection, its standard input and output, as socat starts it:
#
#   export SINK_FILE=events.jsonl
#   socat UNIX-LISTEN:/tmp/sink.sock,fork,mode=600 EXEC:./sink.sh
#   watcherd sinktest --url unix:///tmp/sink.sock
#
# An event that comes again, as after a lost answer, is in the file again, with its id. A line that is cut short is of a
# write that a full disk or a kill ended: its event comes again.
set -u

answer() {
	printf 'HTTP/1.1 %s\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %s\r\n\r\n%s' "$1" "${#2}" "$2"
	exit 0
}

length=
cr=$(printf '\r')
while IFS= read -r line; do
	line=${line%"$cr"}
	case $line in
	'') break ;;
	[Cc][Oo][Nn][Tt][Ee][Nn][Tt]-[Ll][Ee][Nn][Gg][Tt][Hh]:*) length=$(printf %s "${line#*:}" | tr -d ' ') ;;
	esac
done
case $length in
'' | *[!0-9]*) answer '411 Length Required' '{"error": "a length is wanted"}' ;;
esac

body=$(mktemp) && lines=$(mktemp) || answer '503 Service Unavailable' '{"error": "no temporary file"}'
trap 'rm -f "$body" "$lines"' EXIT
head -c "$length" >"$body"
[ "$(wc -c <"$body")" -eq "$length" ] || exit 0 # the client has given up

# jq prints numbers as it understands them.
jq -ce 'if type == "array" and all(.[]; type == "object" and has("id")) then .[] else error("not an array of CloudEvents") end' \
	"$body" >"$lines" 2>/dev/null || answer '400 Bad Request' '{"error": "not an array of CloudEvents"}'
results=$(jq -c '{results: map({status: "accepted"})}' "$body")
{
	flock 9 &&
		if [ -n "$(tail -c 1 "$SINK_FILE")" ]; then echo >&9; fi && # behind a line that is cut short
		cat "$lines" >&9 && sync "$SINK_FILE" "$(dirname "$SINK_FILE")"
} 9>>"$SINK_FILE" || answer '503 Service Unavailable' '{"error": "the file cannot be written"}'
answer '200 OK' "$results"
