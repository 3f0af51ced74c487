//go:build unix

package tools

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"golang.org/x/image/bmp"

	"codework/messages"
)

// picture is four fields of colours, each a quarter: red, green, blue, white.
func picture(w, h int) *image.NRGBA {
	img := image.NewNRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			c := color.NRGBA{255, 0, 0, 255}
			switch {
			case x >= w/2 && y < h/2:
				c = color.NRGBA{0, 255, 0, 255}
			case x < w/2 && y >= h/2:
				c = color.NRGBA{0, 0, 255, 255}
			case x >= w/2:
				c = color.NRGBA{255, 255, 255, 255}
			}
			img.SetNRGBA(x, y, c)
		}
	}
	return img
}

// noise cannot be compressed.
func noise(w, h int) *image.NRGBA {
	img := image.NewNRGBA(image.Rect(0, 0, w, h))
	r := rand.NewPCG(1, 2)
	for i := 0; i+8 <= len(img.Pix); i += 8 {
		binary.LittleEndian.PutUint64(img.Pix[i:], r.Uint64())
	}
	for i := 3; i < len(img.Pix); i += 4 {
		img.Pix[i] = 255
	}
	return img
}

func encoded(t testing.TB, kind imageKind, img image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	var err error
	switch kind {
	case kindPNG:
		err = png.Encode(&b, img)
	case kindJPEG:
		err = jpeg.Encode(&b, img, &jpeg.Options{Quality: 95})
	case kindGIF:
		err = gif.Encode(&b, img, nil)
	case kindBMP:
		err = bmp.Encode(&b, img)
	default:
		t.Fatal("cannot encode", kind)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// tinyWebP is an image of 1 by 1 pixel in the lossless form.
var tinyWebP, _ = base64.StdEncoding.DecodeString("UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA==")

func readPicture(t *testing.T, s *session, data []byte) (string, *messages.Part) {
	t.Helper()
	s.mount.file(t, "img", string(data))
	r, state := s.call("read", object{"path": "img"})
	if state != messages.CallCompleted {
		t.Fatalf("%s %q", state, text(r))
	}
	for i, p := range r.Content {
		if p.Type == messages.PartImage {
			return text(r), &r.Content[i]
		}
	}
	return text(r), nil
}

func TestImagesThatFitAreSentAsTheyAre(t *testing.T) {
	for _, tc := range []struct {
		kind imageKind
		data []byte
		says string
	}{
		{kindPNG, encoded(t, kindPNG, picture(640, 480)), "img is an image (image/png, 640x480)"},
		{kindPNG, encoded(t, kindPNG, picture(2000, 20)), "img is an image (image/png, 2000x20)"},
		{kindPNG, encoded(t, kindPNG, picture(20, 2000)), "img is an image (image/png, 20x2000)"},
		{kindJPEG, encoded(t, kindJPEG, picture(64, 48)), "img is an image (image/jpeg, 64x48)"},
		{kindGIF, encoded(t, kindGIF, picture(64, 48)), "img is an image (image/gif, 64x48)"},
		{kindWebP, tinyWebP, "img is an image (image/webp, 1x1)"},
		{kindJPEG, withOrientation(encoded(t, kindJPEG, picture(64, 48)), 6, binary.BigEndian), "img is an image (image/jpeg, 64x48)"},
	} {
		says, part := readPicture(t, newSession(t), tc.data)
		if part == nil || says != tc.says {
			t.Errorf("%s: %q", tc.kind, says)
			continue
		}
		if part.MediaType != string(tc.kind) || !bytes.Equal(part.Data, tc.data) || part.Bytes != int64(len(tc.data)) {
			t.Errorf("%s: media type %s, %d bytes of %d", tc.kind, part.MediaType, len(part.Data), len(tc.data))
		}
	}
}

func TestImagesThatDoNotFitAreConverted(t *testing.T) {
	for _, tc := range []struct {
		name string
		data []byte
		kind imageKind
		w, h int
		says string
	}{
		{"too wide", encoded(t, kindPNG, picture(3000, 150)), kindPNG, 2000, 100,
			"img is an image (image/png, 2000x100, shown smaller: the original is 3000x150, multiply coordinates by 1.50)"},
		{"much too high", encoded(t, kindPNG, picture(10, 4001)), kindPNG, 5, 2000,
			"img is an image (image/png, 5x2000, shown smaller: the original is 10x4001, multiply coordinates by 2.00)"},
		{"bitmap", encoded(t, kindBMP, picture(64, 48)), kindPNG, 64, 48, "img is an image (image/png, 64x48, converted from image/bmp)"},
		{"too many bytes", encoded(t, kindPNG, noise(1100, 1100)), kindJPEG, 1100, 1100, "img is an image (image/jpeg, 1100x1100, converted from image/png)"},
		{"turned", withOrientation(encoded(t, kindJPEG, picture(2400, 120)), 6, binary.LittleEndian), kindPNG, 100, 2000,
			"img is an image (image/png, 100x2000, converted from image/jpeg, shown smaller: the original is 120x2400, multiply coordinates by 1.20)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			says, part := readPicture(t, newSession(t), tc.data)
			if part == nil || says != tc.says {
				t.Fatalf("%q", says)
			}
			if !fitsBase64(len(part.Data), maxImageBase64) {
				t.Errorf("%d bytes", len(part.Data))
			}
			got, format, err := image.Decode(bytes.NewReader(part.Data))
			if err != nil || "image/"+format != string(tc.kind) || part.MediaType != string(tc.kind) {
				t.Fatalf("format %s, media type %s, %v", format, part.MediaType, err)
			}
			if b := got.Bounds(); b.Dx() != tc.w || b.Dy() != tc.h {
				t.Errorf("size %v", b)
			}
			if tc.name == "turned" {
				// Upright, the blue field (lower left as stored) is at the top left.
				if name := colourName(got.At(10, 100)); name != "blue" {
					t.Errorf("the top left is %s", name)
				}
			}
		})
	}
}

func TestImagesThatCannotBeShownAreANote(t *testing.T) {
	broken := encoded(t, kindPNG, picture(3000, 10))[:200]
	wide := bytes.Clone(encoded(t, kindPNG, picture(10, 10)))
	binary.BigEndian.PutUint32(wide[16:], 100_000)
	binary.BigEndian.PutUint32(wide[20:], 100_000)
	binary.BigEndian.PutUint32(wide[29:], crc32.ChecksumIEEE(wide[12:29]))
	for _, tc := range []struct {
		name string
		data []byte
		says string
	}{
		{"cut off", broken, "img is an image (image/png)\n\n[not shown: it cannot be decoded: "},
		{"only a head", []byte("\xff\xd8\xff"), "img is an image (image/jpeg)\n\n[not shown: it cannot be decoded: "},
		{"a bomb", wide, "img is an image (image/png)\n\n[not shown: 100000x100000 pixels are too many]"},
		{"not really webp", []byte("RIFF\x00\x00\x00\x00WEBPxxxx"), "img is an image (image/webp)\n\n[not shown: it cannot be decoded: "},
	} {
		says, part := readPicture(t, newSession(t), tc.data)
		if part != nil || !strings.HasPrefix(says, tc.says) || len(says) > 400 {
			t.Errorf("%s: %q", tc.name, says)
		}
	}
	s := newSession(t)
	s.c.Images = false
	if says, part := readPicture(t, s, encoded(t, kindPNG, picture(4, 4))); part != nil || says != "img is an image (image/png)\n\n[not shown: this model takes no images]" {
		t.Errorf("without image input: %q", says)
	}
	s = newSession(t)
	p := s.mount.file(t, "img", string(encoded(t, kindPNG, picture(4, 4))))
	if err := os.Truncate(p, maxImageFile+1); err != nil {
		t.Fatal(err)
	}
	if got := s.ok("read", object{"path": "img"}); got != "img is an image (image/png)\n\n[not shown: it is larger than 64.0MB]" {
		t.Errorf("too large a file: %q", got)
	}
}

func TestImageThatFitsInNoQualityIsMadeSmaller(t *testing.T) {
	img := noise(200, 100)
	for _, limit := range []int{40_000, 20_000, 5_000, 1_000} {
		out, err := convertImage(t.Context(), img, limit)
		if err != nil || out.data == nil || !fitsBase64(len(out.data), limit) {
			t.Fatalf("limit %d: %v, %d bytes", limit, err, len(out.data))
		}
		got, _, err := image.Decode(bytes.NewReader(out.data))
		if err != nil || got.Bounds().Dx() != out.width || got.Bounds().Dy() != out.height {
			t.Errorf("limit %d: %v, said to be %dx%d", limit, err, out.width, out.height)
		}
		if smaller := out.width < 200; smaller != (limit < 10_000) {
			t.Errorf("limit %d: %dx%d", limit, out.width, out.height)
		}
	}
	if out, err := convertImage(t.Context(), img, 10); err != nil || out.data != nil {
		t.Errorf("no image fits 10 bytes, but %d bytes, %v", len(out.data), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := convertImage(ctx, img, 10); err == nil {
		t.Error("a stopped conversion went on")
	}
}

func TestTransparencyBecomesWhite(t *testing.T) {
	img := image.NewNRGBA(image.Rect(0, 0, 2, 2))
	if got := colourName(opaque(img).At(1, 1)); got != "white" {
		t.Errorf("transparent became %s", got)
	}
}

func colourName(c color.Color) string {
	r, g, b, _ := c.RGBA()
	switch {
	case r > 0xc000 && g > 0xc000 && b > 0xc000:
		return "white"
	case r > 0xc000:
		return "red"
	case g > 0xc000:
		return "green"
	case b > 0xc000:
		return "blue"
	}
	return "dark"
}

// withOrientation puts an Exif segment into a JPEG.
func withOrientation(jpg []byte, orientation int, order binary.ByteOrder) []byte {
	var tiff bytes.Buffer
	mark := "II*\x00"
	if order == binary.BigEndian {
		mark = "MM\x00*"
	}
	tiff.WriteString(mark)
	w := func(v any) { _ = binary.Write(&tiff, order, v) }
	w(uint32(8))
	w(uint16(2))
	w([]uint16{0x010f, 2, 0, 4, 0, 0}) // another tag in front
	w(uint16(0x0112))
	w(uint16(3))
	w(uint32(1))
	w(uint16(orientation))
	w(uint16(0))
	body := append([]byte("Exif\x00\x00"), tiff.Bytes()...)
	out := append([]byte{}, jpg[:2]...)
	out = append(out, 0xff, 0xe0, 0, 4, 0, 0) // another segment in front
	out = append(out, 0xff, 0xe1, byte((len(body)+2)>>8), byte(len(body)+2))
	out = append(out, body...)
	return append(out, jpg[2:]...)
}

func TestOrientation(t *testing.T) {
	// Where the stored corners (red, green, blue, white: top left, top right,
	// bottom left, bottom right) are once the picture is upright.
	for orientation, want := range map[int]string{
		0: "red green blue white",
		1: "red green blue white",
		2: "green red white blue",
		3: "white blue green red",
		4: "blue white red green",
		5: "red blue green white",
		6: "blue red white green",
		7: "white green blue red",
		8: "green white red blue",
		9: "red green blue white",
	} {
		for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
			data := withOrientation(encoded(t, kindJPEG, picture(64, 32)), orientation, order)
			read := exifOrientation(data)
			if orientation >= 1 && orientation <= 8 && read != orientation || read < 1 || read > 8 {
				t.Fatalf("orientation %d read as %d", orientation, read)
			}
			img := oriented(picture(64, 32), read)
			b := img.Bounds()
			if turned := orientation >= 5 && orientation <= 8; turned != (b.Dx() == 32) {
				t.Errorf("orientation %d: size %v", orientation, b)
			}
			var got []string
			for _, p := range []image.Point{{2, 2}, {b.Dx() - 3, 2}, {2, b.Dy() - 3}, {b.Dx() - 3, b.Dy() - 3}} {
				got = append(got, colourName(img.At(p.X, p.Y)))
			}
			if strings.Join(got, " ") != want {
				t.Errorf("orientation %d: %v, want %s", orientation, got, want)
			}
		}
	}
	if got := oriented(picture(64, 32).SubImage(image.Rect(32, 0, 64, 32)), 3); colourName(got.At(1, 30)) != "green" || colourName(got.At(1, 1)) != "white" {
		t.Error("an image that does not begin at the origin is turned wrongly")
	}
}

// FuzzExif holds that no bytes make the reader of Exif data panic or give
// anything but one of the eight orientations.
func FuzzExif(f *testing.F) {
	f.Add(withOrientation([]byte("\xff\xd8\xff\xda"), 6, binary.LittleEndian))
	f.Add([]byte("\xff\xd8\xff\xe1\x00\x10Exif\x00\x00II*\x00\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if o := exifOrientation(b); o < 1 || o > 8 {
			t.Fatal(o)
		}
	})
}
