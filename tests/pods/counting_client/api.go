package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	objects = "/api/v1/namespaces/default/configmaps"
	label   = "madako-lab/client"
	// Time for the last events of the watch, and for the answer about acknowledged objects.
	judgeWithin = 30 * time.Second
	// Bytes of a list: 6,000 objects take about 3 MB.
	maxAnswer = 64 << 20
)

type api struct {
	server, token string
	// Prefix of the names of objects, and their label.
	name string
	// Requests on connections that stay open, and on new ones.
	kept, fresh *http.Client

	mutex sync.Mutex
	// Objects whose creation was acknowledged, and objects that the watch has shown.
	acknowledged []string
	seen         map[string]bool
}

// newAPI reads credentials from a kubeconfig. A server that is not empty replaces the kubeconfig's.
func newAPI(kubeconfig, server, name string) (*api, error) {
	config, err := clientcmd.BuildConfigFromFlags(server, kubeconfig)
	if err != nil {
		return nil, err
	}
	settings, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	if settings == nil {
		return nil, fmt.Errorf("%s: the server %s has no TLS", kubeconfig, config.Host)
	}
	api := &api{server: config.Host, token: config.BearerToken, name: name, seen: map[string]bool{}}
	client := func(fresh bool) *http.Client {
		// As client-go: HTTP/2, with pings that find a connection without a peer.
		pings := &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second}
		return &http.Client{Transport: &http.Transport{
			TLSClientConfig: settings.Clone(), ForceAttemptHTTP2: true, HTTP2: pings, DisableKeepAlives: fresh,
		}}
	}
	api.kept, api.fresh = client(false), client(true)
	return api, nil
}

// kinds are the kinds of requests to the API.
func (a *api) kinds() []kind {
	read := func(client *http.Client) func(context.Context, int) error {
		return func(ctx context.Context, _ int) error {
			return a.do(ctx, client, http.MethodGet, "/api/v1/namespaces/default", nil, nil)
		}
	}
	return []kind{{"read", read(a.kept)}, {"read on a new connection", read(a.fresh)}, {"write", a.write}}
}

// write creates an object. A second attempt may find it: the first one's answer was lost.
func (a *api) write(ctx context.Context, number int) error {
	name := fmt.Sprintf("%s-%d", a.name, number)
	object := map[string]any{"metadata": map[string]any{"name": name, "labels": map[string]string{label: a.name}}}
	err := a.do(ctx, a.kept, http.MethodPost, objects, object, nil)
	var refused status
	if errors.As(err, &refused) && refused.code == http.StatusConflict {
		err = nil
	}
	if err == nil {
		a.mutex.Lock()
		defer a.mutex.Unlock()
		a.acknowledged = append(a.acknowledged, name)
	}
	return err
}

// status is an answer that is no success.
type status struct {
	code int
	text string
}

func (s status) Error() string { return fmt.Sprintf("status %d: %s", s.code, s.text) }

func (a *api) do(ctx context.Context, client *http.Client, method, path string, send, receive any) error {
	response, err := a.open(ctx, client, method, path, send)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil || receive == nil {
		return err
	}
	return json.Unmarshal(answer, receive)
}

func (a *api) open(ctx context.Context, client *http.Client, method, path string, send any) (*http.Response, error) {
	var body io.Reader
	if send != nil {
		text, err := json.Marshal(send)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, a.server+path, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if a.token != "" {
		request.Header.Set("Authorization", "Bearer "+a.token)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 300 {
		defer response.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(response.Body, 300))
		return nil, status{response.StatusCode, string(text)}
	}
	return response, nil
}

// list returns the names of this client's objects, and the revision of the list.
func (a *api) list(ctx context.Context) (names []string, revision string, err error) {
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []struct{ Metadata struct{ Name string } }
	}
	err = a.do(ctx, a.kept, http.MethodGet, objects+"?"+a.selector().Encode(), nil, &list)
	for _, item := range list.Items {
		names = append(names, item.Metadata.Name)
	}
	return names, list.Metadata.ResourceVersion, err
}

func (a *api) selector() url.Values { return url.Values{"labelSelector": {label + "=" + a.name}} }

// watch notes the objects that a watch shows, until the context has ended and all acknowledged ones are seen, or time is over.
// A watch that the server ends is opened again at the last revision, as clients do, and so is one that breaks, which counts as
// a failure. So does "410 Gone", as of a restarted server that no longer has the last revision; the watch then begins anew with
// a list, as informers do.
func (a *api) watch(ctx context.Context, notes *notes) {
	const kind = "watch"
	notes.begin(kind)
	open, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-ctx.Done()
		deadline := time.Now().Add(judgeWithin)
		for len(a.missed()) > 0 && time.Now().Before(deadline) {
			time.Sleep(retryAfter)
		}
		cancel()
	}()
	defer notes.end(kind)
	revision := ""
	for open.Err() == nil {
		began := time.Now()
		var err error
		if revision == "" {
			attempt, done := context.WithTimeout(open, attemptWithin)
			var names []string
			names, revision, err = a.list(attempt)
			done()
			if err == nil {
				a.show(names)
			}
		}
		if err == nil {
			revision, err = a.follow(open, revision, func() { notes.success(kind) })
		}
		if err != nil && open.Err() == nil {
			notes.failure(kind, began, 1, err)
			time.Sleep(retryAfter)
		}
	}
}

// follow reads events until the watch ends, and returns the revision to go on from. It calls shown for each new object.
func (a *api) follow(ctx context.Context, revision string, shown func()) (string, error) {
	query := a.selector()
	query.Set("watch", "1")
	query.Set("allowWatchBookmarks", "true")
	query.Set("resourceVersion", revision)
	response, err := a.open(ctx, a.kept, http.MethodGet, objects+"?"+query.Encode(), nil)
	if err != nil {
		return revision, err
	}
	defer response.Body.Close()
	events := json.NewDecoder(response.Body)
	for {
		var event struct {
			Type   string
			Object struct {
				Metadata struct{ Name, ResourceVersion string }
				Code     int
				Message  string
			}
		}
		if err := events.Decode(&event); err != nil {
			if errors.Is(err, io.EOF) {
				return revision, nil
			}
			return revision, err
		}
		if event.Type == "ERROR" {
			return "", status{event.Object.Code, event.Object.Message}
		}
		revision = event.Object.Metadata.ResourceVersion
		if event.Type == "ADDED" {
			a.show([]string{event.Object.Metadata.Name})
			shown()
		}
	}
}

// show notes objects of lists and of events.
func (a *api) show(names []string) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	for _, name := range names {
		a.seen[name] = true
	}
}

// missed returns the acknowledged objects that the watch has not shown.
func (a *api) missed() []string {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	missed := []string{}
	for _, name := range a.acknowledged {
		if !a.seen[name] {
			missed = append(missed, name)
		}
	}
	return missed
}

// judge looks for acknowledged objects in the store and in the watch.
func (a *api) judge(ctx context.Context) (lost, missed []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, judgeWithin)
	defer cancel()
	missed, lost = a.missed(), []string{}
	stored, _, err := a.list(ctx)
	for err != nil && ctx.Err() == nil {
		time.Sleep(retryAfter)
		stored, _, err = a.list(ctx)
	}
	if err != nil {
		return lost, missed, fmt.Errorf("list of objects: %w", err)
	}
	for _, name := range a.acknowledged {
		if !slices.Contains(stored, name) {
			lost = append(lost, name)
		}
	}
	return lost, missed, nil
}
