package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"codework/providers/catalog"
)

// Variables that say where the catalog comes from and how old it may get.
const (
	modelsURLVariable  = "CODEWORK_MODELS_URL"
	modelsFileVariable = "CODEWORK_MODELS_DEV_FILE"
	modelsAgeVariable  = "CODEWORK_MODELS_TTL"
)

func newModelsRefresh(g *global) *cobra.Command {
	var force, asJSON bool
	c := &cobra.Command{
		Use:   "refresh",
		Short: "Get the newest list of models",
		Long: `Get the list of models from models.dev when the one here is older than 15 minutes
(CODEWORK_MODELS_TTL), and print where it is kept. A server and the background
process do the same by themselves, after a model was asked.`,
		Args: cobra.NoArgs,
		RunE: g.telling(&asJSON, func(c *cobra.Command) error {
			p, err := g.paths()
			if err != nil {
				return err
			}
			age, err := modelsAge()
			if err != nil {
				return err
			}
			models := openCatalog(p)
			_, unreadable := models.Providers(nil)
			fetch := force || unreadable != nil || models.Stale(max(age, 1))
			notice := "the model catalog is still fresh"
			if fetch {
				changed, err := models.Refresh(c.Context(), modelsRemote())
				if err != nil {
					if c.Context().Err() != nil {
						return context.Cause(c.Context()) // the signal
					}
					return &problem{slug: "catalog-refresh-failed", err: err,
						hint: "what is there stays in use; check the network, or name a copy of the list in " + modelsFileVariable}
				}
				notice = "the model catalog is refreshed"
				if !changed {
					notice += "; nothing was new"
				}
			}
			if asJSON {
				return json.NewEncoder(g.out).Encode(map[string]any{"path": models.Path(), "refreshed": fetch})
			}
			if !g.quiet {
				fmt.Fprintln(g.err, notice)
			}
			_, err = fmt.Fprintln(g.out, models.Path())
			return err
		}),
	}
	c.Flags().BoolVar(&force, "force", false, "also when the list here is not old")
	c.Flags().BoolVar(&asJSON, "json", false, "print the path, and whether it was refreshed, as JSON")
	return c
}

// modelsRemote is where the list of models comes from.
func modelsRemote() catalog.Remote {
	return catalog.Remote{URL: os.Getenv(modelsURLVariable), File: os.Getenv(modelsFileVariable)}
}

func modelsAge() (time.Duration, error) {
	age, err := catalog.ParseMaxAge(os.Getenv(modelsAgeVariable))
	if err != nil {
		return 0, usagef("%s: %w", modelsAgeVariable, err)
	}
	return age, nil
}

// catalogKeeper keeps an owner's catalog from getting old.
type catalogKeeper struct {
	begin  chan struct{}
	client atomic.Pointer[func() (*http.Client, error)] // of who asked a model last
	stop   context.CancelFunc
	ended  chan struct{}
}

// firstLook is when a server looks at its catalog if nobody has asked a model:
// its start is not held up by a download.
const firstLook = time.Minute

// keepCatalog begins with the first request to a model, and in a server after
// a minute at the latest.
func keepCatalog(models *catalog.Catalog, server bool, log *slog.Logger) (*catalogKeeper, error) {
	age, err := modelsAge()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	k := &catalogKeeper{begin: make(chan struct{}, 1), stop: stop, ended: make(chan struct{})}
	keeping := catalog.Keeping{Remote: modelsRemote(), MaxAge: age, Begin: k.begin, Log: log}
	keeping.Client = func() (*http.Client, error) {
		if client := k.client.Load(); client != nil {
			return (*client)()
		}
		return &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}, nil
	}
	if server {
		first := time.AfterFunc(firstLook, k.start)
		context.AfterFunc(ctx, func() { first.Stop() })
	}
	go func() {
		defer close(k.ended)
		models.Keep(ctx, keeping)
	}()
	return k, nil
}

func (k *catalogKeeper) start() {
	select {
	case k.begin <- struct{}{}:
	default: // it has begun
	}
}

// asked is told that somebody has asked a model, and how they reach the
// network.
func (k *catalogKeeper) asked(client func() (*http.Client, error)) {
	k.client.Store(&client)
	k.start()
}

// close gives up a download that is under way.
func (k *catalogKeeper) close() {
	k.stop()
	<-k.ended
}
