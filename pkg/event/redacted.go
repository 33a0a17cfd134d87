package event

import "bytes"

// The form of the text that replaces a redacted value: RedactedPrefix and the first
// RedactedDigits hexadecimal digits of a keyed hash. RedactedPattern is the regular
// expression of it.
const (
	RedactedPrefix  = "redacted:hmac-sha256:"
	RedactedDigits  = 16
	RedactedPattern = RedactedPrefix + "[0-9a-f]{16}"
)

// IsRedacted reports whether a JSON value is a string of that form, without escapes.
func IsRedacted(value []byte) bool {
	digits, ok := bytes.CutPrefix(value, []byte(`"`+RedactedPrefix))
	return ok && len(digits) == RedactedDigits+1 && digits[RedactedDigits] == '"' &&
		len(bytes.Trim(digits[:RedactedDigits], "0123456789abcdef")) == 0
}
