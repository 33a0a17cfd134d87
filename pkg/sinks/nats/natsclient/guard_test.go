package natsclient

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
)

// FuzzGuard gives the guard what a server sends, in two parts: it refuses the same as of one part, and passes no line
// that announces a message above the limit.
func FuzzGuard(f *testing.F) {
	for _, seed := range []string{
		"INFO {}\r\nPING\r\nMSG a 1 3\r\nabc\r\n", "HMSG a 1 12 16\r\nNATS/1.0\r\n\r\nabcd\r\n", "MSG a 1 90000000000\r\n", "msg a\t1 b 5\r\nMSG x\r\n", "+OK\r\n-ERR 'x'\r\nPONG\r\n",
	} {
		f.Add([]byte(seed), 7)
	}
	f.Fuzz(func(t *testing.T, sent []byte, cut int) {
		cut = max(0, min(cut, len(sent)))
		var whole, parts guarded
		once := whole.accepts(sent)
		if twice := parts.accepts(sent[:cut]) && parts.accepts(sent[cut:]); once != twice {
			t.Fatalf("accepted as a whole: %t, in two parts: %t", once, twice)
		}
		if !once {
			return
		}
		for rest := sent; ; { // as the client reads
			line, next, ended := bytes.Cut(rest, []byte("\n"))
			if !ended {
				return
			}
			rest = next
			verb, _, _ := strings.Cut(strings.ToUpper(string(line)), " ")
			if verb != "MSG" && verb != "HMSG" {
				continue
			}
			fields := strings.Fields(string(line))
			size, err := strconv.Atoi(fields[len(fields)-1])
			if err != nil || size < 0 || size > maxMessage {
				t.Fatalf("%q is accepted", line)
			}
			if size > len(rest) {
				return
			}
			rest = rest[size:]
		}
	})
}
