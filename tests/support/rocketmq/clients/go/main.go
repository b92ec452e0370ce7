// Sends, receives and acks with the official Go client.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

// Of a call, on a busy machine; the client's own is 3 seconds.
const patience = 60 * time.Second

func main() {
	if err := run(os.Args[1], os.Args[2] == "tls", os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A consumer that receives nothing, until standard input ends.
func listen(endpoints, topic string) error {
	config := &rocketmq.Config{Endpoint: endpoints, Credentials: &credentials.SessionCredentials{}, ConsumerGroup: topic + "-listen"}
	consumer, err := rocketmq.NewSimpleConsumer(config, rocketmq.WithSimpleAwaitDuration(5*time.Second),
		rocketmq.WithSimpleSubscriptionExpressions(map[string]*rocketmq.FilterExpression{topic: rocketmq.SUB_ALL}))
	if err != nil {
		return err
	}
	consumer.SetRequestTimeout(patience)
	if err := consumer.Start(); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return consumer.GracefulStop()
}

func run(endpoints string, tls bool, topic, number string) error {
	rocketmq.EnableSsl = tls
	if number == "listen" {
		return listen(endpoints, topic)
	}
	count, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	config := &rocketmq.Config{Endpoint: endpoints, Credentials: &credentials.SessionCredentials{}, ConsumerGroup: topic + "-simple"}
	producer, err := rocketmq.NewProducer(config, rocketmq.WithTopics(topic))
	if err != nil {
		return err
	}
	producer.SetRequestTimeout(patience)
	if err := producer.Start(); err != nil {
		return err
	}
	sent := map[string]string{}
	for n := range count {
		body := fmt.Sprintf("body %d", n)
		message := &rocketmq.Message{Topic: topic, Body: []byte(body)}
		message.SetTag(fmt.Sprintf("t%d", n%2))
		message.SetKeys(fmt.Sprintf("key-%d", n))
		receipts, err := producer.Send(context.Background(), message)
		if err != nil {
			return err
		}
		sent[receipts[0].MessageID] = body
	}
	if err := producer.GracefulStop(); err != nil {
		return err
	}
	consumer, err := rocketmq.NewSimpleConsumer(config, rocketmq.WithSimpleAwaitDuration(5*time.Second),
		rocketmq.WithSimpleSubscriptionExpressions(map[string]*rocketmq.FilterExpression{topic: rocketmq.SUB_ALL}))
	if err != nil {
		return err
	}
	consumer.SetRequestTimeout(patience)
	if err := consumer.Start(); err != nil {
		return err
	}
	received := map[string]string{}
	for tries := 0; tries < 20 && len(received) < count; tries++ {
		messages, err := consumer.Receive(context.Background(), 16, 30*time.Second)
		if err != nil {
			continue // the client calls it an error when nothing is there
		}
		for _, message := range messages {
			received[message.GetMessageId()] = string(message.GetBody())
			if err := consumer.Ack(context.Background(), message); err != nil {
				return err
			}
		}
	}
	for id, body := range sent {
		if received[id] != body {
			return fmt.Errorf("message %s: sent %q, received %q", id, body, received[id])
		}
	}
	fmt.Println("OK", len(received))
	return consumer.GracefulStop()
}
