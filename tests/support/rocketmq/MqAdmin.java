import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs mqadmin commands in one JVM: a line of arguments divided by tabs comes in, what is printed goes out, then a line with EOT.
 * After a command of which a call was never answered, it prints UNANSWERED on standard error: some commands print a word then, and no
 * reason. */
public class MqAdmin extends MQAdminStartup {
    public static void main(String[] ignored) {
        System.setProperty("com.rocketmq.remoting.client.connect.timeout", "60000");
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)).lines().forEach(line -> {
            SUB_COMMANDS.clear(); // some keep their client, of the name server that they were first used with
            Unanswered calls = new Unanswered();
            main0(line.split("\t"), calls);
            if (!calls.pending.isEmpty()) {
                System.err.println("UNANSWERED");
            }
            System.out.print("\n\u0004\n");
            System.out.flush();
        });
        System.exit(0);
    }

    /** The calls of the thread that creates this hook, without those of a client's threads, which come and go beside the command. */
    private static final class Unanswered implements RPCHook {
        final Set<Integer> pending = ConcurrentHashMap.newKeySet();
        private final Thread commands = Thread.currentThread();

        @Override
        public void doBeforeRequest(String address, RemotingCommand request) {
            if (Thread.currentThread() == commands && !request.isOnewayRPC()) {
                pending.add(request.getOpaque());
            }
        }

        @Override
        public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
            pending.remove(request.getOpaque());
        }
    }
}
