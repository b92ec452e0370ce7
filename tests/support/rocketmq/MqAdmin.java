import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs mqadmin commands in one JVM: a line of arguments divided by tabs comes in, what is printed goes out, then a line with EOT. */
public class MqAdmin {
    public static void main(String[] ignored) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            MQAdminStartup.main0(line.split("\t"), null);
            System.out.print("\n\u0004\n");
            System.out.flush();
        }
        System.exit(0);
    }
}
