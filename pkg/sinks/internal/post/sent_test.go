package post

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestSecretBesideRotatedOnes: a secret that each request has is hidden, however many tokens have taken each other's place beside it.
func TestSecretBesideRotatedOnes(t *testing.T) {
	var alone, together Sent
	first := alone.Note("key", "of the first request")
	for i := range 3 * maxSent {
		token := fmt.Sprint("token-", i)
		alone.Note("key")
		for name, hidden := range map[string][]string{"one after the other": alone.Note(token), "together": together.Note("key", token)} {
			if !slices.Contains(hidden, "key") || !slices.Contains(hidden, token) || len(hidden) > maxSent {
				t.Fatalf("%s, token %d: of %d secrets are hidden the key: %t, the token: %t", name, i, len(hidden), slices.Contains(hidden, "key"), slices.Contains(hidden, token))
			}
		}
	}
	if !slices.Equal(first, []string{"key", "of the first request"}) {
		t.Errorf("what a request hides has changed: %q", first)
	}
}

// TestHideCut: the beginning of a secret is hidden where a text is cut, also behind an escape that JSON does not need, or within it.
func TestHideCut(t *testing.T) {
	mask := NewMask([]string{"abcd/efgh+ijkl"})
	for text, want := range map[string]string{
		`bad token abcd/efgh+ijkl here`:     `bad token *** here`,
		`bad token abcd\/efgh\u002bijkl.`:   `bad token ***.`,
		`bad token abcd/efgh`:               `bad token ***`,
		`bad token abcd\/efgh`:              `bad token ***`,
		`bad token abcd\/efgh\u002Bij`:      `bad token ***`,
		`bad token abcd\/efgh\u002`:         `bad token ***`,
		`bad token abcd\`:                   `bad token ***`,
		`a path a\/b, and no secret \u002b`: `a path a\/b, and no secret \u002b`,
		`a path that ends here\`:            `a path that ends here\`,
	} {
		if got := mask.HideCut(text); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// TestHideBeyondASCII: PHP and Python escape all beyond ASCII in JSON, and .NET does with capitals, the passwords that they quote included.
func TestHideBeyondASCII(t *testing.T) {
	mask := NewMask([]string{"pässwört-😀/geheim"})
	for text, want := range map[string]string{
		`bad password p\u00e4ssw\u00f6rt-\ud83d\ude00\/geheim here`: `bad password *** here`,
		`bad password p\u00E4ssw\u00F6rt-\uD83D\uDE00/geheim.`:      `bad password ***.`,
		`bad password pässwört-\ud83d\ude00/geheim`:                 `bad password ***`,
		`bad password p\u00e4ssw\u00f6rt-\ud83d\ude00`:              `bad password ***`,
		`bad password p\u00e4ssw\u00f6rt-\ud83d\ude`:                `bad password ***`,
		`bad password p\u00e4ssw\u00f6rt-\ud83d`:                    `bad password ***`,
		`bad password p\u00e4ssw\u00`:                               `bad password ***`,
		`not a secret: \u00e4\u0001\ud83d\u0020\u00fc`:              `not a secret: \u00e4\u0001\ud83d\u0020\u00fc`,
	} {
		if got := mask.HideCut(text); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// TestHideInResults: a secret with a tab, which a header may have, is hidden in a message, which is one line.
func TestHideInResults(t *testing.T) {
	results, err := NewMask([]string{"abcd\tefgh"}).Results([]byte(`{"results":[{"status":"poison","message":"unknown key abcd\tefgh"}]}`), 1)
	if err != nil || results[0].Message != "unknown key ***" {
		t.Errorf("%+v, %v", results, err)
	}
}

// TestHideLatin1: a server that reads headers as Latin-1 quotes each byte of a secret as a character.
func TestHideLatin1(t *testing.T) {
	mask := NewMask([]string{"pässwört/geheim"})
	for _, text := range []string{
		"unknown key pÃ¤sswÃ¶rt/geheim", `{"error":"unknown key p\u00c3\u00a4ssw\u00c3\u00b6rt\/geheim"}`, "unknown key pÃ¤sswÃ¶rt/ge",
	} {
		if hidden := mask.HideCut(text); strings.Contains(hidden, "ssw") || !strings.Contains(hidden, "unknown key") {
			t.Errorf("%s: %s", text, hidden)
		}
	}
}
