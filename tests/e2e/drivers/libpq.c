// libpq, see README.md. Six connections are driven by one thread: all are sent to, then all are read from.
#include <libpq-fe.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kConnections = 6, kSimple = 20, kPrepared = 30, kCopied = 5000, kRows = 200000, kBig = 8 << 20 };

static const char* url;
static bool statement_mode;
static char reason[1000];  // why the present step failed; empty if it has not

// The first reason counts. Returns false, so that `return fail(...)` reads well.
static bool fail(const char* format, ...) {
  va_list args;
  va_start(args, format);
  if (!reason[0]) {
    vsnprintf(reason, sizeof reason, format, args);
    for (char* c = reason; *c; ++c) *c = *c == '\n' ? ' ' : *c;
  }
  va_end(args);
  return false;
}

static const char* text(const char* format, ...) {  // good until 16 calls later
  static char ring[16][400];
  static int next;
  char* out = ring[next++ % 16];
  va_list args;
  va_start(args, format);
  vsnprintf(out, sizeof ring[0], format, args);
  va_end(args);
  return out;
}

static bool open_all(PGconn** c, int count) {
  for (int n = 0; n < count; ++n) {
    c[n] = PQconnectdb(url);
    if (PQstatus(c[n]) != CONNECTION_OK) return fail("connect: %s", PQerrorMessage(c[n]));
  }
  return true;
}

static void close_all(PGconn** c, int count) {
  for (int n = 0; n < count; ++n) PQfinish(c[n]);
}

static bool sent(PGconn* c, int ok) { return ok || fail("send: %s", PQerrorMessage(c)); }

// The next result is one row with these columns (text, up to NULL).
static bool row(PGconn* c, ...) {
  PGresult* r = PQgetResult(c);
  va_list args;
  va_start(args, c);
  bool ok = r && PQresultStatus(r) == PGRES_TUPLES_OK && PQntuples(r) == 1;
  if (!ok) fail("no row: %s %s", r ? PQresStatus(PQresultStatus(r)) : "no result", PQerrorMessage(c));
  for (int i = 0; ok; ++i) {
    const char* wanted = va_arg(args, const char*);
    if (!wanted) break;
    ok = i < PQnfields(r) && strcmp(PQgetvalue(r, 0, i), wanted) == 0;
    if (!ok) fail("column %d: got %.100s, wanted %.100s", i, i < PQnfields(r) ? PQgetvalue(r, 0, i) : "none", wanted);
  }
  va_end(args);
  PQclear(r);
  return ok;
}

// The next result has this status, and this SQLSTATE if it is an error.
static bool status(PGconn* c, ExecStatusType wanted, const char* sqlstate) {
  PGresult* r = PQgetResult(c);
  const char* code = r ? PQresultErrorField(r, PG_DIAG_SQLSTATE) : NULL;
  bool ok = r && PQresultStatus(r) == wanted && (!sqlstate || (code && strcmp(code, sqlstate) == 0));
  if (!ok)
    fail("got %s %s, wanted %s %s: %s", r ? PQresStatus(PQresultStatus(r)) : "none", code ? code : "",
         PQresStatus(wanted), sqlstate ? sqlstate : "", PQerrorMessage(c));
  PQclear(r);
  return ok;
}

// No result more of this query.
static bool end(PGconn* c) {
  PGresult* r = PQgetResult(c);
  if (r) fail("one result too many: %s", PQresStatus(PQresultStatus(r)));
  PQclear(r);
  return !r;
}

static bool run(PGconn* c, const char* sql, ExecStatusType wanted, const char* sqlstate) {
  return sent(c, PQsendQuery(c, sql)) && status(c, wanted, sqlstate) && end(c);
}

static bool ask(PGconn* c, const char* sql, const char* answer) {
  return sent(c, PQsendQuery(c, sql)) && row(c, answer, NULL) && end(c);
}

static bool simple(PGconn** c) {
  for (int i = 0; i < kSimple; ++i) {
    for (int n = 0; n < kConnections; ++n)
      if (!sent(c[n], PQsendQuery(c[n], text("select %d, %d, 'simple %d'", n, i, n)))) return false;
    for (int n = 0; n < kConnections; ++n)
      if (!row(c[n], text("%d", n), text("%d", i), text("simple %d", n), NULL) || !end(c[n])) return false;
  }
  return true;
}

static const char kShared[] =
    "select $1::int + $2::int, $3::text, "
    "exists (select from pg_prepared_statements where strpos(statement, 'shared by all') > 0)";

// Not in a pipeline: one prepared query at a time.
static bool prepared(PGconn** c) {
  for (int n = 0; n < kConnections; ++n) {
    PGresult* r = PQprepare(c[n], "shared", kShared, 0, NULL);
    PGresult* s = PQprepare(c[n], "own", text("select %d, $1::int, $2::text", n), 0, NULL);
    bool ok = PQresultStatus(r) == PGRES_COMMAND_OK && PQresultStatus(s) == PGRES_COMMAND_OK;
    PQclear(r);
    PQclear(s);
    r = PQdescribePrepared(c[n], "own");
    ok = ok && PQnparams(r) == 2 && PQnfields(r) == 3;
    PQclear(r);
    if (!ok) return fail("prepare: %s", PQerrorMessage(c[n]));
  }
  for (int i = 0; i < kPrepared; ++i) {
    for (int n = 0; n < kConnections; ++n) {
      const char* values[] = {text("%d", n), text("%d", i), text("text %d", n)};
      if (!sent(c[n], PQsendQueryPrepared(c[n], "shared", 3, values, NULL, NULL, 0))) return false;
    }
    for (int n = 0; n < kConnections; ++n)
      if (!row(c[n], text("%d", n + i), text("text %d", n), "t", NULL) || !end(c[n])) return false;
    for (int n = 0; n < kConnections; ++n) {
      const char* values[] = {text("%d", i), text("own %d", n)};
      if (!sent(c[n], PQsendQueryPrepared(c[n], "own", 2, values, NULL, NULL, 0))) return false;
    }
    for (int n = 0; n < kConnections; ++n)
      if (!row(c[n], text("%d", n), text("%d", i), text("own %d", n), NULL) || !end(c[n])) return false;
  }
  return true;
}

static bool transaction(PGconn** c) {
  if (statement_mode) {
    for (int n = 0; n < kConnections; n += 2) {
      PQclear(PQexec(c[n], "begin"));
      PQclear(PQexec(c[n], "select 1"));
      if (PQstatus(c[n]) != CONNECTION_BAD) return fail("BEGIN was not refused");
      if (!ask(c[n + 1], text("select 'other %d'", n), text("other %d", n))) return false;
    }
    return true;
  }
  for (int n = 0; n < kConnections; n += 2) {  // at most three are in a transaction at a time
    PGconn *a = c[n], *b = c[n + 1];
    if (!run(a, "begin", PGRES_COMMAND_OK, NULL) || !run(b, "begin", PGRES_COMMAND_OK, NULL) ||
        !run(a, text("insert into item values (%d, 1, 'lost')", n), PGRES_COMMAND_OK, NULL) ||
        !run(b, text("insert into item values (%d, 2, 'kept %d')", n + 1, n + 1), PGRES_COMMAND_OK, NULL) ||
        !run(a, "select 1 / 0", PGRES_FATAL_ERROR, "22012") || !run(a, "select 1", PGRES_FATAL_ERROR, "25P02") ||
        !run(b, "commit", PGRES_COMMAND_OK, NULL) || !run(a, "rollback", PGRES_COMMAND_OK, NULL) ||
        !ask(b, text("select count(*) from item where conn = %d", n), "0") ||
        !ask(a, text("select v from item where conn = %d", n + 1), text("kept %d", n + 1)))
      return false;
  }
  return true;
}

static bool copy_in(PGconn* c, const char* lines, int size) {
  if (!sent(c, PQsendQuery(c, "copy bulk from stdin")) || !status(c, PGRES_COPY_IN, NULL)) return false;
  for (int at = 0; at < size; at += 1000)  // many small CopyData
    if (PQputCopyData(c, lines + at, size - at < 1000 ? size - at : 1000) != 1) return fail("%s", PQerrorMessage(c));
  return PQputCopyEnd(c, NULL) == 1 || fail("%s", PQerrorMessage(c));
}

static bool copy(PGconn** c) {
  char *lines = malloc(kCopied * 40), *back = malloc(kCopied * 40);
  bool ok = true;
  for (int n = 0; ok && n < kConnections; ++n) {
    int size = 0, got = 0, piece;
    for (int i = 0; i < kCopied; ++i) size += sprintf(lines + size, "%d\t%d\tvalue %d of %d\n", n, i, i, n);
    ok = copy_in(c[n], lines, size) && status(c[n], PGRES_COMMAND_OK, NULL) && end(c[n]) &&
         sent(c[n], PQsendQuery(c[n], text("copy (select * from bulk where conn = %d order by i) to stdout", n))) &&
         status(c[n], PGRES_COPY_OUT, NULL);
    for (char* data; ok && (piece = PQgetCopyData(c[n], &data, 0)) > 0; PQfreemem(data)) {
      ok = got + piece <= size || fail("too much came back");
      if (ok) memcpy(back + got, data, piece);
      got += piece;
    }
    ok = ok && status(c[n], PGRES_COMMAND_OK, NULL) && end(c[n]);
    if (ok && (got != size || memcmp(lines, back, size))) ok = fail("what came back of COPY differs");
    ok = ok && copy_in(c[n], "no number\t1\tx\n", 14) && status(c[n], PGRES_FATAL_ERROR, "22P02") && end(c[n]) &&
         ask(c[n], text("select 'after %d'", n), text("after %d", n));
  }
  free(lines);
  free(back);
  return ok;
}

// How often the query runs.
static int active(PGconn* watcher, const char* sql) {
  PGresult* r =
      PQexec(watcher, text("select count(*) from pg_stat_activity where state = 'active' and query = '%s'", sql));
  int count = PQresultStatus(r) == PGRES_TUPLES_OK ? atoi(PQgetvalue(r, 0, 0)) : -1;
  if (count < 0) fail("%s", PQerrorMessage(watcher));
  PQclear(r);
  return count;
}

static bool cancel(PGconn** c) {
  const char* sleeps[] = {"select pg_sleep(600) as endless_0", "select pg_sleep(600) as endless_1"};
  for (int n = 0; n < 2; ++n)
    if (!sent(c[n], PQsendQuery(c[n], sleeps[n]))) return false;
  for (int n = 0; n < 2; ++n)
    for (int count; (count = active(c[2], sleeps[n])) != 1; usleep(10000))
      if (count < 0) return false;
  for (int n = 0; n < 2; ++n) {
    char error[256];
    PGcancel* key = PQgetCancel(c[n]);
    bool ok = PQcancel(key, error, sizeof error) || fail("cancel: %s", error);
    PQfreeCancel(key);
    if (!ok || !status(c[n], PGRES_FATAL_ERROR, "57014") || !end(c[n]) ||
        !ask(c[n], text("select 'alive %d'", n), text("alive %d", n)) || (active(c[2], sleeps[1]) == 0) != n)
      return false;
  }
  return true;
}

static bool big(PGconn** c) {
  char* value = malloc(kBig + 1);
  for (int i = 0; i < kBig; ++i) value[i] = 'a' + i % 8;
  value[kBig] = 0;
  const char* values[] = {value};
  bool ok = sent(c[0], PQsendQuery(c[0], text("select i from generate_series(1, %d) i", kRows))) &&
            sent(c[0], PQsetSingleRowMode(c[0])) &&
            sent(c[1], PQsendQueryParams(c[1], "select $1::text", 1, NULL, values, NULL, NULL, 0));
  for (int i = 1; ok && i <= kRows; ++i) {
    PGresult* r = PQgetResult(c[0]);
    ok = r && PQresultStatus(r) == PGRES_SINGLE_TUPLE && atoi(PQgetvalue(r, 0, 0)) == i;
    if (!ok) fail("row %d: %s", i, PQerrorMessage(c[0]));
    PQclear(r);
  }
  ok = ok && status(c[0], PGRES_TUPLES_OK, NULL) && end(c[0]) && row(c[1], value, NULL) && end(c[1]);
  free(value);
  return ok && ask(c[0], "select 'after 0'", "after 0") && ask(c[1], "select 'after 1'", "after 1");
}

// What a pipeline of `count` prepared queries has to answer, then its Sync.
static bool answers(PGconn* c, int n, int count) {
  for (int i = 0; i < count; ++i)
    if (!row(c, text("%d", n), text("%d", i), NULL) || !end(c)) return false;
  return status(c, PGRES_PIPELINE_SYNC, NULL);
}

static bool send_prepared(PGconn* c, int i) {
  const char* values[] = {text("%d", i)};
  return sent(c, PQsendQueryPrepared(c, "piped", 1, values, NULL, NULL, 0));
}

static bool pipeline(PGconn** c) {
  for (int n = 0; n < kConnections; ++n)
    if (!sent(c[n], PQenterPipelineMode(c[n]))) return false;
  for (int round = 0; round < 5; ++round) {
    for (int n = 0; n < kConnections; ++n) {
      const char* again[] = {"0"};
      // Three Syncs on their way at once. 1: prepare (once) and use; 2: with an error in the middle; 3: as if nothing
      // was.
      if (round == 0 && !sent(c[n], PQsendPrepare(c[n], "piped", text("select %d, $1::int", n), 0, NULL))) return false;
      for (int i = 0; i < 20; ++i)
        if (!send_prepared(c[n], i)) return false;
      if (!sent(c[n], PQpipelineSync(c[n])) || !send_prepared(c[n], 0) ||
          !sent(c[n], PQsendQueryParams(c[n], "select 1 / $1::int", 1, NULL, again, NULL, NULL, 0)) ||
          !send_prepared(c[n], 1) || !sent(c[n], PQsendPrepare(c[n], text("never %d", round), "select 1", 0, NULL)) ||
          !sent(c[n], PQpipelineSync(c[n])))
        return false;
      for (int i = 0; i < 20; ++i)
        if (!send_prepared(c[n], i)) return false;
      if (!sent(c[n], PQpipelineSync(c[n])) || !sent(c[n], PQflush(c[n]) == 0)) return false;
    }
    for (int n = 0; n < kConnections; ++n) {
      if (round == 0 && (!status(c[n], PGRES_COMMAND_OK, NULL) || !end(c[n]))) return false;
      if (!answers(c[n], n, 20) || !row(c[n], text("%d", n), "0", NULL) || !end(c[n]) ||
          !status(c[n], PGRES_FATAL_ERROR, "22012") || !end(c[n]) || !status(c[n], PGRES_PIPELINE_ABORTED, NULL) ||
          !end(c[n]) || !status(c[n], PGRES_PIPELINE_ABORTED, NULL) || !end(c[n]) ||
          !status(c[n], PGRES_PIPELINE_SYNC, NULL) || !answers(c[n], n, 20))
        return false;
    }
  }
  // A statement whose Parse was skipped can be prepared now.
  for (int n = 0; n < kConnections; ++n)
    if (!sent(c[n], PQsendPrepare(c[n], "never 0", "select 'now'", 0, NULL)) ||
        !sent(c[n], PQsendQueryPrepared(c[n], "never 0", 0, NULL, NULL, NULL, 0)) ||
        !sent(c[n], PQpipelineSync(c[n])) || !status(c[n], PGRES_COMMAND_OK, NULL) || !end(c[n]) ||
        !row(c[n], "now", NULL) || !end(c[n]) || !status(c[n], PGRES_PIPELINE_SYNC, NULL))
      return false;
  return true;
}

static const struct {
  const char* name;
  bool (*run)(PGconn**);
} kSteps[] = {{"simple", simple}, {"prepared", prepared}, {"transaction", transaction}, {"copy", copy},
              {"cancel", cancel}, {"big", big},           {"pipeline", pipeline}};

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  url = argv[1];
  statement_mode = strcmp(argv[2], "statement") == 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("# libpq %d.%d\n", PQlibVersion() / 10000, PQlibVersion() % 10000);
  bool failed = false;
  for (size_t i = 0; i < sizeof kSteps / sizeof kSteps[0]; ++i) {
    PGconn* c[kConnections] = {0};
    reason[0] = 0;
    if (open_all(c, kConnections) && kSteps[i].run(c))
      printf("ok %s\n", kSteps[i].name);
    else {
      failed = true;
      printf("FAIL %s %s\n", kSteps[i].name, reason);
    }
    close_all(c, kConnections);
  }
  return failed;
}
