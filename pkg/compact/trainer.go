package compact

// What a trainer goes by. Resources with few objects do without a dictionary: it would weigh more than it saves.
const (
	firstObjects = 8        // encoded without a dictionary before the first one is made, of them, ...
	firstBytes   = 32 << 10 // ... or so many bytes of JSON, which also is the size of that dictionary
	perObject    = firstBytes / 2

	laterObjects = 512     // encoded before a better dictionary is made, of these, ...
	laterBytes   = 1 << 20 // ... or objects of so many bytes of memory, which the trainer keeps alive till then
	maxTrained   = 6       // such dictionaries in a codec's life: each is kept for good

	watchWindow = 1024 // objects over which the compression is watched; if it has become ...
	drift       = 1.4  // ... so many times worse, another dictionary is trained
)

// trainer decides which dictionary a codec encodes with. It goes through these states:
//
//	first   the first objects are collected as JSON and become the first dictionary as they are: a list of thousands
//	        of objects should not wait for anything better
//	collect the next ones are remembered, compressed, until there are enough to train a dictionary from
//	steady  that dictionary is used; if the objects change so much that it serves badly, back to collect
//
// It belongs to one goroutine.
type trainer struct {
	dict    uint32 // in use; 0 = none yet
	samples []byte // first: JSON
	sampled int    // first: objects in samples

	collecting     bool
	collected      []*Object // collect
	collectedBytes int       // collect
	trained        int       // dictionaries trained

	seen, rawLen, bodyLen int     // steady: the current window
	ratio                 float64 // steady: body bytes per byte of JSON in the best window so far; 0 = no window yet
}

// adopt takes up a dictionary that an earlier process made.
func (t *trainer) adopt(dict uint32, trained bool) {
	t.dict, t.collecting = dict, !trained
}

// prepare makes a dictionary if it is time to, so that t.dict is what raw should be encoded with.
func (t *trainer) prepare(d *Dictionaries, raw []byte) error {
	switch {
	case t.dict == 0:
		t.samples = append(t.samples, raw[:min(len(raw), perObject, firstBytes-len(t.samples))]...)
		if t.sampled++; t.sampled < firstObjects && len(t.samples) < firstBytes {
			return nil
		}
		dict, err := d.Add(t.samples)
		if err != nil {
			return err
		}
		t.dict, t.samples, t.collecting = dict, nil, true
	case len(t.collected) >= laterObjects || t.collectedBytes >= laterBytes:
		content := train(t.collected)
		if len(content) == 0 {
			t.steady(t.dict)
			return nil
		}
		dict, err := d.Add(content)
		if err != nil {
			return err
		}
		t.steady(dict)
	}
	return nil
}

func (t *trainer) steady(dict uint32) {
	t.dict, t.trained = dict, t.trained+1
	t.collecting, t.collected, t.collectedBytes = false, nil, 0
	t.seen, t.rawLen, t.bodyLen, t.ratio = 0, 0, 0, 0
}

// observe takes note of an object that was encoded.
func (t *trainer) observe(o *Object) {
	if t.collecting {
		t.collected = append(t.collected, o)
		t.collectedBytes += o.Size()
		return
	}
	if t.dict == 0 || t.trained >= maxTrained {
		return
	}
	t.seen++
	t.rawLen += o.RawLen()
	t.bodyLen += len(o.packed) - int(o.bodyAt)
	if t.seen < watchWindow {
		return
	}
	ratio := float64(t.bodyLen) / float64(t.rawLen)
	t.collecting = t.ratio > 0 && ratio > drift*t.ratio
	if t.ratio == 0 || ratio < t.ratio {
		t.ratio = ratio
	}
	t.seen, t.rawLen, t.bodyLen = 0, 0, 0
}
