import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** Sends, receives and acks, then consumes with a listener that fails one message once. Lines of text out. */
public final class Client {
    /** A push consumer that fails bodies that begin with "bad", until standard input ends. */
    private static void listen(ClientServiceProvider provider, ClientConfiguration configuration, String topic)
            throws Exception {
        try (PushConsumer push = provider.newPushConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup(topic + "-listen")
                .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
                .setMessageListener(message -> text(message).startsWith("bad") ? ConsumeResult.FAILURE
                    : ConsumeResult.SUCCESS)
                .build()) {
            System.in.transferTo(java.io.OutputStream.nullOutputStream());
        }
    }

    public static void main(String[] args) throws Exception {
        String endpoints = args[0];
        boolean tls = args[1].equals("tls");
        String topic = args[2];
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration =
            ClientConfiguration.newBuilder().setEndpoints(endpoints).enableSsl(tls).setRequestTimeout(Duration.ofSeconds(60)).build();
        if (args[3].equals("listen")) {
            listen(provider, configuration, topic);
            return;
        }
        int count = Integer.parseInt(args[3]);
        Map<String, String> sent = new TreeMap<>();
        try (Producer producer =
                provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build()) {
            for (int n = 0; n < count; n++) {
                String body = "body " + n;
                String id = producer.send(provider.newMessageBuilder().setTopic(topic).setTag("t" + n % 2)
                    .setKeys("key-" + n).addProperty("number", "" + n)
                    .setBody(body.getBytes(StandardCharsets.UTF_8)).build()).getMessageId().toString();
                sent.put(id, body);
            }
        }
        Map<String, FilterExpression> all = Map.of(topic, FilterExpression.SUB_ALL);
        Map<String, String> received = new TreeMap<>();
        try (SimpleConsumer consumer = provider.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup(topic + "-simple").setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(all).build()) {
            for (int tries = 0; tries < 20 && received.size() < count; tries++) {
                List<MessageView> messages = consumer.receive(16, Duration.ofSeconds(30));
                for (MessageView message : messages) {
                    received.put(message.getMessageId().toString(), text(message));
                    consumer.ack(message);
                }
            }
        }
        check(received.equals(sent), "simple consumer received " + received + ", sent " + sent);
        Map<String, String> pushed = new ConcurrentHashMap<>();
        Map<String, Integer> attempts = new ConcurrentHashMap<>();
        CountDownLatch done = new CountDownLatch(count);
        PushConsumer push = provider.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(topic + "-push").setSubscriptionExpressions(all).setMessageListener(message -> {
                String id = message.getMessageId().toString();
                attempts.put(id, message.getDeliveryAttempt());
                if (text(message).equals("body 1") && message.getDeliveryAttempt() == 1) {
                    return ConsumeResult.FAILURE;
                }
                if (pushed.put(id, text(message)) == null) {
                    done.countDown();
                }
                return ConsumeResult.SUCCESS;
            }).build();
        check(done.await(60, TimeUnit.SECONDS), "push consumer got " + pushed.size() + " of " + count);
        if (tls) { // the other way a program just ends: to close it takes as long as its receive that waits
            push.close();
        }
        check(new TreeMap<>(pushed).equals(sent), "push consumer received " + pushed);
        check(attempts.values().stream().filter(attempt -> attempt == 2).count() == 1, "attempts " + attempts);
        System.out.println("OK " + sent.size());
        System.exit(0);
    }

    private static String text(MessageView message) {
        byte[] bytes = new byte[message.getBody().remaining()];
        message.getBody().duplicate().get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static void check(boolean right, String otherwise) {
        if (!right) {
            System.err.println(otherwise);
            System.exit(1);
        }
    }
}
