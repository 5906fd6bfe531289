package hypercube

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
)

const (
	prime1 uint64 = 0x9E3779B185EBCA87
	prime2 uint64 = 0xC2B2AE3D27D4EB4F
	prime3 uint64 = 0x165667B19E3779F9
	prime4 uint64 = 0x85EBCA77C2B2AE63
	prime5 uint64 = 0x27D4EB2F165667C5
)

func round(accumulator, lane uint64) uint64 {
	return bits.RotateLeft64(accumulator+lane*prime2, 31) * prime1
}

// XXH64 returns the xxh64 hash of data.
func XXH64(data []byte, seed uint64) uint64 {
	length := uint64(len(data))
	var h uint64
	if len(data) >= 32 {
		lanes := [4]uint64{seed + prime1, seed + prime2, seed, seed - prime1}
		lanes[0] += prime2
		for ; len(data) >= 32; data = data[32:] {
			for i := range lanes {
				lanes[i] = round(lanes[i], binary.LittleEndian.Uint64(data[8*i:]))
			}
		}
		h = bits.RotateLeft64(lanes[0], 1) + bits.RotateLeft64(lanes[1], 7) +
			bits.RotateLeft64(lanes[2], 12) + bits.RotateLeft64(lanes[3], 18)
		for _, lane := range lanes {
			h = (h^round(0, lane))*prime1 + prime4
		}
	} else {
		h = seed + prime5
	}
	h += length
	for ; len(data) >= 8; data = data[8:] {
		h ^= round(0, binary.LittleEndian.Uint64(data))
		h = bits.RotateLeft64(h, 27)*prime1 + prime4
	}
	if len(data) >= 4 {
		h ^= uint64(binary.LittleEndian.Uint32(data)) * prime1
		h = bits.RotateLeft64(h, 23)*prime2 + prime3
		data = data[4:]
	}
	for _, b := range data {
		h ^= uint64(b) * prime5
		h = bits.RotateLeft64(h, 11) * prime1
	}
	h = (h ^ h>>33) * prime2
	h = (h ^ h>>29) * prime3
	return h ^ h>>32
}

// HashKey returns the key of a feature in the slot with index slot. Scheme is xxh64-concat, xxh64-tagged or raw;
// modulo 0 means none.
func HashKey(slot uint32, feature, scheme string, seed, modulo uint64) (uint64, error) {
	var key uint64
	switch scheme {
	case "xxh64-concat":
		key = XXH64([]byte(strconv.FormatUint(uint64(slot), 10)+feature), seed)
	case "xxh64-tagged":
		key = XXH64([]byte(strconv.FormatUint(uint64(slot), 10)+"\x00"+feature), seed)
	case "raw":
		id, err := strconv.ParseUint(feature, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("feature %q: with scheme raw it must be an integer from 0 to 2^64 - 1", feature)
		}
		key = id
	default:
		return 0, fmt.Errorf("unknown hash scheme %q: use xxh64-concat, xxh64-tagged or raw", scheme)
	}
	if modulo != 0 {
		key %= modulo
	}
	return key, nil
}

// Features describes slots, dense features and hashing of a model.
type Features struct {
	Hash struct {
		Scheme string `json:"scheme"`
		Seed   uint64 `json:"seed,string"`
		Modulo uint64 `json:"modulo,string"`
	} `json:"hash"`
	Slots []Slot `json:"slots"`
	Dense *struct {
		Features []struct {
			Name string `json:"name"`
		} `json:"features"`
	} `json:"dense"`
	Click struct {
		Output string `json:"output"`
		Column int    `json:"column"`
	} `json:"click"`
}

// Slot is a categorical feature.
type Slot struct {
	Name    string  `json:"name"`
	Index   uint32  `json:"index"`
	Modulo  *string `json:"modulo"`
	Missing string  `json:"missing"`
	Pooling string  `json:"pooling"`
}

// check returns an error where an answer lacks what calls need.
func (f *Features) check() error {
	isComplete := f.Hash.Scheme != "" && f.Slots != nil && f.Click.Output != ""
	for _, slot := range f.Slots {
		isComplete = isComplete && slot.Name != ""
	}
	if !isComplete {
		return errors.New("a field of the features is missing")
	}
	return nil
}

// HashRow returns the keys of a row: one value per slot in the order of Slots, "" for a missing one. Slots that pool
// several values have no single key, and are refused.
func (f *Features) HashRow(features []string) ([]uint64, error) {
	if len(features) != len(f.Slots) {
		return nil, fmt.Errorf("expected %d features, one per slot, got %d", len(f.Slots), len(features))
	}
	keys := make([]uint64, len(features))
	for i, slot := range f.Slots {
		if slot.Pooling != "" {
			return nil, fmt.Errorf("slot %s pools several values: it has no single key", slot.Name)
		}
		modulo := f.Hash.Modulo
		if slot.Modulo != nil {
			own, err := strconv.ParseUint(*slot.Modulo, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("slot %s: modulo %q is no integer", slot.Name, *slot.Modulo)
			}
			modulo = own
		}
		feature := features[i]
		if feature == "" {
			feature = slot.Missing
		}
		key, err := HashKey(slot.Index, feature, f.Hash.Scheme, f.Hash.Seed, modulo)
		if err != nil {
			return nil, fmt.Errorf("slot %s: %w", slot.Name, err)
		}
		keys[i] = key
	}
	return keys, nil
}
