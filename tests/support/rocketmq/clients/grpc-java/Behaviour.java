import com.google.protobuf.ByteString;
import com.google.protobuf.BytesValue;
import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Status;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.netty.shaded.io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.handler.ssl.util.InsecureTrustManagerFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/** Plain grpc-java against the test service: {@code HOST:PORT plain|tls} prints one JSON object, behaviour to outcome. */
public final class Behaviour {
    private static final String SERVICE = "lakebroker.test.Echo/";
    private static final int LIMIT = 70 << 20;
    private static final List<String> ECHOES = List.of("Unary", "Later", "Coroutine");
    private static ManagedChannel channel;

    /** One call: messages are asked for one at a time, so that an unread response holds the server back. */
    private static final class Call extends ClientCall.Listener<BytesValue> {
        private final ClientCall<BytesValue, BytesValue> call;
        private final BlockingQueue<Object> events = new LinkedBlockingQueue<>();

        Call(String method, MethodType kind, Metadata metadata, CallOptions options) {
            call = channel.newCall(
                    MethodDescriptor.<BytesValue, BytesValue>newBuilder(
                                    ProtoUtils.marshaller(BytesValue.getDefaultInstance()),
                                    ProtoUtils.marshaller(BytesValue.getDefaultInstance()))
                            .setFullMethodName(SERVICE + method)
                            .setType(kind)
                            .build(),
                    options);
            call.start(this, metadata);
            call.setMessageCompression(options.getCompressor() != null);
        }

        @Override
        public void onMessage(BytesValue message) {
            events.add(message);
        }

        @Override
        public void onClose(Status status, Metadata trailers) {
            events.add(status);
        }

        Call send(byte[] data) {
            call.sendMessage(BytesValue.of(ByteString.copyFrom(data)));
            return this;
        }

        Call end() {
            call.halfClose();
            return this;
        }

        /** The next message, or the status the call ended with. */
        Object next() throws InterruptedException {
            call.request(1);
            Object event = events.poll(60, TimeUnit.SECONDS);
            return event == null ? Status.UNKNOWN.withDescription("hangs") : event;
        }

        /** The first message and the closing status, or only the latter. */
        Object answer() throws InterruptedException {
            Object first = next();
            if (first instanceof Status) {
                return first;
            }
            Object last = next();
            return last instanceof Status status && status.isOk() ? first : last;
        }

        Object drain() throws InterruptedException {
            int count = 0;
            int size = 0;
            while (true) {
                Object event = next();
                if (event instanceof Status status) {
                    return status.isOk() ? count + " messages, " + size + " bytes" : status;
                }
                count++;
                size += ((BytesValue) event).getValue().size();
            }
        }
    }

    private static CallOptions within(double seconds) {
        return CallOptions.DEFAULT.withDeadlineAfter((long) (seconds * 1e9), TimeUnit.NANOSECONDS);
    }

    private static Call unary(String method, byte[] data, CallOptions options) {
        return new Call(method, MethodType.UNARY, new Metadata(), options).send(data).end();
    }

    private static Call down(String method, String data, CallOptions options) {
        return new Call(method, MethodType.SERVER_STREAMING, new Metadata(), options)
                .send(data.getBytes())
                .end();
    }

    private static String code(Object outcome) {
        return outcome instanceof Status status ? status.getCode().name() : outcome.toString();
    }

    private static String said(Object outcome) {
        return outcome instanceof Status status ? status.getCode() + ": " + status.getDescription() : outcome.toString();
    }

    private static boolean is(Object outcome, byte[] data) {
        return outcome instanceof BytesValue value && Arrays.equals(value.getValue().toByteArray(), data);
    }

    private static String echoes(int size) throws InterruptedException {
        byte[] data = new byte[size];
        Arrays.fill(data, (byte) 'a');
        for (String method : ECHOES) {
            Object answer = unary(method, data, within(20)).answer();
            if (!is(answer, data)) {
                return method + ": " + said(answer);
            }
        }
        return "OK";
    }

    private static String sum(int... sizes) throws InterruptedException {
        Call call = new Call("Up", MethodType.CLIENT_STREAMING, new Metadata(), within(20));
        for (int size : sizes) {
            call.send(new byte[size]);
        }
        Object answer = call.end().answer();
        return answer instanceof BytesValue value ? value.getValue().toStringUtf8() : said(answer);
    }

    private static String inTurns(int times) throws InterruptedException {
        Call call = new Call("Both", MethodType.BIDI_STREAMING, new Metadata(), within(20));
        for (int number = 0; number < times; number++) {
            byte[] sent = ("n" + number).getBytes();
            Object answer = call.send(sent).next();
            if (!is(answer, sent)) {
                return said(answer);
            }
        }
        return code(call.end().next());
    }

    private static String withMetadata() throws InterruptedException {
        Metadata metadata = new Metadata();
        metadata.put(Metadata.Key.of("x-ask", Metadata.ASCII_STRING_MARSHALLER), "what is asked");
        metadata.put(Metadata.Key.of("x-bin", Metadata.BINARY_BYTE_MARSHALLER), new byte[] {0, -1});
        Object answer = new Call("Unary", MethodType.UNARY, metadata, within(10)).send("M".getBytes()).end().answer();
        return answer instanceof BytesValue value
                ? value.getValue().toStringUtf8().split(" 127\\.0\\.0\\.1:")[0]
                : said(answer);
    }

    private static String compressed() throws InterruptedException {
        byte[] data = "squeeze".repeat(100_000).getBytes();
        Object answer = unary("Unary", data, within(20).withCompression("gzip")).answer();
        return is(answer, data)
                ? said(down("Down", "5 100000", within(20).withCompression("gzip")).drain())
                : said(answer);
    }

    private static String tooLarge() throws InterruptedException {
        Object answer = unary("Unary", new byte[(64 << 20) + 1], within(60)).answer();
        Object next = unary("Unary", "next".getBytes(), within(10)).answer();
        return is(next, "next".getBytes()) ? code(answer) : "the next call: " + said(next);
    }

    private static String cancelled(String method) throws InterruptedException {
        Call call = down(method, "W", within(20));
        Thread.sleep(300);
        call.call.cancel("enough", null);
        return code(call.drain());
    }

    private static String slowReader() throws InterruptedException {
        Call call = down("Down", "100 1000000", within(60));
        Object first = call.next();
        Thread.sleep(1000);
        return first instanceof Status ? said(first) : said(call.drain());
    }

    private static String atOnce(int calls, int callers) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(callers);
        List<Future<String>> outcomes = new ArrayList<>();
        for (int each = 0; each < calls; each++) {
            int number = each;
            byte[] data = ("" + number).getBytes();
            outcomes.add(pool.submit(() -> {
                Object answer = unary(ECHOES.get(number % 3), data, within(20)).answer();
                return is(answer, data) ? "OK" : said(answer);
            }));
        }
        pool.shutdown();
        for (Future<String> outcome : outcomes) {
            if (!outcome.get().equals("OK")) {
                return outcome.get();
            }
        }
        return "OK";
    }

    private static String quoted(String text) {
        return text.codePoints()
                .mapToObj(each -> each < 32 || each == '"' || each == '\\'
                        ? String.format("\\u%04x", each)
                        : new String(Character.toChars(each)))
                .collect(Collectors.joining("", "\"", "\""));
    }

    public static void main(String[] args) throws Exception {
        NettyChannelBuilder builder = NettyChannelBuilder.forTarget(args[0]).maxInboundMessageSize(LIMIT);
        channel = args[1].equals("tls")
                ? builder.sslContext(GrpcSslContexts.forClient()
                                .trustManager(InsecureTrustManagerFactory.INSTANCE)
                                .build())
                        .build()
                : builder.usePlaintext().build();
        Map<String, String> outcomes = new TreeMap<>();
        outcomes.put("sum of no requests", sum());
        outcomes.put("sum of 4 requests", sum(2 << 20, 5, 3 << 20, 0));
        outcomes.put("both in turns", inTurns(200));
        outcomes.put("all at once", said(down("AllAtOnce", "abc", within(10)).drain()));
        outcomes.put("no responses", said(down("Down", "0 0", within(10)).drain()));
        outcomes.put("1000 responses", said(down("Down", "1000 1000", within(30)).drain()));
        outcomes.put("40 MiB of responses", said(down("Down", "40 " + (1 << 20), within(30)).drain()));
        outcomes.put("metadata", withMetadata());
        outcomes.put("gzip", compressed());
        outcomes.put("too large", tooLarge());
        outcomes.put("unknown method", code(unary("Nothing", new byte[0], within(10)).answer()));
        outcomes.put("unknown service", code(unary("../Elsewhere/Unary", new byte[0], within(10)).answer()));
        outcomes.put("slow reader", slowReader());
        outcomes.put("3000 calls at once", atOnce(3000, 32));
        for (int size : new int[] {0, 1, 1000, 16_379, 16_380, 100_000, 3 << 20}) {
            outcomes.put("echo of " + size, echoes(size));
        }
        for (String method : ECHOES) {
            outcomes.put(method + " fails", said(unary(method, "F".getBytes(), within(10)).answer()));
        }
        outcomes.put("Down fails", said(down("Down", "F", within(10)).drain()));
        for (String method : List.of("Unary", "Coroutine")) {
            outcomes.put(method + " has a bug", code(unary(method, "X".getBytes(), within(10)).answer()));
        }
        outcomes.put("Down has a bug", code(down("Down", "X", within(10)).drain()));
        for (String method : List.of("Coroutine", "Later")) {
            outcomes.put(method + " is late", code(unary(method, "W".getBytes(), within(0.3)).answer()));
        }
        for (String method : List.of("Down", "AllAtOnce")) {
            outcomes.put(method + " is late", code(down(method, "W", within(0.3)).drain()));
            outcomes.put(method + " is cancelled", cancelled(method));
        }
        System.out.println(outcomes.entrySet().stream()
                .map(each -> quoted(each.getKey()) + ": " + quoted(each.getValue()))
                .collect(Collectors.joining(", ", "{", "}")));
        channel.shutdownNow();
    }
}
