package main

import (
	"sync"
	"time"
)

// maxFailures bounds the failures that are told one by one; all are counted.
const maxFailures = 200

// report is the client's standard output.
type report struct {
	Kinds map[string]*count `json:"kinds"`
	// The first failures, in their order.
	Failures []failure `json:"failures"`
	// Names of objects whose creation was acknowledged, and that the store or the watch's events lack.
	Lost   []string `json:"lost"`
	Missed []string `json:"missed"`
	// Why lost objects could not be looked for.
	Error string `json:"error,omitempty"`
}

type count struct {
	Successes int `json:"successes"`
	// Failures of first attempts, and of both attempts.
	Failures int `json:"failures"`
	Failed   int `json:"failed"`
	// Longest time in milliseconds between two successes, or between one and the beginning or the end.
	LongestGap int64 `json:"longest_gap_ms"`

	last time.Time
}

type failure struct {
	Time    time.Time `json:"time"`
	Kind    string    `json:"kind"`
	Attempt int       `json:"attempt"`
	Error   string    `json:"error"`
}

type notes struct {
	mutex sync.Mutex
	told  report
}

func newNotes() *notes {
	return &notes{told: report{Kinds: map[string]*count{}, Failures: []failure{}, Lost: []string{}, Missed: []string{}}}
}

func (n *notes) begin(kind string) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.told.Kinds[kind] = &count{last: time.Now()}
}

func (n *notes) success(kind string) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	count := n.told.Kinds[kind]
	count.Successes++
	count.close()
}

// end closes the last gap of a kind.
func (n *notes) end(kind string) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.told.Kinds[kind].close()
}

func (n *notes) failure(kind string, began time.Time, attempt int, err error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if attempt == 1 {
		n.told.Kinds[kind].Failures++
	} else {
		n.told.Kinds[kind].Failed++
	}
	if len(n.told.Failures) < maxFailures {
		n.told.Failures = append(n.told.Failures, failure{began, kind, attempt, err.Error()})
	}
}

func (n *notes) report() report {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.told
}

// close ends a gap.
func (c *count) close() {
	now := time.Now()
	c.LongestGap = max(c.LongestGap, now.Sub(c.last).Milliseconds())
	c.last = now
}
