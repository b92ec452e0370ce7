package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
)

// client is one connection that behaves as a client's does: an id, settings, heartbeats.
type client struct {
	api  v2.MessagingServiceClient
	id   string
	kind v2.ClientType
	o    options
}

// clients opens `n` connections of a kind and gives their settings.
func clients(o options, kind v2.ClientType, n int) ([]*client, error) {
	all := make([]*client, n)
	for i := range all {
		security := insecure.NewCredentials()
		if o.tls {
			security = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
		}
		connection, err := grpc.NewClient("passthrough:///"+o.address,
			grpc.WithTransportCredentials(security),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
			grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(4<<20))
		if err != nil {
			return nil, err
		}
		all[i] = &client{v2.NewMessagingServiceClient(connection), "load@" + random(6), kind, o}
		if err := all[i].settings(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func random(n int) string {
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		panic(err)
	}
	return hex.EncodeToString(b)
}

// call is a context with a deadline and what clients send with every call.
func (c *client) call(limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	return c.described(ctx), cancel
}

func (c *client) described(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx,
		"x-mq-client-id", c.id, "x-mq-language", "GO", "x-mq-protocol", "v2",
		"x-mq-client-version", "5.1.4", "x-mq-request-id", random(8),
		"x-mq-date-time", time.Now().UTC().Format("20060102T150405Z"))
}

func (c *client) endpoints() (*v2.Endpoints, error) {
	host, port, err := net.SplitHostPort(c.o.address)
	if err != nil {
		return nil, err
	}
	number, err := strconv.ParseInt(port, 10, 32)
	return &v2.Endpoints{Scheme: v2.AddressScheme_IPv4, Addresses: []*v2.Address{{Host: host, Port: int32(number)}}}, err
}

// settings asks for the route, opens the telemetry stream and waits until the server has answered.
func (c *client) settings() error {
	endpoints, err := c.endpoints()
	if err != nil {
		return err
	}
	if _, err := c.route(endpoints); err != nil {
		return err
	}
	topic := &v2.Resource{Name: c.o.topic}
	settings := &v2.Settings{ClientType: &c.kind, AccessPoint: endpoints, RequestTimeout: durationpb.New(3 * time.Second),
		UserAgent: &v2.UA{Language: v2.Language_GOLANG, Version: "5.1.4", Platform: "linux", Hostname: "load"}}
	if c.kind == v2.ClientType_PRODUCER {
		settings.PubSub = &v2.Settings_Publishing{Publishing: &v2.Publishing{Topics: []*v2.Resource{topic}}}
		settings.BackoffPolicy = &v2.RetryPolicy{MaxAttempts: 3, Strategy: &v2.RetryPolicy_ExponentialBackoff{
			ExponentialBackoff: &v2.ExponentialBackoff{Initial: durationpb.New(10 * time.Millisecond), Max: durationpb.New(time.Second), Multiplier: 2}}}
	} else {
		fifo := false
		settings.PubSub = &v2.Settings_Subscription{Subscription: &v2.Subscription{Group: &v2.Resource{Name: c.o.group},
			Fifo: &fifo, LongPollingTimeout: durationpb.New(20 * time.Second),
			Subscriptions: []*v2.SubscriptionEntry{{Topic: topic, Expression: everything()}}}}
	}
	stream, err := c.api.Telemetry(c.described(context.Background()))
	if err != nil {
		return err
	}
	if err := stream.Send(&v2.TelemetryCommand{Command: &v2.TelemetryCommand_Settings{Settings: settings}}); err != nil {
		return err
	}
	answer := make(chan error, 1)
	go func() {
		for {
			command, err := stream.Recv()
			if err == nil && command.GetSettings() == nil {
				continue
			}
			select {
			case answer <- err:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	select {
	case err := <-answer:
		if err != nil {
			return err
		}
	case <-time.After(10 * time.Second):
		return errors.New("no settings from the server within 10 s")
	}
	if c.kind == v2.ClientType_PRODUCER {
		return nil
	}
	ctx, cancel := c.call(5 * time.Second)
	defer cancel()
	beat, err := c.api.Heartbeat(ctx, &v2.HeartbeatRequest{Group: &v2.Resource{Name: c.o.group}, ClientType: c.kind})
	return failed("heartbeat", beat.GetStatus(), err)
}

// route waits until the server knows the topic: a broker may register a little after its port is open.
func (c *client) route(endpoints *v2.Endpoints) ([]*v2.MessageQueue, error) {
	var answer *v2.QueryRouteResponse
	var err error
	for until := time.Now().Add(60 * time.Second); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		ctx, cancel := c.call(5 * time.Second)
		answer, err = c.api.QueryRoute(ctx, &v2.QueryRouteRequest{Topic: &v2.Resource{Name: c.o.topic}, Endpoints: endpoints})
		cancel()
		if err = failed("route", answer.GetStatus(), err); err == nil {
			return answer.MessageQueues, nil
		}
	}
	return nil, err
}

// poll receives once; the messages and an error of transport or status.
func (c *client) poll(ctx context.Context, queue *v2.MessageQueue, batch int, wait time.Duration) ([]*v2.Message, error) {
	stream, err := c.api.ReceiveMessage(ctx, &v2.ReceiveMessageRequest{Group: &v2.Resource{Name: c.o.group},
		MessageQueue: queue, FilterExpression: everything(), BatchSize: int32(batch),
		InvisibleDuration: durationpb.New(60 * time.Second), LongPollingTimeout: durationpb.New(wait)})
	if err != nil {
		return nil, err
	}
	var messages []*v2.Message
	for {
		answer, err := stream.Recv()
		if err == io.EOF {
			return messages, nil
		}
		if err != nil {
			return messages, err
		}
		if message := answer.GetMessage(); message != nil {
			messages = append(messages, message)
		} else if status := answer.GetStatus(); status != nil && status.Code != v2.Code_MESSAGE_NOT_FOUND {
			if err := failed("receive", status, nil); err != nil {
				return messages, err
			}
		}
	}
}

// commit ends the transactions of halves.
func (c *client) commit(halves []*v2.SendResultEntry) error {
	for _, half := range halves {
		ctx, cancel := c.call(10 * time.Second)
		answer, err := c.api.EndTransaction(ctx, &v2.EndTransactionRequest{Topic: &v2.Resource{Name: c.o.topic},
			MessageId: half.MessageId, TransactionId: half.TransactionId, Resolution: v2.TransactionResolution_COMMIT})
		cancel()
		if err := failed("commit", answer.GetStatus(), err); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) ack(messages []*v2.Message) error {
	entries := make([]*v2.AckMessageEntry, len(messages))
	for i, message := range messages {
		entries[i] = &v2.AckMessageEntry{MessageId: message.SystemProperties.MessageId,
			ReceiptHandle: message.SystemProperties.GetReceiptHandle()}
	}
	ctx, cancel := c.call(10 * time.Second)
	defer cancel()
	answer, err := c.api.AckMessage(ctx, &v2.AckMessageRequest{Group: &v2.Resource{Name: c.o.group},
		Topic: &v2.Resource{Name: c.o.topic}, Entries: entries})
	return failed("ack", answer.GetStatus(), err)
}

// anyQueue asks for messages of whichever queue has some.
func (c *client) anyQueue() (*v2.MessageQueue, error) {
	endpoints, err := c.endpoints()
	if err != nil {
		return nil, err
	}
	queues, err := c.route(endpoints)
	if err != nil {
		return nil, err
	}
	return &v2.MessageQueue{Topic: queues[0].Topic, Id: -1, Permission: queues[0].Permission, Broker: queues[0].Broker}, nil
}

func everything() *v2.FilterExpression {
	return &v2.FilterExpression{Type: v2.FilterType_TAG, Expression: "*"}
}

func failed(what string, status *v2.Status, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if status.GetCode() != v2.Code_OK {
		return fmt.Errorf("%s: %v %s", what, status.GetCode(), status.GetMessage())
	}
	return nil
}
