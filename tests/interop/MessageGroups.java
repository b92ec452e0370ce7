import com.google.common.hash.Hashing;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;

/** The queue that the proxy chooses for each line of a file: a message group in Base64, and how many queues there are. */
public class MessageGroups {
    public static void main(String[] arguments) throws Exception {
        StringBuilder printed = new StringBuilder();
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] words = line.split(" ");
            String group = new String(Base64.getDecoder().decode(words[0]), StandardCharsets.UTF_8);
            printed.append(Hashing.consistentHash(group.hashCode(), Integer.parseInt(words[1]))).append('\n');
        }
        System.out.print(printed);
    }
}
