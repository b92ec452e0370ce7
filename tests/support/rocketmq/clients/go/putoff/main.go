// Delayed messages, a recall, and transactions with the official Go client; prints a line for each thing that it saw.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	patience = 60 * time.Second
	soon     = 20_000 // far enough that a busy machine has sent and recalled all before
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(endpoints, delayed, paid string) error {
	rocketmq.EnableSsl = false
	ctx := context.Background()
	var mutex sync.Mutex
	asked := map[string]bool{}
	checker := &rocketmq.TransactionChecker{Check: func(half *rocketmq.MessageView) rocketmq.TransactionResolution {
		mutex.Lock()
		defer mutex.Unlock()
		body := string(half.GetBody())
		if !strings.HasPrefix(body, "asked-") {
			return rocketmq.UNKNOWN // on a busy machine one is asked about that is ended a moment later: it is left to that
		}
		asked[body] = true
		if body == "asked-commit" {
			return rocketmq.COMMIT
		}
		return rocketmq.ROLLBACK
	}}
	producer, err := rocketmq.NewProducer(config(endpoints, ""), rocketmq.WithTopics(delayed, paid), rocketmq.WithTransactionChecker(checker))
	if err != nil {
		return err
	}
	producer.SetRequestTimeout(patience)
	if err := producer.Start(); err != nil {
		return err
	}
	for _, end := range []string{"commit", "rollback", "asked-commit", "asked-rollback"} {
		transaction := producer.BeginTransaction()
		if _, err := producer.SendWithTransaction(ctx, newMessage(paid, end), transaction); err != nil {
			return err
		}
		switch end {
		case "commit":
			err = transaction.Commit()
		case "rollback":
			err = transaction.RollBack()
		}
		if err != nil {
			return err
		}
	}
	due := map[string]int64{}
	now := time.Now().UnixMilli()
	for _, wait := range []int64{soon + 6500, soon + 4500, soon + 5500} {
		body := fmt.Sprint(wait)
		at := time.UnixMilli(now + wait)
		due[body] = at.UnixMilli()
		message := newMessage(delayed, body)
		message.SetDelayTimestamp(at)
		if _, err := producer.Send(ctx, message); err != nil {
			return err
		}
	}
	message := newMessage(delayed, "recalled")
	message.SetDelayTimestamp(time.UnixMilli(now + soon + 15_000))
	receipts, err := producer.Send(ctx, message)
	if err != nil {
		return err
	}
	id, err := producer.Recall(ctx, delayed, receipts[0].RecallHandle)
	if err != nil {
		return err
	}
	fmt.Println("recalled", id != "")
	found, err := received(endpoints, delayed, 3)
	if err != nil {
		return err
	}
	for _, each := range found {
		late := each.GetDeliveryTimestamp().UnixMilli() - due[string(each.GetBody())]
		fmt.Println("delayed", described(each), late)
	}
	found, err = received(endpoints, paid, 2)
	if err != nil {
		return err
	}
	lines := []string{}
	for _, each := range found {
		lines = append(lines, "committed "+described(each))
	}
	for known := 0; known < 2; time.Sleep(100 * time.Millisecond) {
		mutex.Lock()
		known = len(asked)
		mutex.Unlock()
	}
	mutex.Lock()
	defer mutex.Unlock()
	slices.Sort(lines)
	bodies := []string{}
	for body := range asked {
		bodies = append(bodies, "asked "+body)
	}
	slices.Sort(bodies)
	fmt.Println(strings.Join(append(lines, bodies...), "\n"))
	return nil
}

func config(endpoints, group string) *rocketmq.Config {
	return &rocketmq.Config{Endpoint: endpoints, Credentials: &credentials.SessionCredentials{}, ConsumerGroup: group}
}

func newMessage(topic, body string) *rocketmq.Message {
	message := &rocketmq.Message{Topic: topic, Body: []byte(body)}
	message.SetTag("red")
	message.SetKeys("k")
	message.AddProperty("colour", "blue")
	return message
}

func described(each *rocketmq.MessageView) string {
	return fmt.Sprintf("%s %s %s %s %d", each.GetBody(), *each.GetTag(), strings.Join(each.GetKeys(), ","),
		each.GetProperties()["colour"], each.GetDeliveryAttempt())
}

func received(endpoints, topic string, count int) ([]*rocketmq.MessageView, error) {
	consumer, err := rocketmq.NewSimpleConsumer(config(endpoints, topic+"-readers"), rocketmq.WithSimpleAwaitDuration(5*time.Second),
		rocketmq.WithSimpleSubscriptionExpressions(map[string]*rocketmq.FilterExpression{topic: rocketmq.SUB_ALL}))
	if err != nil {
		return nil, err
	}
	consumer.SetRequestTimeout(patience)
	if err := consumer.Start(); err != nil {
		return nil, err
	}
	found := []*rocketmq.MessageView{}
	end := time.Time{}
	for end.IsZero() || time.Now().Before(end) {
		messages, err := consumer.Receive(context.Background(), 16, 300*time.Second)
		if err != nil {
			messages = nil // the client calls it an error when nothing is there
		}
		for _, message := range messages {
			found = append(found, message)
			if err := consumer.Ack(context.Background(), message); err != nil {
				return nil, err
			}
		}
		if len(found) >= count && end.IsZero() {
			end = time.Now().Add(4 * time.Second)
		}
	}
	return found, consumer.GracefulStop()
}
