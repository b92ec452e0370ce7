import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs mqadmin commands in one JVM: a line of arguments divided by tabs comes in, what is printed goes out, then a line with EOT. */
public class MqAdmin extends MQAdminStartup {
    public static void main(String[] ignored) {
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)).lines().forEach(line -> {
            SUB_COMMANDS.clear(); // some keep their client, of the name server that they were first used with
            main0(line.split("\t"), null);
            System.out.print("\n\u0004\n");
            System.out.flush();
        });
        System.exit(0);
    }
}
