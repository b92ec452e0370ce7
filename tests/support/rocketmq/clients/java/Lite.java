import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.OffsetOption;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** Sends to lite topics and receives from them by a lite push consumer, and prints a line for each thing that it sees. */
public final class Lite {
    private static ClientServiceProvider provider;
    private static ClientConfiguration configuration;
    private static String topic;

    /** What a consumer's listener got: by lite topic the bodies with their attempts, sorted, for threads take them. */
    private static final class Seen {
        private final Map<String, List<String>> bodies = new TreeMap<>();

        /** Takes a message; one whose body begins with "bad" fails at its first attempt. */
        synchronized ConsumeResult take(MessageView message) {
            byte[] bytes = new byte[message.getBody().remaining()];
            message.getBody().duplicate().get(bytes);
            String body = new String(bytes, StandardCharsets.UTF_8);
            bodies.computeIfAbsent(message.getLiteTopic().orElse("none"), name -> new ArrayList<>())
                .add(body + "/" + message.getDeliveryAttempt());
            return body.startsWith("bad") && message.getDeliveryAttempt() == 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        }

        synchronized int count() {
            return bodies.values().stream().mapToInt(List::size).sum();
        }

        synchronized String shown() {
            bodies.values().forEach(Collections::sort);
            return bodies.toString();
        }
    }

    private static LitePushConsumer consumer(String group, Seen seen) throws Exception {
        return provider.newLitePushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .bindTopic(topic).setMessageListener(seen::take).build();
    }

    private static void send(Producer producer, String name, String body) throws Exception {
        producer.send(provider.newMessageBuilder().setTopic(topic).setLiteTopic(name)
            .setBody(body.getBytes(StandardCharsets.UTF_8)).build());
    }

    private static void until(BooleanSupplier there) throws InterruptedException {
        for (int tries = 0; tries < 900 && !there.getAsBoolean(); tries++) {
            Thread.sleep(100);
        }
    }

    private interface Call {
        void run() throws Exception;
    }

    private static void refused(String what, Call call) {
        try {
            call.run();
            System.out.println(what + ": taken");
        } catch (Exception error) {
            System.out.println(what + ": " + error.getClass().getSimpleName());
        }
    }

    public static void main(String[] args) throws Exception {
        topic = args[1];
        provider = ClientServiceProvider.loadService();
        configuration = ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(false).setRequestTimeout(Duration.ofSeconds(60)).build();
        try (Producer producer =
                provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build()) {
            refused("wrong name", () -> send(producer, "a.b", "x"));
            Seen all = new Seen();
            LitePushConsumer wildcard = consumer(args[3], all); // not closed: that takes as long as its receive that waits
            refused("wildcard subscribes", () -> wildcard.subscribeLite("a"));
            consume(producer, args[2]);
            until(() -> all.count() >= 11);
            System.out.println("wildcard " + all.shown());
        }
        System.exit(0);
    }

    private static void consume(Producer producer, String group) throws Exception {
        Seen seen = new Seen();
        LitePushConsumer consumer = consumer(group, seen); // as above
        send(producer, "a", "1");
        send(producer, "b", "2");
        consumer.subscribeLite("a");
        consumer.subscribeLite("c");
        send(producer, "a", "3");
        send(producer, "c", "4");
        until(() -> seen.count() >= 3);
        System.out.println("subscribed " + new TreeSet<>(consumer.getLiteTopicSet()) + " " + seen.shown());
        refused("beyond the quota", () -> {
            consumer.subscribeLite("b");
            consumer.subscribeLite("d");
        });
        until(() -> seen.count() >= 4);
        System.out.println("subscribed " + new TreeSet<>(consumer.getLiteTopicSet()) + " " + seen.shown());
        consumer.unsubscribeLite("a");
        send(producer, "a", "5");
        send(producer, "b", "6");
        until(() -> seen.count() >= 5);
        System.out.println("without a " + seen.shown());
        consumer.subscribeLite("a", OffsetOption.MIN_OFFSET);
        until(() -> seen.count() >= 8);
        System.out.println("from the start " + seen.shown());
        for (String name : List.of("a", "b", "c")) {
            consumer.unsubscribeLite(name);
        }
        send(producer, "e", "7");
        send(producer, "e", "8");
        consumer.subscribeLite("e", OffsetOption.MAX_OFFSET);
        send(producer, "e", "9");
        until(() -> seen.count() >= 9);
        System.out.println("from the end " + seen.shown());
        consumer.subscribeLite("f");
        send(producer, "f", "bad 10");
        until(() -> seen.count() >= 11);
        System.out.println("failed once " + seen.shown());
    }
}
