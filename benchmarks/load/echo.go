package main

import (
	"context"
	"fmt"
	"net"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
)

// echoService answers every send with one constant; what is left is the transport.
type echoService struct {
	v2.UnimplementedMessagingServiceServer
}

func (echoService) SendMessage(context.Context, *v2.SendMessageRequest) (*v2.SendMessageResponse, error) {
	return &v2.SendMessageResponse{Status: ok(), Entries: []*v2.SendResultEntry{{Status: ok(), MessageId: "0"}}}, nil
}

func (echoService) QueryRoute(_ context.Context, request *v2.QueryRouteRequest) (*v2.QueryRouteResponse, error) {
	broker := &v2.Broker{Name: "echo", Endpoints: request.Endpoints}
	return &v2.QueryRouteResponse{Status: ok(), MessageQueues: []*v2.MessageQueue{{Topic: request.Topic, Broker: broker}}}, nil
}

func (echoService) Telemetry(stream v2.MessagingService_TelemetryServer) error {
	for {
		command, err := stream.Recv()
		if err != nil {
			return nil // the client went away
		}
		command.Status = ok()
		if err := stream.Send(command); err != nil {
			return err
		}
	}
}

func ok() *v2.Status { return &v2.Status{Code: v2.Code_OK, Message: "OK"} }

// echo serves until it is killed; the first line it prints is its port.
func echo(o options) (report, error) {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", o.port))
	if err != nil {
		return nil, err
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	server := grpc.NewServer()
	v2.RegisterMessagingServiceServer(server, echoService{})
	return nil, server.Serve(listener)
}
