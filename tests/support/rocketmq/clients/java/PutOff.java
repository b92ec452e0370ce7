import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Delayed messages, a recall, and transactions; prints a line for each thing that it saw. */
public final class PutOff {
    private static final int SOON = 20_000; // far enough that a busy machine has sent and recalled all before
    private static ClientServiceProvider provider;
    private static ClientConfiguration configuration;

    public static void main(String[] args) throws Exception {
        String delayed = args[1];
        String paid = args[2];
        provider = ClientServiceProvider.loadService();
        configuration = ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(60)).build();
        Set<String> asked = new ConcurrentSkipListSet<>();
        try (Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration)
                .setTopics(delayed, paid).setTransactionChecker(half -> {
                    if (!text(half).startsWith("asked-")) {
                        // on a busy machine one is asked about that is ended a moment later: it is left to that
                        return TransactionResolution.UNKNOWN;
                    }
                    asked.add(text(half));
                    return text(half).equals("asked-commit") ? TransactionResolution.COMMIT
                        : TransactionResolution.ROLLBACK;
                }).build()) {
            for (String end : new String[] {"commit", "rollback", "asked-commit", "asked-rollback"}) {
                Transaction transaction = producer.beginTransaction();
                producer.send(message(paid, end).build(), transaction);
                if (end.equals("commit")) {
                    transaction.commit();
                } else if (end.equals("rollback")) {
                    transaction.rollback();
                }
            }
            Map<String, Long> due = new TreeMap<>();
            long now = System.currentTimeMillis();
            for (int wait : new int[] {SOON + 6500, SOON + 4500, SOON + 5500}) {
                due.put("" + wait, now + wait);
                producer.send(message(delayed, "" + wait).setDeliveryTimestamp(due.get("" + wait)).build());
            }
            String handle = producer.send(message(delayed, "recalled")
                .setDeliveryTimestamp(now + SOON + 15_000).build()).getRecallHandle();
            System.out.println("recalled " + (producer.recallMessage(delayed, handle).getMessageId() != null));
            for (MessageView each : received(delayed, 3)) {
                long late = each.getDeliveryTimestamp().get() - due.get(text(each));
                System.out.println("delayed " + described(each) + " " + late);
            }
            Set<String> committed = new TreeSet<>();
            for (MessageView each : received(paid, 2)) {
                committed.add(described(each));
            }
            committed.forEach(each -> System.out.println("committed " + each));
            while (asked.size() < 2) {
                Thread.sleep(100);
            }
            asked.forEach(each -> System.out.println("asked " + each));
        }
        System.exit(0);
    }

    private static MessageBuilder message(String topic, String body) {
        return provider.newMessageBuilder().setTopic(topic).setTag("red").setKeys("k").addProperty("colour", "blue")
            .setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static String described(MessageView each) {
        return text(each) + " " + each.getTag().get() + " " + String.join(",", each.getKeys()) + " "
            + each.getProperties().get("colour") + " " + each.getDeliveryAttempt();
    }

    private static List<MessageView> received(String topic, int count) throws Exception {
        List<MessageView> found = new ArrayList<>();
        try (SimpleConsumer consumer = provider.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup(topic + "-readers").setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL)).build()) {
            for (long end = 0; end == 0 || System.currentTimeMillis() < end;) {
                for (MessageView message : consumer.receive(16, Duration.ofSeconds(300))) {
                    found.add(message);
                    consumer.ack(message);
                }
                if (found.size() >= count && end == 0) {
                    end = System.currentTimeMillis() + 4000;
                }
            }
        }
        return found;
    }

    private static String text(MessageView message) {
        byte[] bytes = new byte[message.getBody().remaining()];
        message.getBody().duplicate().get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
