// Plain grpc-go against the test service: `grpc-go HOST:PORT plain|tls` prints one JSON object, behaviour to outcome.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	codes "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	service = "/lakebroker.test.Echo/"
	limit   = 70 << 20
)

var channel *grpc.ClientConn

func value(data []byte) *wrapperspb.BytesValue { return &wrapperspb.BytesValue{Value: data} }

func within(seconds float64) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Duration(seconds*float64(time.Second)))
}

func unary(ctx context.Context, method string, data []byte, options ...grpc.CallOption) ([]byte, error) {
	answer := value(nil)
	err := channel.Invoke(ctx, service+method, value(data), answer, options...)
	return answer.Value, err
}

func open(ctx context.Context, method string, up, down bool, options ...grpc.CallOption) (grpc.ClientStream, error) {
	kind := &grpc.StreamDesc{ClientStreams: up, ServerStreams: down}
	return channel.NewStream(ctx, kind, service+method, options...)
}

// asked opens a stream of responses to one request.
func asked(ctx context.Context, method string, data []byte, options ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := open(ctx, method, false, true, options...)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(value(data)); err != nil {
		return nil, err
	}
	return stream, stream.CloseSend()
}

func drain(stream grpc.ClientStream) (count, size int, err error) {
	for {
		answer := value(nil)
		err := stream.RecvMsg(answer)
		if errors.Is(err, io.EOF) {
			return count, size, nil
		}
		if err != nil {
			return count, size, err
		}
		count, size = count+1, size+len(answer.Value)
	}
}

func down(method, data string, options ...grpc.CallOption) string {
	ctx, cancel := within(30)
	defer cancel()
	stream, err := asked(ctx, method, []byte(data), options...)
	if err != nil {
		return said(err)
	}
	count, size, err := drain(stream)
	if err != nil {
		return said(err)
	}
	return fmt.Sprintf("%d messages, %d bytes", count, size)
}

// said is a failure's code and message.
func said(err error) string {
	if err == nil {
		return "OK"
	}
	return code(err) + ": " + status.Convert(err).Message()
}

// code is the status code under its canonical name.
func code(err error) string { return codes.Code(status.Code(err)).String() }

func echoes(size int) string {
	for _, method := range []string{"Unary", "Later", "Coroutine"} {
		ctx, cancel := within(20)
		data := bytes.Repeat([]byte("a"), size)
		answer, err := unary(ctx, method, data)
		cancel()
		if err != nil {
			return method + ": " + said(err)
		}
		if !bytes.Equal(answer, data) {
			return fmt.Sprintf("%s: %d bytes came back", method, len(answer))
		}
	}
	return "OK"
}

func sum(sizes ...int) string {
	ctx, cancel := within(20)
	defer cancel()
	stream, err := open(ctx, "Up", true, false)
	for _, size := range sizes {
		if err == nil {
			err = stream.SendMsg(value(make([]byte, size)))
		}
	}
	if err != nil {
		return said(err)
	}
	if err = stream.CloseSend(); err != nil {
		return said(err)
	}
	answer := value(nil)
	if err = stream.RecvMsg(answer); err != nil {
		return said(err)
	}
	return string(answer.Value)
}

func inTurns(times int) string {
	ctx, cancel := within(20)
	defer cancel()
	stream, err := open(ctx, "Both", true, true)
	for number := 0; number < times && err == nil; number++ {
		sent, answer := []byte(fmt.Sprintf("n%d", number)), value(nil)
		if err = stream.SendMsg(value(sent)); err == nil {
			err = stream.RecvMsg(answer)
		}
		if err == nil && !bytes.Equal(answer.Value, sent) {
			return fmt.Sprintf("%q for %q", answer.Value, sent)
		}
	}
	if err != nil {
		return said(err)
	}
	if err = stream.CloseSend(); err != nil {
		return said(err)
	}
	if err = stream.RecvMsg(value(nil)); !errors.Is(err, io.EOF) {
		return said(err)
	}
	return "OK"
}

func fails(method, data string, seconds float64) error {
	ctx, cancel := within(seconds)
	defer cancel()
	if method != "Down" && method != "AllAtOnce" {
		_, err := unary(ctx, method, []byte(data))
		return err
	}
	stream, err := asked(ctx, method, []byte(data))
	if err != nil {
		return err
	}
	_, _, err = drain(stream)
	return err
}

func withMetadata() string {
	ctx, cancel := within(10)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "x-ask", "what is asked", "x-bin", "\x00\xff")
	answer, err := unary(ctx, "Unary", []byte("M"))
	if err != nil {
		return said(err)
	}
	asked, _, _ := strings.Cut(string(answer), " 127.0.0.1:")
	return asked
}

func compressed() string {
	ctx, cancel := within(20)
	defer cancel()
	data := bytes.Repeat([]byte("squeeze"), 100_000)
	answer, err := unary(ctx, "Unary", data, grpc.UseCompressor("gzip"))
	if err != nil || !bytes.Equal(answer, data) {
		return said(err)
	}
	return down("Down", "5 100000", grpc.UseCompressor("gzip"))
}

func tooLarge() string {
	ctx, cancel := within(60)
	defer cancel()
	_, err := unary(ctx, "Unary", make([]byte, 64<<20+1))
	if _, next := unary(ctx, "Unary", []byte("next")); next != nil {
		return "the next call: " + said(next)
	}
	return code(err)
}

func cancelled(method string) string {
	ctx, cancel := within(20)
	defer cancel()
	stream, err := asked(ctx, method, []byte("W"))
	if err != nil {
		return said(err)
	}
	time.AfterFunc(300*time.Millisecond, cancel)
	_, _, err = drain(stream)
	return code(err)
}

func slowReader() string {
	ctx, cancel := within(60)
	defer cancel()
	stream, err := asked(ctx, "Down", []byte("100 1000000"))
	if err == nil {
		err = stream.RecvMsg(value(nil))
	}
	if err != nil {
		return said(err)
	}
	time.Sleep(time.Second)
	count, size, err := drain(stream)
	if err != nil {
		return said(err)
	}
	return fmt.Sprintf("%d messages, %d bytes", count, size)
}

func atOnce(calls, callers int) string {
	var group sync.WaitGroup
	wrong := make(chan string, calls)
	numbers := make(chan int)
	for range callers {
		group.Add(1)
		go func() {
			defer group.Done()
			for number := range numbers {
				ctx, cancel := within(20)
				sent := fmt.Sprint(number)
				answer, err := unary(ctx, []string{"Unary", "Later", "Coroutine"}[number%3], []byte(sent))
				cancel()
				if err != nil {
					wrong <- said(err)
				} else if string(answer) != sent {
					wrong <- fmt.Sprintf("%q for %q", answer, sent)
				}
			}
		}()
	}
	for number := range calls {
		numbers <- number
	}
	close(numbers)
	group.Wait()
	close(wrong)
	if first, any := <-wrong; any {
		return fmt.Sprintf("%d wrong, first %s", len(wrong)+1, first)
	}
	return "OK"
}

func main() {
	security := insecure.NewCredentials()
	if os.Args[2] == "tls" {
		security = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	}
	var err error
	channel, err = grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(security),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(limit), grpc.MaxCallSendMsgSize(limit)))
	if err != nil {
		panic(err)
	}
	outcomes := map[string]string{
		"sum of no requests": sum(), "sum of 4 requests": sum(2<<20, 5, 3<<20, 0),
		"both in turns":  inTurns(200),
		"all at once":    down("AllAtOnce", "abc"),
		"no responses":   down("Down", "0 0"),
		"1000 responses": down("Down", "1000 1000"), "40 MiB of responses": down("Down", fmt.Sprintf("40 %d", 1<<20)),
		"metadata": withMetadata(), "gzip": compressed(), "too large": tooLarge(),
		"unknown method": code(fails("Nothing", "", 10)), "unknown service": code(fails("../Elsewhere/Unary", "", 10)),
		"slow reader": slowReader(), "3000 calls at once": atOnce(3000, 32),
	}
	for _, size := range []int{0, 1, 1000, 16_379, 16_380, 100_000, 3 << 20} {
		outcomes[fmt.Sprintf("echo of %d", size)] = echoes(size)
	}
	for _, method := range []string{"Unary", "Later", "Coroutine", "Down"} {
		outcomes[method+" fails"] = said(fails(method, "F", 10))
	}
	for _, method := range []string{"Unary", "Coroutine", "Down"} {
		outcomes[method+" has a bug"] = code(fails(method, "X", 10))
	}
	for _, method := range []string{"Coroutine", "Later", "Down", "AllAtOnce"} {
		outcomes[method+" is late"] = code(fails(method, "W", 0.3))
	}
	for _, method := range []string{"Down", "AllAtOnce"} {
		outcomes[method+" is cancelled"] = cancelled(method)
	}
	if err := json.NewEncoder(os.Stdout).Encode(outcomes); err != nil {
		panic(err)
	}
}
