import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.sql.Array;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Timestamp;
import java.sql.Types;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * Asks through JDBC. The URL is the argument; properties of the connection are the lines KEY=VALUE up to an empty one. Each
 * further line of standard input is a question, whose answer are lines and then one that says END: fields are divided by
 * tabs, a value is as {@link #shown} writes it.
 *
 * <pre>
 * tables PATTERN            name, type, remarks
 * columns TABLE             name, SQL type, type name, remarks
 * keys TABLE                column, place
 * about                     product, version, read only
 * rows SQL                  a line of names, then the rows
 * prepared SQL\tKIND:VALUE… the same with parameters; KIND is s(tring), i(nt), l(ong) or t(imestamp, µs since 1970)
 * update SQL                what executeUpdate says
 * cancel SQL                from a second after its start, the statement is cancelled again and again until it ends
 * </pre>
 */
public class Ask {
  public static void main(String[] arguments) throws Exception {
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    Properties properties = new Properties();
    for (String line = input.readLine(); line != null && !line.isEmpty(); line = input.readLine()) {
      int at = line.indexOf('=');
      properties.setProperty(line.substring(0, at), line.substring(at + 1));
    }
    try (Connection connection = DriverManager.getConnection(arguments[0], properties)) {
      for (String line = input.readLine(); line != null; line = input.readLine()) {
        String[] asked = line.split(" ", 2);
        try {
          answer(connection, asked[0], asked.length > 1 ? asked[1] : "");
        } catch (SQLException | RuntimeException error) {
          System.out.println("ERROR\t" + said(error));
        }
        System.out.println("END");
        System.out.flush();
      }
    }
  }

  private static void answer(Connection connection, String kind, String rest) throws Exception {
    DatabaseMetaData facts = connection.getMetaData();
    switch (kind) {
      case "tables" -> print(facts.getTables(null, null, rest, null), "TABLE_NAME", "TABLE_TYPE");
      case "columns" ->
          print(facts.getColumns(null, null, rest, null), "COLUMN_NAME", "DATA_TYPE", "TYPE_NAME", "REMARKS");
      case "keys" -> print(facts.getPrimaryKeys(null, null, rest), "COLUMN_NAME", "KEY_SEQ");
      case "about" -> System.out.println(
          facts.getDatabaseProductName() + "\t" + facts.getDatabaseProductVersion() + "\t" + facts.isReadOnly());
      case "rows" -> {
        try (Statement statement = connection.createStatement()) {
          print(statement.executeQuery(rest));
        }
      }
      case "prepared" -> {
        String[] parts = rest.split("\t");
        try (PreparedStatement statement = connection.prepareStatement(parts[0])) {
          for (int at = 1; at < parts.length; at++) {
            bind(statement, at, parts[at]);
          }
          print(statement.executeQuery());
        }
      }
      case "update" -> {
        try (Statement statement = connection.createStatement()) {
          System.out.println(statement.executeUpdate(rest));
        }
      }
      case "cancel" -> {
        try (Statement statement = connection.createStatement()) {
          CountDownLatch ended = new CountDownLatch(1);
          Thread canceller = new Thread(() -> cancel(statement, ended));
          canceller.start();
          try {
            print(statement.executeQuery(rest));
          } finally {
            ended.countDown();
            canceller.join();
          }
        }
      }
      default -> throw new IllegalArgumentException(kind);
    }
  }

  /** Again and again: nothing is cancelled as long as the server does not have the statement. */
  private static void cancel(Statement statement, CountDownLatch ended) {
    try {
      for (long wait = 1000; !ended.await(wait, TimeUnit.MILLISECONDS); wait = 200) {
        try {
          statement.cancel();
        } catch (SQLException | RuntimeException error) {
          System.out.println("ERROR\t" + said(error));
        }
      }
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }

  private static void bind(PreparedStatement statement, int at, String written) throws SQLException {
    String value = written.substring(2);
    switch (written.charAt(0)) {
      case 's' -> statement.setString(at, value);
      case 'i' -> statement.setInt(at, Integer.parseInt(value));
      case 'l' -> statement.setLong(at, Long.parseLong(value));
      case 't' -> statement.setTimestamp(
          at, Timestamp.from(Instant.EPOCH.plus(Long.parseLong(value), ChronoUnit.MICROS)));
      default -> throw new IllegalArgumentException(written);
    }
  }

  private static void print(ResultSet asked, String... columns) throws SQLException {
    try (ResultSet rows = asked) {
      while (rows.next()) {
        StringBuilder line = new StringBuilder();
        for (String column : columns) {
          line.append(line.length() == 0 ? "" : "\t").append(shown(rows.getObject(column)));
        }
        System.out.println(line);
      }
    }
  }

  private static void print(ResultSet rows) throws SQLException {
    ResultSetMetaData facts = rows.getMetaData();
    StringBuilder line = new StringBuilder();
    for (int at = 1; at <= facts.getColumnCount(); at++) {
      line.append(at == 1 ? "" : "\t").append(facts.getColumnLabel(at));
    }
    System.out.println(line);
    while (rows.next()) {
      line.setLength(0);
      for (int at = 1; at <= facts.getColumnCount(); at++) {
        line.append(at == 1 ? "" : "\t").append(shown(value(rows, facts, at)));
      }
      System.out.println(line);
    }
  }

  /** Of driver 18.3.0 getObject fails for times with a zone, and getTimestamp is wrong in another zone than UTC. */
  private static Object value(ResultSet rows, ResultSetMetaData facts, int at) throws SQLException {
    return facts.getColumnType(at) == Types.TIMESTAMP_WITH_TIMEZONE ? rows.getObject(at, Instant.class) : rows.getObject(at);
  }

  /** NULL, hexadecimal bytes, µs since 1970, or text in UTF-8 as hexadecimal behind a colon. */
  private static String shown(Object value) throws SQLException {
    if (value == null) {
      return "NULL";
    }
    if (value instanceof byte[] bytes) {
      return HexFormat.of().formatHex(bytes);
    }
    if (value instanceof Instant time) {
      return Long.toString(ChronoUnit.MICROS.between(Instant.EPOCH, time));
    }
    if (value instanceof Number || value instanceof Boolean) {
      return value.toString();
    }
    if (value instanceof Array array) {
      return shown(Arrays.toString((Object[]) array.getArray()));
    }
    return ":" + HexFormat.of().formatHex(value.toString().getBytes(StandardCharsets.UTF_8));
  }

  private static String said(Throwable error) {
    StringBuilder text = new StringBuilder();
    for (Throwable each = error; each != null; each = each.getCause()) {
      text.append(each).append(" | ");
    }
    return text.toString().replaceAll("\\s+", " ");
  }
}
