// pgjdbc, see README.md.
import java.io.ByteArrayOutputStream;
import java.io.StringReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.postgresql.copy.CopyManager;
import org.postgresql.core.BaseConnection;

public class Jdbc {
  static final int CONNECTIONS = 6, SIMPLE = 20, PREPARED = 30, COPIED = 5000, ROWS = 200_000, BIG = 8 << 20;
  static String url;
  static boolean statementMode;

  interface Work {
    void run(int n, Connection c) throws Exception;
  }

  interface Step {
    void run(List<Connection> cs) throws Exception;
  }

  static void same(Object got, Object wanted) {
    if (!wanted.equals(got)) throw new AssertionError("got " + got + ", wanted " + wanted);
  }

  /** A thread for each connection; the first failure is thrown. */
  static void together(List<Connection> cs, Work work) throws Exception {
    ExecutorService threads = Executors.newCachedThreadPool();
    List<Future<?>> ends = new ArrayList<>();
    for (int i = 0; i < cs.size(); i++) {
      int n = i;
      ends.add(threads.submit(() -> { work.run(n, cs.get(n)); return null; }));
    }
    threads.shutdown();
    for (Future<?> end : ends) end.get();
  }

  static void fails(Connection c, String sql, String state) throws SQLException {
    try (Statement s = c.createStatement()) {
      s.execute(sql);
    } catch (SQLException e) {
      same(e.getSQLState(), state);
      return;
    }
    throw new AssertionError(state + " did not come");
  }

  static void run(Connection c, String sql) throws SQLException {
    try (Statement s = c.createStatement()) {
      s.execute(sql);
    }
  }

  static String one(Connection c, String sql) throws SQLException {
    try (Statement s = c.createStatement(); ResultSet r = s.executeQuery(sql)) {
      r.next();
      return r.getString(1);
    }
  }

  static void simple(List<Connection> cs) throws Exception {
    together(cs, (n, c) -> {
      for (int i = 0; i < SIMPLE; i++) same(one(c, "select '" + n + " simple " + i + "'"), n + " simple " + i);
    });
  }

  static void prepared(List<Connection> cs) throws Exception {
    together(cs, (n, c) -> {  // prepareThreshold is 5: from then on a named statement and binary results
      try (PreparedStatement shared = c.prepareStatement("select ?::int + ?::int, ?::text, exists "
               + "(select from pg_prepared_statements where strpos(statement, 'shared by all') > 0)");
           PreparedStatement own = c.prepareStatement("select " + n + ", ?::int, ?::text")) {
        for (int i = 0; i < PREPARED; i++) {
          shared.setInt(1, n);
          shared.setInt(2, i);
          shared.setString(3, "text " + n);
          try (ResultSet r = shared.executeQuery()) {
            r.next();
            same(r.getInt(1), n + i);
            same(r.getString(2), "text " + n);
            if (i > 10) same(r.getBoolean(3), true);
          }
          own.setInt(1, i);
          own.setString(2, "own " + n);
          try (ResultSet r = own.executeQuery()) {
            r.next();
            same(r.getInt(1), n);
            same(r.getInt(2), i);
            same(r.getString(3), "own " + n);
          }
        }
      }
      for (int round = 0; round < 4; round++) {  // a batch is one pipeline
        try (PreparedStatement batch = c.prepareStatement("insert into item values (?, ?, 'batch')")) {
          for (int i = 0; i < 20; i++) {
            batch.setInt(1, n);
            batch.setInt(2, 100 + i);
            batch.addBatch();
          }
          for (int count : batch.executeBatch()) same(count, 1);
        }
      }
      same(one(c, "select count(*) from item where v = 'batch' and conn = " + n), "80");
    });
  }

  static void transaction(List<Connection> cs) throws Exception {
    together(cs, (n, c) -> {
      if (statementMode && n % 2 == 0) {
        for (int i = 0; i < SIMPLE; i++) same(one(c, "select " + (n * 100 + i)), "" + (n * 100 + i));
        return;
      }
      c.setAutoCommit(false);  // the next query brings a BEGIN along
      if (statementMode) {
        try {
          run(c, "select 1");
          run(c, "select 1");
        } catch (SQLException e) {
          same(c.isClosed(), true);
          return;
        }
        throw new AssertionError("BEGIN was not refused");
      }
      run(c, "insert into item values (" + n + ", 1, 'lost')");
      fails(c, "select 1 / 0", "22012");
      fails(c, "select 1", "25P02");
      c.rollback();
      String kept = "select string_agg(v, ',') from item where i < 100 and conn = " + n;
      same(String.valueOf(one(c, kept)), "null");
      run(c, "insert into item values (" + n + ", 2, 'kept " + n + "')");
      try (PreparedStatement s = c.prepareStatement("select i from generate_series(1, 500) i")) {
        s.setFetchSize(100);  // a portal: Execute with a row limit
        int next = 1;
        try (ResultSet r = s.executeQuery()) {
          while (r.next()) same(r.getInt(1), next++);
        }
        same(next, 501);
      }
      c.commit();
      c.setAutoCommit(true);
      same(one(c, kept), "kept " + n);
    });
  }

  static void copy(List<Connection> cs) throws Exception {
    together(cs, (n, c) -> {
      StringBuilder lines = new StringBuilder();
      for (int i = 0; i < COPIED; i++) lines.append(n + "\t" + i + "\tvalue " + i + " of " + n + "\n");
      CopyManager manager = new CopyManager((BaseConnection) c);
      same(manager.copyIn("copy bulk from stdin", new StringReader(lines.toString())), (long) COPIED);
      ByteArrayOutputStream back = new ByteArrayOutputStream();
      manager.copyOut("copy (select * from bulk where conn = " + n + " order by i) to stdout", back);
      same(back.toString(StandardCharsets.UTF_8).equals(lines.toString()), true);
      try {
        manager.copyIn("copy bulk from stdin", new StringReader("no number\t1\tx\n"));
        throw new AssertionError("22P02 did not come");
      } catch (SQLException e) {
        same(e.getSQLState(), "22P02");
      }
      same(one(c, "select " + n), "" + n);
    });
  }

  static String endless(int n) {
    return "select pg_sleep(600) as endless_" + n;
  }

  static boolean active(Connection watcher, int n) throws SQLException {
    return one(watcher, "select count(*) from pg_stat_activity where state = 'active' and query = '" + endless(n) + "'")
        .equals("1");
  }

  static void cancel(List<Connection> cs) throws Exception {
    Connection watcher = cs.get(2);
    ExecutorService threads = Executors.newCachedThreadPool();
    Statement[] statements = {cs.get(0).createStatement(), cs.get(1).createStatement()};
    List<Future<String>> ends = new ArrayList<>();
    for (int i = 0; i < 2; i++) {
      int n = i;
      ends.add(threads.submit(() -> {
        try {
          statements[n].executeQuery(endless(n));
          return "no error";
        } catch (SQLException e) {
          return e.getSQLState();
        }
      }));
    }
    threads.shutdown();
    while (!active(watcher, 0) || !active(watcher, 1)) Thread.sleep(10);
    for (int n = 0; n < 2; n++) {
      statements[n].cancel();
      same(ends.get(n).get(), "57014");
      same(one(cs.get(n), "select 'alive " + n + "'"), "alive " + n);
      same(active(watcher, 1), n == 0);
      same(ends.get(1).isDone(), n == 1);
    }
  }

  static void big(List<Connection> cs) throws Exception {
    together(cs.subList(0, 3), (n, c) -> {
      if (n == 0) {
        int next = 1;
        try (Statement s = c.createStatement();
             ResultSet r = s.executeQuery("select i from generate_series(1, " + ROWS + ") i")) {
          while (r.next()) same(r.getInt(1), next++);
        }
        same(next, ROWS + 1);
      } else {
        String text = (n + ":" + "abcdefgh".repeat(BIG / 8)).substring(0, BIG);
        try (PreparedStatement s = c.prepareStatement("select ?::text")) {
          s.setString(1, text);
          ResultSet r = s.executeQuery();
          r.next();
          same(r.getString(1).equals(text), true);
        }
      }
      same(one(c, "select " + n), "" + n);
    });
  }

  static boolean report(String name, Step step) {
    List<Connection> cs = new ArrayList<>();
    try {
      for (int i = 0; i < CONNECTIONS; i++) cs.add(DriverManager.getConnection(url));
      step.run(cs);
      System.out.println("ok " + name);
      return true;
    } catch (Throwable e) {
      System.out.println("FAIL " + name + " " + e.toString().replace('\n', ' '));
      return false;
    } finally {
      for (Connection c : cs) {
        try {
          c.close();
        } catch (SQLException e) {
          // it was lost before
        }
      }
    }
  }

  public static void main(String[] args) throws Exception {
    URI dsn = new URI(args[0]);
    url = "jdbc:postgresql://" + dsn.getHost() + ":" + dsn.getPort() + dsn.getPath() + "?user=" + dsn.getUserInfo() + "&"
        + dsn.getQuery();
    statementMode = args[1].equals("statement");
    System.out.println("# pgjdbc " + new org.postgresql.Driver().getClass().getPackage().getImplementationVersion()
        + ", Java " + System.getProperty("java.version"));
    boolean ok = report("simple", Jdbc::simple) & report("prepared", Jdbc::prepared)
        & report("transaction", Jdbc::transaction) & report("copy", Jdbc::copy) & report("cancel", Jdbc::cancel)
        & report("big", Jdbc::big);
    System.exit(ok ? 0 : 1);
  }
}
