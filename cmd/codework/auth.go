package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"codework/messages"
	"codework/protocol/client"
	"codework/providers/credentials"
	"codework/providers/signin"
)

// authCommand are the flags of the group.
type authCommand struct {
	*global
	codex, copilot bool
	file           string
	asJSON         bool
}

// newAuth is the group of commands about stored logins.
func newAuth(g *global) *cobra.Command {
	a := &authCommand{global: g}
	c := &cobra.Command{
		Use:   "auth",
		Short: "Sign in to OpenAI Codex or GitHub Copilot",
		Long: `Sign in to OpenAI Codex or GitHub Copilot with the account that you have there,
instead of a key. The login is stored in a file of this machine's home, or with
--server in the server; the signing in happens in this terminal in any case.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q for codework auth", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	g.addServerFlag(c)
	f := c.PersistentFlags()
	f.BoolVar(&a.codex, credentials.CodexID, false, "OpenAI Codex, with a ChatGPT account")
	f.BoolVar(&a.copilot, credentials.CopilotID, false, "GitHub Copilot")
	f.StringVar(&a.file, "auth-file", "", "file of logins (default <home>/aikit/auth.json, or CODEWORK_CREDENTIALS)")
	f.BoolVar(&a.asJSON, "json", false, "print the summary as JSON")
	c.AddCommand(newAuthLogin(a), newAuthStatus(a), newAuthRefresh(a), newAuthLogout(a))
	return c
}

func newAuthStatus(a *authCommand) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Tell about the stored login, without its tokens",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.do(c, func(ctx context.Context, k keeper, provider string) error {
				info, err := k.Status(ctx, provider)
				if err != nil {
					return err
				}
				return a.summary(info, provider)
			})
		},
	}
}

func newAuthRefresh(a *authCommand) *cobra.Command {
	return &cobra.Command{
		Use:   "refresh",
		Short: "Renew the stored login if it has expired (Codex only)",
		Long: `Renew the stored login if it has expired or is about to. A Copilot login does not
expire.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.do(c, func(ctx context.Context, k keeper, provider string) error {
				if provider == credentials.CopilotID {
					return &problem{slug: oauthSlug, err: errors.New("a login for github-copilot does not expire, so there is nothing to refresh"),
						hint: "if GitHub refuses it, sign in again: " + a.loginCommand(provider)}
				}
				info, err := k.Refresh(ctx, provider)
				if err != nil {
					return err
				}
				return a.summary(info, provider)
			})
		},
	}
}

func newAuthLogout(a *authCommand) *cobra.Command {
	return &cobra.Command{
		Use:   "logout",
		Short: "Remove the stored login",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.do(c, func(ctx context.Context, k keeper, provider string) error { return k.Logout(ctx, provider) })
		},
	}
}

// keeper is where logins are stored: a file, or a server.
type keeper interface {
	Save(ctx context.Context, c messages.OAuthCredentials) (messages.OAuthInfo, error)
	Status(ctx context.Context, provider string) (*messages.OAuthInfo, error)
	Refresh(ctx context.Context, provider string) (*messages.OAuthInfo, error)
	Logout(ctx context.Context, provider string) error
}

// remoteLogins are those of a server.
type remoteLogins struct{ c *client.Client }

func (r remoteLogins) Save(ctx context.Context, c messages.OAuthCredentials) (messages.OAuthInfo, error) {
	return r.c.AuthSave(ctx, c)
}

func (r remoteLogins) Status(ctx context.Context, provider string) (*messages.OAuthInfo, error) {
	return r.c.AuthStatus(ctx, provider)
}

func (r remoteLogins) Refresh(ctx context.Context, provider string) (*messages.OAuthInfo, error) {
	return r.c.AuthRefresh(ctx, provider)
}

func (r remoteLogins) Logout(ctx context.Context, provider string) error {
	return r.c.AuthLogout(ctx, provider)
}

// do finds out which login is meant and where it is stored, does something
// with it, and explains what went wrong.
func (a *authCommand) do(c *cobra.Command, f func(ctx context.Context, k keeper, provider string) error) error {
	ctx := c.Context()
	provider, err := a.choose(c)
	if err != nil {
		return err
	}
	k, closeKeeper, err := a.open(ctx)
	if err == nil {
		err = f(ctx, k, provider)
		closeKeeper()
	}
	return a.explainLogin(ctx, err)
}

// choose finds out which login is meant, and whether a server has it.
func (a *authCommand) choose(c *cobra.Command) (provider string, err error) {
	switch {
	case a.codex == a.copilot:
		return "", &problem{err: errors.New("expected one of --openai-codex and --github-copilot"), code: exitUsage, hint: "see: " + c.CommandPath() + " --help"}
	case a.codex:
		provider = credentials.CodexID
	default:
		provider = credentials.CopilotID
	}
	if !c.Flags().Changed("auth-file") {
		return provider, a.chooseServer(c)
	}
	switch {
	case a.file == "":
		return "", usagef("--auth-file: expected the path of a file")
	case a.server != "":
		return "", &problem{err: errors.New("--auth-file does not go with --server"), code: exitUsage, hint: "the server has its own; set CODEWORK_CREDENTIALS for codework serve"}
	}
	return provider, nil // the server's variable gives way
}

// open returns where logins are stored.
func (a *authCommand) open(ctx context.Context) (k keeper, closeKeeper func(), err error) {
	if a.remote() {
		c, err := a.dialServer(ctx)
		if err != nil {
			return nil, nil, err
		}
		return remoteLogins{c}, func() { c.Close() }, nil
	}
	file := a.file
	if file == "" {
		p, err := a.paths()
		if err != nil {
			return nil, nil, err
		}
		file = credentialFile(p)
	}
	if file, err = absolute(file); err != nil {
		return nil, nil, err
	}
	log, err := newLogger(a.logLevel, a.err)
	if err != nil {
		return nil, nil, err
	}
	s, err := openLogins(file, log)
	if err != nil {
		return nil, nil, err
	}
	return logins{s}, s.Close, nil
}

// openLogins returns the logins of a file, which are renewed where
// signInVariable says.
func openLogins(file string, log *slog.Logger) (*credentials.Store, error) {
	o := credentials.Options{File: file, Log: log}
	at, err := signInURL()
	if err != nil {
		return nil, err
	}
	if at != "" {
		o.TokenURL = at + "/auth.openai.com/oauth/token"
	}
	return credentials.OpenStore(o), nil
}

// oauthSlug names every problem with a login.
const oauthSlug = "oauth"

// explainLogin gives an error the form that a person reads.
func (a *authCommand) explainLogin(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx) // the signal
	}
	var p *problem
	var told *messages.OAuthError
	switch {
	case err == nil || errors.As(err, &p):
	case errors.As(err, &told):
		err = &problem{slug: oauthSlug, err: err, fields: []field{{"server", a.server}}}
	case a.remote():
		err = a.explain(err)
	default:
		err = &problem{slug: oauthSlug, err: err}
	}
	return a.inJSON(err, a.asJSON)
}

// loginCommand is how to sign in to where this call looked.
func (a *authCommand) loginCommand(provider string) string {
	return "codework auth login --" + provider + a.serverFlag()
}

// loginSummary is what --json prints.
type loginSummary struct {
	messages.OAuthInfo
	ExpiresAt *time.Time `json:"expiresAt"` // null is never
}

// summary prints what is known about a login; there is one, or that is the
// error.
func (a *authCommand) summary(info *messages.OAuthInfo, provider string) error {
	if info == nil {
		return &problem{slug: oauthSlug, err: fmt.Errorf("no login for %s is stored", provider), hint: "sign in with: " + a.loginCommand(provider)}
	}
	at := time.UnixMilli(info.Expires)
	if a.asJSON {
		s := loginSummary{OAuthInfo: *info}
		if info.Expires != 0 {
			s.ExpiresAt = new(at.UTC())
		}
		return json.NewEncoder(a.out).Encode(s)
	}
	expires, models := "never", ""
	if info.Expires != 0 {
		expires = at.Local().Format("2006-01-02 15:04:05 MST")
	}
	if info.AvailableModels != nil {
		models = fmt.Sprint(*info.AvailableModels)
	}
	for _, l := range []field{
		{"Provider", info.Provider},
		{"Account", info.AccountID},
		{"Enterprise", info.EnterpriseURL},
		{"API endpoint", info.APIEndpoint},
		{"Available models", models},
		{"Expires", expires},
	} {
		if l.value == "" {
			continue
		}
		if _, err := fmt.Fprintf(a.out, "%s: %s\n", l.key, oneLine(l.value)); err != nil {
			return err
		}
	}
	return nil
}

// authLogin are the flags of login.
type authLogin struct {
	*authCommand
	device             bool
	browser, noBrowser bool
	enterprise         string
	enableModels       bool
}

func newAuthLogin(a *authCommand) *cobra.Command {
	l := &authLogin{authCommand: a}
	c := &cobra.Command{
		Use:   "login",
		Short: "Sign in, and store the login",
		Long: `Sign in, and store the login. Codex signs in by a browser on this machine; with
--device, and for Copilot, you enter a code in a browser on any machine.`,
		Example: `  codework auth login --openai-codex
  codework auth login --openai-codex --device
  codework auth login --github-copilot --enterprise company.ghe.com`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			provider, err := l.choose(c)
			if err == nil {
				err = l.check(c)
			}
			if err != nil {
				return err
			}
			return l.explainLogin(c.Context(), l.run(c.Context(), provider))
		},
	}
	f := c.Flags()
	f.BoolVar(&l.device, "device", false, "sign in by a code instead of a browser here (Codex; Copilot always does)")
	f.BoolVar(&l.browser, "browser", true, "open the page in a browser")
	f.BoolVar(&l.noBrowser, "no-browser", false, "only print the address of the page")
	f.StringVar(&l.enterprise, "enterprise", "", "host of your GitHub Enterprise, such as company.ghe.com (Copilot)")
	f.BoolVar(&l.enableModels, "enable-models", false, "accept the terms of all models of the account (Copilot)")
	return c
}

// check refuses flags that do not go together.
func (l *authLogin) check(c *cobra.Command) error {
	only := func(flag, provider string) error { return usagef("%s is only for --%s", flag, provider) }
	switch {
	case l.copilot && l.device:
		return &problem{err: errors.New("--device is only for --openai-codex"), code: exitUsage, hint: "Copilot always signs in by a code; leave --device out"}
	case l.codex && c.Flags().Changed("enterprise"):
		return only("--enterprise", credentials.CopilotID)
	case l.codex && l.enableModels:
		return only("--enable-models", credentials.CopilotID)
	case l.noBrowser && l.browser && c.Flags().Changed("browser"):
		return usagef("--browser and --no-browser do not go together")
	}
	if _, err := signin.EnterpriseHost(l.enterprise); err != nil {
		return usagef("--enterprise: %w", err)
	}
	if _, err := signInURL(); err != nil {
		return err
	}
	return nil
}

// run signs in and stores the login.
func (l *authLogin) run(ctx context.Context, provider string) error {
	if l.remote() {
		// Before the person has gone through it all.
		_, closeKeeper, err := l.open(ctx)
		if err != nil {
			return err
		}
		closeKeeper()
		l.warnOfPlainServer()
	}
	login, err := l.signIn(ctx)
	if err != nil {
		return l.explainSignIn(ctx, err, provider)
	}
	k, closeKeeper, err := l.open(ctx)
	if err != nil {
		return err
	}
	defer closeKeeper()
	info, err := k.Save(ctx, messages.OAuthCredentials{
		Provider: login.Provider, Access: login.Access, Refresh: login.Refresh, Expires: login.Expires, AccountID: login.AccountID,
		EnterpriseURL: login.EnterpriseURL, APIEndpoint: login.APIEndpoint, AvailableModelIDs: login.AvailableModelIDs,
	})
	if err != nil {
		return err
	}
	return l.summary(&info, provider)
}

func (l *authLogin) signIn(ctx context.Context) (credentials.Credentials, error) {
	o, err := l.options()
	switch {
	case err != nil:
		return credentials.Credentials{}, err
	case l.copilot:
		return signin.Copilot(ctx, signin.CopilotOptions{Options: o, Enterprise: l.enterprise, EnableModels: l.enableModels})
	case l.device:
		return signin.CodexDevice(ctx, o)
	}
	return signin.Codex(ctx, o)
}

func (l *authLogin) explainSignIn(ctx context.Context, err error, provider string) error {
	if ctx.Err() != nil {
		return err
	}
	var p *problem
	if errors.As(err, &p) {
		return err
	}
	p = &problem{slug: oauthSlug, err: err}
	switch {
	case errors.Is(err, signin.ErrPortBusy):
		p.hint = "end the other program, or sign in by a code: " + l.loginCommand(provider) + " --device"
	case errors.Is(err, signin.ErrExpired):
		p.hint = "start again: " + l.loginCommand(provider)
	}
	return p
}

// signInVariable puts a server of a test in the place of all services.
const signInVariable = "CODEWORK_SIGNIN_URL"

// signInURL is where the services are; only this machine may play them, so
// that nothing but a local program can be given a login this way.
func signInURL() (string, error) {
	s := os.Getenv(signInVariable)
	if s == "" {
		return "", nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" || u.User != nil || !loopback(u.Hostname()) {
		return "", usagef("%s is for tests: expected an http URL of this machine", signInVariable)
	}
	return strings.TrimRight(s, "/"), nil
}

// options say how the sign-in reaches the person.
func (l *authLogin) options() (signin.Options, error) {
	at, err := signInURL()
	if err != nil {
		return signin.Options{}, err
	}
	if at != "" {
		l.warn("signing in at " + at + ", as " + signInVariable + " says")
	}
	o := signin.Options{
		Open: func(address string) {
			fmt.Fprintf(l.err, "Open this page to sign in:\n  %s\n", oneLine(address))
			l.waiting(address, time.Time{})
		},
		Code: func(address, userCode string, until time.Time) {
			fmt.Fprintf(l.err, "Open this page to sign in:\n  %s\nEnter this code there: %s\n", oneLine(address), oneLine(userCode))
			l.waiting(address, until)
		},
		Notice:       l.note,
		CallbackHost: os.Getenv("CODEWORK_OAUTH_CALLBACK_HOST"),
		URL:          at,
	}
	if terminal(l.in) && terminal(l.err) {
		o.Paste = l.paste
	}
	return o, nil
}

// waiting opens the page and says that the rest is the person's turn.
func (l *authLogin) waiting(address string, until time.Time) {
	if l.browser && !l.noBrowser {
		openBrowser(address)
	}
	switch {
	case l.quiet:
	case until.IsZero():
		fmt.Fprintln(l.err, "Waiting for the browser; ctrl-c gives up. For a browser on another machine there is --device.")
	default:
		fmt.Fprintf(l.err, "Waiting until %s; ctrl-c gives up.\n", until.Local().Format("15:04"))
	}
}

func (l *authLogin) note(text string) { fmt.Fprintln(l.err, "note: "+oneLine(text)) }

func (l *authLogin) warn(text string) { fmt.Fprintln(l.err, "warning: "+oneLine(text)) }

// maxPasted is more than any address has, or a terminal's line.
const maxPasted = 64 << 10

// paste asks for the address that the browser ended at. When the context ends
// first, the read stays behind: a terminal's cannot be taken back, and the
// process is about to end.
func (l *authLogin) paste(ctx context.Context) (string, error) {
	fmt.Fprint(l.err, "Paste the address that the browser ended at, or the code in it: ")
	type answer struct {
		line string
		err  error
	}
	read := make(chan answer, 1)
	go func() {
		var line []byte
		for b := make([]byte, 1); len(line) < maxPasted; {
			n, err := l.in.Read(b)
			if n == 1 && b[0] != '\n' {
				line = append(line, b[0])
				continue
			}
			if err != nil && len(line) > 0 {
				err = nil
			}
			read <- answer{string(line), err}
			return
		}
		read <- answer{err: errors.New("the line is too long")}
	}()
	select {
	case a := <-read:
		return a.line, a.err
	case <-ctx.Done():
		fmt.Fprintln(l.err)
		return "", ctx.Err()
	}
}

// warnOfPlainServer says that a login goes over a network without encryption.
func (l *authLogin) warnOfPlainServer() {
	endpoint, err := client.Endpoint(l.server)
	if err != nil {
		return // it has been connected to, so this cannot be
	}
	if u, err := url.Parse(endpoint); err == nil && u.Scheme == "ws" && !loopback(u.Hostname()) {
		l.warn("the login will be sent to " + u.Host + " without encryption")
	}
}
