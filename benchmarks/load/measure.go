package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// report is one line of output; names end with their unit.
type report map[string]any

// latencies collects durations from many goroutines.
type latencies struct {
	mutex  sync.Mutex
	values []time.Duration
}

func (l *latencies) add(values []time.Duration) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.values = append(l.values, values...)
}

// into writes the percentiles, in ms, under `prefix`.
func (l *latencies) into(r report, prefix string) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if len(l.values) == 0 {
		return
	}
	slices.Sort(l.values)
	for name, part := range map[string]float64{"p50_ms": 0.5, "p99_ms": 0.99} {
		value := l.values[int(part*float64(len(l.values)-1))]
		r[prefix+name] = rounded(float64(value) / float64(time.Millisecond))
	}
}

// server reads what the process of the server has used.
type server struct {
	pid   int
	began time.Time
	cpu   float64
}

func observe(pid int) (server, error) {
	cpu, err := cpuSeconds(pid)
	return server{pid, time.Now(), cpu}, err
}

// into writes rate, CPU and memory since `observe` for `messages` messages.
func (s server) into(r report, messages int64) error {
	wall := time.Since(s.began).Seconds()
	r["messages"] = messages
	r["per_s"] = rounded(float64(messages) / wall)
	if s.pid == 0 {
		return nil
	}
	cpu, err := cpuSeconds(s.pid)
	if err != nil {
		return err
	}
	used := cpu - s.cpu
	r["server_cores"] = rounded(used / wall)
	if messages > 0 {
		r["server_cpu_s_per_1000"] = rounded(1000 * used / float64(messages))
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.pid))
	if err != nil {
		return err
	}
	for _, line := range strings.Split(string(status), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "RssAnon:" {
			kib, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				return err
			}
			r["server_rss_anon_mb"] = rounded(kib / 1024)
		}
	}
	return nil
}

// cpuSeconds is user and system time of a process with all its threads; 0 for no process.
func cpuSeconds(pid int) (float64, error) {
	if pid == 0 {
		return 0, nil
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, err := strconv.ParseFloat(fields[11], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(fields[12], 64)
	return (user + system) / 100, err
}

// rounded keeps four significant digits.
func rounded(value float64) float64 {
	if value == 0 {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(value))))
	return math.Round(value*scale) / scale
}
