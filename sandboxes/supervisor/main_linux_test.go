package supervisor

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if err := Subreaper(); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
