import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Sends COUNT messages as a 4.x producer, gives each back once as a 4.x push consumer, and leaves; 1 with the reason on
 * standard error when it could not. One that comes again stays with it until it ends, and so is not given back twice. It ends
 * in any case: RocketMQ's threads would keep a JVM whose main thread failed. */
public class SendBack {
    private static final int PATIENCE_MS = 60_000; // of each wait

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
        producer.setSendMsgTimeout(PATIENCE_MS);
        producer.start();
        awaitRoute(producer, topic);
        for (int number = 0; number < count; number++) {
            System.out.println(producer.send(new Message(topic, "a", ("" + number).getBytes())).getMsgId());
        }
        Set<String> givenBack = ConcurrentHashMap.newKeySet();
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (!givenBack.add(message.getMsgId())) {
                    hold();
                }
                left.countDown();
            }
            context.setDelayLevelWhenNextConsume(1); // 1 s
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        if (!left.await(PATIENCE_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(givenBack.size() + " of " + count + " messages came");
        }
        awaitOffsets(nameServer, topic, group, count, consumer);
    }

    /** Until the JVM ends. */
    private static void hold() {
        while (true) {
            LockSupport.park();
        }
    }

    /** Waits until the broker has the offsets behind all COUNT messages: what was given back is on its way by then. A
     * consumer that leaves sends its offsets without waiting for an answer, so they may be lost with its process. */
    private static void awaitOffsets(String nameServer, String topic, String group, int count, DefaultMQPushConsumer consumer)
            throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(PATIENCE_MS);
        admin.setNamesrvAddr(nameServer);
        admin.start();
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (true) {
            consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            long consumed = 0;
            for (OffsetWrapper queue : admin.examineConsumeStats(group, topic).getOffsetTable().values()) {
                consumed += Math.max(0, queue.getConsumerOffset());
            }
            if (consumed == count) {
                admin.shutdown();
                return;
            }
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("the offsets of " + consumed + " of " + count + " messages are written");
            }
            Thread.sleep(200);
        }
    }

    /** The broker opens its port before name servers know its topics. */
    private static void awaitRoute(DefaultMQProducer producer, String topic) throws Exception {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
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
