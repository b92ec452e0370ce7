package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// sentAt is the property that carries the time from which a journey counts, in ns: of sending, or of delivery.
const sentAt = "sent"

// traffic is what senders and receivers of one run share.
type traffic struct {
	o         options
	measuring atomic.Bool
	ending    chan struct{}
	sent      atomic.Int64
	received  atomic.Int64
	began     time.Time
	fresh     atomic.Int64 // of received, those that were sent since it began
	sends     latencies
	journeys  latencies
	failure   atomic.Pointer[error]
}

func (t *traffic) fail(err error) { t.failure.CompareAndSwap(nil, &err) }

func (t *traffic) error() error {
	if err := t.failure.Load(); err != nil {
		return *err
	}
	return nil
}

func (t *traffic) over() bool {
	select {
	case <-t.ending:
		return true
	default:
		return t.failure.Load() != nil
	}
}

func send(o options) (report, error) {
	t := &traffic{o: o, ending: make(chan struct{})}
	var working sync.WaitGroup
	if err := t.startSenders(&working); err != nil {
		return nil, err
	}
	time.Sleep(o.warm)
	observed, err := observe(o.pid)
	if err != nil {
		return nil, err
	}
	t.measuring.Store(true)
	for until := time.Now().Add(o.seconds); !t.over(); time.Sleep(time.Millisecond) {
		if o.count > 0 && t.sent.Load() >= int64(o.count) || o.count == 0 && time.Now().After(until) {
			break
		}
	}
	t.measuring.Store(false)
	r := report{}
	if err := observed.into(r, t.sent.Load()); err != nil {
		return nil, err
	}
	close(t.ending)
	working.Wait()
	t.sends.into(r, "")
	return r, t.error()
}

func receive(o options) (report, error) {
	t := &traffic{o: o, ending: make(chan struct{})}
	t.measuring.Store(true)
	all, err := clients(o, v2.ClientType_SIMPLE_CONSUMER, o.connections)
	if err != nil {
		return nil, err
	}
	observed, err := observe(o.pid)
	if err != nil {
		return nil, err
	}
	var working sync.WaitGroup
	t.startReceivers(all, &working)
	for until := time.Now().Add(120 * time.Second); t.received.Load() < int64(o.count) && !t.over(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			return nil, fmt.Errorf("%d of %d messages received in 120 s", t.received.Load(), o.count)
		}
	}
	r := report{}
	if err := observed.into(r, t.received.Load()); err != nil {
		return nil, err
	}
	close(t.ending)
	working.Wait()
	return r, t.error()
}

func through(o options) (report, error) {
	t := &traffic{o: o, ending: make(chan struct{}), began: time.Now()}
	all, err := clients(o, v2.ClientType_SIMPLE_CONSUMER, o.connections)
	if err != nil {
		return nil, err
	}
	var working sync.WaitGroup
	t.startReceivers(all, &working)
	if err := t.startSenders(&working); err != nil {
		return nil, err
	}
	time.Sleep(o.warm)
	observed, err := observe(o.pid)
	if err != nil {
		return nil, err
	}
	t.measuring.Store(true)
	for until := time.Now().Add(o.seconds); time.Now().Before(until) && !t.over(); {
		time.Sleep(5 * time.Millisecond)
	}
	t.measuring.Store(false)
	received := t.received.Load()
	r := report{
		"received":       received,
		"received_per_s": rounded(float64(received) / o.seconds.Seconds()),
		"received_fresh": t.fresh.Load(),
	}
	if err := observed.into(r, t.sent.Load()); err != nil {
		return nil, err
	}
	close(t.ending)
	working.Wait()
	t.sends.into(r, "send_")
	t.journeys.into(r, "journey_")
	return r, t.error()
}

// idle opens polls on a topic without messages and watches the server while they wait.
func idle(o options) (report, error) {
	t := &traffic{o: o, ending: make(chan struct{})}
	all, err := clients(o, v2.ClientType_SIMPLE_CONSUMER, o.connections)
	if err != nil {
		return nil, err
	}
	queue, err := all[0].anyQueue()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var working sync.WaitGroup
	for i := range o.polls {
		working.Add(1)
		go func() {
			defer working.Done()
			c := all[i%len(all)]
			limit, done := context.WithTimeout(c.described(ctx), 40*time.Second)
			defer done()
			if _, err := c.poll(limit, queue, o.batch, 20*time.Second); err != nil && ctx.Err() == nil {
				t.fail(err)
			}
		}()
	}
	time.Sleep(o.warm)
	observed, err := observe(o.pid)
	if err != nil {
		return nil, err
	}
	time.Sleep(o.seconds)
	r := report{"polls": o.polls}
	err = observed.into(r, 0)
	cancel()
	working.Wait()
	if err == nil {
		err = t.error()
	}
	return r, err
}

func (t *traffic) startSenders(working *sync.WaitGroup) error {
	all, err := clients(t.o, v2.ClientType_PRODUCER, t.o.connections)
	if err != nil {
		return err
	}
	body := make([]byte, t.o.size)
	for i := range body {
		body[i] = "abcdefghijklmnopqrstuvwxyz012345"[rand.IntN(32)]
	}
	prefix := random(8)
	var number atomic.Int64
	paced := t.pace()
	for i := range t.o.senders {
		working.Add(1)
		go func() {
			defer working.Done()
			var taken []time.Duration
			defer func() { t.sends.add(taken) }()
			for !t.over() {
				if paced != nil {
					select {
					case <-paced:
					case <-t.ending:
						return
					}
				}
				began := time.Now()
				messages := make([]*v2.Message, t.o.perCall)
				queue := rand.Int32N(8)
				kind, group := v2.MessageType_NORMAL, (*string)(nil)
				counts, due := began, (*timestamppb.Timestamp)(nil)
				switch {
				case t.o.groups > 0:
					name := "group-" + strconv.Itoa(rand.IntN(t.o.groups))
					kind, group = v2.MessageType_FIFO, &name
				case t.o.delay > 0:
					counts = began.Add(t.o.delay)
					kind, due = v2.MessageType_DELAY, timestamppb.New(counts)
				case t.o.transaction:
					kind = v2.MessageType_TRANSACTION
				}
				for m := range messages {
					messages[m] = &v2.Message{Topic: &v2.Resource{Name: t.o.topic}, Body: body,
						UserProperties: map[string]string{sentAt: strconv.FormatInt(counts.UnixNano(), 10)},
						SystemProperties: &v2.SystemProperties{MessageId: fmt.Sprintf("%s%016X", prefix, number.Add(1)),
							MessageType: kind, MessageGroup: group, BodyEncoding: v2.Encoding_IDENTITY,
							BornTimestamp: timestamppb.New(began), BornHost: "load", QueueId: queue, DeliveryTimestamp: due}}
				}
				c := all[i%len(all)]
				ctx, cancel := c.call(10 * time.Second)
				answer, err := c.api.SendMessage(ctx, &v2.SendMessageRequest{Messages: messages})
				cancel()
				if err := failed("send", answer.GetStatus(), err); err != nil {
					t.fail(err)
					return
				}
				if t.o.transaction {
					if err := c.commit(answer.Entries); err != nil {
						t.fail(err)
						return
					}
				}
				if t.measuring.Load() {
					t.sent.Add(int64(t.o.perCall))
					taken = append(taken, time.Since(began))
				}
			}
		}()
	}
	return nil
}

// pace gives a token for every send that is due at the rate; nil without a rate.
func (t *traffic) pace() <-chan struct{} {
	if t.o.rate == 0 {
		return nil
	}
	due := make(chan struct{}, 4096)
	go func() {
		began := time.Now()
		for given := 0; !t.over(); time.Sleep(500 * time.Microsecond) {
			for wanted := int(time.Since(began).Seconds() * float64(t.o.rate) / float64(t.o.perCall)); given < wanted; given++ {
				select {
				case due <- struct{}{}:
				case <-t.ending:
					return
				}
			}
		}
	}()
	return due
}

func (t *traffic) startReceivers(all []*client, working *sync.WaitGroup) {
	for i := range t.o.receivers {
		working.Add(1)
		go func() {
			defer working.Done()
			c := all[i%len(all)]
			queue, err := c.anyQueue()
			if err != nil {
				t.fail(err)
				return
			}
			var journeys []time.Duration
			defer func() { t.journeys.add(journeys) }()
			for !t.over() {
				ctx, cancel := c.call(10 * time.Second)
				messages, err := c.poll(ctx, queue, t.o.batch, 5*time.Second)
				cancel()
				now := time.Now()
				if err != nil {
					t.fail(err)
					return
				}
				if len(messages) == 0 {
					continue
				}
				if t.measuring.Load() {
					for _, message := range messages {
						if ns, err := strconv.ParseInt(message.UserProperties[sentAt], 10, 64); err == nil {
							sent := time.Unix(0, ns)
							journeys = append(journeys, now.Sub(sent))
							if sent.After(t.began) {
								t.fresh.Add(1)
							}
						}
					}
				}
				if err := c.ack(messages); err != nil {
					t.fail(err)
					return
				}
				if t.measuring.Load() {
					t.received.Add(int64(len(messages)))
				}
			}
		}()
	}
}
