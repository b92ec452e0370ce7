import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Sends COUNT messages as a 4.x producer, gives each back once as a 4.x push consumer, and leaves; 1 with the reason on
 * standard error when it could not. It ends in any case: RocketMQ's threads would keep a JVM whose main thread failed. */
public class SendBack {
    private static final long ROUTE_MS = 60_000; // the broker opens its port before name servers know its topics

    public static void main(String[] arguments) {
        try {
            run(arguments[0], arguments[1], arguments[2], Integer.parseInt(arguments[3]));
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String nameServer, String topic, String group, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("senders");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(20000);
        producer.start();
        awaitRoute(producer, topic);
        for (int number = 0; number < count; number++) {
            System.out.println(producer.send(new Message(topic, "a", ("" + number).getBytes())).getMsgId());
        }
        Set<String> givenBack = ConcurrentHashMap.newKeySet(), again = ConcurrentHashMap.newKeySet();
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (givenBack.add(message.getMsgId())) {
                    left.countDown();
                } else {
                    again.add(message.getMsgId());
                }
            }
            context.setDelayLevelWhenNextConsume(4); // 30 s: it has left by then
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        if (!left.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException(givenBack.size() + " of " + count + " messages came");
        }
        Thread.sleep(7000); // what was given back is on its way, and its offsets, written every 5 s, are with the broker
        consumer.shutdown();
        producer.shutdown();
        if (!again.isEmpty()) {
            throw new IllegalStateException("given back more than once: " + again);
        }
    }

    private static void awaitRoute(DefaultMQProducer producer, String topic) throws Exception {
        long deadline = System.currentTimeMillis() + ROUTE_MS;
        while (true) {
            try {
                producer.fetchPublishMessageQueues(topic);
                return;
            } catch (MQClientException error) {
                if (System.currentTimeMillis() > deadline) {
                    throw error;
                }
                Thread.sleep(200);
            }
        }
    }
}
