package strict

import (
	"math"
	"reflect"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

// mismatch reports a value of a wrong type.
func (d *Decoder) mismatch(n Node, want string) {
	got := describe(n.yaml)
	if want == "a string" && n.yaml.Kind == yaml.ScalarNode {
		d.Report(n, "must be a string, not %s; put quotes around it: %s", got, strconv.Quote(shorten(n.yaml.Value)))
		return
	}
	d.Report(n, "must be %s, not %s", want, got)
}

func (d *Decoder) duration(n Node, v reflect.Value) {
	text, ok := n.Scalar()
	if !ok {
		d.mismatch(n, "a duration such as 500ms, 30s or 24h")
		return
	}
	value, err := time.ParseDuration(text)
	if err != nil {
		d.Report(n, "%q is not a duration; write it like 500ms, 30s, 5m or 24h", shorten(text))
		return
	}
	v.SetInt(int64(value))
}

func (d *Decoder) scalar(n Node, v reflect.Value) {
	tag := n.yaml.ShortTag()
	if n.yaml.Kind != yaml.ScalarNode {
		tag = ""
	}
	switch v.Kind() {
	case reflect.String:
		if tag != stringTag {
			d.mismatch(n, "a string")
			return
		}
		v.SetString(n.yaml.Value)
	case reflect.Bool:
		var b bool
		if tag != boolTag || n.yaml.Decode(&b) != nil {
			d.mismatch(n, "true or false")
			return
		}
		v.SetBool(b)
	case reflect.Float32, reflect.Float64:
		var f float64
		if tag != intTag && tag != floatTag || n.yaml.Decode(&f) != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			d.mismatch(n, "a number")
			return
		}
		if v.OverflowFloat(f) {
			d.Report(n, "the number is out of range")
			return
		}
		v.SetFloat(f)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		d.integer(n, tag, func() bool {
			var i int64
			if n.yaml.Decode(&i) != nil || v.OverflowInt(i) {
				return false
			}
			v.SetInt(i)
			return true
		})
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		d.integer(n, tag, func() bool {
			var u uint64
			if n.yaml.Decode(&u) != nil || v.OverflowUint(u) {
				return false
			}
			v.SetUint(u)
			return true
		})
	default:
		panic("strict: cannot decode into " + v.Type().String())
	}
}

func (d *Decoder) integer(n Node, tag string, set func() bool) {
	if tag != intTag {
		d.mismatch(n, "a whole number")
		return
	}
	if !set() {
		d.Report(n, "the number is out of range")
	}
}
