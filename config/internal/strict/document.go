package strict

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Bounds of a document once its aliases are followed. A configuration of a
// thousand watches stays far below both.
const (
	maxExpanded = 4 << 20 // bytes of scalars plus one for each node
	maxDepth    = 64
)

// Problem is one thing that is wrong with a document. Line and Column count from
// 1; Path is empty when the document as a whole is meant.
type Problem struct {
	Line, Column int
	Path, Msg    string
	Lost         bool   // the value at Path was not decoded
	Meant        string // for an unknown key, the path of the missing one that was probably meant
}

// Document is a parsed YAML document. It is immutable and safe for concurrent use.
type Document struct {
	root *yaml.Node // the value below the document node
	text []byte     // as written
}

// JSON is the document as [Node.JSON] has it.
func (d *Document) JSON() []byte { return Node{yaml: d.root, at: d.root}.JSON() }

// Parse reads exactly one document. On a problem there is no Document.
func Parse(data []byte) (*Document, *Problem) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, &Problem{Line: 1, Column: 1, Msg: "the file is empty"}
	}
	if p := badText(data); p != nil {
		return nil, p
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	if err := d.Decode(&first); errors.Is(err, io.EOF) {
		return nil, &Problem{Line: 1, Column: 1, Msg: "the file holds nothing but comments"}
	} else if err != nil {
		return nil, syntaxProblem(data, err)
	}
	if err := d.Decode(&second); err == nil {
		return nil, &Problem{Line: second.Line, Column: second.Column, Msg: "a second YAML document starts here; a configuration is a single one"}
	} else if !errors.Is(err, io.EOF) {
		return nil, syntaxProblem(data, err)
	}
	root := &first
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		root = root.Content[0]
	}
	if root.ShortTag() == nullTag {
		return nil, &Problem{Line: 1, Column: 1, Msg: "the file is empty"}
	}
	m := measure{seen: map[*yaml.Node]extent{}}
	if _, p := m.node(root); p != nil {
		return nil, p
	}
	return &Document{root: root, text: bytes.Clone(data)}, nil
}

// badText finds what no YAML document may contain, which the parser reports
// without its place.
func badText(data []byte) *Problem {
	if len(data) > 1 && (data[0] == 0xfe && data[1] == 0xff || data[0] == 0xff && data[1] == 0xfe) {
		return nil // UTF-16 with its mark: the parser reads it
	}
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			return problemAt(data, i, "not valid YAML: the text is not UTF-8")
		case r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0x7f:
			return problemAt(data, i, "not valid YAML: a control character")
		}
		i += n
	}
	return nil
}

// problemAt is a problem with the byte at offset.
func problemAt(data []byte, offset int, msg string) *Problem {
	before := data[:offset]
	start := bytes.LastIndexByte(before, '\n') + 1
	return &Problem{Line: 1 + bytes.Count(before, []byte("\n")), Column: 1 + utf8.RuneCount(before[start:]), Msg: msg}
}

var textOfError = regexp.MustCompile(`^yaml: (?:line \d+: )?(.*)$`)

// syntaxProblem gives the parser's complaint the place where the text of the broken line
// starts.
func syntaxProblem(data []byte, err error) *Problem {
	p := &Problem{Line: 1, Column: 1, Msg: "not valid YAML: " + err.Error()}
	m := textOfError.FindStringSubmatch(strings.ReplaceAll(err.Error(), "\n", " "))
	if m == nil {
		return p
	}
	p.Msg = "not valid YAML: " + Shorten(m[1])
	if name := unknownAnchor.FindStringSubmatch(m[1]); name != nil {
		// The name is not shown: it may be a password that begins with *.
		p.Msg = "not valid YAML: an alias of an anchor that is not in the file; a text that begins with * is written in quotes"
		if at := bytes.Index(data, []byte("*"+name[1])); at >= 0 {
			return problemAt(data, at, p.Msg)
		}
	}
	p.Line = brokenLine(data)
	p.Column = firstColumn(data, p.Line)
	if text := lineOf(data, p.Line); bytes.IndexByte(text[:min(p.Column-1, len(text))], '\t') >= 0 {
		p.Msg = "not valid YAML: lines are indented with spaces, never tabs"
	}
	return p
}

// longestValue is how many lines a value in brackets or quotes may have for its end to be
// found. It bounds the work for one message.
const longestValue = 32

// brokenLine is the line after the longest beginning of data that is valid YAML: the one
// that has the error, or that opens the bracket or quote that nothing closes. The parser
// names the line where the block around it starts.
func brokenLine(data []byte) int {
	ends := []int{0}
	for i, b := range data {
		if b == '\n' {
			ends = append(ends, i+1)
		}
	}
	ends = append(ends, len(data))
	valid := func(lines int) bool {
		d := yaml.NewDecoder(bytes.NewReader(data[:ends[lines]]))
		for {
			if err := d.Decode(new(yaml.Node)); err != nil {
				return errors.Is(err, io.EOF)
			}
		}
	}
	good, bad := 0, len(ends)-1
	for good+1 < bad {
		if middle := (good + bad) / 2; valid(middle) {
			good = middle
		} else {
			bad = middle
		}
	}
	// A beginning that ends inside a value is not valid, either.
	for n := good + 1; n < len(ends) && n <= good+longestValue; n++ {
		if valid(n) {
			good = n
		}
	}
	return min(good+1, len(ends)-1)
}

var unknownAnchor = regexp.MustCompile(`^unknown anchor '(.+)' referenced$`)

// firstColumn is the column of the first character of a line that is not blank.
func firstColumn(data []byte, line int) int {
	text := lineOf(data, line)
	return len(text) - len(bytes.TrimLeft(text, " \t")) + 1
}

// lineOf is the line of that number, from 1, without its end.
func lineOf(data []byte, line int) []byte {
	for range line - 1 {
		_, after, ok := bytes.Cut(data, []byte("\n"))
		if !ok {
			return nil
		}
		data = after
	}
	text, _, _ := bytes.Cut(data, []byte("\n"))
	return text
}

// extent is what a node comes to when its aliases are followed.
type extent struct {
	size, depth int
}

// measure sizes a graph of nodes without walking any of them twice.
type measure struct {
	seen map[*yaml.Node]extent // a zero extent marks a node that is being measured
}

func (m *measure) node(n *yaml.Node) (extent, *Problem) {
	if e, ok := m.seen[n]; ok {
		if e == (extent{}) {
			return e, &Problem{Line: n.Line, Column: n.Column, Msg: "an alias refers to a value that contains it"}
		}
		return e, nil
	}
	m.seen[n] = extent{}
	total := extent{size: 1 + len(n.Value), depth: 1}
	children := n.Content
	if n.Kind == yaml.AliasNode {
		children = []*yaml.Node{n.Alias}
	}
	for _, c := range children {
		e, p := m.node(c)
		if p != nil {
			return total, p
		}
		total.size += e.size
		total.depth = max(total.depth, e.depth+1)
		if total.size > maxExpanded {
			return total, &Problem{Line: n.Line, Column: n.Column, Msg: "aliases multiply the document beyond any reasonable size"}
		}
		if total.depth > maxDepth {
			return total, &Problem{Line: n.Line, Column: n.Column, Msg: "values are nested too deep"}
		}
	}
	m.seen[n] = total
	return total, nil
}
