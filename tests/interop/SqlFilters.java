import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;

/** What the broker makes of filters: for each line of a file (expression, names and values of properties, all in Base64) it
 * prints `invalid`, `true`, `false`, `null`, or `error`. */
public class SqlFilters {
    public static void main(String[] arguments) throws Exception {
        StringBuilder printed = new StringBuilder();
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] words = line.split(" ");
            Map<String, String> properties = new HashMap<>();
            for (int at = 1; at + 1 < words.length; at += 2) {
                properties.put(text(words[at]), text(words[at + 1]));
            }
            printed.append(answer(text(words[0]), properties)).append('\n');
        }
        System.out.print(printed);
    }

    private static String answer(String expression, Map<String, String> properties) {
        Expression compiled;
        try {
            compiled = SelectorParser.parse(expression);
        } catch (MQFilterException error) {
            return "invalid";
        }
        try {
            return String.valueOf(compiled.evaluate(new MessageEvaluationContext(properties)));
        } catch (Throwable error) {
            return "error";
        }
    }

    private static String text(String word) {
        return new String(Base64.getDecoder().decode(word.substring(1)), StandardCharsets.UTF_8);
    }
}
