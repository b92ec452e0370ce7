import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Sends COUNT messages as a 4.x producer, gives each back once as a 4.x push consumer, and leaves. */
public class SendBack {
    public static void main(String[] arguments) throws Exception {
        String nameServer = arguments[0], topic = arguments[1], group = arguments[2];
        int count = Integer.parseInt(arguments[3]);
        DefaultMQProducer producer = new DefaultMQProducer("senders");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(20000);
        producer.start();
        for (int number = 0; number < count; number++) {
            System.out.println(producer.send(new Message(topic, "a", ("" + number).getBytes())).getMsgId());
        }
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> left.countDown());
            context.setDelayLevelWhenNextConsume(3); // 10 s: it has left by then
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        boolean done = left.await(60, TimeUnit.SECONDS);
        Thread.sleep(7000); // what was given back is on its way, and its offsets, written every 5 s, are with the broker
        consumer.shutdown();
        producer.shutdown();
        System.exit(done ? 0 : 1);
    }
}
