// Load for any server of apache.rocketmq.v2.MessagingService, over gRPC, with the metadata that clients send.
//
//	load send     -address H:P [-senders 64] [-size 1024] [-per-call 1] [-rate 0] [-seconds 5]
//	load receive  -address H:P [-receivers 8] [-count 50000]     receives and acks what is there
//	load through  -address H:P [-rate 200] [-receivers 8]        sends and receives; latency end to end
//	                                      -delay 3: with delivery times; -transaction: halves, then commits
//	load idle     -address H:P [-polls 5000]                     polls that find nothing
//	load echo     -port 0                                        an empty server: the limit of a transport
//
// Prints one line of JSON. With -pid the server's CPU seconds per 1,000 messages and its memory.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"
)

// options are the flags of every mode.
type options struct {
	address     string
	tls         bool
	topic       string
	group       string
	connections int
	senders     int
	receivers   int
	polls       int
	size        int
	perCall     int
	groups      int
	delay       time.Duration
	transaction bool
	batch       int
	rate        int
	count       int
	port        int
	pid         int
	seconds     time.Duration
	warm        time.Duration
}

func main() {
	if len(os.Args) < 2 {
		fail("a mode is missing: send, receive, through, idle or echo")
	}
	var o options
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	flags.StringVar(&o.address, "address", "127.0.0.1:8081", "host:port of the server")
	flags.BoolVar(&o.tls, "tls", false, "TLS, any certificate")
	flags.StringVar(&o.topic, "topic", "bench", "topic")
	flags.StringVar(&o.group, "group", "bench-group", "consumer group")
	flags.IntVar(&o.connections, "connections", 4, "connections of the senders, and of the receivers")
	flags.IntVar(&o.senders, "senders", 64, "calls in flight")
	flags.IntVar(&o.receivers, "receivers", 8, "polling receivers")
	flags.IntVar(&o.polls, "polls", 5000, "idle polls")
	flags.IntVar(&o.size, "size", 1024, "bytes of a body")
	flags.IntVar(&o.perCall, "per-call", 1, "messages of a send call")
	flags.IntVar(&o.groups, "message-groups", 0, "send FIFO messages of so many message groups; 0: NORMAL ones")
	flags.IntVar(&o.batch, "batch", 32, "messages a receive asks for")
	flags.IntVar(&o.rate, "rate", 0, "messages a second in all; 0: as fast as answered")
	flags.IntVar(&o.count, "count", 0, "messages; 0: by -seconds")
	flags.IntVar(&o.port, "port", 0, "echo: port to listen on; 0: a free one, printed")
	flags.IntVar(&o.pid, "pid", 0, "process of the server")
	flags.BoolVar(&o.transaction, "transaction", false, "send halves, and commit each")
	delay := flags.Float64("delay", 0, "seconds from a send to its delivery time, from which journeys count; 0: none")
	seconds := flags.Float64("seconds", 5, "length of the measurement")
	warm := flags.Float64("warm", 1, "seconds before it that are not counted")
	if err := flags.Parse(os.Args[2:]); err != nil {
		fail(err.Error())
	}
	o.delay = time.Duration(*delay * float64(time.Second))
	o.seconds = time.Duration(*seconds * float64(time.Second))
	o.warm = time.Duration(*warm * float64(time.Second))
	modes := map[string]func(options) (report, error){
		"send": send, "receive": receive, "through": through, "idle": idle, "echo": echo,
	}
	mode, known := modes[os.Args[1]]
	if !known {
		fail("unknown mode " + os.Args[1] + ": send, receive, through, idle or echo")
	}
	result, err := mode(o)
	if err != nil {
		fail(err.Error())
	}
	line, err := json.Marshal(result)
	if err != nil {
		fail(err.Error())
	}
	fmt.Println(string(line))
}

func fail(text string) {
	fmt.Fprintln(os.Stderr, text)
	os.Exit(1)
}
