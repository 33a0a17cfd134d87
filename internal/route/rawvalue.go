package route

import (
	"strconv"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"sigs.k8s.io/json"
)

// wrap is a JSON value as CEL sees it. Numbers written as integers are int if they
// fit, all others double, as everywhere in Kubernetes. Objects and arrays are read
// further only when asked: an expression seldom looks at more than two or three
// fields, and decoding a whole pod costs more than all the rest of routing it.
func wrap(raw []byte) ref.Val {
	switch c := raw[0]; c {
	case '{':
		return &lazyMap{&rawObject{raw: raw}}
	case '[':
		return &rawArray{raw: raw}
	case '"':
		return types.String(unquote(raw))
	case 't':
		return types.True
	case 'f':
		return types.False
	case 'n':
		return types.NullValue
	}
	if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return types.Int(n)
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		return types.WrapErr(err)
	}
	return types.Double(f)
}

// decode reads a whole value, into maps and slices.
func decode(raw []byte) ref.Val {
	var v any
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, &v); err != nil {
		return types.WrapErr(err)
	}
	return types.DefaultTypeAdapter.NativeToValue(v)
}
