package compact

import "maps"

// Retire takes dictionaries out of use and returns their ids: nothing is encoded with them any more, while what names
// them can still be inflated. match is asked about each by the name of its resource (see NewCodecFor) and its id.
//
// A dictionary is made of parts of objects. It is retired when it holds what must not be kept any more; once nothing
// refers to it, its owner can delete it.
func (d *Dictionaries) Retire(match func(resource string, id uint32) bool) []uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := map[uint32]struct{}{}
	if retired := d.retired.Load(); retired != nil {
		maps.Copy(next, *retired)
	}
	var ids []uint32
	newest := map[string]dictRef{}
	for id, dict := range *d.byID.Load() {
		resource, generation := readOrigin(dict.content)
		if _, known := next[id]; known || match(resource, id) {
			next[id] = struct{}{}
			ids = append(ids, id)
		} else if generation > 0 {
			keepNewest(newest, resource, dictRef{id, generation})
		}
	}
	if len(ids) > 0 {
		d.retired.Store(&next)
		d.byResource = newest
	}
	return ids
}

// Retired reports whether the dictionary of an id is out of use.
func (d *Dictionaries) Retired(id uint32) bool {
	retired := d.retired.Load()
	if retired == nil {
		return false
	}
	_, ok := (*retired)[id]
	return ok
}

// Refresh returns the object, encoded again if its dictionary is retired. One goroutine at a time may use the codec.
func (c *Codec) Refresh(o *Object) (*Object, error) {
	if !c.dicts.Retired(o.dict) {
		return o, nil
	}
	raw, err := o.AppendJSON(nil)
	if err != nil {
		return nil, err
	}
	return c.Encode(raw, nil, o.position)
}

func keepNewest(byResource map[string]dictRef, resource string, d dictRef) {
	if known := byResource[resource]; d.generation > known.generation || d.generation == known.generation && d.id > known.id {
		byResource[resource] = d
	}
}
