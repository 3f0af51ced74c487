package tools

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"

	"golang.org/x/image/bmp"
	"golang.org/x/image/draw"
	"golang.org/x/image/webp"

	"codework/messages"
	"codework/sandboxes"
)

const (
	// maxImageSide and maxImageBase64 are what every provider takes: pixels a
	// side, and bytes of the encoded form.
	maxImageSide   = 2000
	maxImageBase64 = 4608 << 10 // 4.5 MiB
	// maxImageFile and maxImagePixels bound what is decoded: a decoded pixel
	// takes four bytes, so this is at most 200 MB, for one image at a time.
	maxImageFile   = 64 << 20
	maxImagePixels = 50_000_000
	// shrinkStep is how much smaller the next try is when no quality fits.
	shrinkStep = 0.75
)

// jpegQualities are tried in turn after PNG.
var jpegQualities = []int{80, 85, 70, 55, 40}

// converting lets one conversion run at a time, since each may take much
// memory and all of a core.
var converting = make(chan struct{}, 1)

// imageKind is a media type that models take or that can be converted.
type imageKind string

const (
	notImage imageKind = ""
	kindPNG  imageKind = "image/png"
	kindJPEG imageKind = "image/jpeg"
	kindGIF  imageKind = "image/gif"
	kindWebP imageKind = "image/webp"
	kindBMP  imageKind = "image/bmp"
)

// sniffImage tells an image by its first bytes.
func sniffImage(b []byte) imageKind {
	has := func(at int, s string) bool { return len(b) >= at+len(s) && string(b[at:at+len(s)]) == s }
	switch {
	case has(0, "\x89PNG\r\n\x1a\n"):
		return kindPNG
	case has(0, "\xff\xd8\xff"):
		return kindJPEG
	case has(0, "GIF87a"), has(0, "GIF89a"):
		return kindGIF
	case has(0, "RIFF") && has(8, "WEBP"):
		return kindWebP
	case has(0, "BM") && has(6, "\x00\x00\x00\x00") && len(b) >= 26: // the reserved fields of the file header
		return kindBMP
	}
	return notImage
}

func (k imageKind) config(b []byte) (image.Config, error) {
	r := bytes.NewReader(b)
	switch k {
	case kindPNG:
		return png.DecodeConfig(r)
	case kindJPEG:
		return jpeg.DecodeConfig(r)
	case kindGIF:
		return gif.DecodeConfig(r)
	case kindWebP:
		return webp.DecodeConfig(r)
	default:
		return bmp.DecodeConfig(r)
	}
}

func (k imageKind) decode(b []byte) (image.Image, error) {
	r := bytes.NewReader(b)
	switch k {
	case kindPNG:
		return png.Decode(r)
	case kindJPEG:
		return jpeg.Decode(r)
	case kindGIF:
		return gif.Decode(r) // the first frame
	case kindWebP:
		return webp.Decode(r)
	default:
		return bmp.Decode(r)
	}
}

func fitsBase64(encoded, limit int) bool { return base64.StdEncoding.EncodedLen(encoded) <= limit }

// readImage answers with the image at p, converted where a model could not
// take it as it is. What cannot be shown is a note, not an error.
func readImage(ctx context.Context, c Context, p, asked string, kind imageKind, info sandboxes.Info) (messages.ToolResult, error) {
	without := func(format string, args ...any) (messages.ToolResult, error) {
		return succeeded(fmt.Sprintf("%s is an image (%s)\n\n[not shown: %s]", shown(asked), kind, fmt.Sprintf(format, args...)), nil)
	}
	if !c.Images {
		return without("this model takes no images")
	}
	data, err := readWhole(ctx, c.Mount, p, maxImageFile)
	if err != nil {
		return failed("cannot read %s: %s", shown(asked), fileReason(err))
	}
	if data == nil {
		return without("it is larger than %s", formatSize(maxImageFile))
	}
	noteSeen(ctx, c, p, sightOf(data))
	out, full, err := fitImage(ctx, data, kind)
	var no misfit
	switch {
	case errors.As(err, &no):
		return without("%s", no)
	case err != nil:
		return messages.ToolResult{}, err
	}
	note := fmt.Sprintf("%dx%d", out.width, out.height)
	if out.kind != kind {
		note += ", converted from " + string(kind)
	}
	if out.width != full.X {
		note += fmt.Sprintf(", shown smaller: the original is %dx%d, multiply coordinates by %.2f",
			full.X, full.Y, float64(full.X)/float64(out.width))
	}
	return imageResult(asked, out.kind, out.data, note)
}

// misfit says why an image cannot be shown.
type misfit string

func (m misfit) Error() string { return string(m) }

// Image makes a part of an image, converted where a model could not take it as
// it is. The error says why it cannot be shown, or is ctx's.
func Image(ctx context.Context, data []byte) (messages.Part, error) {
	kind := sniffImage(data)
	switch {
	case kind == notImage:
		return messages.Part{}, misfit("it is no image of a known kind")
	case len(data) > maxImageFile:
		return messages.Part{}, misfit("it is larger than " + formatSize(maxImageFile))
	}
	out, _, err := fitImage(ctx, data, kind)
	if err != nil {
		return messages.Part{}, err
	}
	return imagePart(out.kind, out.data), nil
}

// fitImage is data in a form that models take, and the size it had in pixels.
// The error is a misfit or ctx's.
func fitImage(ctx context.Context, data []byte, kind imageKind) (converted, image.Point, error) {
	size, err := kind.config(data)
	if err != nil {
		return converted{}, image.Point{}, misfit("it cannot be decoded: " + reason(err))
	}
	full := image.Pt(size.Width, size.Height)
	if size.Width <= maxImageSide && size.Height <= maxImageSide && kind != kindBMP && fitsBase64(len(data), maxImageBase64) {
		return converted{kind, data, size.Width, size.Height}, full, nil
	}
	if size.Width <= 0 || size.Height <= 0 || size.Width > maxImagePixels/size.Height {
		return converted{}, full, misfit(fmt.Sprintf("%dx%d pixels are too many", size.Width, size.Height))
	}

	select {
	case converting <- struct{}{}:
		defer func() { <-converting }()
	case <-ctx.Done():
		return converted{}, full, ctx.Err()
	}
	img, err := kind.decode(data)
	if err != nil {
		return converted{}, full, misfit("it cannot be decoded: " + reason(err))
	}
	if kind == kindJPEG {
		img = oriented(img, exifOrientation(data))
	}
	out, err := convertImage(ctx, img, maxImageBase64)
	if err == nil && out.data == nil {
		err = misfit("it does not fit " + formatSize(maxImageBase64) + " in any size")
	}
	return out, img.Bounds().Size(), err
}

func imageResult(asked string, kind imageKind, data []byte, note string) (messages.ToolResult, error) {
	return messages.ToolResult{Content: []messages.Part{
		{Type: messages.PartText, Text: fmt.Sprintf("%s is an image (%s, %s)", shown(asked), kind, note)},
		imagePart(kind, data),
	}}, nil
}

func imagePart(kind imageKind, data []byte) messages.Part {
	return messages.Part{Type: messages.PartImage, MediaType: string(kind), Data: data, Bytes: int64(len(data))}
}

type converted struct {
	kind          imageKind
	data          []byte // nil if nothing fits
	width, height int
}

// convertImage finds the first form of img that models take: fitted into the
// pixel limit as PNG, then as JPEG of several qualities, then ever smaller.
// limit is in bytes of base64.
func convertImage(ctx context.Context, img image.Image, limit int) (converted, error) {
	b := img.Bounds()
	w, h := fitSide(b.Dx(), b.Dy())
	for {
		if w != b.Dx() || h != b.Dy() {
			img = scaled(img, w, h)
			b = img.Bounds()
		}
		out := converted{width: w, height: h}
		var buf bytes.Buffer
		if err := png.Encode(&buf, img); err != nil {
			return converted{}, fmt.Errorf("encode png: %w", err)
		}
		if fitsBase64(buf.Len(), limit) {
			out.kind, out.data = kindPNG, buf.Bytes()
			return out, nil
		}
		flat := opaque(img)
		for _, q := range jpegQualities {
			if err := ctx.Err(); err != nil {
				return converted{}, err
			}
			buf.Reset()
			if err := jpeg.Encode(&buf, flat, &jpeg.Options{Quality: q}); err != nil {
				return converted{}, fmt.Errorf("encode jpeg: %w", err)
			}
			if fitsBase64(buf.Len(), limit) {
				out.kind, out.data = kindJPEG, buf.Bytes()
				return out, nil
			}
		}
		if w == 1 && h == 1 {
			return converted{}, nil
		}
		w, h = max(1, int(float64(w)*shrinkStep)), max(1, int(float64(h)*shrinkStep))
	}
}

// fitSide scales a size down until no side is over the limit.
func fitSide(w, h int) (int, int) {
	if long := max(w, h); long > maxImageSide {
		w = max(1, (w*maxImageSide+long/2)/long)
		h = max(1, (h*maxImageSide+long/2)/long)
	}
	return w, h
}

func scaled(img image.Image, w, h int) image.Image {
	dst := image.NewNRGBA(image.Rect(0, 0, w, h))
	draw.CatmullRom.Scale(dst, dst.Bounds(), img, img.Bounds(), draw.Src, nil)
	return dst
}

// opaque puts img on white, since JPEG knows no transparency.
func opaque(img image.Image) image.Image {
	if o, ok := img.(interface{ Opaque() bool }); ok && o.Opaque() {
		return img
	}
	dst := image.NewRGBA(img.Bounds())
	draw.Draw(dst, dst.Bounds(), image.NewUniform(color.White), image.Point{}, draw.Src)
	draw.Draw(dst, dst.Bounds(), img, img.Bounds().Min, draw.Over)
	return dst
}
