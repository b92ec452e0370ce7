import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Sends COUNT messages with keys k0, k1, … as a 4.x producer, each again until it is stored, while the broker may be away.
 * With a GROUP a 4.x push consumer has the first DEAD of them become dead letters. Where there is an AWAY, whoever ends the broker
 * makes a file there: a send that fails removes the file. Until then the message in the middle is sent again and again, and none behind
 * it. Prints a line at the end. */
public class Load {
    private static final long TRY_MS = 120_000;
    private static Path away;

    public static void main(String[] arguments) {
        try {
            int count = Integer.parseInt(arguments[3]), dead = Integer.parseInt(arguments[4]);
            away = arguments.length > 5 ? Path.of(arguments[5]) : null;
            DefaultMQProducer producer = new DefaultMQProducer("senders");
            producer.setNamesrvAddr(arguments[0]);
            producer.setRetryTimesWhenSendFailed(0);
            producer.start();
            for (int number = 0; number < count; number++) {
                send(producer, arguments[1], number);
                while (away != null && number == count / 2) {
                    Thread.sleep(100);
                    send(producer, arguments[1], number);
                }
            }
            if (dead > 0) {
                refuse(arguments[0], arguments[1], arguments[2], dead);
            }
            System.out.println("done");
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void send(DefaultMQProducer producer, String topic, int number) throws Exception {
        long until = System.currentTimeMillis() + TRY_MS;
        byte[] body = ("body " + number + " ").repeat(number % 100 + 1).getBytes();
        while (true) {
            try {
                Message message = new Message(topic, "tag" + number % 2, "k" + number, body);
                if (producer.send(message).getSendStatus() == SendStatus.SEND_OK) {
                    return;
                }
            } catch (Exception error) {
                if (away != null && Files.deleteIfExists(away)) {
                    away = null;
                }
                if (System.currentTimeMillis() > until) {
                    throw error;
                }
                Thread.sleep(100);
            }
        }
    }

    private static void refuse(String nameServer, String topic, String group, int dead) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (Integer.parseInt(message.getKeys().substring(1)) >= dead) {
                    continue;
                }
                context.setDelayLevelWhenNextConsume(-1); // at once to the dead letters
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(nameServer);
        admin.start();
        long until = System.currentTimeMillis() + TRY_MS;
        while (deadLetters(admin, group) < dead) {
            if (System.currentTimeMillis() > until) {
                throw new IllegalStateException(deadLetters(admin, group) + " dead letters of " + dead);
            }
            Thread.sleep(500);
        }
        consumer.shutdown();
    }

    private static long deadLetters(DefaultMQAdminExt admin, String group) {
        try {
            return admin.examineTopicStats("%DLQ%" + group).getOffsetTable().values().stream()
                .mapToLong(queue -> queue.getMaxOffset() - queue.getMinOffset()).sum();
        } catch (Exception error) { // there is none yet
            return 0;
        }
    }
}
