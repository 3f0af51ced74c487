package signin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Facts of RFC 8628 3.5, and how much patience there is beyond it.
const (
	defaultInterval = 5 * time.Second
	leastInterval   = time.Second
	// slowerBy is added when a service asks to slow down without saying how much.
	slowerBy = 5 * time.Second
	// stumbles is how many polls in a row may fail on the way or with a
	// server error before the sign-in is given up.
	stumbles = 3
)

// device is a sign-in that waits for the person's approval.
type device struct {
	interval time.Duration // 0 is the default
	margin   time.Duration // added to each wait but the first
	limit    time.Duration
}

// state is what one poll found.
type state int

const (
	granted state = iota
	pending
	slowDown
	stumbled // may be better next time
)

// poll asks until ask returns granted or an error. An error beside stumbled
// says what went wrong, and ends the sign-in only when there are too many.
func (d device) poll(ctx context.Context, ask func(context.Context) (s state, interval time.Duration, err error)) error {
	limit, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	interval := d.interval
	if interval == 0 {
		interval = defaultInterval
	}
	interval = max(interval, leastInterval)
	slowed, failed := false, 0
	wait := interval
	for {
		if err := pause(limit, wait); err != nil {
			return d.over(ctx, slowed)
		}
		s, told, err := ask(limit)
		switch {
		case err != nil && limit.Err() != nil:
			return d.over(ctx, slowed)
		case errors.Is(err, ErrExpired):
			return d.over(ctx, slowed)
		case s == stumbled:
			if failed++; failed >= stumbles {
				return err
			}
		case err != nil || s == granted:
			return err
		default:
			failed = 0
		}
		if s == slowDown {
			slowed = true
			if told == 0 {
				told = interval + slowerBy
			}
			interval = max(told, leastInterval)
		}
		wait = interval + d.margin
	}
}

// over is the error of a sign-in whose time is over.
func (d device) over(ctx context.Context, slowed bool) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case slowed:
		return fmt.Errorf("%w; the service asked to poll slower, which happens when the clock of a virtual machine drifts: set it and try again", ErrExpired)
	}
	return fmt.Errorf("%w; nobody approved it in time", ErrExpired)
}

// judge reads an answer that grants nothing. waits are the statuses by which
// a service says that the person has not answered yet.
func (f *flow) judge(r reply, waits ...int) (state, time.Duration, error) {
	code, _ := r.refusal()
	interval, _ := seconds(r.object()["interval"])
	switch code {
	case "authorization_pending", "deviceauth_authorization_pending":
		return pending, 0, nil
	case "slow_down":
		return slowDown, interval, nil
	case "expired_token":
		return granted, 0, ErrExpired
	case "access_denied":
		return granted, 0, ErrDenied
	}
	for _, status := range waits {
		if r.status == status {
			return pending, 0, nil
		}
	}
	err := f.refused("ask whether the sign-in is approved", r)
	switch {
	case r.status == http.StatusTooManyRequests:
		return slowDown, 0, nil
	case r.status >= http.StatusInternalServerError:
		return stumbled, 0, err
	}
	return granted, 0, err
}
