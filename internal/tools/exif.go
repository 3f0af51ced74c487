package tools

import (
	"encoding/binary"
	"image"

	"golang.org/x/image/draw"
	"golang.org/x/image/math/f64"
)

// exifOrientation is the orientation tag of a JPEG, 1 (upright) if it has
// none. The layout is that of the Exif 2.3 standard: an APP1 segment that
// begins with "Exif\0\0" and holds a TIFF directory, tag 0x0112.
func exifOrientation(b []byte) int {
	const upright = 1
	for i := 2; i+4 <= len(b) && b[i] == 0xff; {
		marker, size := b[i+1], int(binary.BigEndian.Uint16(b[i+2:]))
		if marker == 0xff { // padding
			i++
			continue
		}
		if marker == 0xda || size < 2 || i+2+size > len(b) { // image data begins, or broken
			return upright
		}
		if body := b[i+4 : i+2+size]; marker == 0xe1 && len(body) > 6 && string(body[:6]) == "Exif\x00\x00" {
			if o := tiffOrientation(body[6:]); o >= 1 && o <= 8 {
				return o
			}
			return upright
		}
		i += 2 + size
	}
	return upright
}

func tiffOrientation(b []byte) int {
	if len(b) < 8 {
		return 0
	}
	var order binary.ByteOrder
	switch string(b[:4]) {
	case "II*\x00":
		order = binary.LittleEndian
	case "MM\x00*":
		order = binary.BigEndian
	default:
		return 0
	}
	at := uint64(order.Uint32(b[4:]))
	if at+2 > uint64(len(b)) {
		return 0
	}
	entries := int(order.Uint16(b[at:]))
	for e := b[at+2:]; entries > 0 && len(e) >= 12; entries, e = entries-1, e[12:] {
		if order.Uint16(e) == 0x0112 {
			return int(order.Uint16(e[8:]))
		}
	}
	return 0
}

// oriented turns img upright.
func oriented(img image.Image, orientation int) image.Image {
	b := img.Bounds()
	w, h := float64(b.Dx()), float64(b.Dy())
	// Where the pixel (x, y) of the stored image goes.
	var m f64.Aff3
	switch orientation {
	case 2:
		m = f64.Aff3{-1, 0, w, 0, 1, 0}
	case 3:
		m = f64.Aff3{-1, 0, w, 0, -1, h}
	case 4:
		m = f64.Aff3{1, 0, 0, 0, -1, h}
	case 5:
		m = f64.Aff3{0, 1, 0, 1, 0, 0}
	case 6:
		m = f64.Aff3{0, -1, h, 1, 0, 0}
	case 7:
		m = f64.Aff3{0, -1, h, -1, 0, w}
	case 8:
		m = f64.Aff3{0, 1, 0, -1, 0, w}
	default:
		return img
	}
	size := image.Rect(0, 0, b.Dx(), b.Dy())
	if orientation >= 5 {
		size = image.Rect(0, 0, b.Dy(), b.Dx())
	}
	dst := image.NewNRGBA(size)
	// The matrix maps from coordinates that begin at (0, 0).
	m[2] -= m[0]*float64(b.Min.X) + m[1]*float64(b.Min.Y)
	m[5] -= m[3]*float64(b.Min.X) + m[4]*float64(b.Min.Y)
	draw.NearestNeighbor.Transform(dst, m, img, b, draw.Src, nil)
	return dst
}
