// Command counting_client uses a cluster without a pause until its standard input ends, and counts what fails.
//
// For: tests of everything that must not interrupt a cluster, on each machine of the lab.
//
// Guarantees: a request is sent at each tick, whatever became of the earlier ones. A failed one is sent once more, as every
// client of Kubernetes does; failures before and after that are counted apart. At the end it looks for every object whose
// creation was acknowledged, in the store and in the events of its watch. Standard output is one JSON document.
//
// Does not: judge. The test knows which failures its situation allows.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"log"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	// Longest time of an attempt. client-go's own limit is 10 s for a connection, and none for an answer.
	attemptWithin = 5 * time.Second
	// Time between a failure and the second attempt.
	retryAfter = 200 * time.Millisecond
)

// targets is a flag that may be given several times.
type targets []string

func (t *targets) String() string          { return strings.Join(*t, ",") }
func (t *targets) Set(target string) error { *t = append(*t, target); return nil }

func main() {
	var (
		pods, names targets
		kubeconfig  = flag.String("kubeconfig", "", "file with credentials")
		server      = flag.String("server", "", "URL of an API server instead of the kubeconfig's")
		name        = flag.String("name", "", "prefix of the names of objects, different for each client")
		rate        = flag.Float64("rate", 10, "requests of each kind in a second")
	)
	flag.Var(&pods, "pod", "URL of pods behind a service; may be repeated")
	flag.Var(&names, "dns", "NAME@SERVER, a DNS name and the address of the server to ask; may be repeated")
	flag.Parse()
	if *name == "" || *kubeconfig == "" || *rate <= 0 || flag.NArg() > 0 {
		log.Fatal("usage: counting_client -kubeconfig FILE -name NAME [-server URL] [-rate 10] [-pod URL] [-dns NAME@SERVER]")
	}
	api, err := newAPI(*kubeconfig, *server, *name)
	if err != nil {
		log.Fatal(err)
	}
	kinds := api.kinds()
	for _, url := range pods {
		kinds = append(kinds, kind{"pod " + url, func(ctx context.Context, _ int) error { return getPod(ctx, url) }})
	}
	for _, target := range names {
		kinds = append(kinds, kind{"dns " + target, func(ctx context.Context, _ int) error { return resolve(ctx, target) }})
	}

	ctx, end := context.WithCancel(context.Background())
	watching, endWatch := context.WithCancel(context.Background())
	notes := newNotes()
	watched := make(chan struct{})
	go func() {
		api.watch(watching, notes)
		close(watched)
	}()
	var running sync.WaitGroup
	for _, kind := range kinds {
		running.Add(1)
		go func() {
			defer running.Done()
			kind.repeat(ctx, notes, *rate)
		}()
	}
	io.Copy(io.Discard, os.Stdin)
	end()
	running.Wait()
	// The last writes are acknowledged by now: the watch waits for their events.
	endWatch()
	<-watched
	report := notes.report()
	report.Lost, report.Missed, err = api.judge(context.Background())
	if err != nil {
		report.Error = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		log.Fatal(err)
	}
}

// kind is a kind of request. Its function gets the number of the request.
type kind struct {
	name    string
	request func(context.Context, int) error
}

// repeat sends requests until the context ends, and waits for the last ones. Requests overlap if one takes longer than a tick.
func (k kind) repeat(ctx context.Context, notes *notes, rate float64) {
	var running sync.WaitGroup
	ticks := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer ticks.Stop()
	notes.begin(k.name)
	for number := 0; ; number++ {
		running.Add(1)
		go func() {
			defer running.Done()
			k.send(notes, number)
		}()
		select {
		case <-ctx.Done():
			running.Wait()
			notes.end(k.name)
			return
		case <-ticks.C:
		}
	}
}

func (k kind) send(notes *notes, number int) {
	attempt := func() error {
		// A request that has begun ends by itself.
		ctx, cancel := context.WithTimeout(context.Background(), attemptWithin)
		defer cancel()
		return k.request(ctx, number)
	}
	began := time.Now()
	err := attempt()
	if err == nil {
		notes.success(k.name)
		return
	}
	notes.failure(k.name, began, 1, err)
	time.Sleep(retryAfter)
	began = time.Now()
	if err := attempt(); err != nil {
		notes.failure(k.name, began, 2, err)
		return
	}
	notes.success(k.name)
}
